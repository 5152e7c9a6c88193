package sqlite_test

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/migrate"
	"github.com/lanebox/lanebox/runtime/outbox"
	sqlitestore "github.com/lanebox/lanebox/runtime/sqlstore/sqlite"
	shop "github.com/lanebox/lanebox/runtime/sqlstore/sqlite/internal/shop/sqlite"
)

// The numbers of the shop's scopes; see shopModel of the generator's tests.
const (
	warehouse lane.Scope = 1001
	ledger    lane.Scope = 1002
	audit     lane.Scope = 1003
	payments  lane.Scope = 2002
	push      lane.Scope = 1
)

var (
	ordersRef   = inbox.SourceRef{Name: "orders", Number: 2001, Scope: push}
	refundsRef  = inbox.SourceRef{Name: "refunds", Number: 2003, Scope: push}
	paymentsRef = inbox.SourceRef{Name: "payments", Number: 2002, Scope: payments}
)

// shopSet is what the generated shop needs in a database.
func shopSet(t testing.TB) migrate.Set {
	t.Helper()
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join("internal/shop/sqlite/migrations", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	return migrate.Set{
		Steps: []migrate.Step{
			{Name: "0001_outbox", SQL: read("0001_outbox.sql")},
			{Name: "0002_inbox", SQL: read("0002_inbox.sql")},
		},
		Repeatable: read("repeatable.sql"),
		Scopes: []migrate.Scope{
			{Number: 1001, Kind: migrate.KindDestination, Name: "warehouse"},
			{Number: 1002, Kind: migrate.KindDestination, Name: "ledger"},
			{Number: 1003, Kind: migrate.KindDestination, Name: "audit"},
			{Number: 2001, Kind: migrate.KindPushSource, Name: "orders"},
			{Number: 2002, Kind: migrate.KindSource, Name: "payments"},
			{Number: 2003, Kind: migrate.KindPushSource, Name: "refunds"},
			{Number: 1, Kind: migrate.KindPush, Name: "push"},
		},
	}
}

// A box is a fresh database of the shop.
type box struct {
	*testing.T
	ctx   context.Context
	path  string
	db    *sql.DB
	store *shop.Store
}

func newBox(t *testing.T) *box {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a shop #1?.db") // characters that a URI would read
	b := &box{T: t, ctx: t.Context(), path: path, db: open(t, path)}
	b.store = shop.NewStore(b.db)
	_, err := migrate.SQLite(b.ctx, b.db, shopSet(t))
	b.check(err)
	return b
}

func open(t testing.TB, path string) *sql.DB {
	t.Helper()
	db, err := sqlitestore.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func (b *box) check(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// exec runs plain SQL as another program would.
func (b *box) exec(query string, args ...any) {
	b.Helper()
	_, err := b.db.ExecContext(b.ctx, query, args...)
	b.check(err)
}

// text returns one value as text.
func (b *box) text(query string, args ...any) string {
	b.Helper()
	var s sql.NullString
	b.check(b.db.QueryRowContext(b.ctx, query, args...).Scan(&s))
	return s.String
}

// append publishes records in one transaction.
func (b *box) append(records ...outbox.Record) error {
	return sqlitestore.Write(b.ctx, b.db, func(tx *sql.Tx) error {
		return shop.Appender(tx).Append(b.ctx, records)
	})
}

func record(topic, key, payload string) outbox.Record {
	return outbox.Record{ID: event.NewUUID(), Topic: topic, Key: key, Payload: []byte(payload)}
}

// A claim is a process that leased everything of one scope.
type claim struct {
	b      *box
	owner  string
	store  lane.Store
	leases []lane.Lease
	params lane.FetchParams
}

func (b *box) claim(owner string, store lane.Store) *claim {
	b.Helper()
	leases, err := store.Acquire(b.ctx, lane.AcquireParams{Owner: owner, MaxFree: 8, TTL: time.Hour})
	b.check(err)
	return &claim{b, owner, store, leases, lane.FetchParams{Owner: owner, MaxLanes: 64, MaxRun: 16, MaxRows: 500, ScanLanes: 512}}
}

// fetch returns the first page from the beginning on.
func (c *claim) fetch(busy ...int64) []lane.Row {
	c.b.Helper()
	p := c.params
	p.Busy = busy
	for _, l := range c.leases {
		p.Cursors = append(p.Cursors, lane.Cursor{Lease: l, Lane: l.Lo})
	}
	page, err := c.store.Fetch(c.b.ctx, p)
	c.b.check(err)
	return page.Rows
}

// settle records one outcome for rows.
func (c *claim) settle(outcome lane.Outcome, delay time.Duration, rows ...lane.Row) lane.SettleResult {
	c.b.Helper()
	var list []lane.Settlement
	for _, r := range rows {
		list = append(list, lane.Settlement{
			Bucket: r.Bucket, Lane: r.Lane, Sequence: r.Message.Sequence, Outcome: outcome, Attempts: r.Attempts + 1,
			Delay: delay, Held: r.Held, Reason: "transient", Error: "refused\x00\xff",
		})
	}
	result, err := c.store.Settle(c.b.ctx, c.owner, c.leases, list)
	c.b.check(err)
	return result
}

// payloads lists the payloads of rows that may be delivered.
func payloads(rows []lane.Row) string {
	var list []string
	for _, r := range rows {
		if r.DueIn == 0 {
			list = append(list, string(r.Message.Payload))
		}
	}
	return strings.Join(list, " ")
}

// sorted is payloads without the order between lanes.
func sorted(rows []lane.Row) string {
	list := strings.Fields(payloads(rows))
	slices.Sort(list)
	return strings.Join(list, " ")
}

func (b *box) want(what, got, want string) {
	b.Helper()
	if got != want {
		b.Errorf("%s: got %q, want %q", what, got, want)
	}
}
