package reference

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/lanebox/lanebox/examples/reference/internal/events"
	"github.com/lanebox/lanebox/runtime/engine"
	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/ordertest"
	"github.com/lanebox/lanebox/runtime/transport/handler"
)

// A market is a database to which many transactions publish while boxes deliver.
// Every transaction counts its messages per key in tables of its own, after it
// has published them: the row of a key's counter is locked until the commit, so
// the count is the order of commits, and the outbox has no part in it. A mark in
// the payload ties a delivery to its count.
type market struct {
	t *testing.T
	dialect
	*trader // of the writers

	warehouse, ledger log
	mu                sync.Mutex
	events            []engine.Event
}

// A log is what one destination received.
type log struct {
	mu       sync.Mutex
	text     strings.Builder
	writer   *ordertest.Writer
	versions map[string]int64 // by mark
}

// Write implements io.Writer.
func (l *log) Write(b []byte) (int, error) { return l.text.Write(b) }

func newMarket(t *testing.T, d dialect, conns int) *market {
	t.Helper()
	m := &market{t: t, dialect: d, trader: d.newTrader(t, conns)}
	for _, l := range []*log{&m.warehouse, &m.ledger} {
		l.writer, l.versions = ordertest.NewWriter(l), map[string]int64{}
	}
	for _, text := range m.tables {
		if _, err := m.db.ExecContext(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// deliver records a delivery by process in l.
func (m *market) deliver(l *log, process string, gate func(context.Context, event.Message) error) *handler.Destination {
	return handler.NewDestination(func(ctx context.Context, msg event.Message) error {
		var marks struct{ Reason, Place string }
		if err := json.Unmarshal(msg.Payload, &marks); err != nil {
			return err
		}
		mark := marks.Reason + marks.Place
		id, err := event.ParseUUID(mark)
		if err != nil {
			return err
		}
		end := l.writer.Begin(process, event.Message{ID: id, Key: msg.Key, Sequence: msg.Sequence})
		if gate != nil {
			if err := gate(ctx, msg); err != nil {
				end(0)
				return err
			}
		}
		l.mu.Lock()
		l.versions[mark] = msg.Version
		l.mu.Unlock()
		end(1)
		return nil
	})
}

// open starts a box and returns what stops it. gate, which may be nil, may hold
// back or refuse what goes to the warehouse.
func (m *market) open(process string, conns int, gate func(context.Context, event.Message) error) (stop func()) {
	m.t.Helper()
	box, closePool, err := m.service(m.t.Context(), m.url, parts{
		warehouse: m.deliver(&m.warehouse, process, gate), ledger: m.deliver(&m.ledger, process, nil), conns: conns,
		observer: func(e engine.Event) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.events = append(m.events, e)
		},
	})
	if err != nil {
		m.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(m.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- box.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			m.t.Errorf("box %s: %v", process, err)
		}
		closePool()
	})
	m.t.Cleanup(stop)
	return stop
}

// A parcel is one message that a transaction publishes.
type parcel struct {
	topic, key, mark string
}

const (
	cancelled = "order.cancelled.v1"
	accepted  = "return.accepted" // a topic that no event declares
	moved     = "shipment.moved.v1"
)

func newParcel(topic, key string) parcel {
	return parcel{topic, key, event.NewUUID().String()}
}

// event returns the parcel as a generated event.
func (p parcel) event() events.Event {
	if p.topic == moved {
		var n int64
		fmt.Sscan(p.key, &n)
		return events.ShipmentMoved{ShipmentID: events.NewShipmentID(n), Place: p.mark}
	}
	return events.OrderCancelled{OrderID: events.NewOrderID(p.key), Reason: p.mark}
}

// insertParcel publishes a parcel as a program in another language does.
func (tr *trader) insertParcel(ctx context.Context, exec execFunc, p parcel) error {
	return exec(ctx, tr.insert, p.topic, p.key, fmt.Sprintf(`{"reason": "%s"}`, p.mark))
}

// countParcels notes parcels in the order in which they were published.
func (tr *trader) countParcels(ctx context.Context, exec execFunc, parcels ...parcel) error {
	for _, p := range parcels {
		if err := exec(ctx, tr.count, p.key, p.mark, p.topic); err != nil {
			return err
		}
	}
	return nil
}

// publish publishes parcels in one call, or one by one in plain SQL, and counts
// them, all in one transaction.
func (m *market) publish(ctx context.Context, plain bool, parcels ...parcel) error {
	return m.inTx(ctx, func(exec execFunc, pub *events.Publisher) error {
		if plain {
			for _, p := range parcels {
				if err := m.insertParcel(ctx, exec, p); err != nil {
					return err
				}
			}
			return m.countParcels(ctx, exec, parcels...)
		}
		list := make([]events.Event, len(parcels))
		for i, p := range parcels {
			list[i] = p.event()
		}
		if err := pub.All(ctx, list...); err != nil {
			return err
		}
		return m.countParcels(ctx, exec, parcels...)
	})
}

// drained waits until everything is delivered and settled.
func (m *market) drained() {
	m.t.Helper()
	eventually(m.t, patience, "the outbox to be empty", func() bool { return m.waiting(m.t) == 0 })
}

// judge compares what was delivered with the order of commits. It returns the
// reports of warehouse and ledger.
func (m *market) judge() (warehouse, ledger ordertest.Report) {
	m.t.Helper()
	m.agree()
	return m.judgeOne("warehouse", &m.warehouse, cancelled, accepted, moved), m.judgeOne("ledger", &m.ledger, cancelled, moved)
}

func (m *market) judgeOne(name string, l *log, topics ...string) ordertest.Report {
	m.t.Helper()
	rows, err := m.db.QueryContext(m.t.Context(), `SELECT "key", n, mark, topic FROM committed ORDER BY "key", n`)
	if err != nil {
		m.t.Fatal(err)
	}
	defer rows.Close()
	var published strings.Builder
	writer := ordertest.NewWriter(&published)
	for rows.Next() {
		var (
			key, mark, topic string
			n                int64
		)
		if err := rows.Scan(&key, &n, &mark, &topic); err != nil {
			m.t.Fatal(err)
		}
		if !slices.Contains(topics, topic) {
			continue
		}
		id, err := event.ParseUUID(mark)
		if err != nil {
			m.t.Fatal(err)
		}
		writer.Published(key, id)
		if v := l.versions[mark]; topic == moved && v != n {
			m.t.Errorf("%s: number %d of shipment %s has version %d", name, n, key, v)
		}
	}
	if err := rows.Err(); err != nil {
		m.t.Fatal(err)
	}
	checker, err := ordertest.Read(io.MultiReader(strings.NewReader(published.String()), strings.NewReader(l.text.String())))
	if err != nil {
		m.t.Fatal(err)
	}
	report := checker.Report()
	if err := report.Err(); err != nil {
		m.t.Errorf("%s: %v", name, err)
	}
	if report.Published == 0 || report.Delivered != report.Published {
		m.t.Errorf("%s: %d of %d delivered", name, report.Delivered, report.Published)
	}
	return report
}

// agree checks the counters against a second witness, where the server keeps it:
// the times of the commits.
func (m *market) agree() {
	m.t.Helper()
	if m.trader.name != "PostgreSQL" {
		return
	}
	var tracked string
	if err := m.db.QueryRowContext(m.t.Context(), `SELECT current_setting('track_commit_timestamp')`).Scan(&tracked); err != nil {
		m.t.Fatal(err)
	}
	if tracked != "on" {
		return
	}
	var wrong int
	err := m.db.QueryRowContext(m.t.Context(), `SELECT count(*) FROM (
		SELECT pg_xact_commit_timestamp(xmin) < lag(pg_xact_commit_timestamp(xmin)) OVER (PARTITION BY key ORDER BY n) AS wrong FROM committed) AS c
		WHERE c.wrong`).Scan(&wrong)
	if err != nil {
		m.t.Fatal(err)
	}
	if wrong > 0 {
		m.t.Errorf("%d messages were counted in another order than their transactions committed", wrong)
	}
}

// traffic runs writers side by side, each doing as many transactions.
func (m *market) traffic(writers, transactions int, do func(ctx context.Context, random *rand.Rand) error) {
	m.t.Helper()
	var group sync.WaitGroup
	for w := range writers {
		group.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(w)))
			for range transactions {
				if err := do(m.t.Context(), random); err != nil {
					m.t.Errorf("writer %d: %v", w, err)
					return
				}
			}
		})
	}
	group.Wait()
}

