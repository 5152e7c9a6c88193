package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/internal/sqlqueue"
)

// SQLSTATEs that lanebox's own triggers raise.
const (
	stateNoRoute     = "LB001" // the topic has no route
	stateNoKey       = "LB002" // the key is empty although the event declares one
	stateLongKey     = "LB003"
	stateDestination = "LB004" // the writer gave a destination
	stateNoSource    = "LB005" // the source is unknown
)

// ErrConnection says that the connection was lost, or could not be made. What
// was under way may or may not have been committed.
var ErrConnection = errors.New("connection to PostgreSQL lost")

// Classify wraps err with the name of the operation and gives it the type that
// callers tell apart: *event.ConfigurationError for what lanebox's triggers
// refuse, *event.RetryableError for deadlocks, serialisation failures and lock
// timeouts; errors.Is(err, ErrConnection) for a lost connection. nil stays nil,
// and an error that has its type already stays as it is.
func Classify(op string, err error) error {
	var (
		configuration *event.ConfigurationError
		retryable     *event.RetryableError
		pg            *pgconn.PgError
	)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &configuration), errors.As(err, &retryable):
		return err
	case errors.As(err, &pg):
		return classifyState(op, pg, err)
	case lostConnection(err):
		return fmt.Errorf("%s: %w: %w", op, ErrConnection, err)
	}
	return fmt.Errorf("%s: %w", op, err)
}

// classifyState classifies an error that the server reported.
func classifyState(op string, pg *pgconn.PgError, err error) error {
	switch pg.Code {
	case stateNoRoute, stateNoKey, stateLongKey, stateDestination, stateNoSource:
		return &event.ConfigurationError{Topic: strings.TrimPrefix(pg.Detail, "topic: "), Reason: pg.Message}
	case "40P01", "40001", "55P03": // deadlock, serialisation failure, lock not available
		return &event.RetryableError{Op: op, Err: err}
	case "57P01", "57P02", "57P03": // shut down by the administrator, crash, starting up
		return fmt.Errorf("%s: %w: %w", op, ErrConnection, err)
	case "42P01": // undefined table
		return sqlqueue.Missing(op, err)
	}
	if strings.HasPrefix(pg.Code, "08") {
		return fmt.Errorf("%s: %w: %w", op, ErrConnection, err)
	}
	return fmt.Errorf("%s: %w", op, err)
}

// lostConnection reports whether err came from the connection and not from the
// caller's context.
func lostConnection(err error) bool {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	var (
		connect *pgconn.ConnectError
		network net.Error
	)
	return errors.As(err, &connect) || errors.As(err, &network) || errors.Is(err, io.EOF) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) || pgconn.SafeToRetry(err)
}

// retry runs fn again while it reports a *event.RetryableError, at most three
// times in all. fn must be a transaction of its own.
func retry(ctx context.Context, fn func() error) error {
	const tries = 3
	for try := 1; ; try++ {
		err := fn()
		var retryable *event.RetryableError
		if try == tries || ctx.Err() != nil || !errors.As(err, &retryable) {
			return err
		}
	}
}

// readCommitted is how every transaction of lanebox begins.
var readCommitted = pgx.TxOptions{IsoLevel: pgx.ReadCommitted}

// CheckIsolation reports whether statements outside of explicit transactions run
// READ COMMITTED in the sessions of db. A stricter default of a role, a database
// or a connection string is refused: claims would read snapshots from before
// their locks.
func CheckIsolation(ctx context.Context, db DBTX) error {
	var level string
	if err := db.QueryRow(ctx, "SELECT current_setting('default_transaction_isolation')").Scan(&level); err != nil {
		return Classify("check isolation", err)
	}
	if level != "read committed" && level != "read uncommitted" {
		return fmt.Errorf("default_transaction_isolation is %q; lanebox needs read committed: set it for the pool's role or in its connection string (a transaction of your own may be stricter)", level)
	}
	return nil
}
