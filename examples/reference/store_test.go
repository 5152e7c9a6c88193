package reference

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lanebox/lanebox/examples/reference/internal/events"
	"github.com/lanebox/lanebox/examples/reference/internal/events/postgres"
	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/lane"
	pgstore "github.com/lanebox/lanebox/runtime/sqlstore/postgres"
	"github.com/lanebox/lanebox/runtime/storetest"
	"github.com/lanebox/lanebox/runtime/storetest/testpg"
)

var scopes = map[string]lane.Scope{
	storetest.Warehouse: events.WarehouseDestination, storetest.Ledger: events.LedgerDestination, storetest.Mail: events.MailDestination,
	storetest.Payments: events.PaymentsSource, storetest.Stock: events.StockSource, storetest.Push: events.PushSources,
}

func scope(name string) lane.Scope { return scopes[name] }

func source(name string) inbox.SourceRef {
	return map[string]inbox.SourceRef{
		storetest.Orders:   events.OrdersReceiver(nil, nil).Source,
		storetest.Returns:  events.ReturnsReceiver(nil, nil).Source,
		storetest.Payments: events.PaymentsReceiver(nil, nil).Source,
		storetest.Stock:    events.StockReceiver(nil, nil).Source,
	}[name]
}

// tables of both dialects, without lane_owner, which holds heartbeats alone.
var tables = []string{"outbox", "outbox_dead", "inbox", "inbox_dead", "inbox_receipt", "lane_bucket", "lane_hold", "lane_version", "lane_scope"}

// sqliteNow is the clock of SQLite in milliseconds.
const sqliteNow = `CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)`

var places = make(chan struct{}, 4)

// fewAtATime lets four tests have a database at a time: with the race detector
// one of them keeps a core busy, and none should wait for its turn past a limit.
func fewAtATime(t *testing.T) {
	places <- struct{}{}
	t.Cleanup(func() { <-places })
}

// literal quotes s as standard SQL does.
func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// insert is a statement as a person or a program in another language writes it.
func insert(topic string, key *string, payload string) string {
	k := "NULL"
	if key != nil {
		k = literal(*key)
	}
	return "INSERT INTO outbox (topic, key, payload) VALUES (" + literal(topic) + ", " + k + ", " + literal(payload) + ")"
}

// An admin is what the generated stores of all dialects offer to operators.
type admin interface {
	DeadLetters(ctx context.Context, scope lane.Scope) ([]lane.DeadLetter, error)
	Replay(ctx context.Context, scope lane.Scope, ids ...event.UUID) (int, error)
	ParkKey(ctx context.Context, scope lane.Scope, key, reason string) error
	ReleaseKey(ctx context.Context, scope lane.Scope, key, reason string) error
}

// administer fills in what does not depend on transactions.
func administer[Tx any](db *storetest.DB[Tx], a admin) *storetest.DB[Tx] {
	db.Scope, db.Source = scope, source
	db.DeadLetters = a.DeadLetters
	db.Replay = func(ctx context.Context, n lane.Scope, ids ...event.UUID) error {
		_, err := a.Replay(ctx, n, ids...)
		return err
	}
	db.Park = func(ctx context.Context, n lane.Scope, key string) error { return a.ParkKey(ctx, n, key, "test") }
	db.Unpark = func(ctx context.Context, n lane.Scope, key string) error { return a.ReleaseKey(ctx, n, key, "test") }
	return db
}

// column returns the table and scope column of a scope's messages.
func column(n lane.Scope) (table, column string) {
	switch n {
	case events.WarehouseDestination, events.LedgerDestination, events.MailDestination:
		return "outbox", "destination"
	}
	return "inbox", "scope"
}

// printRows writes every row of a table.
func printRows(ctx context.Context, db *sql.DB, table string, out interface{ Write([]byte) (int, error) }) error {
	rows, err := db.QueryContext(ctx, `SELECT * FROM `+table)
	if err != nil {
		return err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return err
	}
	values := make([]any, len(columns))
	for i := range values {
		values[i] = new(any)
	}
	for rows.Next() {
		if err := rows.Scan(values...); err != nil {
			return err
		}
		for _, v := range values {
			fmt.Fprintf(out, "%v|", *v.(*any))
		}
	}
	return rows.Err()
}

