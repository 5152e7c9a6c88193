package sqlserver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/outbox"
	"github.com/lanebox/lanebox/runtime/storetest/testmssql"
)

// These tests need a server, but no generated code: a handful of queries on one
// small table stand for it, with the locks and the errors of the real ones.

// A server is a database with the table done, which says what was committed.
type server struct {
	*testing.T
	db  *sql.DB
	url string
}

func newServer(t *testing.T) *server {
	t.Helper()
	url := testmssql.URL(t)
	s := &server{t, testmssql.DB(t, url), url}
	s.exec(`CREATE TABLE done (what nvarchar(50) NOT NULL)`)
	s.exec(`CREATE TABLE message (sequence bigint NOT NULL)`)
	return s
}

func (s *server) exec(query string, args ...any) {
	s.Helper()
	if _, err := s.db.ExecContext(s.Context(), query, args...); err != nil {
		s.Fatal(err)
	}
}

// count returns how many rows a table has.
func (s *server) count(table string) (n int) {
	s.Helper()
	if err := s.db.QueryRowContext(s.Context(), `SELECT COUNT(*) FROM `+table).Scan(&n); err != nil {
		s.Fatal(err)
	}
	return n
}

// waitForWaiters waits until n transactions wait for locks.
func (s *server) waitForWaiters(n int) {
	s.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; {
		got, err := testmssql.LockWaiters(s.Context(), s.db)
		if err != nil {
			s.Fatal(err)
		}
		if got == n {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("%d transactions wait for a lock, want %d", got, n)
		}
	}
}

// insert notes something in a transaction.
func insert(ctx context.Context, tx DBTX, what string) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO done (what) VALUES (@what)`, sql.Named("what", what))
	return err
}

// small are the queries of the small table.
type small struct {
	Queries // the others are not called
	db      DBTX
}

func bindSmall(db DBTX) Queries { return small{db: db} }

// PublishOne takes the lock of the key as the trigger does, and refuses the topic
// "refused".
func (q small) PublishOne(ctx context.Context, p PublishOneParams) error {
	_, err := q.db.ExecContext(ctx, `SET NOCOUNT ON; SET XACT_ABORT ON;
