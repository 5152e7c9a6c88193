package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/outbox"
)

// endings are ways to end a transaction that one was only lent.
var endings = map[string]func(ctx context.Context, tx *sql.Tx){
	"Commit":                 func(_ context.Context, tx *sql.Tx) { tx.Commit() },
	"Rollback":               func(_ context.Context, tx *sql.Tx) { tx.Rollback() },
	"SQL ROLLBACK":           func(ctx context.Context, tx *sql.Tx) { tx.ExecContext(ctx, "ROLLBACK") },
	"SQL COMMIT":             func(ctx context.Context, tx *sql.Tx) { tx.ExecContext(ctx, "COMMIT") },
	"SQL ROLLBACK and BEGIN": func(ctx context.Context, tx *sql.Tx) { tx.ExecContext(ctx, "ROLLBACK; BEGIN") },
}

// A handler that ends its transaction itself completes nothing.
func TestHandlerCannotEndItsTransaction(t *testing.T) {
	b := newBox(t)
	_, err := b.store.Receive(b.ctx, paymentsRef, []inbox.Incoming{{IdempotencyKey: "1", EventType: "e", AggregateID: "a"}})
	b.check(err)
	c := b.claim("worker", b.store.PaymentsSource())
	row := c.fetch()[0]
	for name, end := range endings {
		err := b.store.PaymentsSource().Handle(b.ctx, "worker", row, c.leases[0], func(ctx context.Context, tx *sql.Tx) error {
			end(ctx, tx)
			return nil
		})
		if err == nil || len(c.fetch()) != 1 {
			t.Errorf("%s: completed: %v, %d messages left", name, err, len(c.fetch()))
		}
	}
	if err := b.store.PaymentsSource().Handle(b.ctx, "worker", row, c.leases[0], func(context.Context, *sql.Tx) error { return nil }); err != nil {
		t.Error(err)
	}
}

// A hook that takes the transaction down with it is blamed alone: what comes
// before it in its lane and all other lanes are moved, each once.
func TestHookThatBreaksTheTransactionIsBlamedAlone(t *testing.T) {
	breakers := map[string]func(ctx context.Context, tx *sql.Tx) error{
		"ROLLBACK, error": func(ctx context.Context, tx *sql.Tx) error {
			tx.ExecContext(ctx, "ROLLBACK")
			return errors.New("rolled back")
		},
		// An interrupted write rolls the whole transaction back.
		"interrupted": func(ctx context.Context, tx *sql.Tx) error {
			ctx, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
			defer cancel()
			_, err := tx.ExecContext(ctx, `INSERT INTO effect WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n`)
			return err
		},
	}
	for name, end := range endings {
		breakers[name] = func(ctx context.Context, tx *sql.Tx) error { end(ctx, tx); return nil }
	}
	for name, broken := range breakers {
		b := newBox(t)
		b.exec(`CREATE TABLE effect (n INTEGER)`)
		var messages []inbox.Incoming
		for _, key := range []string{"a", "b", "c"} {
			for i := range 3 {
				messages = append(messages, inbox.Incoming{
					IdempotencyKey: fmt.Sprint(key, i), EventType: "order.placed.v1", AggregateID: key, Payload: fmt.Append(nil, key, i),
				})
			}
		}
		_, err := b.store.Receive(b.ctx, ordersRef, messages)
		b.check(err)
		c := b.claim("relay", b.store.Push())
		var runs []lane.Run
		for _, row := range c.fetch() {
			if n := len(runs); n > 0 && runs[n-1].Lane == row.Lane {
				runs[n-1].Rows = append(runs[n-1].Rows, row)
			} else {
				runs = append(runs, lane.Run{Lease: c.leases[0], Lane: row.Lane, Rows: []lane.Row{row}})
			}
		}
		verdicts, err := b.store.Push().Move(b.ctx, "relay", runs, func(ctx context.Context, tx *sql.Tx, m inbox.Raw) ([]outbox.Record, error) {
			if string(m.Payload) == "b1" {
				if err := broken(ctx, tx); err != nil {
					return nil, err
				}
			}
			return []outbox.Record{{Topic: m.Topic, Payload: m.Payload}}, nil
		})
		if err != nil || len(verdicts) != 3 {
			t.Fatalf("%s: %v, %v", name, verdicts, err)
		}
		for i, v := range verdicts {
			if guilty := runs[i].Rows[0].Message.Key == "b"; guilty && (v.Accepted != 1 || v.Err == nil) || !guilty && (v.Accepted > 3 || v.Err != nil) {
				t.Errorf("%s: %s got %+v", name, runs[i].Rows[0].Message.Key, v)
			}
		}
		var left []string
		for _, row := range c.fetch() {
			left = append(left, string(row.Message.Payload))
		}
		if !slices.Equal(left, []string{"b1", "b2"}) {
			t.Errorf("%s: left are %v", name, left)
		}
		var n, distinct int
		if err := b.db.QueryRowContext(b.ctx, `SELECT count(*), count(DISTINCT payload) FROM outbox WHERE destination = 1001`).Scan(&n, &distinct); err != nil || n != 7 || distinct != 7 {
			t.Errorf("%s: %d messages in the outbox, %d different ones, want 7: %v", name, n, distinct, err)
		}
	}
}