// orderKey and shipmentKey draw keys of which the first are hot.
func orderKey(random *rand.Rand) string {
	return fmt.Sprintf("order-%d", random.IntN(1+random.IntN(12)))
}

func shipmentKey(random *rand.Rand) string {
	return fmt.Sprint(1 + random.IntN(1+random.IntN(6)))
}

var errRolledBack = errors.New("rolled back on purpose")

// Many writers of the same few keys, while three boxes deliver: generated code
// and plain SQL, one message and several in any order of keys, fanned out and
// densely numbered, committed and rolled back. First deliveries follow the order
// of commits, and no transaction of a single key or a single call deadlocks.
func TestFirstDeliveriesFollowTheOrderOfCommits(t *testing.T) {
	eachDialect(t, func(t *testing.T, d dialect) {
		m := newMarket(t, d, 16)
		for _, process := range []string{"a", "b", "c"} {
			m.open(process, 4, nil)
		}
		m.traffic(16, 40, m.anyTrade)
		m.drained()
		warehouse, ledger := m.judge()
		t.Logf("%d messages to the warehouse, %d to the ledger", warehouse.Published, ledger.Published)
	})
}

// anyTrade publishes in one of many ways.
func (m *market) anyTrade(ctx context.Context, random *rand.Rand) error {
	order := newParcel(cancelled, orderKey(random))
	switch random.IntN(7) {
	case 0:
		return m.publish(ctx, false, order)
	case 1:
		return m.publish(ctx, true, order)
	case 2: // one key, three times, in both ways
		return m.publish(ctx, true, order, newParcel(accepted, order.key), newParcel(cancelled, order.key))
	case 3:
		return m.publish(ctx, false, newParcel(moved, shipmentKey(random)))
	case 4:
		return m.publish(ctx, true, newParcel(accepted, order.key))
	case 5:
		err := m.inTx(ctx, func(_ execFunc, pub *events.Publisher) error {
			if err := pub.All(ctx, order.event(), newParcel(moved, shipmentKey(random)).event()); err != nil {
				return err
			}
			return errRolledBack
		})
		if err == errRolledBack {
			return nil
		}
		return err
	default:
		var list []parcel
		for range 2 + random.IntN(5) {
			list = append(list, newParcel(cancelled, orderKey(random)), newParcel(moved, shipmentKey(random)))
		}
		return m.publish(ctx, false, list...)
	}
}

