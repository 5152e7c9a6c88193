package reference

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/lanebox/lanebox/examples/reference/internal/events/sqlserver"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/lane"
	mssqlstore "github.com/lanebox/lanebox/runtime/sqlstore/sqlserver"
	"github.com/lanebox/lanebox/runtime/storetest"
	"github.com/lanebox/lanebox/runtime/storetest/testmssql"
)

// The suite runs with row versions (READ_COMMITTED_SNAPSHOT) and without, which
// is how READ COMMITTED reads there. Babelfish knows only the first, and its
// application locks hold in all databases: tests that use the same keys would wait
// for each other there.
func TestSQLServerStore(t *testing.T) {
	server := testmssql.DB(t, testmssql.Server(t))
	places := 2
	if is, err := testmssql.Babelfish(t.Context(), server); err != nil {
		t.Fatal(err)
	} else if is {
		places = 1
	}
	for name, statement := range testmssql.ReadCommittedModes(t) {
		t.Run(name, func(t *testing.T) {
			pools := &mssqlPools{t: t, statement: statement, places: make(chan struct{}, places), idle: make(chan *sql.DB, places)}
			storetest.Run(t, storetest.Harness[*sql.Tx]{
				Features: storetest.Features{Buckets: 128, ConcurrentWriters: true, Polling: true, Patience: 2 * time.Minute},
				Open:     func(t *testing.T) *storetest.DB[*sql.Tx] { return mssqlDB(pools.take(t)) },
			})
		})
	}
}

// mssqlPools hand out databases to tests, one for every place. They are used again, and
// so are their connections: the first batch of a new one can be slow.
type mssqlPools struct {
	t         *testing.T
	statement string
	places    chan struct{}
	idle      chan *sql.DB
}

// take returns a database without messages; it is given back when the test ends.
func (p *mssqlPools) take(t *testing.T) *sql.DB {
	t.Helper()
	p.places <- struct{}{}
	var db *sql.DB
	select {
	case db = <-p.idle:
		emptyMSSQL(t, db)
	default:
		db = mssqlDatabase(lasting{t, p.t}, p.statement)
	}
	t.Cleanup(func() {
		p.idle <- db
		<-p.places
	})
	return db
}

// lasting is a test whose cleaning up waits for another one to end.
type lasting struct {
	testing.TB
	until *testing.T
}

func (l lasting) Cleanup(f func()) { l.until.Cleanup(f) }

