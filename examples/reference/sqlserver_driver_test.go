package reference

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf16"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/lanebox/lanebox/examples/reference/internal/events"
	"github.com/lanebox/lanebox/examples/reference/internal/events/sqlserver"
	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/lane"
)

// What SQL Server takes at most: parameters of a call, of which the text and the
// declarations are two, and bytes of a call with packets of 4 KiB.
const (
	mostParameters = 2100 - 2
	mostBytes      = 65536 * 4096
)

// A mssqlDeclared is a query as queries.sql declares it.
type mssqlDeclared struct {
	text   string   // with its head, as it is sent
	params []string // "@scope int"
}

// mssqlQueries reads queries.sql, by the names of the queries.
func mssqlQueries(t *testing.T) map[string]mssqlDeclared {
	t.Helper()
	file, err := os.ReadFile("internal/events/sqlserver/queries.sql")
	if err != nil {
		t.Fatal(err)
	}
	queries := map[string]mssqlDeclared{}
	for block := range strings.SplitSeq(string(file), "\n\n") {
		at := strings.Index(block, "-- name: ")
		if at < 0 {
			continue
		}
		var q mssqlDeclared
		var name string
		for line := range strings.Lines(block[at:] + "\n") {
			if head, ok := strings.CutPrefix(line, "-- name: "); ok {
				name, _, _ = strings.Cut(head, " :")
			}
			if params, ok := strings.CutPrefix(line, "-- params: "); ok {
				q.params = strings.Split(strings.TrimSpace(params), ", ")
				continue
			}
			q.text += line
		}
		q.text = strings.TrimSpace(q.text) + "\n"
		queries[name] = q
	}
	if len(queries) < 20 {
		t.Fatalf("queries.sql declares only %d queries", len(queries))
	}
	return queries
}

// A mssqlCall is a statement that reached the driver.
type mssqlCall struct {
	name string // of the query, "" for a statement of the runtime's own
	text string
	args []driver.NamedValue
}

func (c *mssqlCall) arg(name string) string {
	for _, a := range c.args {
		if a.Name == name {
			return fmt.Sprint(a.Value)
		}
	}
	return ""
}

// mssqlType is the type that go-mssqldb declares a value with. A text or bytes of
// 0 units count as (max).
func mssqlType(v any) string {
	switch v := v.(type) {
	case bool:
		return "bit"
	case int16:
		return "smallint"
	case int32:
		return "int"
	case int64:
		return "bigint"
	case mssql.UniqueIdentifier:
		return "uniqueidentifier"
	case mssql.NVarCharMax:
		return "nvarchar(max)"
	case string:
		if n := len(utf16.Encode([]rune(v))); n > 0 && n <= 128 {
			return "nvarchar(128)"
		}
	case []byte:
		if v != nil {
			return "varbinary(max)"
		}
	}
	return fmt.Sprintf("%T", v)
}

// size is about how many bytes a call takes on the wire.
func (c *mssqlCall) size() int {
	n := 2 * len(c.text)
	for _, a := range c.args {
		switch v := a.Value.(type) {
		case mssql.NVarCharMax:
			n += 2 * len(utf16.Encode([]rune(string(v))))
		case []byte:
			n += len(v)
		default:
			n += 256
		}
	}
	return n
}

// A mssqlRecorder is a driver that keeps what reaches it, after go-mssqldb's own
// check, and answers as if everything that is asked for were there.
type mssqlRecorder struct {
	mu    sync.Mutex
	calls []mssqlCall
}

func (r *mssqlRecorder) Connect(context.Context) (driver.Conn, error) { return recorded{r}, nil }
func (r *mssqlRecorder) Driver() driver.Driver                        { return nil }

// taken returns the calls since the last time.
func (r *mssqlRecorder) taken() []mssqlCall {
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := r.calls
	r.calls = nil
	return calls
}

func (r *mssqlRecorder) add(text string, args []driver.NamedValue) mssqlCall {
	c := mssqlCall{text: text, args: args}
	if head, ok := strings.CutPrefix(text, "-- name: "); ok {
		c.name, _, _ = strings.Cut(head, " :")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, c)
	return c
}

