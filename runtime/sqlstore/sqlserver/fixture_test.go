package sqlserver_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/migrate"
	"github.com/lanebox/lanebox/runtime/outbox"
	store "github.com/lanebox/lanebox/runtime/sqlstore/sqlserver"
	plain "github.com/lanebox/lanebox/runtime/sqlstore/sqlserver/internal/fixture/plain/sqlserver"
	quoted "github.com/lanebox/lanebox/runtime/sqlstore/sqlserver/internal/fixture/quoted/sqlserver"
	"github.com/lanebox/lanebox/runtime/storetest/testmssql"
)

// Scopes and sources of the fixtures; see package sqlcodetest.
const (
	warehouse lane.Scope = 101
	ledger    lane.Scope = 102
	audit     lane.Scope = 103
	payments  lane.Scope = 201
	push      lane.Scope = 1
)

var (
	orders        = inbox.SourceRef{Name: "orders", Number: 301, Scope: push}
	paymentSource = inbox.SourceRef{Name: "payments", Number: 201, Scope: payments}
)

// ttl is long enough for every test, callTimeout for every engine.
const (
	ttl         = time.Hour
	callTimeout = 3 * time.Minute
)

// A fixture is one generated package.
type fixture struct {
	name, schema, prefix string
	options              string // of the connection
	binary               bool
	open                 func(*sql.DB) *store.Store
	appender             func(*sql.Tx) outbox.Appender
}

