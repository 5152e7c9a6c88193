// Package sqlite holds what the generated SQLite store needs beyond SQL text:
// opening a file, transactions that take the write lock first, the meaning of
// SQLite's errors, and wake-ups inside one process.
//
// SQLite has one writer at a time. A transaction that holds the write lock
// therefore publishes in commit order without any further lock.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/lanebox/lanebox/runtime/internal/immediate"
	_ "modernc.org/sqlite" // the driver "sqlite"
)

// connections bounds the pool: readers run side by side in WAL mode, the writer
// is alone anyway.
const connections = 8

// Open opens or creates the database file at path in WAL mode, so that readers
// never wait for the writer. A connection waits up to ten seconds for the write
// lock; transactions take it when they begin. A commit is on disk when it
// returns. The path must name a file: a memory database has no WAL, and every
// connection would have one of its own.
func Open(path string) (*sql.DB, error) {
	if path == "" || strings.Contains(path, ":memory:") {
		return nil, fmt.Errorf("open SQLite: %q is not a file", path)
	}
	db, err := sql.Open("sqlite", dsn(path))
	if err != nil {
		return nil, fmt.Errorf("open SQLite: %w", err)
	}
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	if err := db.Ping(); err != nil {
		_ = db.Close()
		return nil, fmt.Errorf("open SQLite file %s: %w", path, err)
	}
	return db, nil
}

// dsn names path as a URI, with everything in the path taken literally. The
// busy timeout comes first: switching to WAL may already have to wait.
func dsn(path string) string {
	q := url.Values{"_txlock": {"immediate"}, "_pragma": {
		"busy_timeout(10000)", "journal_mode(WAL)", "synchronous(FULL)",
	}}
	return "file:" + (&url.URL{Path: path}).EscapedPath() + "?" + q.Encode()
}

// Begin starts a transaction that holds the write lock, whatever the data
// source name of db says. It waits for the lock until ctx ends, ten seconds at
// most. The error is classified. In a file that is not in WAL mode a commit fails
// while somebody reads or waits, unless the connections have a busy timeout; Open
// sees to both.
func Begin(ctx context.Context, db *sql.DB) (*sql.Tx, error) {
	tx, err := immediate.Begin(ctx, db)
	return tx, Classify("begin", err)
}

// Write runs fn in a transaction that holds the write lock. An error of fn rolls
// back and is returned as it is; so does a panic, which goes on. Writes of one
// pool take turns before they take a connection. fn must not call Write on the
// same db: it would wait for itself, ten seconds at most.
func Write(ctx context.Context, db *sql.DB, fn func(tx *sql.Tx) error) error {
	leave, err := enter(ctx, db)
	if err != nil {
		return Classify("begin", err)
	}
	defer leave()
	tx, err := Begin(ctx, db)
	if err != nil {
		return err
	}
	return finish(tx, fn)
}

// Read runs fn in a transaction that sees one state of the database and takes
// no lock that a writer would wait for.
func Read(ctx context.Context, db *sql.DB, fn func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return Classify("begin", err)
	}
	return finish(tx, fn)
}

// finish runs fn and ends tx.
func finish(tx *sql.Tx, fn func(tx *sql.Tx) error) error {
	defer tx.Rollback() // does nothing after a commit
	if err := fn(tx); err != nil {
		return err
	}
	return Classify("commit", tx.Commit())
}

// errLost says that a transaction is gone or can do nothing any more.
var errLost = errors.New("the transaction is lost")

// savepoint is the name of lanebox's savepoints; the innermost one counts.
const savepoint = "lanebox"

// Atomically runs fn inside tx so that an error of fn undoes what it did and
// leaves the rest of tx as it was. The error is returned as it is, unless the
// transaction is lost with it.
func Atomically(ctx context.Context, tx *sql.Tx, fn func() error) error {
	if _, err := tx.ExecContext(ctx, "SAVEPOINT "+savepoint); err != nil {
		return Classify("savepoint", err)
	}
	if err := fn(); err != nil {
		if _, undo := tx.ExecContext(context.WithoutCancel(ctx), "ROLLBACK TO "+savepoint+"; RELEASE "+savepoint); undo != nil {
			return fmt.Errorf("%w (%w: %w)", err, errLost, undo)
		}
		return err
	}
	_, err := tx.ExecContext(ctx, "RELEASE "+savepoint)
	return Classify("savepoint", err)
}

// lent is the savepoint under a transaction in the hands of somebody who must not
// end it.
const lent = "lanebox_lent"

// errEnded says that a handler or a mapping hook ended the transaction that it
// was given.
var errEnded = errors.New("the transaction was ended by the code it was given to; return nil to commit it, an error to roll it back")

// lend runs fn, which has tx in its hands, and makes sure afterwards that the
// transaction is still the same: its savepoint is there. An error of fn is
// returned as it is.
func lend(ctx context.Context, tx *sql.Tx, fn func() error) error {
	if _, err := tx.ExecContext(ctx, "SAVEPOINT "+lent); err != nil {
		return Classify("savepoint", err)
	}
	if err := fn(); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "RELEASE "+lent); err != nil {
		if ctx.Err() != nil {
			return Classify("savepoint", err)
		}
		return fmt.Errorf("%w (%w)", errEnded, err)
	}
	return nil
}
