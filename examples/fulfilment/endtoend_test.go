//go:build !race

package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lanebox/lanebox/examples/fulfilment/internal/database"
	"github.com/lanebox/lanebox/examples/fulfilment/orders"
	"github.com/lanebox/lanebox/examples/fulfilment/warehouse"
	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/ordertest"
	"github.com/lanebox/lanebox/runtime/storetest/testpg"
	"github.com/lanebox/lanebox/runtime/transporttest/testrabbit"
)

// A killable broker stands between the services.
type killable struct {
	carrier carrier
	kill    func()
	start   func(t testing.TB)
}

// killables are the brokers that the end-to-end test goes through, and the
// warehouse's database in each case.
var killables = []struct {
	name     string
	database func(t *testing.T) string
	start    func(t *testing.T) killable
}{
	{"RabbitMQ to SQLite", sqliteFile, func(t *testing.T) killable {
		n := testrabbit.Private(t)
		r := testRabbitMQ(n.URL(), 8)
		kill := func() {
			// RabbitMQ 3.10 writes the list of its quorum queues some time after their
			// declaration; a kill before that leaves a queue without a log and without a
			// leader, for ever. That is its own matter.
			if out, err := n.Control(t.Context(), "eval", "[dets:sync(T) || T <- dets:all()]."); err != nil {
				t.Errorf("%v: %s", err, out)
			}
			n.Kill()
		}
		return killable{carrier{RabbitMQ: &r}, kill, func(t testing.TB) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			if err := n.Start(ctx); err != nil {
				t.Fatal(err)
			}
		}}
	}},
	{"NATS to PostgreSQL", func(t *testing.T) string { return testpg.URL(t) }, func(t *testing.T) killable {
		n := startNode(t, "nats")
		return killable{carrier{NATS: &NATS{"nats://" + n.address}}, func() { n.child.kill() }, n.start}
	}},
	// The cluster is franz-go's kfake, which keeps its files.
	{"Kafka to SQLite", sqliteFile, func(t *testing.T) killable {
		n := startNode(t, "kafka")
		return killable{carrier{Kafka: &kafkaCarrier{n.address, kafkaTopic}}, func() { n.child.kill() }, n.start}
	}},
}

func sqliteFile(t *testing.T) string { return filepath.Join(t.TempDir(), "warehouse.db") }

// Orders go from PostgreSQL over a broker to the warehouse in another process,
// while processes on both sides, and the broker, are killed with SIGKILL at random
// moments. The warehouse's journal, written by its handler in its own transaction,
// holds every message once and in the order of commits per order, and the handler
// had to refuse nothing: what the broker repeated the inbox has dropped.
func TestKilledServicesAndBrokersKeepThePromise(t *testing.T) {
	for i, broker := range killables {
		t.Run(broker.name, func(t *testing.T) {
			if !full() {
				t.Parallel() // most of it is waiting for the leases of the dead
			}
			b := broker.start(t)
			w := newWorld(t, b.carrier, broker.database(t), 2, 2, uint64(i+1))
			w.broker = &b
			w.keys, w.each, w.kills, w.brokerKills = 200, 50, 6, 1
			if full() {
				w.keys, w.each, w.kills, w.brokerKills = 1000, 100, 40, 5
			}
			w.run()
		})
	}
}

// full reports whether tests run in full length, as make crash has them.
func full() bool { return os.Getenv("LANEBOX_TEST_FULL") != "" }

// A world is the two services in several processes each, and a broker.
type world struct {
	t       *testing.T
	random  *rand.Rand
	carrier carrier
	broker  *killable // nil: it is left alone

	ordersDB, stockDB string
	orders, stock     database.DB
	service           *orders.Service // publishes, and delivers nothing
	notes             string

	keys, each         int // orders, and messages of each
	kills, brokerKills int
	changes            int // how often a receiver comes or goes

	senders, receivers []*child // nil: away
	// deaths, stops and restarts count services that were killed and that were
	// stopped, and brokers that were killed.
	deaths, stops, restarts int
}