type recorded struct{ r *mssqlRecorder }

func (recorded) Prepare(string) (driver.Stmt, error) { return nil, errors.ErrUnsupported }
func (recorded) Close() error                        { return nil }
func (recorded) Begin() (driver.Tx, error)           { return nil, errors.ErrUnsupported }
func (c recorded) Commit() error                     { return nil }
func (c recorded) Rollback() error                   { return nil }

func (c recorded) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) { return c, nil }
func (recorded) CheckNamedValue(v *driver.NamedValue) error {
	return new(mssql.Conn).CheckNamedValue(v)
}

func (c recorded) ExecContext(_ context.Context, text string, args []driver.NamedValue) (driver.Result, error) {
	c.r.add(text, args)
	return driver.RowsAffected(0), nil
}

func (c recorded) QueryContext(_ context.Context, text string, args []driver.NamedValue) (driver.Rows, error) {
	call := c.r.add(text, args)
	rows := &answer{}
	rows.rows, rows.columns = call.answer()
	return rows, nil
}

// answer returns the rows that let the runtime go on to the next statement.
func (c *mssqlCall) answer() (rows [][]driver.Value, columns int) {
	var list []map[string]int64
	each := func(param string, row func(e map[string]int64) []driver.Value) ([][]driver.Value, int) {
		if err := json.Unmarshal([]byte(c.arg(param)), &list); err != nil {
			panic(err)
		}
		for _, e := range list {
			rows = append(rows, row(e))
		}
		return rows, 2
	}
	switch c.name {
	case "LaneFence":
		rows, _ = each("leases", func(e map[string]int64) []driver.Value { return []driver.Value{e["b"]} })
		return rows, 1
	case "InboxTake":
		return each("rows", func(e map[string]int64) []driver.Value { return []driver.Value{e["l"], e["s"]} })
	case "OutboxTryLocks":
		var keys []string
		if err := json.Unmarshal([]byte(c.arg("keys")), &keys); err != nil {
			panic(err)
		}
		for i := range keys {
			rows = append(rows, []driver.Value{int64(i), true})
		}
		return rows, 2
	case "InboxComplete":
		return [][]driver.Value{{true, true}}, 2
	case "InboxPurgeReceipts", "OutboxUnpark", "InboxUnpark":
		return [][]driver.Value{{int64(1)}}, 1
	case "": // does the transaction go on?
		return [][]driver.Value{{int64(1)}}, 1
	}
	return nil, 1
}

type answer struct {
	rows    [][]driver.Value
	columns int
}

func (a *answer) Columns() []string { return make([]string, a.columns) }
func (a *answer) Close() error      { return nil }
func (a *answer) Next(to []driver.Value) error {
	if len(a.rows) == 0 {
		return io.EOF
	}
	copy(to, a.rows[0])
	a.rows = a.rows[1:]
	return nil
}

// TestSQLServerStatements calls everything that sends statements, with no, one and
// 5,000 elements, and compares what reaches the driver with queries.sql: texts,
// the names, order and types of parameters, and what SQL Server takes at most.
func TestSQLServerStatements(t *testing.T) {
	declared := mssqlQueries(t)
	seen := map[string]bool{}
	for _, n := range []int{0, 1, 5000} {
		r := &mssqlRecorder{}
		db := sql.OpenDB(r)
		t.Cleanup(func() { db.Close() })
		for what, call := range mssqlCalls(db, n) {
			if err := call(t.Context()); err != nil {
				t.Errorf("%s with %d: %v", what, n, err)
			}
			calls := r.taken()
			if n == 0 && strings.HasPrefix(what, "nothing:") && len(calls) > 0 {
				t.Errorf("%s sends %s", what, calls[0].text)
			}
			sent := 0
			for _, c := range calls {
				seen[c.name] = true
				checkMSSQLCall(t, fmt.Sprintf("%s with %d", what, n), c, declared)
				sent += messages(c)
			}
			if sent != n && (what == "nothing: publish" || what == "nothing: receive") {
				t.Errorf("%s with %d messages sends %d", what, n, sent)
			}
		}
	}
	for name := range declared {
		if !seen[name] {
			t.Errorf("nothing sends query %s", name)
		}
	}
}

