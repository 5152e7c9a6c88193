package postgres_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lanebox/lanebox/runtime/lane"
)

// The service holds the only connection of its pool for as long as it likes:
// leases are renewed all the same, and the heartbeat can be removed.
func TestAnExhaustedPoolCostsNoLease(t *testing.T) {
	ctx := t.Context()
	b := newBox(t, &fixtures[0], func(c *pgxpool.Config) { c.MaxConns = 1 })
	c := b.own(warehouse, "a")
	held, err := b.pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Release()
	kept, err := b.store.Keep(ctx, lane.KeepParams{Owner: "a", TTL: ttl, Scopes: []lane.ScopeLeases{{Scope: warehouse, Leases: c.leases}}})
	if err != nil || len(kept) != 1 || len(kept[0].Renewed) != len(c.leases) {
		t.Fatalf("renewed %v, %v", kept, err)
	}
	if err := b.store.Leave(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	var sessions, beats int
	eventually(t, "the reserved connection is closed", func() bool {
		err := held.QueryRow(ctx, `SELECT (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
			AND backend_type = 'client backend'), (SELECT count(*) FROM lane_owner)`).Scan(&sessions, &beats)
		if err != nil {
			t.Fatal(err)
		}
		return sessions == 0
	})
	if beats != 0 {
		t.Errorf("%d heartbeats are left", beats)
	}
}

// Connections beside the pool are made as the pool makes its own: a hook may
// fetch the password or set the role.
func TestReservedConnectionsUseTheHooksOfThePool(t *testing.T) {
	var before, after atomic.Int64
	b := newBox(t, &fixtures[0], func(c *pgxpool.Config) {
		user := c.ConnConfig.User
		c.ConnConfig.User = "nobody knows this role"
		c.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
			before.Add(1)
			c.User = user
			return nil
		}
		c.AfterConnect = func(context.Context, *pgx.Conn) error {
			after.Add(1)
			return nil
		}
	})
	b.exec("SELECT 1")
	keep := lane.KeepParams{Owner: "a", TTL: ttl, Scopes: []lane.ScopeLeases{{Scope: warehouse}}}
	if _, err := b.store.Keep(t.Context(), keep); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	woken := make(chan struct{}, 1)
	w := b.store.Waker()
	go func() {
		ended <- w.Listen(ctx, func() {
			select {
			case woken <- struct{}{}:
			default:
			}
		})
	}()
	eventually(t, "an announcement is heard", func() bool {
		if err := w.Announce(t.Context()); err != nil {
			t.Fatal(err)
		}
		select {
		case <-woken:
			return true
		case err := <-ended:
			t.Fatal(err)
		default:
		}
		return false
	})
	if before.Load() != after.Load() || after.Load() < 3 {
		t.Errorf("hooks ran %d and %d times, want 3: pool, keeper, listener", before.Load(), after.Load())
	}
	if err := b.store.Leave(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
}

// eventually waits until done answers true.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("gave up waiting: %s", what)
		}
	}
}
