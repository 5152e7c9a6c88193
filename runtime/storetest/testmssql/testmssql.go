// Package testmssql gives tests a SQL Server database of their own.
//
// The server is named by LANEBOX_TEST_SQLSERVER_URL, a URL as go-mssqldb reads
// it, whose login may create databases. Without it tests are skipped, always with
// the text of Skipped: no SQL Server can be installed where the other databases
// can. Each database is dropped when its test ends.
package testmssql

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"errors"
	"net/url"
	"os"
	"slices"
	"testing"
	"time"

	_ "github.com/microsoft/go-mssqldb" // the driver "sqlserver"
)

// Variable names the server that tests use.
const Variable = "LANEBOX_TEST_SQLSERVER_URL"

// Skipped is what a test says that is skipped because there is no server;
// scripts/citest knows it.
const Skipped = "SQL Server: LANEBOX_TEST_SQLSERVER_URL is not set"

// setupTime bounds creating and dropping a database.
const setupTime = 2 * time.Minute

// Server returns the URL of the server, or skips the test.
func Server(t testing.TB) string {
	t.Helper()
	server := os.Getenv(Variable)
	if server == "" {
		t.Skip(Skipped)
	}
	return server
}

// URL creates a database for the test and returns its URL. The database is
// dropped when the test ends, with whoever is still connected.
func URL(t testing.TB) string {
	t.Helper()
	server := Server(t)
	address, err := url.Parse(server)
	if err != nil {
		t.Fatalf("%s: %v", Variable, err)
	}
	var random [6]byte
	rand.Read(random[:])
	name := "lanebox_test_" + hex.EncodeToString(random[:])
	admin(t, server, func(ctx context.Context, db *sql.DB) error { return create(ctx, db, name) })
	t.Cleanup(func() { admin(t, server, func(ctx context.Context, db *sql.DB) error { return drop(ctx, db, name) }) })
	query := address.Query()
	query.Set("database", name)
	address.RawQuery = query.Encode()
	return address.String()
}

// admin does something on the server's own database.
func admin(t testing.TB, server string, do func(ctx context.Context, db *sql.DB) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), setupTime)
	defer cancel()
	db, err := sql.Open("sqlserver", server)
	if err != nil {
		t.Fatalf("%s: %v", Variable, err)
	}
	defer db.Close()
	if err := do(ctx, db); err != nil {
		t.Fatalf("%s: %v", Variable, err)
	}
}

// Servers refuse to create a database while somebody else creates one: SQL Server,
// and Babelfish.
var meanwhile = []int32{1807, 33557097}

// create creates a database.
func create(ctx context.Context, db *sql.DB, name string) error {
	for {
		_, err := db.ExecContext(ctx, "CREATE DATABASE "+name)
		var server interface{ SQLErrorNumber() int32 }
		if !errors.As(err, &server) || !slices.Contains(meanwhile, server.SQLErrorNumber()) || ctx.Err() != nil {
			return err
		}
	}
}

// drop drops a database. Who is still connected is thrown out: a server refuses to
// drop the database of an open session.
func drop(ctx context.Context, db *sql.DB, name string) error {
	for {
		_, err := db.ExecContext(ctx, "DROP DATABASE IF EXISTS "+name)
		if err == nil || ctx.Err() != nil {
			return err
		}
		if err := kill(ctx, db, name); err != nil {
			return err
		}
	}
}

// kill ends the sessions of a database.
func kill(ctx context.Context, db *sql.DB, name string) error {
	rows, err := db.QueryContext(ctx, "SELECT CONVERT(nvarchar(20), session_id) FROM sys.dm_exec_sessions WHERE database_id = DB_ID(@name)", sql.Named("name", name))
	if err != nil {
		return err
	}
	defer rows.Close()
	var sessions []string
	for rows.Next() {
		var session string
		if err := rows.Scan(&session); err != nil {
			return err
		}
		sessions = append(sessions, session)
	}
	for _, session := range sessions {
		_, _ = db.ExecContext(ctx, "KILL "+session) // it may have ended by itself
	}
	return rows.Err()
}

// DB returns a pool on url that is closed when the test ends. It keeps its
// connections: the first statements of a new one can be slow.
func DB(t testing.TB, url string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlserver", url)
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxIdleConns(100)
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// Babelfish reports whether the server of db is Babelfish for PostgreSQL.
func Babelfish(ctx context.Context, db *sql.DB) (is bool, err error) {
	err = db.QueryRowContext(ctx, "SELECT CASE WHEN SERVERPROPERTY('Babelfish') = 1 THEN 1 ELSE 0 END").Scan(&is)
	return is, err
}

// How many transactions wait for a lock in the database of the session.
const (
	waiters          = `SELECT COUNT(*) FROM sys.dm_tran_locks WHERE request_status IN ('WAIT', 'CONVERT') AND resource_database_id = DB_ID()`
	waitersBabelfish = `SELECT COUNT(*) FROM pg_catalog.pg_locks AS l INNER JOIN sys.dm_exec_sessions AS s ON s.session_id = l.pid
 WHERE l.granted = 0 AND s.database_id = DB_ID()`
)

// LockWaiters counts the transactions that wait for a lock in the database of db.
// The login needs VIEW SERVER STATE.
func LockWaiters(ctx context.Context, db *sql.DB) (n int, err error) {
	query := waiters
	if is, err := Babelfish(ctx, db); err != nil {
		return 0, err
	} else if is {
		query = waitersBabelfish
	}
	err = db.QueryRowContext(ctx, query).Scan(&n)
	return n, err
}

// ReadCommittedModes returns the ways in which READ COMMITTED can work in a
// database, by name, each with the statement that sets a new database up for it;
// "" for how the server makes it. Babelfish has one way only.
func ReadCommittedModes(t testing.TB) map[string]string {
	t.Helper()
	modes := map[string]string{}
	admin(t, Server(t), func(ctx context.Context, db *sql.DB) error {
		is, err := Babelfish(ctx, db)
		if is {
			modes["row versions"] = ""
			return err
		}
		modes["row versions"] = `ALTER DATABASE CURRENT SET READ_COMMITTED_SNAPSHOT ON WITH ROLLBACK IMMEDIATE`
		modes["locks"] = `ALTER DATABASE CURRENT SET READ_COMMITTED_SNAPSHOT OFF WITH ROLLBACK IMMEDIATE`
		return err
	})
	return modes
}
