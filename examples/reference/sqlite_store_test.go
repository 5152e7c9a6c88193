//go:build !race

package reference

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/lanebox/lanebox/examples/reference/internal/events/sqlite"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/lane"
	sqlitestore "github.com/lanebox/lanebox/runtime/sqlstore/sqlite"
	"github.com/lanebox/lanebox/runtime/storetest"
)

// The race detector makes the SQLite engine, a million lines of Go translated
// from C, about twenty times slower. So the suite runs without it; the tests of
// runtime/sqlstore/sqlite have the detector look at the code around the engine.

func TestSQLiteStore(t *testing.T) {
	storetest.Run(t, storetest.Harness[*sql.Tx]{
		Features: storetest.Features{Buckets: 1},
		Open: func(t *testing.T) *storetest.DB[*sql.Tx] {
			fewAtATime(t)
			db, err := sqlitestore.Open(filepath.Join(t.TempDir(), "store.db"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { db.Close() })
			if _, err := sqlite.Migrate(t.Context(), db); err != nil {
				t.Fatal(err)
			}
			return sqliteDB(db)
		},
	})
}

func sqliteDB(db *sql.DB) *storetest.DB[*sql.Tx] {
	store := sqlite.NewStore(db)
	exec := func(ctx context.Context, text string, args ...any) error {
		_, err := db.ExecContext(ctx, text, args...)
		return err
	}
	return administer(&storetest.DB[*sql.Tx]{
		Begin:    func(ctx context.Context) (*sql.Tx, error) { return sqlitestore.Begin(ctx, db) },
		Commit:   func(_ context.Context, tx *sql.Tx) error { return tx.Commit() },
		Rollback: func(_ context.Context, tx *sql.Tx) error { return tx.Rollback() },
		Appender: sqlite.Appender,
		Insert: func(ctx context.Context, tx *sql.Tx, topic string, key *string, payload string) error {
			_, err := tx.ExecContext(ctx, insert(topic, key, payload))
			return sqlitestore.Classify("insert", err)
		},
		Outbox: func(n lane.Scope) lane.Store { return store.Outbox(n) },
		Inbox:  func(n lane.Scope) lane.Store { return store.Inbox(n) },
		Keeper: store, Waker: sqlitestore.NewWaker(db), Receive: store,
		Pull: func(n lane.Scope) inbox.PullStore[*sql.Tx] { return store.Inbox(n) },
		Push: func() inbox.PushStore[*sql.Tx] { return store.Push() },
		Remove: func(ctx context.Context, n lane.Scope, lane, sequence int64) error {
			table, scope := column(n)
			return exec(ctx, `DELETE FROM `+table+` WHERE `+scope+` = ? AND lane = ? AND sequence = ?`, n, lane, sequence)
		},
		Now: func(ctx context.Context) (time.Time, error) {
			var ms int64
			err := db.QueryRowContext(ctx, `SELECT `+sqliteNow).Scan(&ms)
			return time.UnixMilli(ms), err
		},
		ExpireLeases: func(ctx context.Context, n lane.Scope, owner string) error {
			return exec(ctx, `UPDATE lane_bucket SET lease_until = `+sqliteNow+` - 1000 WHERE scope = ? AND owner = ?`, n, owner)
		},
		MakeDue: func(ctx context.Context, n lane.Scope) error {
			return exec(ctx, `UPDATE lane_hold SET due_at = `+sqliteNow+` - 1000 WHERE scope = ? AND parked = 0`, n)
		},
		AddToTokens: func(ctx context.Context, n lane.Scope, d int64) error {
			return exec(ctx, `UPDATE lane_bucket SET token = token + ? WHERE scope = ?`, d, n)
		},
		AgeReceipts: func(ctx context.Context, d time.Duration) error {
			return exec(ctx, `UPDATE inbox_receipt SET received_at = received_at - ?1, gone_at = gone_at - ?1`, d.Milliseconds())
		},
		Fingerprint: func(ctx context.Context) (string, error) {
			sum := sha256.New()
			for _, table := range tables {
				if err := printRows(ctx, db, table, sum); err != nil {
					return "", err
				}
			}
			return fmt.Sprintf("%x", sum.Sum(nil)), nil
		},
	}, store)
}
