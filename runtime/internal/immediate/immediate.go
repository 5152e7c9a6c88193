// Package immediate begins SQLite transactions that hold the write lock from
// their start, whatever the data source name says.
//
// A transaction that reads first and writes later fails at once with
// SQLITE_BUSY when another connection wrote in between; no busy timeout helps
// there. One that takes the write lock first can wait for it. The package knows
// no driver, so that code for both databases can use it.
package immediate

import (
	"context"
	"database/sql"
	"errors"
	"time"
)

// SQLite's primary result codes for a lock that somebody else holds.
const (
	codeBusy   = 5
	codeLocked = 6
)

// patience is how long Begin waits for the write lock on top of the driver's
// own busy timeout.
const patience = 10 * time.Second

// Busy reports whether err says that another connection holds a lock.
func Busy(err error) bool {
	var coded interface{ Code() int }
	if !errors.As(err, &coded) {
		return false
	}
	code := coded.Code() & 0xff
	return code == codeBusy || code == codeLocked
}

// Begin starts a transaction that holds the write lock. It waits for the lock
// until ctx ends, ten seconds at most, also when the connection has no busy
// timeout. The transaction is rolled back when ctx ends before it is committed.
func Begin(ctx context.Context, db *sql.DB) (*sql.Tx, error) {
	giveUp := time.Now().Add(patience)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		tx, err := begin(ctx, db)
		if !Busy(err) || time.Now().After(giveUp) {
			return tx, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// begin tries once. A read-only transaction begins deferred, so it holds no
// lock that could be in the way; it is then exchanged for an immediate one on
// the same connection, which the driver commits and rolls back like its own.
func begin(ctx context.Context, db *sql.DB) (*sql.Tx, error) {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return nil, err
	}
	if _, err := tx.ExecContext(ctx, "ROLLBACK; BEGIN IMMEDIATE"); err != nil {
		_ = tx.Rollback() // gives the connection back; err tells more
		return nil, err
	}
	return tx, nil
}