// Fifty transactions write the first message of a new key at once, with nothing
// there that they could lock.
func TestFiftyWritersOfANewKey(t *testing.T) {
	const writers = 50
	eachDialect(t, func(t *testing.T, d dialect) {
		m := newMarket(t, d, writers)
		m.open("a", 4, nil)
		m.open("b", 4, nil)
		for _, p := range []parcel{{topic: moved, key: "77"}, {topic: cancelled, key: "new"}} {
			var ready, done sync.WaitGroup
			ready.Add(writers)
			for i := range writers {
				done.Go(func() {
					here := sync.OnceFunc(ready.Done)
					defer here()
					// The first transaction makes sure that everybody has a connection.
					err := m.inTx(t.Context(), func(execFunc, *events.Publisher) error {
						here()
						ready.Wait()
						return nil
					})
					if err == nil {
						err = m.publish(t.Context(), p.topic == cancelled && i%2 == 0, newParcel(p.topic, p.key))
					}
					if err != nil {
						t.Error(err)
					}
				})
			}
			done.Wait()
		}
		m.drained()
		if warehouse, _ := m.judge(); warehouse.Published != 2*writers {
			t.Errorf("%d published, want %d", warehouse.Published, 2*writers)
		}
	})
}

// Transactions that publish several keys in several calls can deadlock, and with
// them whoever else waits for these keys. It is always a retriable error, and
// whoever tries again loses no order.
func TestADeadlockIsRetriable(t *testing.T) {
	eachDialect(t, func(t *testing.T, d dialect) {
		m := newMarket(t, d, 12)
		m.open("a", 4, nil)
		m.open("b", 4, nil)
		var deadlocks atomic.Int64
		m.traffic(12, m.deadlocking, func(ctx context.Context, random *rand.Rand) error {
			list := []parcel{newParcel(cancelled, orderKey(random)), newParcel(cancelled, orderKey(random)), newParcel(cancelled, orderKey(random))}
			if random.IntN(3) == 0 {
				slices.SortFunc(list, func(a, b parcel) int { return strings.Compare(a.key, b.key) })
			}
			for {
				err := m.inTx(ctx, func(exec execFunc, pub *events.Publisher) error {
					for _, p := range list {
						if err := pub.All(ctx, p.event()); err != nil {
							return err
						}
					}
					return m.countParcels(ctx, exec, list...)
				})
				var retriable *event.RetryableError
				if !errors.As(err, &retriable) {
					return err
				}
				deadlocks.Add(1)
			}
		})
		m.drained()
		m.judge()
		if deadlocks.Load() == 0 {
			t.Error("nothing deadlocked: the test shows nothing")
		}
		t.Logf("%d deadlocks", deadlocks.Load())
	})
}

