package reference

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/lanebox/lanebox/examples/reference/internal/events"
	"github.com/lanebox/lanebox/examples/reference/internal/events/sqlite"
	"github.com/lanebox/lanebox/runtime/engine"
	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/outbox"
	sqlitestore "github.com/lanebox/lanebox/runtime/sqlstore/sqlite"
	"github.com/lanebox/lanebox/runtime/transport/handler"
	"github.com/lanebox/lanebox/runtime/transport/webhook"
)

// Where a process is to die of a message; it dies there once per message.
const (
	dieInReceipt = "receipt" // before the message is stored
	dieInAnswer  = "answer"  // after the message was stored, before the sender hears of it
	dieInHandler = "handler" // after the effect was written, before the transaction ends
	dieInMapping = "mapping" // in the transaction that moves the message to the outbox
)

// dieHeader says where in a request the process dies.
const dieHeader = "X-Die"

// A notice is the body of every message that the inbox's crash test sends.
type notice struct {
	EventID   string `json:"eventId,omitempty"` // source orders
	OrderID   string `json:"orderId,omitempty"`
	Shop      string `json:"shop,omitempty"` // source returns
	ID        string `json:"id,omitempty"`   // sources returns and payments
	PaymentID string `json:"payment_id,omitempty"`
	Order     *struct {
		ID string `json:"id"`
	} `json:"order,omitempty"`
	Type string `json:"type"`
	// Reason is the number of the message, whatever became of it on its way. It
	// is the field of order.cancelled.v1, as order_id is.
	Reason string `json:"reason"`
	Key    string `json:"order_id"`
	Die    string `json:"die,omitempty"`
}

// A mortal dies where messages tell it to.
type mortal struct{ dir string }

// die ends the process at once, the first time that it is called with id.
func (m mortal) die(id string) {
	mark, err := os.OpenFile(filepath.Join(m.dir, id), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return
	}
	mark.Close()
	syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// dieOf dies if the payload says so for this place.
func (m mortal) dieOf(payload []byte, place string) error {
	var n notice
	if err := json.Unmarshal(payload, &n); err != nil {
		return event.AsPermanent(err)
	}
	if n.Die == place {
		m.die(n.Reason)
	}
	return nil
}

// serve serves h and dies within requests.
func (m mortal) serve(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		place, id, _ := strings.Cut(r.Header.Get(dieHeader), " ")
		switch place {
		case dieInReceipt:
			m.die(id)
		case dieInAnswer:
			w = &lastWords{ResponseWriter: w, die: func() { m.die(id) }}
		}
		h.ServeHTTP(w, r)
	})
}

// lastWords dies instead of giving a good answer.
type lastWords struct {
	http.ResponseWriter
	die func()
}

func (w *lastWords) WriteHeader(status int) {
	if status < 300 {
		w.die()
	}
	w.ResponseWriter.WriteHeader(status)
}

// payments handles source payments; it notes every message in its transaction.
type payments[Tx any] struct {
	mortal
	note func(ctx context.Context, tx Tx, key, id string) error
}

func (p payments[Tx]) OrderCancelled(ctx context.Context, tx Tx, m inbox.Message[events.OrderCancelled]) error {
	if err := p.note(ctx, tx, m.Raw.Key, m.Event.Reason); err != nil {
		return err
	}
	return p.dieOf(m.Raw.Payload, dieInHandler)
}

func (p payments[Tx]) PaymentCaptured(context.Context, Tx, inbox.Message[events.PaymentCaptured]) error {
	return errors.New("nobody sends this")
}

// mapReturn makes an event of a message of source returns.
func (m mortal) mapReturn(r inbox.Raw) ([]events.Event, error) {
	var n notice
	if err := json.Unmarshal(r.Payload, &n); err != nil {
		return nil, event.AsPermanent(err)
	}
	if err := m.dieOf(r.Payload, dieInMapping); err != nil {
		return nil, err
	}
	return []events.Event{events.OrderCancelled{OrderID: events.NewOrderID(n.Key), Reason: n.Reason}}, nil
}

// playInbox runs the whole service on either database. It prints the URL of its
// receiver, and its owner when it has leased something.
func playInbox(ctx context.Context) error {
	target, dir, _ := strings.Cut(os.Getenv(targetEnv), " ")
	m := mortal{dir}
	warehouse, err := webhook.NewDestination(nil, webhook.Options{URL: target})
	if err != nil {
		return err
	}
	box, closeDatabase, err := inboxService(ctx, os.Getenv(databaseEnv), m, warehouse)
	if err != nil {
		return err
	}
	defer closeDatabase()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go http.Serve(listener, m.serve(box.Receiver()))
	fmt.Println("http://" + listener.Addr().String())
	return box.Run(ctx)
}

