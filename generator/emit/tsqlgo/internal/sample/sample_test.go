package db_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	mssql "github.com/microsoft/go-mssqldb"

	db "github.com/lanebox/lanebox/generator/emit/tsqlgo/internal/sample"
)

// A server is a driver that records the last call and answers every query with
// the same results. Values pass go-mssqldb's own check first.
type server struct {
	query   string
	args    []driver.NamedValue
	results [][][]driver.Value // result, row, column
	columns int
	// broken is the error at the end of the batch, which a reader learns when it
	// has read all results.
	broken error
	read   bool // the batch was read to its end
}

func (s *server) Connect(context.Context) (driver.Conn, error) { return conn{s}, nil }
func (s *server) Driver() driver.Driver                        { return nil }

type conn struct{ s *server }

func (conn) Prepare(string) (driver.Stmt, error) { return nil, errors.ErrUnsupported }
func (conn) Begin() (driver.Tx, error)           { return nil, errors.ErrUnsupported }
func (conn) Close() error                        { return nil }

func (conn) CheckNamedValue(v *driver.NamedValue) error { return new(mssql.Conn).CheckNamedValue(v) }

func (c conn) ExecContext(_ context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	c.s.query, c.s.args = query, args
	return driver.RowsAffected(3), c.s.broken
}

func (c conn) QueryContext(_ context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	c.s.query, c.s.args = query, args
	return &rows{s: c.s, results: slices.Clone(c.s.results)}, nil
}

// rows are results as go-mssqldb gives them: what follows the last row of the
// last result comes with the call that finds no further row.
type rows struct {
	s       *server
	results [][][]driver.Value
}

func (r *rows) Close() error           { return nil }
func (r *rows) Columns() []string      { return make([]string, r.s.columns) }
func (r *rows) HasNextResultSet() bool { return len(r.results) > 1 }

func (r *rows) NextResultSet() error {
	if len(r.results) < 2 {
		return io.EOF
	}
	r.results = r.results[1:]
	return nil
}

func (r *rows) Next(row []driver.Value) error {
	if len(r.results[0]) > 0 {
		copy(row, r.results[0][0])
		r.results[0] = r.results[0][1:]
		return nil
	}
	if len(r.results) > 1 {
		return io.EOF
	}
	r.s.read = true
	if r.s.broken != nil {
		return r.s.broken
	}
	return io.EOF
}

func open(t *testing.T, s *server) *db.Queries {
	t.Helper()
	d := sql.OpenDB(s)
	t.Cleanup(func() { d.Close() })
	return db.New(d)
}

var (
	id    = "01020304-0506-0708-090A-0B0C0D0E0F10"
	every = db.SettleAllParams{Yes: true, Bucket: -64, Scope: 7, Lane: 1 << 60, ID: id, Owner: "host/1", Topic: "a 漢 ", Leases: "[]", Payload: []byte("{}"), Digest: []byte{0, 255}}
)

// TestParametersReachTheDriver checks names, order, Go types and values: the Go
// type decides the type in T-SQL.
func TestParametersReachTheDriver(t *testing.T) {
	row := []driver.Value{true, int64(-64), int64(7), int64(1 << 60), id, "host/1", "a 漢 ", "[]", "{}", []byte{0, 255}, time.Unix(0, 0)}
	s := &server{results: [][][]driver.Value{{row}}, columns: 11}
	got, err := open(t, s).SettleAll(t.Context(), every)
	if err != nil || len(got) != 1 || got[0].Bucket != -64 || string(got[0].Payload) != "{}" || got[0].Lane != 1<<60 {
		t.Errorf("got %+v, %v", got, err)
	}
	if !strings.HasPrefix(s.query, "-- name: SettleAll :many\nSELECT @yes") {
		t.Errorf("got the text %q", s.query)
	}
	want := []driver.NamedValue{
		{Name: "yes", Value: true},
		{Name: "bucket", Value: int16(-64)},
		{Name: "scope", Value: int32(7)},
		{Name: "lane", Value: int64(1 << 60)},
		{Name: "id", Value: id},
		{Name: "owner", Value: "host/1"},
		{Name: "topic", Value: mssql.NVarCharMax("a 漢 ")},
		{Name: "leases", Value: mssql.NVarCharMax("[]")},
		{Name: "payload", Value: mssql.NVarCharMax("{}")},
		{Name: "digest", Value: []byte{0, 255}},
	}
	for i := range want {
		want[i].Ordinal = i + 1
	}
	if !reflect.DeepEqual(s.args, want) {
		t.Errorf("got  %#v\nwant %#v", s.args, want)
	}
}

// TestNilIsNoNull checks that values that Go calls nil or empty are sent with a
// type, and not as NULL.
func TestNilIsNoNull(t *testing.T) {
	s := &server{results: [][][]driver.Value{{}}, columns: 11}
	_, _ = open(t, s).SettleAll(t.Context(), db.SettleAllParams{})
	if len(s.args) != 10 {
		t.Fatalf("got %#v", s.args)
	}
	for _, a := range s.args {
		if v := reflect.ValueOf(a.Value); !v.IsValid() || v.Kind() == reflect.Slice && v.IsNil() {
			t.Errorf("%s is sent as %#v", a.Name, a.Value)
		}
	}
}

// TestBatchesAreReadToTheirEnd checks that a result is not closed while its batch
// is running, which would cancel it, and that a late error is not lost.
func TestBatchesAreReadToTheirEnd(t *testing.T) {
	late := errors.New("deadlock at COMMIT")
	calls := map[string]func(*db.Queries) error{
		"one": func(q *db.Queries) error {
			row, err := q.Complete(context.Background(), db.CompleteParams{})
			if err == nil && row != (db.CompleteRow{Yes: true, Lane: 1}) {
				t.Errorf("got %+v", row)
			}
			return err
		},
		"many": func(q *db.Queries) error {
			_, err := q.Position(context.Background(), db.PositionParams{})
			return err
		},
		"exec":     func(q *db.Queries) error { return q.Leave(context.Background(), db.LeaveParams{}) },
		"execrows": func(q *db.Queries) error { _, err := q.Purge(context.Background(), db.PurgeParams{}); return err },
	}
	for name, call := range calls {
		row := []driver.Value{true, int64(1)}
		if name == "many" {
			row = row[1:]
		}
		for _, want := range []error{nil, late} {
			for _, results := range [][][][]driver.Value{{{row, row}}, {{row}, {row, row}}} {
				s := &server{results: results, columns: len(row), broken: want}
				if err := call(open(t, s)); !errors.Is(err, want) {
					t.Errorf("%s: got %v, want %v", name, err, want)
				}
				if !s.read && !strings.HasPrefix(name, "exec") {
					t.Errorf("%s: the batch was not read to its end", name)
				}
			}
		}
	}
}

func TestNoRow(t *testing.T) {
	s := &server{results: [][][]driver.Value{{{int64(5)}}}, columns: 1}
	q := open(t, s)
	if n, err := q.Count(t.Context()); n != 5 || err != nil {
		t.Errorf("got %d, %v", n, err)
	}
	s.results = [][][]driver.Value{{}}
	if _, err := q.Count(t.Context()); !errors.Is(err, sql.ErrNoRows) {
		t.Errorf("got %v", err)
	}
	if n, err := q.Purge(t.Context(), db.PurgeParams{}); n != 3 || err != nil {
		t.Errorf("got %d, %v", n, err)
	}
}