func checkMSSQLCall(t *testing.T, what string, c mssqlCall, declared map[string]mssqlDeclared) {
	t.Helper()
	if len(c.args) > mostParameters || c.size() > mostBytes {
		t.Errorf("%s: %d parameters and %d bytes are too much", what, len(c.args), c.size())
	}
	if c.name == "" {
		return
	}
	q := declared[c.name]
	if c.text != q.text {
		t.Errorf("%s: %s is sent as\n%s\nand stands in queries.sql as\n%s", what, c.name, c.text, q.text)
	}
	var got []string
	for _, a := range c.args {
		got = append(got, "@"+a.Name+" "+mssqlType(a.Value))
		if text, ok := a.Value.(mssql.NVarCharMax); ok && strings.HasPrefix(string(text), "[") && !json.Valid([]byte(text)) {
			t.Errorf("%s: %s: %s is not JSON", what, c.name, a.Name)
		}
	}
	if !slices.Equal(got, q.params) {
		t.Errorf("%s: %s\ngot  %q\nwant %q", what, c.name, got, q.params)
	}
}

// messages counts what a call stores.
func messages(c mssqlCall) int {
	var list []json.RawMessage
	if c.name == "OutboxPublishOne" {
		return 1
	}
	if json.Unmarshal([]byte(c.arg("messages")), &list) != nil {
		return 0
	}
	return len(list)
}