var fixtures = []fixture{
	{"plain", "dbo", "", "&guid+conversion=true", false, func(db *sql.DB) *store.Store { return plain.NewStore(db, callTimeout).Store }, plain.Appender},
	{"quoted", `my "odd" schema\`, "Select ", "", true, func(db *sql.DB) *store.Store { return quoted.NewStore(db, callTimeout).Store }, quoted.Appender},
}

// table returns the quoted name of a table or view.
func (f *fixture) table(name string) string { return "[" + f.schema + "].[" + f.prefix + name + "]" }

// set is what the fixture needs in a database.
func (f *fixture) set(t testing.TB) migrate.Set {
	t.Helper()
	s := migrate.Set{Schema: f.schema, Prefix: f.prefix}
	for _, name := range []string{"0001_outbox", "0002_inbox", "repeatable"} {
		text, err := os.ReadFile(filepath.Join("internal", "fixture", f.name, "sqlserver", "migrations", name+".sql"))
		if err != nil {
			t.Fatal(err)
		}
		if name == "repeatable" {
			s.Repeatable = string(text)
		} else {
			s.Steps = append(s.Steps, migrate.Step{Name: name, SQL: string(text)})
		}
	}
	return s
}

// A box is a migrated database with a store on it.
type box struct {
	*fixture
	*testing.T
	db    *sql.DB
	store *store.Store
}

func newBox(t *testing.T, f *fixture) *box {
	t.Helper()
	db := testmssql.DB(t, testmssql.URL(t)+f.options)
	if _, err := migrate.SQLServer(t.Context(), db, f.set(t)); err != nil {
		t.Fatal(err)
	}
	return &box{fixture: f, T: t, db: db, store: f.open(db)}
}

// empty brings the database back to how it was made.
func (b *box) empty() {
	b.Helper()
	for _, table := range []string{"outbox_row", "outbox_dead", "inbox_row", "inbox_dead", "inbox_receipt", "inbox_position", "lane_hold", "lane_owner", "lane_version"} {
		b.exec(`DELETE FROM ` + b.table(table))
	}
	b.exec(`UPDATE ` + b.table("lane_bucket") + ` SET token = 0, owner = NULL, lease_until = '2000-01-01'`)
	b.exec(`DROP TABLE IF EXISTS effect`)
}

func (b *box) check(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *box) exec(query string, args ...any) {
	b.Helper()
	if _, err := b.db.ExecContext(b.Context(), query, args...); err != nil {
		b.Fatalf("%s: %v", query, err)
	}
}

// count returns the single number of a query.
func (b *box) count(query string, args ...any) (n int) {
	b.Helper()
	if err := b.db.QueryRowContext(b.Context(), query, args...).Scan(&n); err != nil {
		b.Fatalf("%s: %v", query, err)
	}
	return n
}

// publish stores records in a transaction of their own.
func (b *box) publish(records ...outbox.Record) error {
	return store.InTx(b.Context(), b.db, func(tx *sql.Tx) error { return b.appender(tx).Append(b.Context(), records) })
}

func record(topic, key, payload string) outbox.Record {
	return outbox.Record{ID: event.NewUUID(), Topic: topic, Key: key, Payload: []byte(payload)}
}

func incoming(id, eventType, aggregate, payload string) inbox.Incoming {
	return inbox.Incoming{IdempotencyKey: id, EventType: eventType, AggregateID: aggregate, Payload: []byte(payload)}
}

// receive stores messages and returns what became of them.
func (b *box) receive(source inbox.SourceRef, messages ...inbox.Incoming) []inbox.Disposition {
	b.Helper()
	ds, err := b.store.Receive(b.Context(), source, messages)
	b.check(err)
	return ds
}

// A client is a process that owns the buckets of one scope.
type client struct {
	*box
	owner  string
	lanes  lane.Store
	leases []lane.Lease
}

// own acquires all free and expired buckets of a scope.
func (b *box) own(scope lane.Scope, owner string) *client {
	b.Helper()
	c := &client{box: b, owner: owner, lanes: b.store.Inbox(scope)}
	if scope == warehouse || scope == ledger || scope == audit {
		c.lanes = b.store.Outbox(scope)
	}
	var err error
	c.leases, err = c.lanes.Acquire(b.Context(), lane.AcquireParams{Owner: owner, MaxFree: 1000, TTL: ttl})
	b.check(err)
	return c
}

// all fetches everything from the beginning.
func (c *client) all() []lane.Row {
	c.Helper()
	p := lane.FetchParams{Owner: c.owner, MaxLanes: 64, MaxRun: 10000, MaxRows: 10000, ScanLanes: 512}
	for _, l := range c.leases {
		p.Cursors = append(p.Cursors, lane.Cursor{Lease: l, Lane: l.Lo})
	}
	page, err := c.lanes.Fetch(c.Context(), p)
	c.check(err)
	return page.Rows
}

// settle records one outcome for rows.
func (c *client) settle(o lane.Outcome, rows ...lane.Row) lane.SettleResult {
	c.Helper()
	var list []lane.Settlement
	for _, r := range rows {
		list = append(list, lane.Settlement{Bucket: r.Bucket, Lane: r.Lane, Sequence: r.Message.Sequence, Outcome: o, Held: r.Held,
			Attempts: r.Attempts + 1, Reason: "test", Error: "boom\x00\xff"})
	}
	result, err := c.lanes.Settle(c.Context(), c.owner, c.leases, list)
	c.check(err)
	return result
}

// lease returns the lease of a row's bucket.
func (c *client) lease(r lane.Row) lane.Lease {
	c.Helper()
	for _, l := range c.leases {
		if l.Bucket == r.Bucket {
			return l
		}
	}
	c.Fatalf("no lease of bucket %d", r.Bucket)
	return lane.Lease{}
}

// runs makes a run of every lane.
func (c *client) runs(rows []lane.Row) []lane.Run {
	c.Helper()
	var runs []lane.Run
	for _, row := range rows {
		if n := len(runs); n > 0 && runs[n-1].Lane == row.Lane {
			runs[n-1].Rows = append(runs[n-1].Rows, row)
		} else {
			runs = append(runs, lane.Run{Lease: c.lease(row), Lane: row.Lane, Rows: []lane.Row{row}})
		}
	}
	return runs
}

// move moves everything that waits, with a hook or without.
func (c *client) move(remap inbox.Remap[*sql.Tx]) ([]lane.Run, []lane.Verdict) {
	c.Helper()
	runs := c.runs(c.all())
	verdicts, err := c.store.Inbox(push).Move(c.Context(), c.owner, runs, remap)
	c.check(err)
	if len(verdicts) != len(runs) {
		c.Fatalf("%d verdicts for %d runs", len(verdicts), len(runs))
	}
	return runs, verdicts
}

// asIs is a hook that keeps messages as they are.
func asIs(_ context.Context, _ *sql.Tx, m inbox.Raw) ([]outbox.Record, error) {
	return []outbox.Record{{Topic: m.Topic, Payload: m.Payload}}, nil
}

// payloads returns the payloads of rows, in order, in one text.
func payloads(rows []lane.Row) string {
	var list []string
	for _, r := range rows {
		list = append(list, string(r.Message.Payload))
	}
	return strings.Join(list, " ")
}

func (b *box) want(what string, got, want any) {
	b.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		b.Errorf("%s: got %v, want %v", what, got, want)
	}
}
