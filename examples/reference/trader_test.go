package reference

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"github.com/lanebox/lanebox/examples/reference/internal/events"
	"github.com/lanebox/lanebox/examples/reference/internal/events/postgres"
	"github.com/lanebox/lanebox/runtime/engine"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/outbox"
	"github.com/lanebox/lanebox/runtime/storetest/testpg"
)

// A trader publishes on one database, through its generated package and in plain
// SQL. The tests of the order of commits and of crashes are the same for all.
type trader struct {
	name string
	url  string
	// db looks at the database, and has the tables of the tests.
	db *sql.DB
	// inTx runs fn in a transaction of the generated package, ownTx in one that the
	// service begins itself; exec runs a statement in it.
	inTx, ownTx func(ctx context.Context, fn trade) error
	dialectText
	close func()
}

type (
	trade    func(exec execFunc, pub *events.Publisher) error
	execFunc func(ctx context.Context, query string, args ...any) error
)

// pollInterval is short, so that no test waits for it.
const pollInterval = 100 * time.Millisecond

// patience bounds every wait; only a failing test waits so long.
const patience = 3 * time.Minute

// dialectText is the SQL of the tests. Its parameters come in this order.
type dialectText struct {
	tables      []string // make the tables counter and committed
	insert      string   // topic, key, payload
	insertID    string   // id, topic, key
	count       string   // key, mark, topic
	effect      string   // makes the table of what handlers did
	now         string   // the database's clock
	lockWaiters func(ctx context.Context, db *sql.DB) (int, error)
}

// parts is what a service of the tests consists of; what is nil does nothing.
type parts struct {
	warehouse, ledger, search outbox.Destination
	observer                  func(engine.Event)
	mortal                    *mortal // handles payments and maps returns
	conns                     int     // the size of its pool; 0 leaves it to the driver
}

// A dialect opens traders and services by URL.
type dialect struct {
	name, scheme string
	// deadlocking is how many transactions of a writer are enough to make
	// deadlocks; noticing one takes some databases seconds.
	deadlocking int
	// crashes and inboxCrashes are how many processes a run of all tests kills.
	crashes, inboxCrashes int
	// database returns the URL of a fresh, migrated database, or skips the test.
	database func(t *testing.T) string
	// open returns a trader with a pool of conns connections.
	open func(ctx context.Context, url string, conns int) (*trader, error)
	// service returns a service and what closes its pool.
	service func(ctx context.Context, url string, p parts) (service, func(), error)
}

// dialects are the databases with many writers; SQLite has one at a time. Files
// of further dialects add to it.
var dialects = []dialect{{
	name: "PostgreSQL", scheme: "postgres", deadlocking: 25, crashes: 50, inboxCrashes: 30,
	database: postgresDatabase, open: openPostgres, service: postgresService,
}}

// dialectOf returns the dialect of a URL.
func dialectOf(url string) dialect {
	for _, d := range dialects {
		if strings.HasPrefix(url, d.scheme+"://") {
			return d
		}
	}
	return dialects[0]
}

// newTrader returns a trader on a fresh database.
func (d dialect) newTrader(t *testing.T, conns int) *trader {
	t.Helper()
	tr, err := d.open(t.Context(), d.database(t), conns)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.close)
	return tr
}

// eachDialect runs a test on every database with many writers.
func eachDialect(t *testing.T, test func(t *testing.T, d dialect)) {
	for _, d := range dialects {
		t.Run(d.name, func(t *testing.T) { test(t, d) })
	}
}

// waiting counts the messages in the outbox.
func (tr *trader) waiting(t *testing.T) (n int) {
	t.Helper()
	if err := tr.db.QueryRowContext(t.Context(), `SELECT count(*) FROM outbox`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func postgresDatabase(t *testing.T) string {
	t.Helper()
	url, _ := database(t)
	return url
}

// database returns a migrated PostgreSQL database and a pool on it.
func database(t *testing.T) (string, *pgxpool.Pool) {
	t.Helper()
	url := testpg.URL(t)
	pool := testpg.Pool(t, url, nil)
	if _, err := postgres.Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	return url, pool
}

func openPostgres(ctx context.Context, url string, conns int) (*trader, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	if conns > 0 {
		config.MaxConns = int32(conns)
	}
	config.ConnConfig.RuntimeParams["deadlock_timeout"] = "10ms"
	pool, err := pgxpool.NewWithConfig(context.WithoutCancel(ctx), config)
	if err != nil {
		return nil, err
	}
	db, err := sql.Open("pgx", url)
	if err != nil {
		return nil, err
	}
	run := func(ctx context.Context, tx pgx.Tx, fn trade, pub *events.Publisher) error {
		return fn(func(ctx context.Context, query string, args ...any) error {
			_, err := tx.Exec(ctx, query, args...)
			return err
		}, pub)
	}
	return &trader{
		name: "PostgreSQL", url: url, db: db,
		inTx: func(ctx context.Context, fn trade) error {
			return postgres.InTx(ctx, pool, func(tx pgx.Tx, pub *events.Publisher) error { return run(ctx, tx, fn, pub) })
		},
		ownTx: func(ctx context.Context, fn trade) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return run(ctx, tx, fn, postgres.In(tx)) })
		},
		dialectText: dialectText{
			tables: []string{
				`CREATE TABLE counter (key text PRIMARY KEY, n bigint NOT NULL)`,
				`CREATE TABLE committed (key text NOT NULL, n bigint NOT NULL, mark text NOT NULL, topic text NOT NULL, PRIMARY KEY (key, n))`,
			},
			insert:   `INSERT INTO outbox (topic, key, payload) VALUES ($1, $2, $3)`,
			insertID: `INSERT INTO outbox (id, topic, key, payload) VALUES ($1, $2, $3, '{}')`,
			count: `WITH c AS (INSERT INTO counter AS c (key, n) VALUES ($1, 1) ON CONFLICT (key) DO UPDATE SET n = c.n + 1 RETURNING n)
				INSERT INTO committed (key, n, mark, topic) SELECT $1, c.n, $2, $3 FROM c`,
			effect: `CREATE TABLE effect (n bigserial PRIMARY KEY, key text NOT NULL, message text NOT NULL)`,
			now:    `clock_timestamp()`,
			lockWaiters: func(ctx context.Context, db *sql.DB) (n int, err error) {
				err = db.QueryRowContext(ctx, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
					AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`).Scan(&n)
				return n, err
			},
		},
		close: func() {
			pool.Close()
			db.Close()
		},
	}, nil
}

func postgresService(ctx context.Context, url string, p parts) (service, func(), error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, nil, err
	}
	if p.conns > 0 {
		config.MaxConns = int32(p.conns)
	}
	pool, err := pgxpool.NewWithConfig(context.WithoutCancel(ctx), config)
	if err != nil {
		return nil, nil, err
	}
	c := postgres.Config{Warehouse: p.warehouse, Ledger: p.ledger, Search: p.search, Observer: p.observer, PollInterval: pollInterval}
	if p.mortal != nil {
		c.Payments = payments[pgx.Tx]{mortal: *p.mortal, note: func(ctx context.Context, tx pgx.Tx, key, id string) error {
			_, err := tx.Exec(ctx, `INSERT INTO effect (key, message) VALUES ($1, $2)`, key, id)
			return err
		}}
		c.ReturnsMap = func(_ context.Context, _ pgx.Tx, r inbox.Raw) ([]events.Event, error) { return p.mortal.mapReturn(r) }
	}
	fillIn(&c)
	box, err := postgres.New(pool, c)
	if err != nil {
		pool.Close()
		return nil, nil, err
	}
	return box, pool.Close, nil
}