// playHolder publishes a message of one key, says so, and commits when it is
// told to by the end of its input.
func playHolder(ctx context.Context) error {
	background := context.Background()
	url := os.Getenv(databaseEnv)
	tr, err := dialectOf(url).open(background, url, 2)
	if err != nil {
		return err
	}
	defer tr.close()
	p := parcel{cancelled, "held", os.Getenv(targetEnv)}
	return tr.ownTx(background, func(exec execFunc, pub *events.Publisher) error {
		if err := errors.Join(pub.All(background, p.event()), tr.countParcels(background, exec, p)); err != nil {
			return err
		}
		fmt.Println("held")
		<-ctx.Done()
		return nil
	})
}

// Another process keeps a transaction open that has published a key. Writers of
// this key wait for it; everybody else, and the boxes, go on. When it commits,
// late, its message still comes first.
func TestAKeyHeldByAnotherProcessHoldsBackNobodyElse(t *testing.T) {
	eachDialect(t, func(t *testing.T, d dialect) {
		m := newMarket(t, d, 8)
		m.open("a", 4, nil)
		m.open("b", 4, nil)
		holder := play(t, "holder", m.url, event.NewUUID().String())
		if line := holder.line(t); line != "held" {
			t.Fatalf("the holder said %q", line)
		}
		waiters := make(chan error, 3)
		for i := range cap(waiters) {
			go func() { waiters <- m.patiently(t.Context(), i == 0, newParcel(cancelled, "held")) }()
		}
		eventually(t, patience, "writers of the key to wait", func() bool {
			n, err := m.lockWaiters(t.Context(), m.db)
			if err != nil {
				t.Fatal(err)
			}
			return n == cap(waiters)
		})
		others := rand.New(rand.NewPCG(1, 1))
		for range 100 {
			if err := m.publish(t.Context(), others.IntN(2) == 0, newParcel(cancelled, orderKey(others))); err != nil {
				t.Fatal(err)
			}
		}
		m.drained() // with the lock still held
		select {
		case err := <-waiters:
			t.Fatalf("a writer of the key did not wait: %v", err)
		default:
		}
		holder.stop()
		for range cap(waiters) {
			if err := <-waiters; err != nil {
				t.Error(err)
			}
		}
		m.drained()
		if warehouse, _ := m.judge(); warehouse.Published != 104 {
			t.Errorf("%d published, want 104", warehouse.Published)
		}
	})
}

// patiently publishes again while a lock is not to be had in time.
func (m *market) patiently(ctx context.Context, plain bool, p parcel) error {
	for {
		err := m.publish(ctx, plain, p)
		var retriable *event.RetryableError
		if !errors.As(err, &retriable) {
			return err
		}
	}
}
