package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/outbox"
)

// endings are ways to end a transaction that one was only lent.
var endings = map[string]func(ctx context.Context, tx pgx.Tx){
	"Commit":      func(ctx context.Context, tx pgx.Tx) { tx.Commit(ctx) },
	"Rollback":    func(ctx context.Context, tx pgx.Tx) { tx.Rollback(ctx) },
	"SQLRollback": func(ctx context.Context, tx pgx.Tx) { tx.Exec(ctx, "ROLLBACK") },
}

// A handler that ends its transaction itself completes nothing: neither is its
// effect committed without the completion, nor the completion without the effect.
func TestHandlerCannotEndItsTransaction(t *testing.T) {
	forEach(t, func(t *testing.T, b *box) {
		b.exec(`CREATE TABLE public.effect (n integer)`)
		b.receive(paymentSource, incoming("1", "t", "a", "1"))
		c := b.own(payments, "me")
		row := c.all()[0]
		for name, end := range endings {
			err := b.store.Inbox(payments).Handle(t.Context(), "me", row, c.lease(row), func(ctx context.Context, tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, `INSERT INTO public.effect VALUES (1)`); err != nil {
					return err
				}
				end(ctx, tx)
				return nil
			})
			if err == nil {
				t.Errorf("%s: completed", name)
			}
			if effects, left := one[int](b, `SELECT count(*) FROM public.effect`), len(c.all()); effects != 0 || left != 1 {
				t.Errorf("%s: %d effects and %d messages left, want 0 and 1", name, effects, left)
			}
		}
		// A savepoint is the handler's own.
		err := b.store.Inbox(payments).Handle(t.Context(), "me", row, c.lease(row), func(ctx context.Context, tx pgx.Tx) error {
			return pgx.BeginFunc(ctx, tx, func(inner pgx.Tx) error {
				_, err := inner.Exec(ctx, `INSERT INTO public.effect VALUES (1)`)
				return err
			})
		})
		if effects := one[int](b, `SELECT count(*) FROM public.effect`); err != nil || effects != 1 || len(c.all()) != 0 {
			t.Errorf("with a savepoint: %v, %d effects", err, effects)
		}
	})
}

// The fence needs READ COMMITTED, so a handler cannot change its isolation.
func TestHandlerCannotChangeItsIsolation(t *testing.T) {
	forEach(t, func(t *testing.T, b *box) {
		b.receive(paymentSource, incoming("1", "t", "a", "1"))
		c := b.own(payments, "me")
		row := c.all()[0]
		err := b.store.Inbox(payments).Handle(t.Context(), "me", row, c.lease(row), func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `SET TRANSACTION ISOLATION LEVEL SERIALIZABLE`)
			return err
		})
		if err == nil || len(c.all()) != 1 {
			t.Errorf("the isolation level was changed: %v", err)
		}
	})
}

// A hook that takes the transaction down with it, whatever it does to it, is
// blamed alone: what comes before it in its lane and all other lanes are moved.
func TestHookThatBreaksTheTransactionIsBlamedAlone(t *testing.T) {
	breakers := map[string]func(ctx context.Context, tx pgx.Tx) error{
		"connection": func(ctx context.Context, tx pgx.Tx) error {
			ctx, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
			defer cancel()
			_, err := tx.Exec(ctx, "SELECT pg_sleep(60)")
			return err
		},
		"terminated": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "SELECT pg_terminate_backend(pg_backend_pid())")
			return err
		},
		"rollback, error": func(ctx context.Context, tx pgx.Tx) error {
			tx.Exec(ctx, "ROLLBACK")
			return errors.New("rolled back")
		},
		"aborted": func(ctx context.Context, tx pgx.Tx) error {
			tx.Exec(ctx, "SELECT 1/0")
			return nil
		},
	}
	for name, end := range endings {
		breakers[name] = func(ctx context.Context, tx pgx.Tx) error { end(ctx, tx); return nil }
	}
	forEach(t, func(t *testing.T, b *box) {
		c := b.own(push, "me")
		for name, broken := range breakers {
			var messages []inbox.Incoming
			for _, key := range []string{"a", "b", "c"} {
				for i := range 3 {
					messages = append(messages, incoming(fmt.Sprint(name, key, i), "order.shipped.v1", name+key, fmt.Sprint(key, i)))
				}
			}
			b.receive(orders, messages...)
			// The server may take a moment to notice that a connection is gone; its
			// locks are busy until then.
			accepted, failed := map[string]int{}, map[string]bool{}
			for busy := true; busy; {
				busy = false
				var runs []lane.Run
				for _, run := range c.runs(c.all()) {
					if !failed[run.Rows[0].Message.Key] {
						runs = append(runs, run)
					}
				}
				verdicts, err := b.store.Inbox(push).Move(t.Context(), "me", runs, func(ctx context.Context, tx pgx.Tx, m inbox.Raw) ([]outbox.Record, error) {
					if string(m.Payload) == "b1" {
						if err := broken(ctx, tx); err != nil {
							return nil, err
						}
					}
					return []outbox.Record{{Topic: m.Topic, Payload: m.Payload}}, nil
				})
				if err != nil || len(verdicts) != len(runs) {
					t.Fatalf("%s: %v, %v", name, verdicts, err)
				}
				for i, v := range verdicts {
					key := runs[i].Rows[0].Message.Key
					accepted[key] += v.Accepted
					if errors.Is(v.Err, lane.ErrBusy) {
						busy = true
					} else if v.Err != nil {
						failed[key] = true
					}
				}
			}
			if len(failed) != 1 || !failed[name+"b"] || accepted[name+"b"] != 1 || accepted[name+"a"] != 3 || accepted[name+"c"] != 3 {
				t.Errorf("%s: accepted %v, failed %v", name, accepted, failed)
			}
			if got := payloads(c.all()); !slices.Equal(got, []string{"b1", "b2"}) {
				t.Errorf("%s: left are %v", name, got)
			}
			if n := one[int](b, `SELECT count(DISTINCT id) FROM `+b.table("outbox")); n != 7 {
				t.Errorf("%s: %d messages in the outbox, want 7", name, n)
			}
			b.exec(`DELETE FROM ` + b.table("outbox"))
			b.exec(`DELETE FROM ` + b.table("inbox"))
		}
	})
}

