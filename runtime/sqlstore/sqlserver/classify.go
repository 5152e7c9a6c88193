package sqlserver

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/internal/sqlqueue"
)

// Numbers of the errors that lanebox's own triggers and batches raise. Those from
// numberRefused to numberLastRefused say that a message can never be stored as it
// is: its topic has no route, its key is empty or too long, the writer gave a
// destination, the source is unknown.
const (
	numberLocked      = 51000 // the key is locked by another transaction
	numberRefused     = 51001
	numberLastRefused = 51009
)

// numberOver is what batches raise that find their transaction ended; 3930 and 3998
// say that it can only be rolled back.
const numberOver = 51013

var over = []int32{numberOver, 3930, 3998}

// duplicate are the numbers of a unique key that exists. In lanebox's own tables
// another transaction was first, and the next try finds its row.
var duplicate = []int32{2601, 2627}

// numberNoObject says that a table or view does not exist.
const numberNoObject = 208

// ErrConnection says that the connection was lost or could not be made, or that
// the server cannot be used for the moment: it fails over, starts, or has too
// much to do. What was under way may or may not have been committed.
var ErrConnection = errors.New("connection to SQL Server lost")

// errOver says that a transaction has ended before its commit.
var errOver = errors.New("the transaction is over and was not committed: a statement in it failed and SQL Server rolled it back, or it was ended by the code it was given to; run the whole transaction again")

// retryable are errors of a transaction that may succeed when it is run again.
var retryable = []int32{
	1204,       // no locks are left
	1205,       // deadlock
	1222,       // lock timeout
	3960, 3961, // a row or a table changed since the snapshot was taken
	41301, 41302, 41305, 41325, 41839, // the same in memory-optimized tables
	numberLocked,
}

// unavailable are errors of a server that cannot be used for the moment: those
// that Microsoft's client takes for transient, those of a shutdown, and those of
// a database that changes its replica.
var unavailable = []int32{
	20, 64, 121, 233, 997, 10053, 10054, 10060, 10061, 11001, // the network
	596,              // the session was killed
	615, 4060, 18401, // the database cannot be opened, or is being upgraded
	926, 927, 976, 978, 979, 982, 983, // the database is restoring, or on a replica that takes no such connection
	6001, 6002, 6005, 6006, 17142, 17148, // the server is paused or shut down
	701, 8645, 8651, // no memory is left
	4221, 10928, 10929, 10936, 40143, 40166, 40197, 40501, 40540, 40549, 40550, 40613, // Azure: failover and throttling
	42108, 42109, 49918, 49919, 49920,
}

// Classify wraps err with the name of the operation and gives it the type that
// callers tell apart: *event.ConfigurationError for what lanebox's triggers
// refuse, *event.RetryableError for deadlocks, lock timeouts and conflicts;
// errors.Is(err, ErrConnection) for a lost connection. nil stays nil, and an
// error that has its type already stays as it is.
func Classify(op string, err error) error {
	var (
		configuration *event.ConfigurationError
		again         *event.RetryableError
		fatal         mssql.ServerError // it wraps a mssql.Error
		server        mssql.Error
	)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &configuration), errors.As(err, &again), errors.Is(err, errOver), errors.Is(err, ErrConnection):
		return err
	case errors.As(err, &fatal):
		return fmt.Errorf("%s: %w: %w", op, ErrConnection, err)
	case errors.As(err, &server):
		return classifyNumbers(op, server, err)
	case errors.Is(err, sql.ErrTxDone):
		return fmt.Errorf("%s: %w", op, errOver)
	case lostConnection(err):
		return fmt.Errorf("%s: %w: %w%s", op, ErrConnection, err, advice(err))
	}
	return fmt.Errorf("%s: %w%s", op, err, advice(err))
}

// advice explains errors that come from how the database was opened.
func advice(err error) string {
	var network net.Error
	switch {
	case errors.As(err, &network) && network.Timeout() && !errors.Is(err, context.DeadlineExceeded):
		return `; a "connection timeout" in the connection string ends every call that lasts longer: take it out`
	case strings.HasPrefix(err.Error(), "sql: expected 0 arguments"):
		return `; open the database as "sqlserver": the driver's other name, "mssql", takes no named parameters`
	}
	return ""
}

// classifyNumbers classifies what the server reported. It may report several
// errors, of which the last is not always the one that tells.
func classifyNumbers(op string, server mssql.Error, err error) error {
	for _, e := range each(server) {
		switch {
		case e.Number >= numberRefused && e.Number <= numberLastRefused:
			return refusal(e.Message)
		case slices.Contains(retryable, e.Number):
			return &event.RetryableError{Op: op, Err: err}
		case slices.Contains(unavailable, e.Number):
			return fmt.Errorf("%s: %w: %w", op, ErrConnection, err)
		case slices.Contains(over, e.Number):
			return fmt.Errorf("%s: %w (%w)", op, errOver, err)
		case e.Number == numberNoObject:
			return sqlqueue.Missing(op, err)
		}
	}
	if server.Number == 0 { // the driver's own: the server has ended the transaction
		return fmt.Errorf("%s: %w (%w)", op, errOver, err)
	}
	return fmt.Errorf("%s: %w", op, err)
}

// each returns the errors that the server reported together.
func each(server mssql.Error) []mssql.Error {
	if len(server.All) == 0 {
		return []mssql.Error{server}
	}
	return server.All
}

// isDuplicate reports whether a unique key exists.
func isDuplicate(err error) bool {
	var server mssql.Error
	return errors.As(err, &server) && slices.ContainsFunc(each(server), func(e mssql.Error) bool { return slices.Contains(duplicate, e.Number) })
}

// refusal reads the message of an error that lanebox's triggers raise:
// "lanebox: VERB TOPIC: REASON".
func refusal(message string) error {
	message = strings.TrimPrefix(message, "lanebox: ")
	for _, verb := range []string{"publish ", "receive "} {
		rest, found := strings.CutPrefix(message, verb)
		if !found {
			continue
		}
		if colon := strings.LastIndex(rest, ": "); colon >= 0 { // reasons have none
			return &event.ConfigurationError{Topic: rest[:colon], Reason: rest[colon+2:]}
		}
	}
	return &event.ConfigurationError{Topic: "?", Reason: message}
}

// lostConnection reports whether err came from the connection and not from the
// caller's context.
func lostConnection(err error) bool {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	var (
		network net.Error
		stream  mssql.StreamError
	)
	return errors.As(err, &network) || errors.As(err, &stream) || errors.Is(err, driver.ErrBadConn) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}

// retry runs fn again while it reports a *event.RetryableError, or that another
// transaction was first with a unique key, at most three times in all. fn must be a
// transaction of its own, in lanebox's own tables.
func retry(ctx context.Context, fn func() error) error {
	const tries = 3
	for try := 1; ; try++ {
		err := fn()
		var again *event.RetryableError
		if try == tries || ctx.Err() != nil || !errors.As(err, &again) && !isDuplicate(err) {
			return err
		}
	}
}
