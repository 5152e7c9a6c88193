package sqlserver

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
)

// minCompatibility is the compatibility level from which on OPENJSON is known.
const minCompatibility = 130

// Facts are what matters about a database and the sessions of its pool.
type Facts struct {
	// Babelfish says that the server is Babelfish for PostgreSQL.
	Babelfish bool
	// Compatibility is the database's compatibility level; 130 is SQL Server 2016.
	Compatibility int
	// ReadCommittedSnapshot says that READ COMMITTED reads row versions instead of
	// waiting for locks; lanebox works either way.
	ReadCommittedSnapshot bool
	// SnapshotAllowed says that transactions may ask for SNAPSHOT.
	SnapshotAllowed bool
	// Isolation is the level with which the sessions of the pool begin.
	Isolation string
	// ImplicitTransactions says that the sessions of the pool begin a transaction
	// with every statement.
	ImplicitTransactions bool
}

// isolationLevels are the levels by the numbers of sys.dm_exec_sessions.
var isolationLevels = map[int]string{1: "READ UNCOMMITTED", 2: "READ COMMITTED", 3: "REPEATABLE READ", 4: "SERIALIZABLE", 5: "SNAPSHOT"}

// inspect reads the facts; every session may see itself and its database. The
// database goes by its name: its number is another one for DB_ID in Azure.
const inspect = `SELECT CASE WHEN SERVERPROPERTY('Babelfish') = 1 THEN 1 ELSE 0 END,
       CONVERT(int, d.compatibility_level), CONVERT(int, d.is_read_committed_snapshot_on), CONVERT(int, d.snapshot_isolation_state),
       CONVERT(int, s.transaction_isolation_level), @@OPTIONS & @implicit
  FROM sys.databases AS d CROSS JOIN sys.dm_exec_sessions AS s
 WHERE d.name = DB_NAME() AND s.session_id = @@SPID`

// Inspect reads the facts about the database of db.
func Inspect(ctx context.Context, db *sql.DB) (Facts, error) {
	f, err := inspectSession(ctx, db)
	if err != nil {
		return f, Classify("inspect the database", err)
	}
	return f, nil
}

// inspectSession looks at a session as the pool hands it out. One that was used
// before may have been left with another level, which is nobody's fault.
func inspectSession(ctx context.Context, db *sql.DB) (Facts, error) {
	var (
		f                             Facts
		snapshot, isolation, implicit int
	)
	conn, err := db.Conn(ctx)
	if err != nil {
		return f, err
	}
	defer conn.Close()
	if _, err := conn.ExecContext(ctx, `SET TRANSACTION ISOLATION LEVEL READ COMMITTED`); err != nil {
		return f, err
	}
	err = conn.Raw(func(c any) error { // runs the pool's SessionInitSQL
		if session, ok := c.(driver.SessionResetter); ok {
			return session.ResetSession(ctx)
		}
		return nil
	})
	if err != nil {
		return f, err
	}
	err = conn.QueryRowContext(ctx, inspect, sql.Named("implicit", 2)).Scan(&f.Babelfish, &f.Compatibility, &f.ReadCommittedSnapshot, &snapshot, &isolation, &implicit)
	if err != nil {
		return f, err
	}
	f.SnapshotAllowed = snapshot == 1
	f.Isolation = isolationLevels[isolation]
	f.ImplicitTransactions = implicit != 0
	return f, nil
}

// Check reports why lanebox cannot work on such a database, or nil. Sessions that
// begin with a stricter level than READ COMMITTED are refused: lanebox sets its
// level itself, but a service whose pool is set up so expects it to hold for
// everything.
func (f Facts) Check() error {
	var errs []error
	if f.Compatibility < minCompatibility && !f.Babelfish {
		errs = append(errs, fmt.Errorf("the database has compatibility level %d; lanebox needs %d (SQL Server 2016) or higher: "+
			"ALTER DATABASE CURRENT SET COMPATIBILITY_LEVEL = %d", f.Compatibility, minCompatibility, minCompatibility))
	}
	switch f.Isolation {
	case "READ COMMITTED", "READ UNCOMMITTED":
	default:
		errs = append(errs, fmt.Errorf("sessions begin with isolation level %q; lanebox needs READ COMMITTED: "+
			"take the level out of the pool's SessionInitSQL (a transaction of your own may be stricter)", f.Isolation))
	}
	if f.ImplicitTransactions {
		errs = append(errs, errors.New("sessions begin with IMPLICIT_TRANSACTIONS ON, with which nothing is committed unless somebody says so: "+
			"take it out of the pool's SessionInitSQL, or out of the server's \"user options\""))
	}
	return errors.Join(errs...)
}

// CheckDatabase reports why the database or the driver of db cannot be used, or
// nil.
func CheckDatabase(ctx context.Context, db *sql.DB) error {
	f, err := Inspect(ctx, db)
	if err != nil {
		return err
	}
	return errors.Join(f.Check(), checkDriver(ctx, db))
}

// Start is CheckDatabase that tells logger what was found; nil means
// slog.Default().
func Start(ctx context.Context, db *sql.DB, logger *slog.Logger) error {
	if logger == nil {
		logger = slog.Default()
	}
	f, err := Inspect(ctx, db)
	if err != nil {
		return err
	}
	logger.InfoContext(ctx, "SQL Server", "compatibility", f.Compatibility, "read_committed_snapshot", f.ReadCommittedSnapshot,
		"snapshot_allowed", f.SnapshotAllowed, "isolation", f.Isolation, "babelfish", f.Babelfish)
	if most := db.Stats().MaxOpenConnections; most > 0 && most < fewest {
		logger.WarnContext(ctx, "the pool of connections is small: leases, handlers and everything else wait for each other", "connections", most, "needs", fewest)
	}
	return errors.Join(f.Check(), checkDriver(ctx, db))
}

// fewest is how many connections a process with handlers needs: one renews leases,
// and handlers leave three to everything else.
const fewest = 4

// checkDriver makes the server end a transaction, and reports an error when the
// driver does not notice: later statements of such a transaction would run
// outside of any, and be committed one by one.
func checkDriver(ctx context.Context, db *sql.DB) error {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return Classify("check the driver", err)
	}
	defer tx.Rollback() // the server has done so before
	if _, err := tx.ExecContext(ctx, `SET XACT_ABORT ON; THROW 51014, 'lanebox: a test of the driver, which costs nothing', 1`); number(err) != 51014 {
		return Classify("check the driver", errors.Join(errors.New("the server did not answer with the error that it was asked for"), err))
	}
	if _, err := tx.ExecContext(ctx, `SELECT 1`); err == nil {
		return errors.New("the driver does not notice that the server has ended a transaction: its later statements would be committed one by one; " +
			"use github.com/microsoft/go-mssqldb v1.11.2 or newer")
	}
	return nil
}