// A message that an operator removed is passed over, mapped or not; nobody is
// charged for it.
func TestMovePassesOverWhatIsGone(t *testing.T) {
	forEach(t, func(t *testing.T, b *box) {
		c := b.own(push, "me")
		for _, remap := range []inbox.Remap[pgx.Tx]{nil, func(_ context.Context, _ pgx.Tx, m inbox.Raw) ([]outbox.Record, error) {
			return []outbox.Record{{ID: event.NewUUID(), Topic: m.Topic, Payload: m.Payload}}, nil
		}} {
			b.exec(`DELETE FROM ` + b.table("inbox_receipt"))
			b.receive(orders, incoming("1", "order.shipped.v1", "a", "1"), incoming("2", "order.shipped.v1", "a", "2"), incoming("3", "order.shipped.v1", "b", "3"))
			runs := c.runs(c.all())
			b.exec(`DELETE FROM ` + b.table("inbox") + ` WHERE idempotency_key = '2'`)
			verdicts, err := b.store.Inbox(push).Move(t.Context(), "me", runs, remap)
			if err != nil {
				t.Fatal(err)
			}
			for i, v := range verdicts {
				if v.Err != nil || v.Accepted != len(runs[i].Rows) {
					t.Errorf("verdict %+v", v)
				}
			}
			if n := one[int](b, `SELECT count(DISTINCT id) FROM `+b.table("outbox")); n != 2 {
				t.Errorf("%d messages in the outbox, want 2", n)
			}
			b.exec(`DELETE FROM ` + b.table("outbox"))
		}
	})
}

// Handlers that take their time leave connections of a small pool to everything
// else: leases are renewed and messages received meanwhile.
func TestHandlersLeaveConnections(t *testing.T) {
	b := newBox(t, &fixtures[0], func(c *pgxpool.Config) { c.MaxConns = 3 })
	var messages []inbox.Incoming
	for i := range 8 {
		messages = append(messages, incoming(fmt.Sprint(i), "t", fmt.Sprint("a", i), "x"))
	}
	b.receive(paymentSource, messages...)
	c := b.own(payments, "me")
	enough := make(chan struct{})
	var handlers sync.WaitGroup
	var handled atomic.Int32
	for _, row := range c.all() {
		handlers.Go(func() {
			err := b.store.Inbox(payments).Handle(t.Context(), "me", row, c.lease(row), func(context.Context, pgx.Tx) error { <-enough; return nil })
			if err != nil {
				t.Error(err)
			}
			handled.Add(1)
		})
	}
	for range 8 {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		if _, err := b.store.Keep(ctx, lane.KeepParams{Owner: "me", TTL: time.Minute, Scopes: []lane.ScopeLeases{{Scope: payments, Leases: c.leases}}}); err != nil {
			t.Fatalf("leases cannot be renewed while handlers run: %v", err)
		}
		cancel()
		if n := handled.Load(); n != 0 {
			t.Fatalf("%d handlers ended", n)
		}
	}
	close(enough)
	handlers.Wait()
	if n := len(c.all()); n != 0 {
		t.Errorf("%d messages are left", n)
	}
}