func TestPostgresStore(t *testing.T) {
	storetest.Run(t, storetest.Harness[pgx.Tx]{
		Features: storetest.Features{Buckets: 128, ConcurrentWriters: true},
		Open: func(t *testing.T) *storetest.DB[pgx.Tx] {
			fewAtATime(t)
			url := testpg.URL(t)
			pool := testpg.Pool(t, url, func(c *pgxpool.Config) { c.MaxConns = 60 })
			if _, err := postgres.Migrate(t.Context(), pool); err != nil {
				t.Fatal(err)
			}
			return postgresDB(pool)
		},
	})
}

func postgresDB(pool *pgxpool.Pool) *storetest.DB[pgx.Tx] {
	store := postgres.NewStore(pool)
	exec := func(ctx context.Context, text string, args ...any) error {
		_, err := pool.Exec(ctx, text, args...)
		return err
	}
	return administer(&storetest.DB[pgx.Tx]{
		Begin:    func(ctx context.Context) (pgx.Tx, error) { return pool.Begin(ctx) },
		Commit:   func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) },
		Rollback: func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) },
		Appender: postgres.Appender,
		Insert: func(ctx context.Context, tx pgx.Tx, topic string, key *string, payload string) error {
			_, err := tx.Exec(ctx, insert(topic, key, payload))
			return pgstore.Classify("insert", err)
		},
		Outbox: func(n lane.Scope) lane.Store { return store.Outbox(n) },
		Inbox:  func(n lane.Scope) lane.Store { return store.Inbox(n) },
		Keeper: store, Waker: store.Waker(), Receive: store,
		ReceiveIn: func(ctx context.Context, tx pgx.Tx, s inbox.SourceRef, m inbox.Incoming) error {
			_, err := tx.Exec(ctx, `INSERT INTO inbox (source, idempotency_key, event_type, aggregate_id, payload) VALUES ($1, $2, $3, $4, $5)`,
				s.Number, m.IdempotencyKey, m.EventType, m.AggregateID, m.Payload)
			return err
		},
		Pull: func(n lane.Scope) inbox.PullStore[pgx.Tx] { return store.Inbox(n) },
		Push: func() inbox.PushStore[pgx.Tx] { return store.Push() },
		Remove: func(ctx context.Context, n lane.Scope, lane, sequence int64) error {
			table, scope := column(n)
			return exec(ctx, `DELETE FROM `+table+` WHERE `+scope+` = $1 AND lane = $2 AND sequence = $3`, n, lane, sequence)
		},
		LockWaiters: func(ctx context.Context) (n int, err error) {
			err = pool.QueryRow(ctx, `SELECT count(*) FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
				WHERE NOT l.granted AND a.datname = current_database()`).Scan(&n)
			return n, err
		},
		Now: func(ctx context.Context) (now time.Time, err error) {
			err = pool.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now)
			return now, err
		},
		ExpireLeases: func(ctx context.Context, n lane.Scope, owner string) error {
			return exec(ctx, `UPDATE lane_bucket SET lease_until = clock_timestamp() - interval '1 s' WHERE scope = $1 AND owner = $2`, n, owner)
		},
		MakeDue: func(ctx context.Context, n lane.Scope) error {
			return exec(ctx, `UPDATE lane_hold SET due_at = clock_timestamp() - interval '1 s' WHERE scope = $1 AND NOT parked`, n)
		},
		AddToTokens: func(ctx context.Context, n lane.Scope, d int64) error {
			return exec(ctx, `UPDATE lane_bucket SET token = token + $2 WHERE scope = $1`, n, d)
		},
		AgeReceipts: func(ctx context.Context, d time.Duration) error {
			return exec(ctx, `UPDATE inbox_receipt SET received_at = received_at - $1::interval, gone_at = gone_at - $1::interval`, d)
		},
		Fingerprint: func(ctx context.Context) (string, error) {
			var parts []string
			for _, table := range tables {
				var sum string
				err := pool.QueryRow(ctx, `SELECT coalesce(md5(string_agg(t.ctid::text || t.xmin::text || t.xmax::text || t::text, '|' ORDER BY t.ctid)), '') FROM `+table+` AS t`).Scan(&sum)
				if err != nil {
					return "", err
				}
				parts = append(parts, sum)
			}
			return strings.Join(parts, " "), nil
		},
	}, store)
}