// mssqlDatabase returns a migrated database; statement, if any, sets it up.
func mssqlDatabase(t testing.TB, statement string) *sql.DB {
	t.Helper()
	db := testmssql.DB(t, testmssql.URL(t))
	db.SetMaxOpenConns(60)
	if statement != "" {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := sqlserver.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	return db
}

// mssqlTables are the tables of SQL Server, without those of scopes, buckets and
// heartbeats.
var mssqlTables = []string{"outbox_row", "outbox_dead", "inbox_row", "inbox_dead", "inbox_receipt", "inbox_position", "lane_hold", "lane_version"}

// emptyMSSQL brings a database back to how it was made.
func emptyMSSQL(t *testing.T, db *sql.DB) {
	t.Helper()
	for _, table := range append([]string{"lane_owner"}, mssqlTables...) {
		if _, err := db.ExecContext(t.Context(), `DELETE FROM `+table); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.ExecContext(t.Context(), `UPDATE lane_bucket SET token = 0, owner = NULL, lease_until = '2000-01-01'`); err != nil {
		t.Fatal(err)
	}
}

// unicodeLiteral quotes s as SQL Server does for text outside of its code page.
func unicodeLiteral(s string) string { return "N" + literal(s) }

func mssqlDB(db *sql.DB) *storetest.DB[*sql.Tx] {
	store := sqlserver.NewStore(db, 2*time.Minute)
	exec := func(ctx context.Context, text string, args ...any) error {
		_, err := db.ExecContext(ctx, text, args...)
		return err
	}
	return administer(&storetest.DB[*sql.Tx]{
		Begin: func(ctx context.Context) (*sql.Tx, error) {
			return db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		},
		Commit: func(_ context.Context, tx *sql.Tx) error { return tx.Commit() },
		Rollback: func(_ context.Context, tx *sql.Tx) error {
			if err := tx.Rollback(); !errors.Is(err, sql.ErrTxDone) { // a publish that failed has ended it
				return err
			}
			return nil
		},
		Appender: sqlserver.Appender,
		Insert: func(ctx context.Context, tx *sql.Tx, topic string, key *string, payload string) error {
			k := "NULL"
			if key != nil {
				k = unicodeLiteral(*key)
			}
			_, err := tx.ExecContext(ctx, `INSERT INTO outbox (topic, [key], payload) VALUES (`+unicodeLiteral(topic)+`, `+k+`, `+unicodeLiteral(payload)+`)`)
			return mssqlstore.Classify("insert", err)
		},
		Outbox: func(n lane.Scope) lane.Store { return store.Outbox(n) },
		Inbox:  func(n lane.Scope) lane.Store { return store.Inbox(n) },
		Keeper: store, Receive: store,
		ReceiveIn: func(ctx context.Context, tx *sql.Tx, s inbox.SourceRef, m inbox.Incoming) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO inbox (source, idempotency_key, event_type, aggregate_id, payload) VALUES (@p1, @p2, @p3, @p4, @p5)`,
				s.Number, m.IdempotencyKey, m.EventType, m.AggregateID, m.Payload)
			return err
		},
		Pull: func(n lane.Scope) inbox.PullStore[*sql.Tx] { return store.Inbox(n) },
		Push: func() inbox.PushStore[*sql.Tx] { return store.Push() },
		Remove: func(ctx context.Context, n lane.Scope, lane, sequence int64) error {
			table, scope := column(n)
			return exec(ctx, `DELETE FROM `+table+`_row WHERE `+scope+` = @p1 AND lane = @p2 AND sequence = @p3`, n, lane, sequence)
		},
		LockWaiters: func(ctx context.Context) (int, error) { return testmssql.LockWaiters(ctx, db) },
		Now: func(ctx context.Context) (now time.Time, err error) {
			err = db.QueryRowContext(ctx, `SELECT SYSUTCDATETIME()`).Scan(&now)
			return now, err
		},
		ExpireLeases: func(ctx context.Context, n lane.Scope, owner string) error {
			return exec(ctx, `UPDATE lane_bucket SET lease_until = DATEADD(second, -1, SYSUTCDATETIME()) WHERE scope = @p1 AND owner = @p2`, n, owner)
		},
		MakeDue: func(ctx context.Context, n lane.Scope) error {
			return exec(ctx, `UPDATE lane_hold SET due_at = DATEADD(second, -1, SYSUTCDATETIME()) WHERE scope = @p1 AND parked = 0`, n)
		},
		AddToTokens: func(ctx context.Context, n lane.Scope, d int64) error {
			return exec(ctx, `UPDATE lane_bucket SET token = token + @p1 WHERE scope = @p2`, d, n)
		},
		AgeReceipts: func(ctx context.Context, d time.Duration) error {
			return exec(ctx, `UPDATE inbox_receipt SET received_at = DATEADD(second, -@p1, received_at), gone_at = DATEADD(second, -@p1, gone_at)`, int32(d.Seconds()))
		},
		Fingerprint: func(ctx context.Context) (string, error) {
			sum := sha256.New()
			for _, table := range append([]string{"lane_bucket", "lane_scope"}, mssqlTables...) {
				if err := printRows(ctx, db, table, sum); err != nil {
					return "", err
				}
			}
			return fmt.Sprintf("%x", sum.Sum(nil)), nil
		},
	}, store)
}
