package reference

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lanebox/lanebox/examples/reference/internal/events"
	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/schedule"
)

// seen counts the events of type E so far.
func seen[E schedule.Event](m *market, scope string) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.events {
		if _, ok := e.Detail.(E); ok && e.Scope == scope {
			n++
		}
	}
	return n
}

// A backup is restored, so that a fencing token is set back by one and handed
// out again: the old owner and the new one hold the same number. The old one is
// about to settle, waits for the row of the bucket, and must change nothing.
func TestATokenHandedOutTwiceLetsNoStaleOwnerSettle(t *testing.T) {
	ctx := t.Context()
	m := newMarket(t, dialects[0], 0)
	begun, finish := make(chan struct{}), make(chan struct{})
	var once sync.Once
	m.open("a", 8, func(context.Context, event.Message) error {
		once.Do(func() {
			close(begun)
			<-finish
		})
		return nil
	})
	if err := m.publish(ctx, true, newParcel(accepted, "k"), newParcel(cancelled, "k")); err != nil {
		t.Fatal(err)
	}
	<-begun
	err := pgx.BeginFunc(ctx, connection(t, m.url), func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE lane_bucket SET token = token - 1, owner = NULL WHERE scope = $1`, events.WarehouseDestination)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `UPDATE lane_bucket SET token = token + 1, owner = 'restored', lease_until = clock_timestamp() + interval '1 hour'
			WHERE scope = $1`, events.WarehouseDestination)
		if err != nil {
			return err
		}
		close(finish)
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
			var settling bool
			if err := m.db.QueryRowContext(ctx, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
				AND wait_event_type = 'Lock' AND query LIKE '%OutboxSettle%')`).Scan(&settling); err != nil || settling {
				return err
			}
		}
		return fmt.Errorf("the old owner does not settle")
	})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "the old owner to notice", func() bool { return seen[schedule.LeaseLost](m, "warehouse") > 0 })
	var left int
	if err := m.db.QueryRowContext(ctx, `SELECT count(*) FROM outbox WHERE destination = $1`, events.WarehouseDestination).Scan(&left); err != nil {
		t.Fatal(err)
	}
	if left != 2 {
		t.Errorf("%d messages are left, want 2: a stale owner settled", left)
	}
	// The new owner dies; the box takes over.
	if _, err := m.db.ExecContext(ctx, `UPDATE lane_bucket SET lease_until = clock_timestamp() - interval '1 s' WHERE owner = 'restored'`); err != nil {
		t.Fatal(err)
	}
	m.drained()
	if warehouse, _ := m.judge(); warehouse.Repeats > 2 { // answered, and not settled
		t.Errorf("%d repeats of two messages", warehouse.Repeats)
	}
}

// Connections are cut at random under load: those that claim, settle, renew and
// listen, and those that publish. Nothing is lost or out of order, and as long
// as no lease is lost nothing is repeated.
func TestConnectionsCutAtRandomLoseNothing(t *testing.T) {
	const kills = 40
	m := newMarket(t, dialects[0], 8)
	m.open("a", 4, nil)
	m.open("b", 4, nil)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var writers sync.WaitGroup
	for w := range 6 {
		writers.Go(func() {
			random := rand.New(rand.NewPCG(2, uint64(w)))
			for ctx.Err() == nil {
				// An error may come after the commit; the counters know.
				_ = m.publish(t.Context(), random.IntN(2) == 0, newParcel(cancelled, orderKey(random)))
			}
		})
	}
	cutter := connection(t, m.url)
	for range kills {
		before := m.delivered()
		eventually(t, time.Minute, "progress after a cut", func() bool { return m.delivered() >= before+10 })
		_, err := cutter.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid() ORDER BY random() LIMIT 2`)
		if err != nil {
			t.Fatal(err)
		}
	}
	// At last all who listen at once.
	listeners := `FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN %'`
	if _, err := cutter.Exec(t.Context(), `SELECT pg_terminate_backend(pid) `+listeners); err != nil {
		t.Fatal(err)
	}
	stop()
	writers.Wait()
	eventually(t, time.Minute, "both boxes to listen again", func() bool {
		var n int
		if err := cutter.QueryRow(t.Context(), `SELECT count(*) `+listeners).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n == 2
	})
	eventually(t, 60*time.Second, "the outbox to be empty", func() bool {
		var n int
		if err := cutter.QueryRow(t.Context(), `SELECT count(*) FROM outbox`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n == 0
	})
	warehouse, ledger := m.judge()
	lost := seen[schedule.LeaseLost](m, "warehouse") + seen[schedule.LeaseLost](m, "ledger")
	failed := seen[schedule.DatabaseFailed](m, "warehouse") + seen[schedule.DatabaseFailed](m, "ledger")
	if repeats := warehouse.Repeats + ledger.Repeats; lost == 0 && repeats > 0 {
		t.Errorf("%d repeats although no lease was lost", repeats)
	}
	if failed == 0 {
		t.Error("no call failed: the test shows nothing")
	}
	t.Logf("%d messages, %d failed calls, %d lost leases, %d repeats", warehouse.Published, failed, lost, warehouse.Repeats+ledger.Repeats)
}

// delivered counts what the warehouse accepted.
func (m *market) delivered() int {
	m.warehouse.mu.Lock()
	defer m.warehouse.mu.Unlock()
	return len(m.warehouse.versions)
}

// connection returns a connection that is closed when the test ends.
func connection(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}