IF @topic = N'refused' THROW 51001, N'lanebox: publish refused: topic has no route', 1;
DECLARE @rc int;
EXEC @rc = sp_getapplock @Resource = @key, @LockMode = 'Exclusive', @LockOwner = 'Transaction', @LockTimeout = @wait;
IF @rc < 0 THROW 51000, N'lanebox: a key is locked by another transaction', 1;
INSERT INTO done (what) VALUES (@topic);`, sql.Named("topic", p.Topic), sql.Named("key", p.Key), sql.Named("wait", p.LockTimeout))
	return err
}

// Complete removes a message.
func (q small) Complete(ctx context.Context, p CompleteParams) (CompleteRow, error) {
	result, err := q.db.ExecContext(ctx, `DELETE FROM message WHERE sequence = @sequence`, sql.Named("sequence", p.Sequence))
	if err != nil {
		return CompleteRow{}, err
	}
	n, err := result.RowsAffected()
	return CompleteRow{Leased: true, Removed: n == 1}, err
}

// Keep renews nothing.
func (q small) Keep(ctx context.Context, p KeepParams) ([]KeepRow, error) {
	_, err := q.db.ExecContext(ctx, `SELECT 1`)
	return nil, err
}

func (q small) Leave(ctx context.Context, owner string) error { return nil }

// publish publishes under a key.
func publish(ctx context.Context, tx *sql.Tx, topic, key string) error {
	return NewAppender(tx, bindSmall, false).Append(ctx, []outbox.Record{{Topic: topic, Key: key}})
}

// hold returns a transaction that holds the lock of a key.
func (s *server) hold(key string) *sql.Tx {
	s.Helper()
	tx, err := s.db.BeginTx(s.Context(), nil)
	if err != nil {
		s.Fatal(err)
	}
	if err := publish(s.Context(), tx, "held", key); err != nil {
		s.Fatal(err)
	}
	return tx
}

func TestInTx(t *testing.T) {
	s, ctx := newServer(t), t.Context()
	if err := InTx(ctx, s.db, func(tx *sql.Tx) error { return insert(ctx, tx, "1") }); err != nil {
		t.Fatal(err)
	}
	bad := errors.New("bad")
	if err := InTx(ctx, s.db, func(tx *sql.Tx) error { return errors.Join(insert(ctx, tx, "2"), bad) }); !errors.Is(err, bad) {
		t.Errorf("error of fn: %v", err)
	}
	func() {
		defer func() {
			if recover() != "panic" {
				t.Error("the panic was swallowed")
			}
		}()
		InTx(ctx, s.db, func(tx *sql.Tx) error { insert(ctx, tx, "3"); panic("panic") })
	}()
	for name, statement := range map[string]string{
		"an inner transaction is left open": `BEGIN TRANSACTION`, "it was rolled back": `ROLLBACK`,
		"the server ended it": `SET XACT_ABORT ON; THROW 50000, 'no', 1`,
	} {
		err := InTx(ctx, s.db, func(tx *sql.Tx) error {
			err := insert(ctx, tx, name)
			tx.ExecContext(ctx, statement)
			return err
		})
		if !errors.Is(err, errOver) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := s.count("done"); n != 1 {
		t.Errorf("%d rows, want the committed one", n)
	}
	ended, cancel := context.WithCancel(ctx)
	if err := InTx(ended, s.db, func(tx *sql.Tx) error { cancel(); return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that ended before the commit: %v", err)
	}
	if n := len(failures.of); n != 0 {
		t.Errorf("%d transactions are not forgotten", n)
	}
}

// A session may have been left with another isolation level.
func TestIsolationIsNotInherited(t *testing.T) {
	s, ctx := newServer(t), t.Context()
	s.db.SetMaxOpenConns(1)
	for range 2 {
		tx, err := s.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelSerializable})
		if err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		s.exec(`SET TRANSACTION ISOLATION LEVEL SERIALIZABLE`)
		if err := InTx(ctx, s.db, func(tx *sql.Tx) error {
			var level int
			err := tx.QueryRowContext(ctx, `SELECT transaction_isolation_level FROM sys.dm_exec_sessions WHERE session_id = @@SPID`).Scan(&level)
			if level != 2 {
				t.Errorf("isolation level %d, want 2 (READ COMMITTED)", level)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
	}
}

// What the service's own transactions left behind in a session is not taken for
// how sessions begin.
func TestUsedSessionsAreNotBlamed(t *testing.T) {
	s, ctx := newServer(t), t.Context()
	s.db.SetMaxOpenConns(1)
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelSerializable})
	if err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := CheckDatabase(ctx, s.db); err != nil {
		t.Error(err)
	}
	connector, err := mssql.NewConnector(s.url)
	if err != nil {
		t.Fatal(err)
	}
	connector.SessionInitSQL = "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"
	strict := sql.OpenDB(connector)
	defer strict.Close()
	if err := CheckDatabase(ctx, strict); err == nil || !strings.Contains(err.Error(), `"SERIALIZABLE"`) {
		t.Errorf("sessions that begin with a stricter level: %v", err)
	}
}

// The driver's other name takes no named parameters.
func TestOtherNameOfTheDriver(t *testing.T) {
	s := newServer(t)
	db, err := sql.Open("mssql", s.url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := CheckDatabase(t.Context(), db); err == nil || !strings.Contains(err.Error(), `as "sqlserver"`) {
		t.Errorf("got %v", err)
	}
}

// After a failed publish nothing of its transaction is committed, before or behind
// it, whoever swallows the error.
func TestFailedPublishLosesTheTransaction(t *testing.T) {
	s, ctx := newServer(t), t.Context()
	holder := s.hold("busy")
	defer holder.Rollback()
	short, cancel := context.WithTimeout(ctx, 1300*time.Millisecond)
	defer cancel()
	retryable := func(err error) bool { var again *event.RetryableError; return errors.As(err, &again) }
	refused := func(err error) bool {
		var c *event.ConfigurationError
		return errors.As(err, &c) && c.Topic == "refused"
	}
	for _, c := range []struct {
		name, topic, key string
		ctx              context.Context
		want             func(error) bool
	}{
		{"refused", "refused", "a", ctx, refused},
		{"locked", "t", "busy", short, retryable},
	} {
		err := InTx(ctx, s.db, func(tx *sql.Tx) error {
			if err := insert(ctx, tx, "before"); err != nil {
				return err
			}
			if err := publish(c.ctx, tx, c.topic, c.key); !c.want(err) {
				t.Errorf("%s: the publish gave %v", c.name, err)
			}
			if err := insert(ctx, tx, "behind"); err == nil {
				t.Errorf("%s: a statement ran behind the failure", c.name)
			}
			return nil // swallowed
		})
		if !c.want(err) || !errors.Is(err, errOver) {
			t.Errorf("%s: InTx gave %v", c.name, err)
		}
		tx, err := s.db.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(insert(ctx, tx, "before"), publish(ctx, tx, "t", "other")); err != nil {
			t.Fatal(err)
		}
		if err := publish(c.ctx, tx, c.topic, c.key); err == nil {
			t.Errorf("%s: published", c.name)
		}
		if err := insert(ctx, tx, "behind"); !errors.Is(err, sql.ErrTxDone) {
			t.Errorf("%s: a statement behind the failure: %v", c.name, err)
		}
		if err := tx.Commit(); !errors.Is(err, sql.ErrTxDone) {
			t.Errorf("%s: the commit: %v", c.name, err)
		}
	}
	holder.Rollback()
	if n := s.count("done"); n != 0 {
		t.Errorf("%d rows were committed", n)
	}
}

// A failed INSERT in plain SQL ends the transaction on the server; the driver lets
// nothing run behind it.
func TestFailedPlainInsertLosesTheTransaction(t *testing.T) {
	s, ctx := newServer(t), t.Context()
	err := InTx(ctx, s.db, func(tx *sql.Tx) error {
		if err := insert(ctx, tx, "before"); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `SET XACT_ABORT ON; THROW 51000, N'lanebox: a key is locked', 1`); err == nil {
			t.Error("no error")
		}
		if err := insert(ctx, tx, "behind"); err == nil {
			t.Error("a statement ran behind the failure")
		}
		return nil
	})
	if !errors.Is(err, errOver) || s.count("done") != 0 {
		t.Errorf("%v, %d rows", err, s.count("done"))
	}
}

// An event that is refused before anything is sent costs nothing.
func TestRefusalBeforeSendingCostsNothing(t *testing.T) {
	s, ctx := newServer(t), t.Context()
	err := InTx(ctx, s.db, func(tx *sql.Tx) error {
		var invalid *event.ValidationError
		if err := NewAppender(tx, bindSmall, false).Append(ctx, []outbox.Record{{Topic: "t", Payload: []byte{0xff}}}); !errors.As(err, &invalid) {
			t.Errorf("bytes that are no text: %v", err)
		}
		var configuration *event.ConfigurationError
		if err := publish(ctx, tx, "t", "a\x00"); !errors.As(err, &configuration) {
			t.Errorf("a key with U+0000: %v", err)
		}
		return publish(ctx, tx, "t", "a")
	})
	if err != nil || s.count("done") != 1 {
		t.Errorf("%v, %d rows", err, s.count("done"))
	}
}

// A deadline that leaves no time for the answer is refused at once.
func TestPublishNeedsTime(t *testing.T) {
	s := newServer(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	var again *event.RetryableError
	err := InTx(t.Context(), s.db, func(tx *sql.Tx) error { return publish(ctx, tx, "t", "a") })
	if !errors.As(err, &again) || !errors.Is(err, errNoTime) {
		t.Errorf("got %v", err)
	}
}

// A call that is canceled while it waits for a key leaves no lock behind and no
// transaction open: as soon as the key is free, another publisher has it.
func TestCanceledPublishLeavesNoLock(t *testing.T) {
	s := newServer(t)
	for name, begin := range map[string]func(ctx context.Context) (*sql.Tx, error){
		"the call's context":        func(context.Context) (*sql.Tx, error) { return s.db.BeginTx(t.Context(), nil) },
		"the transaction's context": func(ctx context.Context) (*sql.Tx, error) { return s.db.BeginTx(ctx, nil) },
	} {
		holder := s.hold("k")
		ctx, cancel := context.WithCancel(t.Context())
		tx, err := begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := publish(ctx, tx, "t", "mine"); err != nil { // a lock that it holds
			t.Fatal(err)
		}
		result := make(chan error)
		go func() { result <- publish(ctx, tx, "t", "k") }()
		s.waitForWaiters(1)
		cancel()
		if err := <-result; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: the canceled publish gave %v", name, err)
		}
		if err := tx.Commit(); err == nil {
			t.Errorf("%s: the canceled transaction was committed", name)
		}
		if err := holder.Rollback(); err != nil {
			t.Error(err)
		}
		for _, key := range []string{"k", "mine"} {
			next, err := s.db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := publish(t.Context(), next, "t", key); err != nil {
				t.Errorf("%s: another publisher of %s: %v", name, key, err)
			}
			next.Rollback()
		}
	}
	if n := s.count("done"); n != 0 {
		t.Errorf("%d rows were committed", n)
	}
}

// endings are ways to end a transaction that one was only lent.
var endings = map[string]func(ctx context.Context, tx *sql.Tx){
	"Commit":                 func(_ context.Context, tx *sql.Tx) { tx.Commit() },
	"Rollback":               func(_ context.Context, tx *sql.Tx) { tx.Rollback() },
	"SQL ROLLBACK":           func(ctx context.Context, tx *sql.Tx) { tx.ExecContext(ctx, "ROLLBACK") },
	"SQL COMMIT":             func(ctx context.Context, tx *sql.Tx) { tx.ExecContext(ctx, "COMMIT") },
	"SQL ROLLBACK and BEGIN": func(ctx context.Context, tx *sql.Tx) { tx.ExecContext(ctx, "ROLLBACK; BEGIN TRANSACTION") },
	"SQL COMMIT and BEGIN":   func(ctx context.Context, tx *sql.Tx) { tx.ExecContext(ctx, "COMMIT; BEGIN TRANSACTION") },
	"an inner BEGIN":         func(ctx context.Context, tx *sql.Tx) { tx.ExecContext(ctx, "BEGIN TRANSACTION") },
	"an error of the server": func(ctx context.Context, tx *sql.Tx) { tx.ExecContext(ctx, "SET XACT_ABORT ON; THROW 50000, 'no', 1") },
	"a refused publish":      func(ctx context.Context, tx *sql.Tx) { publish(ctx, tx, "refused", "k") },
}

// A handler that ends its transaction itself, or loses it, completes nothing.
func TestHandlerThatLosesItsTransactionCompletesNothing(t *testing.T) {
	s := newServer(t)
	s.exec(`INSERT INTO message VALUES (7)`)
	scope := New(Config{DB: s.db, Bind: bindSmall}).Inbox(1)
	row := lane.Row{Message: event.Message{Sequence: 7}}
	for name, end := range endings {
		err := scope.Handle(t.Context(), "me", row, lane.Lease{}, func(ctx context.Context, tx *sql.Tx) error {
			end(ctx, tx)
			return nil
		})
		if n := s.count("message"); err == nil || n != 1 {
			t.Errorf("%s: completed: %v, %d messages left", name, err, n)
		}
	}
	// A savepoint, or an error that the handler has dealt with, is its own.
	err := scope.Handle(t.Context(), "me", row, lane.Lease{}, func(ctx context.Context, tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `SAVE TRANSACTION mine; INSERT INTO done VALUES ('undone'); ROLLBACK TRANSACTION mine`); err != nil {
			return err
		}
		return insert(ctx, tx, "handled")
	})
	if err != nil || s.count("message") != 0 || s.count("done") != 1 {
		t.Errorf("%v: %d messages, %d effects", err, s.count("message"), s.count("done"))
	}
}

// Leases are renewed over a connection of their own, whatever uses up the pool.
func TestRenewalNeedsNoFreeConnection(t *testing.T) {
	s := newServer(t)
	s.db.SetMaxOpenConns(3)
	store := New(Config{DB: s.db, Bind: bindSmall})
	keep := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		_, err := store.Keep(ctx, lane.KeepParams{Owner: "me", TTL: time.Minute})
		return err
	}
	if err := keep(); err != nil {
		t.Fatal(err)
	}
	var busy []*sql.Conn
	for range 2 {
		conn, err := s.db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		busy = append(busy, conn)
	}
	var calls sync.WaitGroup
	for range 4 { // in turns
		calls.Go(func() {
			if err := keep(); err != nil {
				t.Errorf("with a pool that is used up: %v", err)
			}
		})
	}
	calls.Wait()
	for _, conn := range busy {
		conn.Close()
	}
	// A connection that broke is replaced.
	var spid int
	if err := store.reserve.conn.QueryRowContext(t.Context(), `SELECT @@SPID`).Scan(&spid); err != nil {
		t.Fatal(err)
	}
	s.exec(fmt.Sprintf(`KILL %d`, spid))
	if err := keep(); err != nil {
		t.Errorf("after its session was killed: %v", err)
	}
	if err := store.Leave(t.Context(), "me"); err != nil || s.db.Stats().InUse != 0 {
		t.Errorf("%v; %d connections are in use", err, s.db.Stats().InUse)
	}
}

// Handlers leave connections of a small pool to everything else.
func TestHandlersLeaveConnections(t *testing.T) {
	s := newServer(t)
	s.db.SetMaxOpenConns(spared + 1)
	s.exec(`INSERT INTO message VALUES (1), (2), (3), (4)`)
	scope := New(Config{DB: s.db, Bind: bindSmall}).Inbox(1)
	enough, inside := make(chan struct{}), make(chan struct{}, 4)
	var handlers sync.WaitGroup
	for i := range int64(4) {
		handlers.Go(func() {
			err := scope.Handle(t.Context(), "me", lane.Row{Message: event.Message{Sequence: i + 1}}, lane.Lease{}, func(context.Context, *sql.Tx) error {
				inside <- struct{}{}
				<-enough
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	<-inside
	for range 3 {
		if n := s.count("message"); n != 4 {
			t.Errorf("%d messages", n)
		}
	}
	close(enough)
	handlers.Wait()
	if n := s.count("message"); n != 0 {
		t.Errorf("%d messages are left", n)
	}
}
