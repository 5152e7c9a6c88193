package sqlserver

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"sync"
)

// InTx runs fn in a READ COMMITTED transaction and commits it when fn returns
// nil. An error of fn rolls back and is returned as it is; so does a panic, which
// goes on. Errors of the transaction itself are classified.
//
// When publishing in it failed, nothing is committed, whatever fn returns: SQL
// Server has rolled the transaction back by then. InTx returns the error of the
// publish if fn does not.
func InTx(ctx context.Context, db *sql.DB, fn func(tx *sql.Tx) error) error {
	tx, err := begin(ctx, db)
	if err != nil {
		return Classify("begin", err)
	}
	defer tx.end()
	if err := fn(tx.Tx); err != nil {
		return err
	}
	return Classify("commit", tx.commit(ctx))
}

// A transaction is one that this package began. SQL Server may end it at any
// failure, and code that it is lent to may, so commit looks before it commits.
type transaction struct {
	*sql.Tx
	mark string // resource of a lock that ends with the transaction; "" without
}

// begin begins a READ COMMITTED transaction, which ends with ctx at the latest.
func begin(ctx context.Context, db *sql.DB) (*transaction, error) {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return nil, err
	}
	failures.Lock()
	failures.of[tx] = nil
	failures.Unlock()
	return &transaction{Tx: tx}, nil
}

// beginMarked begins a transaction that notices being ended; see whole.
func beginMarked(ctx context.Context, db *sql.DB) (*transaction, error) {
	tx, err := begin(ctx, db)
	if err != nil {
		return nil, err
	}
	tx.mark = "lanebox:tx:" + rand.Text()
	if _, err := tx.ExecContext(ctx, takeMark, sql.Named("mark", tx.mark)); err != nil {
		tx.end()
		return nil, err
	}
	return tx, nil
}

// takeMark takes a lock that nobody else wants and that ends with the
// transaction.
const takeMark = `DECLARE @granted int;
EXEC @granted = sp_getapplock @Resource = @mark, @LockMode = 'Exclusive', @LockOwner = 'Transaction', @LockTimeout = 0;
IF @granted < 0 THROW 51012, 'lanebox: the mark of a transaction was not granted', 1;`

// seeMark says whether the transaction of the mark still goes on, with nothing
// begun inside it that would have to be committed first.
const seeMark = `SELECT CASE WHEN @@TRANCOUNT = 1 THEN CASE WHEN APPLOCK_MODE('public', @mark, 'Transaction') = 'Exclusive' THEN 1 ELSE 0 END ELSE 0 END`

// commitWhole commits a transaction that still goes on. A COMMIT inside of an
// inner BEGIN TRANSACTION that somebody left open would commit nothing.
const commitWhole = `IF @@TRANCOUNT <> 1 THROW 51013, 'lanebox: the transaction is not the one that was begun', 1;
COMMIT TRANSACTION;`

// whole returns nil while the transaction goes on as it was begun, and errOver
// when somebody ended it.
func (t *transaction) whole(ctx context.Context) error {
	if failed := failure(t.Tx); failed != nil {
		return failed
	}
	var goesOn bool
	if err := t.QueryRowContext(ctx, seeMark, sql.Named("mark", t.mark)).Scan(&goesOn); err != nil {
		return err
	}
	if !goesOn {
		return errOver
	}
	return nil
}

// commit commits the transaction, or fails when it is over. Classify knows the
// error.
func (t *transaction) commit(ctx context.Context) error {
	if failed := failure(t.Tx); failed != nil {
		return failed
	}
	_, err := t.ExecContext(ctx, commitWhole)
	return err
}

// end rolls back what was not committed, and gives the connection back.
func (t *transaction) end() {
	failures.Lock()
	delete(failures.of, t.Tx)
	failures.Unlock()
	_ = t.Rollback() // the server rolls back with the connection otherwise
}

// failures are the transactions that this package began and has not ended, each
// with the error of a publish that ended it before.
var failures = struct {
	sync.Mutex
	of map[*sql.Tx]error
}{of: map[*sql.Tx]error{}}

// fail ends tx because of err. What runs in it afterwards fails in database/sql;
// nothing reaches the server, where it would run outside of any transaction.
func fail(tx *sql.Tx, err error) {
	failures.Lock()
	if known, ours := failures.of[tx]; ours && known == nil {
		failures.of[tx] = err
	}
	failures.Unlock()
	_ = tx.Rollback() // the server has rolled back in most cases
}

// failure returns the error that ended tx, or nil.
func failure(tx *sql.Tx) error {
	failures.Lock()
	defer failures.Unlock()
	if err := failures.of[tx]; err != nil {
		return fmt.Errorf("%w: %w", errOver, err)
	}
	return nil
}

// number returns the number of the server's error, or 0.
func number(err error) int32 {
	var server interface{ SQLErrorNumber() int32 }
	if errors.As(err, &server) {
		return server.SQLErrorNumber()
	}
	return 0
}