type service interface {
	Receiver() http.Handler
	Run(ctx context.Context) error
}

// inboxService builds the service.
func inboxService(ctx context.Context, database string, m mortal, warehouse outbox.Destination) (service, func(), error) {
	var once sync.Once
	observer := func(e engine.Event) { once.Do(func() { fmt.Println(e.Owner) }) }
	if !strings.Contains(database, "://") {
		db, err := sqlitestore.Open(database)
		if err != nil {
			return nil, nil, err
		}
		box, err := sqlite.New(db, sqlite.Config{
			Warehouse: warehouse, Ledger: idle, Mail: idle, Search: idle,
			OrdersVerifier: webhook.Unsigned(), PaymentsVerifier: webhook.Unsigned(), ReturnsVerifier: webhook.Unsigned(),
			Payments: payments[*sql.Tx]{mortal: m, note: func(ctx context.Context, tx *sql.Tx, key, id string) error {
				_, err := tx.ExecContext(ctx, `INSERT INTO effect (key, message) VALUES ($1, $2)`, key, id)
				return err
			}},
			Stock:      nothing[*sql.Tx]{},
			ReturnsMap: func(_ context.Context, _ *sql.Tx, r inbox.Raw) ([]events.Event, error) { return m.mapReturn(r) },
			Logger:     slog.New(slog.DiscardHandler),
			Observer:   observer, PollInterval: 100 * time.Millisecond,
		})
		return box, func() { db.Close() }, err
	}
	return dialectOf(database).service(ctx, database, parts{warehouse: warehouse, mortal: &m, observer: observer})
}

var idle = handler.NewDestination(func(context.Context, event.Message) error { return nil })

// Processes that receive, move and handle messages are killed with SIGKILL:
// before a message is stored, between its commit and the answer, inside the
// transaction of a handler, inside the one that moves messages to the outbox, and
// at any moment. Every message that was accepted is stored once, leaves in the
// order of the commits per aggregate (over all push sources together, or of one
// pull source), goes into the outbox once, and has its effect once.
func TestKilledReceiversRelaysAndWorkersKeepThePromise(t *testing.T) {
	eachDialect(t, func(t *testing.T, d dialect) {
		tr := d.newTrader(t, 2)
		crashInbox(t, tr.url, tr.db, d.inboxCrashes, tr.effect, tr.now)
	})
	t.Run("SQLite", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "inbox.db")
		db, err := sqlitestore.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.Close() })
		if _, err := sqlite.Migrate(t.Context(), db); err != nil {
			t.Fatal(err)
		}
		crashInbox(t, file, db, 10, `CREATE TABLE effect (n INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL, message TEXT NOT NULL)`, sqliteNow)
	})
}

const (
	crashClients    = 6
	crashAggregates = 8 // of each client
	crashReplicas   = 3
	crashRound      = 36 // messages between two kills
)

// crashInbox runs the test on one database.
func crashInbox(t *testing.T, database string, db *sql.DB, kills int, effectTable, now string) {
	ctx := t.Context()
	if _, err := db.ExecContext(ctx, effectTable); err != nil {
		t.Fatal(err)
	}
	warehouse := &warehouseLedger{t: t, inFlight: map[string]bool{}, id: map[string]string{}, first: map[string][]string{}}
	sink := httptest.NewServer(warehouse)
	defer sink.Close()
	crew := &crew{t: t, database: database, target: sink.URL + " " + t.TempDir(), db: db, now: now}
	for i := range crew.members {
		crew.start(i)
	}

	work := make(chan notice)
	var senders sync.WaitGroup
	clients := make([]*client, crashClients)
	for i := range clients {
		clients[i] = &client{t: t, crew: crew, number: i, work: work, push: map[string][]string{}, pull: map[string][]string{}}
		senders.Go(clients[i].run)
	}
	hurt := []string{dieInAnswer, dieInHandler, dieInMapping, "", dieInReceipt}
	for k := range kills {
		before, die := crew.deaths, hurt[k%len(hurt)]
		for i := range crashRound {
			n := notice{Reason: fmt.Sprintf("%d-%d", k, i)}
			if i == crashRound/2 {
				if n.Die = die; die == "" {
					crew.members[k%crashReplicas].child.kill()
				}
			}
			for sent := false; !sent; crew.replace() {
				select {
				case work <- n:
					sent = true
				case <-time.After(time.Millisecond):
				}
			}
		}
		eventually(t, patience, "a death: "+die, func() bool { crew.replace(); return crew.deaths > before })
	}
	close(work)
	senders.Wait()
	eventually(t, patience, "everything to leave", func() bool {
		crew.replace()
		return crew.count(`SELECT (SELECT count(*) FROM inbox) + (SELECT count(*) FROM outbox)`) == 0
	})
	for i := range crew.members {
		crew.members[i].child.stop()
	}
	crew.judge(clients, warehouse, kills)
}

