package postgres_test

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/outbox"
	store "github.com/lanebox/lanebox/runtime/sqlstore/postgres"
	plain "github.com/lanebox/lanebox/runtime/sqlstore/postgres/internal/fixture/plain/postgres"
	quoted "github.com/lanebox/lanebox/runtime/sqlstore/postgres/internal/fixture/quoted/postgres"
	"github.com/lanebox/lanebox/runtime/storetest/testpg"
)

// Scopes and sources of the fixtures; see package sqlcodetest.
const (
	warehouse lane.Scope = 101
	ledger    lane.Scope = 102
	audit     lane.Scope = 103
	payments  lane.Scope = 201
	refunds   lane.Scope = 202
	push      lane.Scope = 1
)

var (
	orders        = inbox.SourceRef{Name: "orders", Number: 301, Scope: push}
	shipments     = inbox.SourceRef{Name: "shipments", Number: 302, Scope: push}
	paymentSource = inbox.SourceRef{Name: "payments", Number: 201, Scope: payments}
	refundSource  = inbox.SourceRef{Name: "refunds", Number: 202, Scope: refunds}
)

// ttl is long enough for every test.
const ttl = time.Hour

// A fixture is one generated package.
type fixture struct {
	name, schema, prefix string
	binary               bool
	open                 func(*pgxpool.Pool) *store.Store
	appender             func(pgx.Tx) outbox.Appender
	sqlAppender          func(*sql.Tx) outbox.Appender
}

var fixtures = []fixture{
	{"plain", "public", "", false, func(p *pgxpool.Pool) *store.Store { return plain.NewStore(p).Store }, plain.Appender, plain.SQLAppender},
	{"quoted", `my "odd" schema\`, "Select ", true, func(p *pgxpool.Pool) *store.Store { return quoted.NewStore(p).Store },
		quoted.Appender, quoted.SQLAppender},
}

// table returns the quoted name of a table or function.
func (f *fixture) table(name string) string {
	return pgx.Identifier{f.schema, f.prefix + name}.Sanitize()
}

// A box is a migrated database with a store on it.
type box struct {
	*fixture
	t     testing.TB
	url   string
	pool  *pgxpool.Pool
	store *store.Store
}

// forEach runs a test on every fixture.
func forEach(t *testing.T, test func(t *testing.T, b *box)) {
	for i := range fixtures {
		t.Run(fixtures[i].name, func(t *testing.T) {
			t.Parallel()
			test(t, newBox(t, &fixtures[i], nil))
		})
	}
}

// newPlain returns a box on the plain fixture.
func newPlain(t testing.TB) *box { return newBox(t, &fixtures[0], nil) }

func newBox(t testing.TB, f *fixture, configure func(*pgxpool.Config)) *box {
	t.Helper()
	url := testpg.URL(t)
	b := &box{fixture: f, t: t, url: url, pool: testpg.Pool(t, url, configure)}
	migrate(t, url, f.name)
	b.store = f.open(b.pool)
	return b
}

// migrate applies the migrations of a fixture as psql would.
func migrate(t testing.TB, url, name string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	for _, step := range []string{"0001_outbox.sql", "0002_inbox.sql", "repeatable.sql"} {
		apply(t, conn, filepath.Join("internal", "fixture", name, "postgres", "migrations", step))
	}
}

func apply(t testing.TB, conn *pgx.Conn, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.PgConn().Exec(t.Context(), string(text)).ReadAll(); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

func (b *box) exec(sql string, args ...any) {
	b.t.Helper()
	if _, err := b.pool.Exec(b.t.Context(), sql, args...); err != nil {
		b.t.Fatalf("%s: %v", sql, err)
	}
}

// one returns the single value of a query.
func one[T any](b *box, sql string, args ...any) T {
	b.t.Helper()
	var v T
	if err := b.pool.QueryRow(b.t.Context(), sql, args...).Scan(&v); err != nil {
		b.t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// publish stores records in a transaction of their own.
func (b *box) publish(records ...outbox.Record) {
	b.t.Helper()
	if err := b.tryPublish(b.t.Context(), records...); err != nil {
		b.t.Fatal(err)
	}
}

func (b *box) tryPublish(ctx context.Context, records ...outbox.Record) error {
	return pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) error { return b.appender(tx).Append(ctx, records) })
}

func record(topic, key, payload string) outbox.Record {
	return outbox.Record{ID: event.NewUUID(), Topic: topic, Key: key, Payload: []byte(payload)}
}

// receive stores messages and returns what became of them.
func (b *box) receive(source inbox.SourceRef, messages ...inbox.Incoming) []inbox.Disposition {
	b.t.Helper()
	ds, err := b.store.Receive(b.t.Context(), source, messages)
	if err != nil {
		b.t.Fatal(err)
	}
	return ds
}

// A client is a process that owns buckets of one scope.
type client struct {
	*box
	owner  string
	lanes  lane.Store
	leases []lane.Lease
}

func (b *box) scope(scope lane.Scope) lane.Store {
	if scope == warehouse || scope == ledger || scope == audit {
		return b.store.Outbox(scope)
	}
	return b.store.Inbox(scope)
}

// own acquires all free and expired buckets of a scope.
func (b *box) own(scope lane.Scope, owner string) *client {
	b.t.Helper()
	c := &client{box: b, owner: owner, lanes: b.scope(scope)}
	c.acquire(ttl)
	return c
}

func (c *client) acquire(ttl time.Duration) {
	c.t.Helper()
	leases, err := c.lanes.Acquire(c.t.Context(), lane.AcquireParams{Owner: c.owner, MaxFree: 1000, TTL: ttl})
	if err != nil {
		c.t.Fatal(err)
	}
	c.leases = leases
}

// start returns a fetch of all buckets from their beginning.
func (c *client) start() lane.FetchParams {
	p := lane.FetchParams{Owner: c.owner, MaxLanes: 64, MaxRun: 10000, MaxRows: 10000, ScanLanes: 512}
	for _, l := range c.leases {
		p.Cursors = append(p.Cursors, lane.Cursor{Lease: l, Lane: l.Lo})
	}
	return p
}

func (c *client) fetch(p lane.FetchParams) lane.Page {
	c.t.Helper()
	page, err := c.lanes.Fetch(c.t.Context(), p)
	if err != nil {
		c.t.Fatal(err)
	}
	return page
}

// all fetches everything from the beginning.
func (c *client) all() []lane.Row {
	c.t.Helper()
	return c.fetch(c.start()).Rows
}

func (c *client) settle(s ...lane.Settlement) lane.SettleResult {
	c.t.Helper()
	result, err := c.lanes.Settle(c.t.Context(), c.owner, c.leases, s)
	if err != nil {
		c.t.Fatal(err)
	}
	return result
}

// outcome settles a row.
func outcome(r lane.Row, o lane.Outcome) lane.Settlement {
	return lane.Settlement{Bucket: r.Bucket, Lane: r.Lane, Sequence: r.Message.Sequence, Outcome: o, Held: r.Held,
		Attempts: r.Attempts + 1, Reason: "test", Error: "boom"}
}

// lease returns the lease of a row's bucket.
func (c *client) lease(r lane.Row) lane.Lease {
	c.t.Helper()
	for _, l := range c.leases {
		if l.Bucket == r.Bucket {
			return l
		}
	}
	c.t.Fatalf("no lease of bucket %d", r.Bucket)
	return lane.Lease{}
}

// payloads returns the payloads of rows in order.
func payloads(rows []lane.Row) []string {
	ps := []string{}
	for _, r := range rows {
		ps = append(ps, string(r.Message.Payload))
	}
	return ps
}