// newWorld makes the databases of both services. seed decides what is killed when.
func newWorld(t *testing.T, c carrier, stockDB string, senders, receivers int, seed uint64) *world {
	t.Helper()
	w := &world{
		t: t, random: rand.New(rand.NewPCG(seed, 11)), carrier: c, ordersDB: testpg.URL(t), stockDB: stockDB, notes: t.TempDir(),
		senders: make([]*child, senders), receivers: make([]*child, receivers),
	}
	open := func(name string) database.DB {
		db, err := database.Open(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(db.Close)
		return db
	}
	w.orders, w.stock = open(w.ordersDB), open(stockDB)
	var err error
	if w.service, err = orders.New(t.Context(), w.orders, orders.Config{Warehouse: nowhere{}, Logger: quiet()}); err != nil {
		t.Fatal(err)
	}
	if _, err := warehouse.New(t.Context(), w.stock, warehouse.Config{Orders: nowhere{}, Logger: quiet()}); err != nil {
		t.Fatal(err)
	}
	return w
}

// nowhere is the destination or source of a service that does not run.
type nowhere struct{}

func (nowhere) Send(context.Context, event.Message) error { return errors.New("this goes nowhere") }

func (nowhere) Run(context.Context, *inbox.Receiver) error {
	return errors.New("nothing comes from here")
}

func (w *world) startSender(i int) {
	w.senders[i], _ = play(w.t, part{Role: "orders", Database: w.ordersDB, Carrier: w.carrier})
}

func (w *world) startReceiver(i int) {
	w.receivers[i], _ = play(w.t, part{Role: "warehouse", Database: w.stockDB, Carrier: w.carrier, Dir: w.notes})
}

// run publishes everything while processes come and go, and judges.
func (w *world) run() {
	t := w.t
	began := time.Now()
	for i := range w.senders {
		w.startSender(i)
	}
	for i := range w.receivers {
		w.startReceiver(i)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var writers sync.WaitGroup
	handled := new(atomic.Int64)
	for i := range writerCount {
		writers.Go(func() { w.write(ctx, i, handled) })
	}
	defer writers.Wait()
	defer stop()
	for _, a := range w.plan() {
		w.reach(a.at, handled)
		a.do()
	}
	w.reach(w.total(), handled)
	writers.Wait()
	took := time.Since(began)
	eventually(t, "the outbox and the inbox to be empty", func() bool {
		return count(t, w.orders, `SELECT count(*) FROM orders_outbox`)+count(t, w.stock, `SELECT count(*) FROM warehouse_inbox`) == 0
	})
	for _, c := range w.running() {
		if err := c.stop(); err != nil {
			t.Errorf("a service did not end well: %v", err)
		}
	}
	w.judge(took)
}

// running returns the processes of both services.
func (w *world) running() []*child {
	return slices.DeleteFunc(slices.Concat(w.senders, w.receivers), func(c *child) bool { return c == nil })
}

func (w *world) total() int { return w.keys * w.each }

// reach waits until the warehouse has handled n messages.
func (w *world) reach(n int, handled *atomic.Int64) {
	w.t.Helper()
	last, moved := -1, time.Now()
	for {
		now := count(w.t, w.stock, `SELECT count(*) FROM journal`)
		handled.Store(int64(now))
		if now >= n {
			return
		}
		if now > last {
			last, moved = now, time.Now()
		}
		for _, c := range w.running() {
			if err := c.failure(); err != nil {
				w.t.Fatalf("a service ended by itself: %v", err)
			}
		}
		if time.Since(moved) > 2*time.Minute {
			w.t.Fatalf("nothing moves any more: %d of %d messages are handled, %d wait in the outbox (%d parked), %d in the inbox (%d parked)", now, w.total(),
				count(w.t, w.orders, `SELECT count(*) FROM orders_outbox`), count(w.t, w.orders, `SELECT count(*) FROM orders_lane_hold WHERE parked`),
				count(w.t, w.stock, `SELECT count(*) FROM warehouse_inbox`), count(w.t, w.stock, `SELECT count(*) FROM warehouse_lane_hold WHERE parked = true`))
		}
		sleep(w.t.Context(), 20*time.Millisecond)
	}
}

const (
	writerCount = 8
	// window is how far the writers may be ahead of the warehouse, so that all parts
	// are at work until the end.
	window = 4000
)

// write commits the messages of every writerCount-th order, one transaction each,
// in random order of the orders.
func (w *world) write(ctx context.Context, writer int, handled *atomic.Int64) {
	random := rand.New(rand.NewPCG(uint64(writer), 12))
	var open []int
	for k := writer; k < w.keys; k += writerCount {
		open = append(open, k)
	}
	done := map[int]int64{}
	for n := 0; len(open) > 0; n++ {
		for int64(n*writerCount)-handled.Load() > window {
			if sleep(ctx, 5*time.Millisecond) != nil {
				return
			}
		}
		i := random.IntN(len(open))
		k := open[i]
		done[k]++
		if err := w.commit(ctx, k, done[k]); err != nil {
			if ctx.Err() == nil {
				w.t.Errorf("order %d, message %d: %v", k, done[k], err)
			}
			return
		}
		if int(done[k]) == w.each {
			open = slices.Delete(open, i, i+1)
		}
	}
}

// commit changes an order for the n-th time; n is in the message.
func (w *world) commit(ctx context.Context, k int, n int64) error {
	id := orderID(k)
	switch n {
	case 1:
		return w.service.Place(ctx, id, 1)
	case int64(w.each):
		return w.service.Ship(ctx, id, fmt.Sprint(n))
	}
	return w.service.Change(ctx, id, int32(n))
}

func orderID(k int) string { return fmt.Sprintf("order-%d", k) }

// An action is done when the warehouse has handled a number of messages.
type action struct {
	at int
	do func()
}

// plan decides what happens when.
func (w *world) plan() []action {
	var all []action
	for range w.kills {
		all = append(all, action{do: w.killSomebody})
	}
	for range w.brokerKills {
		all = append(all, action{do: w.killBroker})
	}
	for range w.changes {
		all = append(all, action{do: w.comeOrGo})
	}
	w.random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	moments := make([]int, len(all))
	for i := range moments {
		moments[i] = w.total()/50 + w.random.IntN(w.total()*9/10)
	}
	slices.Sort(moments)
	for i := range all {
		all[i].at = moments[i]
	}
	return all
}

// killSomebody kills a process of either side and starts another one.
func (w *world) killSomebody() {
	w.deaths++
	if i := w.random.IntN(len(w.senders) + len(w.receivers)); i < len(w.senders) {
		w.senders[i].kill()
		w.startSender(i)
	} else {
		w.receivers[i-len(w.senders)].kill()
		w.startReceiver(i - len(w.senders))
	}
}

func (w *world) killBroker() {
	w.restarts++
	w.broker.kill()
	w.broker.start(w.t)
}

// judge compares the warehouse's journal with what was committed.
func (w *world) judge(took time.Duration) {
	t := w.t
	checker := ordertest.New()
	for k := range w.keys {
		for n := range w.each {
			checker.Published(orderID(k), messageID(orderID(k), fmt.Sprint(n+1)))
		}
	}
	versions := map[string]int64{}
	err := w.stock.Each(t.Context(), `SELECT order_id, version, what FROM journal ORDER BY order_id, position`, func(scan func(...any) error) error {
		var id, what string
		var version int64
		if err := scan(&id, &version, &what); err != nil {
			return err
		}
		_, number, _ := strings.Cut(what, " ")
		checker.Begin("warehouse", event.Message{ID: messageID(id, number), Key: id, Sequence: version})(1)
		if versions[id]++; versions[id] != version {
			return fmt.Errorf("entry %d of %s has version %d", versions[id], id, version)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	report := checker.Report()
	if err := report.Err(); err != nil {
		t.Error(err)
	}
	if report.Published != w.total() || report.Delivered != w.total() || report.Starts != w.total() {
		t.Errorf("%d committed, %d handled, %d entries in the journal; want %d", report.Published, report.Delivered, report.Starts, w.total())
	}
	if n := count(t, w.stock, `SELECT count(DISTINCT message) FROM journal`); n != w.total() {
		t.Errorf("the messages have %d ids, want %d", n, w.total())
	}
	if n := count(t, w.stock, `SELECT count(*) FROM warehouse_inbox_receipt`); n != w.total() {
		t.Errorf("%d receipts, want %d", n, w.total())
	}
	if n := count(t, w.orders, `SELECT count(*) FROM orders_outbox_dead`) + count(t, w.stock, `SELECT count(*) FROM warehouse_inbox_dead`); n != 0 {
		t.Errorf("%d messages are dead", n)
	}
	if text, err := os.ReadFile(filepath.Join(w.notes, refusalsFile)); err != nil || len(text) > 0 {
		t.Errorf("the handler refused (%v):\n%.500s", err, text)
	}
	s := w.counts()
	if s.Disordered != 0 {
		t.Errorf("%d messages came too late to be put right", s.Disordered)
	}
	t.Logf("%d messages over %d orders in %.1f s (%.0f/s), %d services killed, %d stopped, %d brokers killed: %d repeats dropped by the inbox, %d redelivered, %d put right, %d reconnects",
		w.total(), w.keys, took.Seconds(), float64(w.total())/took.Seconds(), w.deaths, w.stops, w.restarts, s.Duplicates, s.Redelivered, s.Reordered, s.Reconnects)
}

// counts adds up what the sources have counted; the last tenth of a second of
// those that were killed is missing.
func (w *world) counts() (sum inbox.SourceStats) {
	files, err := filepath.Glob(filepath.Join(w.notes, countsFiles+"*[0-9]"))
	if err != nil || len(files) == 0 {
		w.t.Fatalf("no source has counted: %v", err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			w.t.Fatal(err)
		}
		var s inbox.SourceStats
		if err := json.Unmarshal(text, &s); err != nil {
			w.t.Fatal(err)
		}
		sum.Stored += s.Stored
		sum.Duplicates += s.Duplicates
		sum.Buried += s.Buried
		sum.Redelivered += s.Redelivered
		sum.Reordered += s.Reordered
		sum.Disordered += s.Disordered
		sum.Wandered += s.Wandered
		sum.Failures += s.Failures
		sum.Reconnects += s.Reconnects
	}
	return sum
}

// messageID makes an id of what a message says, so that no part of the way decides
// which message it is.
func messageID(order, number string) (id event.UUID) {
	sum := sha256.Sum256([]byte(order + " " + number))
	copy(id[:], sum[:])
	return id
}

func count(t testing.TB, db database.DB, query string) (n int) {
	t.Helper()
	if err := db.Scan(t.Context(), query, &n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}
