package c1tmp

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lanebox/lanebox/examples/reference/internal/events/postgres"
	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/outbox"
	"github.com/lanebox/lanebox/runtime/storetest"
	"github.com/lanebox/lanebox/runtime/storetest/testpg"
	pgstore "github.com/lanebox/lanebox/runtime/sqlstore/postgres"
)

func TestC1Conformance(t *testing.T) {
	storetest.Run(t, storetest.Harness[pgx.Tx]{Features: storetest.Features{Buckets: 128, ConcurrentWriters: true}, Open: openC1})
}

func openC1(t *testing.T) *storetest.DB[pgx.Tx] {
	url := testpg.URL(t)
	pool := testpg.Pool(t, url, func(c *pgxpool.Config) { c.MaxConns = 60 })
	ctx := t.Context()
	for _, f := range []string{"0001_outbox", "0002_inbox", "repeatable"} {
		text, err := os.ReadFile("../internal/events/postgres/migrations/" + f + ".sql")
		if err != nil {
			t.Fatal(err)
		}
		c, err := pool.Acquire(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Conn().PgConn().Exec(ctx, string(text)).ReadAll(); err != nil {
			t.Fatal(err)
		}
		c.Release()
	}
	s := postgres.NewStore(pool)
	num := func(name string) int32 {
		if name == storetest.Push {
			return 1
		}
		var n int32
		if err := pool.QueryRow(context.Background(), `SELECT scope FROM lane_scope WHERE name = $1 AND kind <> 'push'`, name).Scan(&n); err != nil {
			t.Fatal(name, err)
		}
		return n
	}
	exec := func(ctx context.Context, sql string, args ...any) error { _, err := pool.Exec(ctx, sql, args...); return err }
	return &storetest.DB[pgx.Tx]{
		Scope: func(name string) lane.Scope { return lane.Scope(num(name)) },
		Source: func(name string) inbox.SourceRef {
			r := inbox.SourceRef{Name: name, Number: num(name), Scope: lane.Scope(num(name))}
			if name == storetest.Orders || name == storetest.Returns {
				r.Scope = 1
			}
			return r
		},
		Begin:    pool.Begin,
		Commit:   func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) },
		Rollback: func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) },
		Appender: func(tx pgx.Tx) outbox.Appender { return postgres.Appender(tx) },
		Insert: func(ctx context.Context, tx pgx.Tx, topic string, key *string, payload string) error {
			k := "NULL"
			if key != nil {
				k = "'" + strings.ReplaceAll(*key, "'", "''") + "'"
			}
			_, err := tx.Exec(ctx, fmt.Sprintf(`INSERT INTO outbox (topic, key, payload) VALUES ('%s', %s, '%s')`, topic, k, strings.ReplaceAll(payload, "'", "''")))
			return pgstore.Classify("insert", err)
		},
		Outbox: func(n lane.Scope) lane.Store { return s.Outbox(n) }, Inbox: func(n lane.Scope) lane.Store { return s.Inbox(n) },
		Keeper: s, Waker: s.Waker(), Receive: s,
		Pull: func(n lane.Scope) inbox.PullStore[pgx.Tx] { return s.Inbox(n) },
		Push: func() inbox.PushStore[pgx.Tx] { return s.Push() },
		DeadLetters: s.DeadLetters,
		Replay: func(ctx context.Context, n lane.Scope, ids ...event.UUID) error { _, err := s.Replay(ctx, n, ids...); return err },
		Park:   func(ctx context.Context, n lane.Scope, key string) error { return s.ParkKey(ctx, n, key, "test") },
		Unpark: func(ctx context.Context, n lane.Scope, key string) error { return s.ReleaseKey(ctx, n, key, "test") },
		Remove: func(ctx context.Context, n lane.Scope, l, seq int64) error {
			if err := exec(ctx, `DELETE FROM outbox WHERE destination = $1 AND lane = $2 AND sequence = $3`, n, l, seq); err != nil {
				return err
			}
			return exec(ctx, `DELETE FROM inbox WHERE scope = $1 AND lane = $2 AND sequence = $3`, n, l, seq)
		},
		LockWaiters: func(ctx context.Context) (n int, err error) {
			err = pool.QueryRow(ctx, `SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database WHERE NOT l.granted AND d.datname = current_database()`).Scan(&n)
			return
		},
		Now: func(ctx context.Context) (n time.Time, err error) { err = pool.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&n); return },
		ExpireLeases: func(ctx context.Context, n lane.Scope, owner string) error {
			return exec(ctx, `UPDATE lane_bucket SET lease_until = now() - interval '1 s' WHERE scope = $1 AND owner = $2`, n, owner)
		},
		MakeDue: func(ctx context.Context, n lane.Scope) error {
			return exec(ctx, `UPDATE lane_hold SET due_at = now() - interval '1 s' WHERE scope = $1`, n)
		},
		AddToTokens: func(ctx context.Context, n lane.Scope, d int64) error {
			return exec(ctx, `UPDATE lane_bucket SET token = token + $2 WHERE scope = $1`, n, d)
		},
		Fingerprint: func(ctx context.Context) (string, error) {
			var all string
			for _, table := range []string{"outbox", "outbox_dead", "inbox", "inbox_dead", "inbox_receipt", "lane_hold", "lane_bucket", "lane_version"} {
				var one string
				if err := pool.QueryRow(ctx, `SELECT coalesce(string_agg(x.ctid::text || x.xmin::text || x.xmax::text || x::text, ';' ORDER BY x::text), '') FROM `+table+` x`).Scan(&one); err != nil {
					return "", err
				}
				all += table + one
			}
			return all, nil
		},
	}
}