// mssqlCalls are calls of the generated package and its store, each with n
// elements. Those that begin with "nothing:" send nothing for none.
func mssqlCalls(db *sql.DB, n int) map[string]func(ctx context.Context) error {
	const owner = "0123456789abcdef"
	store := sqlserver.NewStore(db, 0)
	leases := make([]lane.Lease, min(n, 128))
	for i := range leases {
		b := int64(i - 64)
		leases[i] = lane.Lease{Bucket: lane.Bucket(b), Token: 1 << 60, Lo: b << 57, Hi: b<<57 + 1<<57 - 1, Crashed: i%2 == 1}
	}
	rows := make([]lane.Row, n)
	ids := make([]event.UUID, n)
	done, mixed := make([]lane.Settlement, n), make([]lane.Settlement, n)
	cursors := make([]lane.Cursor, len(leases))
	for i, l := range leases {
		cursors[i] = lane.Cursor{Lease: l, Lane: l.Lo, After: int64(i)}
	}
	busy := make([]int64, n)
	list := make([]events.Event, n)
	incoming := make([]inbox.Incoming, n)
	for i := range n {
		l := leases[i%len(leases)]
		busy[i] = l.Lo + int64(2*i+1)
		ids[i] = event.NewUUID()
		rows[i] = lane.Row{Bucket: l.Bucket, Lane: busy[i], Message: event.Message{ID: ids[i], Sequence: int64(i + 1),
			Topic: "order.cancelled.v1", Key: fmt.Sprintf("order-%d ' 漢", i), Payload: []byte(`{"a":"' ; -- 😀"}`)}}
		done[i] = lane.Settlement{Bucket: l.Bucket, Lane: busy[i], Sequence: int64(i + 1), Outcome: lane.Done}
		mixed[i] = lane.Settlement{Bucket: l.Bucket, Lane: busy[i], Sequence: int64(i + 1), Outcome: lane.Retry, Attempts: 1, Delay: time.Second,
			Reason: "the peer says '; DROP TABLE outbox; --", Error: "x\x00y\xff"}
		list[i] = events.OrderCancelled{OrderID: events.NewOrderID(rows[i].Message.Key), Reason: "]'\"\\"}
		incoming[i] = inbox.Incoming{IdempotencyKey: fmt.Sprint("id-", i), EventType: "stock.changed", AggregateID: fmt.Sprint("sku-", i),
			Payload: []byte{0, 0xff, byte(i)}, Headers: event.Headers{"a": "b"}}
	}
	run := lane.Run{Rows: rows}
	if n > 0 {
		run.Lease, run.Lane = leases[0], rows[0].Lane
	}
	stock := inbox.SourceRef{Name: "stock", Number: int32(events.StockSource), Scope: events.StockSource}
	destination := store.LedgerDestination()
	calls := map[string]func(ctx context.Context) error{
		"nothing: publish": func(ctx context.Context) error {
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer tx.Rollback()
			return sqlserver.In(tx).All(ctx, list...)
		},
		"nothing: receive": func(ctx context.Context) error {
			ds, err := store.Receive(ctx, stock, incoming)
			if len(ds) != n {
				return fmt.Errorf("%d dispositions: %w", len(ds), err)
			}
			return err
		},
		"receive at": func(ctx context.Context) error {
			_, err := store.ReceiveAt(ctx, stock, incoming, inbox.Position{Log: "stock/0", Offset: 7})
			return err
		},
		"position": func(ctx context.Context) error { _, _, err := store.Position(ctx, stock, "stock/0"); return err },
		"acquire": func(ctx context.Context) error {
			_, err := destination.Acquire(ctx, lane.AcquireParams{Owner: owner, MaxFree: n, TTL: time.Second})
			return err
		},
		"release": func(ctx context.Context) error { return destination.Release(ctx, owner, leases) },
		"keep": func(ctx context.Context) error {
			_, err := store.Keep(ctx, lane.KeepParams{Owner: owner, TTL: time.Second, Scopes: []lane.ScopeLeases{{Scope: events.LedgerDestination, Leases: leases}}})
			return err
		},
		"leave": func(ctx context.Context) error { return store.Leave(ctx, owner) },
		"handle": func(ctx context.Context) error {
			if n == 0 {
				return nil
			}
			return store.StockSource().Handle(ctx, owner, rows[0], leases[0], func(context.Context, *sql.Tx) error { return nil })
		},
		"nothing: move": func(ctx context.Context) error {
			if n == 0 {
				return nil
			}
			_, err := store.Push().Move(ctx, owner, []lane.Run{run}, nil)
			return err
		},
		"move waiting": func(ctx context.Context) error {
			_, err := store.Push().MoveWaiting(ctx, owner, run, nil, time.Second)
			return err
		},
		"purge": func(ctx context.Context) error {
			_, err := store.PurgeReceipts(ctx, stock, time.Hour, 100+n)
			return err
		},
		"counts": func(ctx context.Context) error { _, err := store.Counts(ctx); return err },
	}
	for name, scope := range map[string]lane.Store{"outbox": destination, "inbox": store.StockSource()} {
		number := map[string]lane.Scope{"outbox": events.LedgerDestination, "inbox": events.StockSource}[name]
		calls[name+" fetch"] = func(ctx context.Context) error {
			_, err := scope.Fetch(ctx, lane.FetchParams{Owner: owner, Cursors: cursors, Busy: busy, MaxLanes: 1, MaxRun: 1, MaxRows: 1, ScanLanes: 1})
			return err
		}
		calls["nothing: "+name+" settle"] = func(ctx context.Context) error { _, err := scope.Settle(ctx, owner, leases, done); return err }
		calls["nothing: "+name+" settle all"] = func(ctx context.Context) error { _, err := scope.Settle(ctx, owner, leases, mixed); return err }
		calls[name+" dead letters"] = func(ctx context.Context) error { _, err := store.DeadLetters(ctx, number); return err }
		calls[name+" replay"] = func(ctx context.Context) error { _, err := store.Replay(ctx, number, ids...); return err }
		calls[name+" park"] = func(ctx context.Context) error { return store.ParkKey(ctx, number, "order-1", "why not") }
		calls[name+" unpark"] = func(ctx context.Context) error { return store.ReleaseKey(ctx, number, "order-1", "") }
	}
	return calls
}