// A warehouseLedger receives what the service sends to the warehouse.
type warehouseLedger struct {
	t  *testing.T
	mu sync.Mutex
	// inFlight has the keys whose requests are being answered, id the message id
	// of every number, first the numbers of every key in the order of their first
	// deliveries.
	inFlight map[string]bool
	id       map[string]string
	first    map[string][]string
}

func (l *warehouseLedger) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	var n notice
	if err := json.NewDecoder(r.Body).Decode(&n); err != nil {
		l.t.Errorf("the warehouse cannot read a message: %v", err)
		return
	}
	key, id := r.Header.Get("ce-partitionkey"), r.Header.Get("ce-id")
	l.mu.Lock()
	if l.inFlight[key] {
		l.t.Errorf("two messages of %s are in flight", key)
	}
	l.inFlight[key] = true
	if known, ok := l.id[n.Reason]; !ok {
		l.id[n.Reason] = id
		l.first[key] = append(l.first[key], n.Reason)
	} else if known != id {
		l.t.Errorf("message %s went into the outbox twice: as %s and as %s", n.Reason, known, id)
	}
	l.mu.Unlock()
	time.Sleep(time.Millisecond)
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.inFlight, key)
}

// A crew is the processes of the service.
type crew struct {
	t                *testing.T
	database, target string
	db               *sql.DB
	now              string
	members          [crashReplicas]member
	deaths           int
	swept            time.Time
}

type member struct {
	child *child
	url   atomic.Value // string
	owner atomic.Value // string; set when it has leased something
}

// start fills a place with a new process.
func (c *crew) start(i int) {
	m := &c.members[i]
	child := play(c.t, "inbox", c.database, c.target)
	m.child = child
	m.url.Store(child.line(c.t))
	m.owner.Store("")
	go func() {
		if line, err := child.stdout.ReadString('\n'); err == nil {
			m.owner.CompareAndSwap("", strings.TrimSpace(line))
			io.Copy(io.Discard, child.stdout)
		}
	}()
}

// replace starts a process for every one that died, and now and then ends the
// leases of the dead, so that the test need not wait for that.
func (c *crew) replace() {
	for i := range c.members {
		m := &c.members[i]
		select {
		case <-m.child.exited:
			c.deaths++
			c.start(i)
		default:
		}
	}
	if time.Since(c.swept) > 200*time.Millisecond {
		c.swept = time.Now()
		c.sweep()
	}
}

// sweep ends the leases and heartbeats of processes that are not known to live.
// One that has just leased something and could not name its owner yet loses it,
// which does no harm: what it does with it is fenced. Leases of the warehouse end
// by themselves, since nothing fences a request of the dead that is still running.
func (c *crew) sweep() {
	living := []string{"''"}
	for i := range c.members {
		living = append(living, "'"+c.members[i].owner.Load().(string)+"'")
	}
	// A claim may be in the way; the next sweep comes soon.
	c.db.Exec(fmt.Sprintf(`UPDATE lane_bucket SET lease_until = %[1]s WHERE owner NOT IN (%[2]s) AND lease_until > %[1]s AND scope <> %[3]d`,
		c.now, strings.Join(living, ", "), events.WarehouseDestination))
	c.db.Exec(fmt.Sprintf(`DELETE FROM lane_owner WHERE owner NOT IN (%s)`, strings.Join(living, ", ")))
}

func (c *crew) count(query string) (n int) {
	if err := c.db.QueryRow(query).Scan(&n); err != nil {
		c.t.Fatal(err)
	}
	return n
}

