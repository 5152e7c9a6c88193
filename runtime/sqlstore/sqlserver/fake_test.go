package sqlserver

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"

	mssql "github.com/microsoft/go-mssqldb"
)

// A fakeServer answers the statements of CheckDatabase.
type fakeServer struct {
	facts []driver.Value
	// blind is a driver that goes on after the server has ended a transaction.
	blind bool
	ended bool
}

func (s *fakeServer) Connect(context.Context) (driver.Conn, error) { return (*fakeConn)(s), nil }
func (s *fakeServer) Driver() driver.Driver                        { return nil }

type fakeConn fakeServer

func (c *fakeConn) Prepare(string) (driver.Stmt, error) { return nil, errors.ErrUnsupported }
func (c *fakeConn) Close() error                        { return nil }
func (c *fakeConn) Begin() (driver.Tx, error)           { return nil, errors.ErrUnsupported }

func (c *fakeConn) BeginTx(_ context.Context, o driver.TxOptions) (driver.Tx, error) {
	if sql.IsolationLevel(o.Isolation) != sql.LevelReadCommitted {
		return nil, errors.New("the isolation level is inherited")
	}
	return fakeTx{}, nil
}

type fakeTx struct{}

func (fakeTx) Commit() error   { return nil }
func (fakeTx) Rollback() error { return nil }

func (c *fakeConn) ExecContext(_ context.Context, query string, _ []driver.NamedValue) (driver.Result, error) {
	if strings.Contains(query, "THROW 51014") {
		c.ended = true
		return nil, mssql.Error{Number: 51014}
	}
	if c.ended && !c.blind {
		return nil, mssql.Error{Message: "server does not have an active transaction"}
	}
	return driver.RowsAffected(0), nil
}

func (c *fakeConn) QueryContext(context.Context, string, []driver.NamedValue) (driver.Rows, error) {
	return &fakeRows{values: c.facts}, nil
}

type fakeRows struct{ values []driver.Value }

func (r *fakeRows) Columns() []string { return []string{"1", "2", "3", "4", "5", "6"} }
func (r *fakeRows) Close() error      { return nil }
func (r *fakeRows) Next(to []driver.Value) error {
	if r.values == nil {
		return io.EOF
	}
	copy(to, r.values)
	r.values = nil
	return nil
}

// facts are those of a database that can be used, changed at one place.
func facts(at int, value int64) []driver.Value {
	f := []driver.Value{int64(0), int64(160), int64(0), int64(0), int64(2), int64(0)}
	if at >= 0 {
		f[at] = value
	}
	return f
}

func TestCheckDatabase(t *testing.T) {
	for _, c := range []struct {
		name   string
		server fakeServer
		want   string // in the error; "" for none
	}{
		{"as it should be", fakeServer{facts: facts(-1, 0)}, ""},
		{"row versions", fakeServer{facts: facts(2, 1)}, ""},
		{"snapshot allowed", fakeServer{facts: facts(3, 1)}, ""},
		{"sessions that read uncommitted", fakeServer{facts: facts(4, 1)}, ""},
		{"compatibility 2016", fakeServer{facts: facts(1, 130)}, ""},
		{"compatibility 2014", fakeServer{facts: facts(1, 120)}, "COMPATIBILITY_LEVEL = 130"},
		{"Babelfish, which knows no levels", fakeServer{facts: []driver.Value{int64(1), int64(120), int64(1), int64(1), int64(2), int64(0)}}, ""},
		{"repeatable read", fakeServer{facts: facts(4, 3)}, `"REPEATABLE READ"`},
		{"serializable", fakeServer{facts: facts(4, 4)}, `"SERIALIZABLE"`},
		{"snapshot", fakeServer{facts: facts(4, 5)}, `"SNAPSHOT"`},
		{"implicit transactions", fakeServer{facts: facts(5, 2)}, "IMPLICIT_TRANSACTIONS"},
		{"a driver that notices nothing", fakeServer{facts: facts(-1, 0), blind: true}, "v1.11.2"},
	} {
		var out strings.Builder
		db := sql.OpenDB(&c.server)
		defer db.Close()
		check := CheckDatabase(t.Context(), db)
		c.server.ended = false
		started := Start(t.Context(), db, slog.New(slog.NewTextHandler(&out, nil)))
		for _, err := range []error{check, started} {
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v, want %q", c.name, err, c.want)
			}
		}
		if !strings.Contains(out.String(), "read_committed_snapshot=") || !strings.Contains(out.String(), "snapshot_allowed=") {
			t.Errorf("%s: reported is %s", c.name, &out)
		}
	}
}

// In Azure, DB_ID and sys.databases number databases differently: asking for that
// number finds none there.
func TestInspectGoesByTheName(t *testing.T) {
	if strings.Contains(inspect, "DB_ID") || !strings.Contains(inspect, "d.name = DB_NAME()") {
		t.Errorf("the database is found by its number: %s", inspect)
	}
}
