package reference

import (
	"context"
	"database/sql"
	"log/slog"
	"testing"
	"time"

	"github.com/lanebox/lanebox/examples/reference/internal/events"
	"github.com/lanebox/lanebox/examples/reference/internal/events/sqlserver"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/outbox"
	"github.com/lanebox/lanebox/runtime/storetest/testmssql"
	"github.com/lanebox/lanebox/runtime/transport/webhook"
)

func init() {
	dialects = append(dialects, dialect{
		name: "SQL Server", scheme: "sqlserver", deadlocking: 4, crashes: 10, inboxCrashes: 10,
		database: mssqlDatabaseURL, open: openMSSQL, service: mssqlService,
	})
}

func mssqlDatabaseURL(t *testing.T) string {
	t.Helper()
	url := testmssql.URL(t)
	db := testmssql.DB(t, url)
	if _, err := sqlserver.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	return url
}

// mssqlPool returns a pool of conns connections that keeps them.
func mssqlPool(url string, conns int) (*sql.DB, error) {
	db, err := sql.Open("sqlserver", url)
	if err != nil {
		return nil, err
	}
	if conns == 0 {
		conns = 8
	}
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	return db, nil
}

func openMSSQL(_ context.Context, url string, conns int) (*trader, error) {
	db, err := mssqlPool(url, conns)
	if err != nil {
		return nil, err
	}
	look, err := mssqlPool(url, 2)
	if err != nil {
		return nil, err
	}
	run := func(tx *sql.Tx, fn trade, pub *events.Publisher) error {
		return fn(func(ctx context.Context, query string, args ...any) error {
			_, err := tx.ExecContext(ctx, query, args...)
			return err
		}, pub)
	}
	return &trader{
		name: "SQL Server", url: url, db: look,
		inTx: func(ctx context.Context, fn trade) error {
			return sqlserver.InTx(ctx, db, func(tx *sql.Tx, pub *events.Publisher) error { return run(tx, fn, pub) })
		},
		ownTx: func(ctx context.Context, fn trade) error {
			tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
			if err != nil {
				return err
			}
			defer tx.Rollback()
			if err := run(tx, fn, sqlserver.In(tx)); err != nil {
				return err
			}
			return tx.Commit()
		},
		dialectText: dialectText{
			tables: []string{
				`CREATE TABLE counter ([key] nvarchar(255) COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY, n bigint NOT NULL)`,
				`CREATE TABLE committed ([key] nvarchar(255) COLLATE Latin1_General_100_BIN2 NOT NULL, n bigint NOT NULL, mark nvarchar(40) NOT NULL,
					topic nvarchar(255) NOT NULL, PRIMARY KEY ([key], n))`,
			},
			insert:   `INSERT INTO outbox (topic, [key], payload) VALUES (@p1, @p2, @p3)`,
			insertID: `INSERT INTO outbox (id, topic, [key], payload) VALUES (@p1, @p2, @p3, N'{}')`,
			count: `UPDATE counter SET n = n + 1 WHERE [key] = @p1;
				IF @@ROWCOUNT = 0 INSERT INTO counter ([key], n) VALUES (@p1, 1);
				INSERT INTO committed ([key], n, mark, topic) SELECT c.[key], c.n, @p2, @p3 FROM counter AS c WHERE c.[key] = @p1;`,
			effect:      `CREATE TABLE effect (n bigint IDENTITY(1, 1) PRIMARY KEY, [key] nvarchar(255) NOT NULL, message nvarchar(255) NOT NULL)`,
			now:         `SYSUTCDATETIME()`,
			lockWaiters: testmssql.LockWaiters,
		},
		close: func() {
			db.Close()
			look.Close()
		},
	}, nil
}

func mssqlService(_ context.Context, url string, p parts) (service, func(), error) {
	db, err := mssqlPool(url, p.conns)
	if err != nil {
		return nil, nil, err
	}
	box, err := sqlserver.New(db, mssqlConfig(p))
	if err != nil {
		db.Close()
		return nil, nil, err
	}
	return box, func() { db.Close() }, nil
}

func mssqlConfig(p parts) sqlserver.Config {
	c := sqlserver.Config{
		Warehouse: orIdle(p.warehouse), Ledger: orIdle(p.ledger), Mail: idle, Search: orIdle(p.search),
		OrdersVerifier: webhook.Unsigned(), PaymentsVerifier: webhook.Unsigned(), ReturnsVerifier: webhook.Unsigned(),
		Payments: nothing[*sql.Tx]{}, Stock: nothing[*sql.Tx]{},
		ReturnsMap: func(context.Context, *sql.Tx, inbox.Raw) ([]events.Event, error) { return nil, nil },
		Logger:     slog.New(slog.DiscardHandler), Observer: p.observer, PollInterval: pollInterval, CallTimeout: 2 * time.Minute,
	}
	if p.mortal != nil {
		c.Payments = payments[*sql.Tx]{mortal: *p.mortal, note: func(ctx context.Context, tx *sql.Tx, key, id string) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO effect ([key], message) VALUES (@p1, @p2)`, key, id)
			return err
		}}
		c.ReturnsMap = func(_ context.Context, _ *sql.Tx, r inbox.Raw) ([]events.Event, error) { return p.mortal.mapReturn(r) }
	}
	return c
}

// orIdle returns d, or a destination that does nothing.
func orIdle(d outbox.Destination) outbox.Destination {
	if d == nil {
		return idle
	}
	return d
}