// judge compares the ledgers.
func (c *crew) judge(clients []*client, warehouse *warehouseLedger, kills int) {
	t := c.t
	effects := map[string][]string{}
	rows, err := c.db.Query(`SELECT "key", message FROM effect ORDER BY n`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var key, id string
		if err := rows.Scan(&key, &id); err != nil {
			t.Fatal(err)
		}
		effects[key] = append(effects[key], id)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	warehouse.mu.Lock() // a repeated request may still come
	defer warehouse.mu.Unlock()
	accepted, repeated := 0, 0
	for _, client := range clients {
		repeated += client.repeated
		for key, want := range client.push {
			accepted += len(want)
			if got := warehouse.first[key]; !slices.Equal(got, want) {
				t.Errorf("the warehouse got of %s\n     %v\nwant %v", key, got, want)
			}
		}
		for key, want := range client.pull {
			accepted += len(want)
			if got := effects[key]; !slices.Equal(got, want) {
				t.Errorf("the effects of %s are\n     %v\nwant %v", key, got, want)
			}
		}
	}
	if want := kills * crashRound; accepted != want {
		t.Errorf("%d messages were accepted, want %d", accepted, want)
	}
	if n := c.count(`SELECT count(*) FROM inbox_receipt`); n != accepted {
		t.Errorf("%d receipts for %d messages", n, accepted)
	}
	if n := c.count(`SELECT (SELECT count(*) FROM inbox_dead) + (SELECT count(*) FROM outbox_dead)`); n != 0 {
		t.Errorf("%d messages are dead", n)
	}
	if want := (kills + 4) / 5; repeated < want {
		t.Errorf("%d answers said that the message was stored before, want at least %d: one for each death between commit and answer", repeated, want)
	}
	t.Logf("%d messages, %d deaths, %d repeated requests", accepted, c.deaths, repeated)
}

// A client sends messages for aggregates of its own, one after the other, so that
// the order of its requests is the order of their commits.
type client struct {
	t      *testing.T
	crew   *crew
	number int
	work   <-chan notice
	http   http.Client
	// push and pull are the numbers that were accepted, in order, by aggregate.
	push, pull map[string][]string
	repeated   int
}

func (c *client) run() {
	defer c.http.CloseIdleConnections()
	c.http.Transport = &http.Transport{}
	c.http.Timeout = 5 * time.Second
	for i := 0; ; i++ {
		n, ok := <-c.work
		if !ok {
			return
		}
		n.Key = fmt.Sprintf("aggregate-%d-%d", c.number, i%crashAggregates)
		source, ledger := i/crashAggregates%3, c.push
		switch n.Die {
		case dieInMapping:
			source = 1
		case dieInHandler:
			source = 2
		}
		path := [...]string{"/orders", "/returns", "/payments"}[source]
		switch source {
		case 0:
			n.EventID, n.OrderID, n.Type = n.Reason, n.Key, "order.cancelled.v1"
		case 1:
			n.Shop, n.ID, n.Type = "shop", n.Reason, "return.accepted"
			n.Order = &struct {
				ID string `json:"id"`
			}{n.Key}
		case 2:
			n.ID, n.PaymentID, n.Type, ledger = n.Reason, n.Key, "order.cancelled.v1", c.pull
		}
		if c.send(path, n) {
			ledger[n.Key] = append(ledger[n.Key], n.Reason)
		}
	}
}

// send sends one message until it is accepted.
func (c *client) send(path string, n notice) bool {
	body, err := json.Marshal(n)
	if err != nil {
		c.t.Error(err)
		return false
	}
	for try := 0; c.t.Context().Err() == nil; try++ {
		if try > 0 {
			time.Sleep(5 * time.Millisecond)
		}
		url := c.crew.members[(c.number+try)%crashReplicas].url.Load().(string)
		request, err := http.NewRequestWithContext(c.t.Context(), http.MethodPost, url+path, strings.NewReader(string(body)))
		if err != nil {
			c.t.Error(err)
			return false
		}
		request.Header.Set("Content-Type", "application/json")
		if n.Die != "" {
			request.Header.Set(dieHeader, n.Die+" "+n.Reason)
		}
		response, err := c.http.Do(request)
		if err != nil {
			continue // stored or not: the next try finds out
		}
		answer, _ := io.ReadAll(response.Body)
		response.Body.Close()
		switch response.StatusCode {
		case http.StatusOK:
			c.repeated++
			return true
		case http.StatusAccepted:
			return true
		case http.StatusServiceUnavailable:
			continue
		}
		c.t.Errorf("%s %s: %d %s", path, n.Reason, response.StatusCode, answer)
		return false
	}
	return false
}
