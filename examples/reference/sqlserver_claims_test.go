package reference

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lanebox/lanebox/examples/reference/internal/events"
	"github.com/lanebox/lanebox/examples/reference/internal/events/sqlserver"
	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/storetest/testmssql"
)

// paymentsSource is a pull source.
var paymentsSource = inbox.SourceRef{Name: "payments", Number: int32(events.PaymentsSource), Scope: events.PaymentsSource}

// A cancelling handles the messages of payments with a function.
type cancelling func(ctx context.Context, tx *sql.Tx, key string) error

func (f cancelling) OrderCancelled(ctx context.Context, tx *sql.Tx, m inbox.Message[events.OrderCancelled]) error {
	return f(ctx, tx, m.Raw.Key)
}

func (cancelling) PaymentCaptured(context.Context, *sql.Tx, inbox.Message[events.PaymentCaptured]) error {
	return errors.New("nobody sends this")
}

// receiveKeys stores a message of payments for every key.
func receiveKeys(t testing.TB, db *sql.DB, keys ...string) {
	t.Helper()
	messages := make([]inbox.Incoming, len(keys))
	for i, key := range keys {
		messages[i] = inbox.Incoming{IdempotencyKey: event.NewUUID().String(), EventType: "order.cancelled.v1", AggregateID: key,
			Payload: fmt.Appendf(nil, `{"order_id":%q,"reason":"r"}`, key)}
	}
	dispositions, err := sqlserver.NewStore(db, 0).Receive(t.Context(), paymentsSource, messages)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dispositions {
		if d != inbox.Stored {
			t.Fatalf("a message was not stored: %v", d)
		}
	}
}

// runPayments runs a service that does nothing but handle payments, with a pool
// of conns connections, until the test ends or stop is called.
func runPayments(t testing.TB, url string, conns int, handle cancelling) (stop func()) {
	t.Helper()
	db, err := mssqlPool(url, conns)
	if err != nil {
		t.Fatal(err)
	}
	c := mssqlConfig(parts{})
	c.Payments = handle
	box, err := sqlserver.New(db, c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- box.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		db.Close()
	})
	t.Cleanup(stop)
	return stop
}

// Two aggregates of one source are handled at the same time, each in its open
// transaction. Meanwhile messages of the source are received, and nobody waits for
// a lock: there is none of a whole source.
func TestSQLServerHandlersOfOneSourceOverlap(t *testing.T) {
	url := mssqlDatabaseURL(t)
	db := testmssql.DB(t, url)
	if _, err := db.ExecContext(t.Context(), `CREATE TABLE effect ([key] nvarchar(255) NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	inside, leave := make(chan string), make(chan struct{})
	defer close(leave)
	receiveKeys(t, db, "a", "b")
	runPayments(t, url, 8, func(ctx context.Context, tx *sql.Tx, key string) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO effect ([key]) VALUES (@p1)`, key); err != nil {
			return err
		}
		select {
		case inside <- key:
		case <-ctx.Done():
			return ctx.Err()
		}
		select {
		case <-leave:
		case <-ctx.Done():
			return ctx.Err()
		}
		return nil
	})
	seen := map[string]bool{}
	enter := func() {
		t.Helper()
		select {
		case key := <-inside:
			seen[key] = true
		case <-time.After(patience):
			t.Fatalf("only %v are handled at the same time", seen)
		}
	}
	enter()
	enter()
	receiveKeys(t, db, "c")
	enter()
	if len(seen) != 3 {
		t.Errorf("handled at the same time: %v, want a, b and c", seen)
	}
	if n, err := testmssql.LockWaiters(t.Context(), db); err != nil || n != 0 {
		t.Errorf("%d transactions wait for a lock: %v", n, err)
	}
}

// BenchmarkSQLServerClaims measures how many messages of one source are claimed,
// handled and completed in a second, with one, two and four handlers at a time in a
// service. A handler inserts one row.
func BenchmarkSQLServerClaims(b *testing.B) {
	const messages, aggregates = 1000, 100
	url := testmssql.URL(b)
	db := testmssql.DB(b, url)
	if _, err := sqlserver.Migrate(b.Context(), db); err != nil {
		b.Fatal(err)
	}
	if _, err := db.ExecContext(b.Context(), `CREATE TABLE effect ([key] nvarchar(255) NOT NULL)`); err != nil {
		b.Fatal(err)
	}
	for _, workers := range []int{1, 2, 4} {
		b.Run(fmt.Sprint("workers=", workers), func(b *testing.B) {
			var busy time.Duration
			for range b.N {
				busy += claimAll(b, url, db, workers, messages, aggregates)
			}
			b.ReportMetric(float64(b.N*messages)/busy.Seconds(), "claims/s")
		})
	}
}

// claimAll returns how long a service takes for messages that are there already,
// from the first handler on.
func claimAll(b *testing.B, url string, db *sql.DB, workers, messages, aggregates int) time.Duration {
	keys := make([]string, aggregates)
	for i := range keys {
		keys[i] = fmt.Sprint("key ", i)
	}
	for range messages / aggregates {
		receiveKeys(b, db, keys...)
	}
	var handled atomic.Int64
	var start time.Time
	first, done := sync.OnceFunc(func() { start = time.Now() }), make(chan struct{})
	const spared = 3 // connections that handlers leave to everything else
	stop := runPayments(b, url, spared+workers, func(ctx context.Context, tx *sql.Tx, key string) error {
		first()
		_, err := tx.ExecContext(ctx, `INSERT INTO effect ([key]) VALUES (@p1)`, key)
		if handled.Add(1) == int64(messages) {
			close(done)
		}
		return err
	})
	defer stop()
	select {
	case <-done:
	case <-time.After(10 * time.Minute):
		b.Fatalf("%d of %d messages handled", handled.Load(), messages)
	}
	return time.Since(start)
}
