package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lanebox/lanebox/runtime/event"
	sqlitestore "github.com/lanebox/lanebox/runtime/sqlstore/sqlite"
)

func TestOpenUsesWALAndWaits(t *testing.T) {
	b := newBox(t)
	for pragma, want := range map[string]string{"journal_mode": "wal", "busy_timeout": "10000", "synchronous": "2"} {
		b.want(pragma, b.text("PRAGMA "+pragma), want)
	}
	b.want("file", b.text(`SELECT file FROM pragma_database_list WHERE name = 'main'`), b.path)
}

func TestOpenRefusesWhatIsNoFile(t *testing.T) {
	for _, path := range []string{"", ":memory:", "file::memory:?cache=shared", filepath.Join(t.TempDir(), "no", "folder")} {
		if db, err := sqlitestore.Open(path); err == nil {
			t.Errorf("%q was opened", path)
			db.Close()
		}
	}
}

// plainDB opens a file the way a service may do that knows nothing of locks: no
// busy timeout, deferred transactions.
func plainDB(t *testing.T, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func TestBeginTakesTheWriteLockWhateverTheDSN(t *testing.T) {
	for _, dsn := range []string{"", "&_txlock=immediate", "&_txlock=exclusive"} {
		path := filepath.Join(t.TempDir(), "x.db")
		db := plainDB(t, "file:"+path+"?_pragma=journal_mode(WAL)"+dsn)
		tx, err := sqlitestore.Begin(t.Context(), db)
		if err != nil {
			t.Fatal(err)
		}
		var retryable *event.RetryableError
		if _, err := db.Exec(`CREATE TABLE t (x)`); !errors.As(sqlitestore.Classify("create", err), &retryable) {
			t.Errorf("%q: another writer got %v, want a RetryableError", dsn, err)
		}
		// A second Begin waits in Go, since the connection itself does not.
		begun := make(chan error)
		go func() {
			tx, err := sqlitestore.Begin(context.Background(), db)
			if err == nil {
				err = tx.Rollback()
			}
			begun <- err
		}()
		if _, err := tx.Exec(`CREATE TABLE t (x)`); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		if err := <-begun; err != nil {
			t.Errorf("%q: the second Begin: %v", dsn, err)
		}
		if _, err := db.Exec(`INSERT INTO t VALUES (1)`); err != nil {
			t.Errorf("%q: the commit did not free the file: %v", dsn, err)
		}
	}
}

func TestBeginEndsWithItsContext(t *testing.T) {
	db := plainDB(t, filepath.Join(t.TempDir(), "x.db"))
	tx, err := sqlitestore.Begin(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := sqlitestore.Begin(ctx, db); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context canceled", err)
	}
}

func TestReadThenWriteIsTyped(t *testing.T) {
	b := newBox(t)
	tx, err := plainDB(t, "file:"+(&url.URL{Path: b.path}).EscapedPath()).Begin()
	b.check(err)
	defer tx.Rollback()
	var n int
	b.check(tx.QueryRow(`SELECT count(*) FROM outbox`).Scan(&n))
	b.check(b.append(record("news", "", "1")))
	_, err = tx.Exec(`INSERT INTO outbox (topic, payload) VALUES ('news', '2')`)
	var retryable *event.RetryableError
	if err := sqlitestore.Classify("insert", err); !errors.As(err, &retryable) {
		t.Errorf("got %v, want a RetryableError", err)
	}
}

func TestClassifyKeepsWhatHasAMeaning(t *testing.T) {
	if err := sqlitestore.Classify("op", nil); err != nil {
		t.Error(err)
	}
	inner := &event.RetryableError{Op: "inner", Err: errors.New("busy")}
	if err := sqlitestore.Classify("outer", inner); err != inner {
		t.Errorf("got %v", err)
	}
	if err := sqlitestore.Classify("op", context.Canceled); !errors.Is(err, context.Canceled) || err.Error() != "op: context canceled" {
		t.Errorf("got %v", err)
	}
	// A trigger of the service's own is no refusal of lanebox's.
	b := newBox(t)
	b.exec(`CREATE TABLE t (x)`)
	b.exec(`CREATE TRIGGER no BEFORE INSERT ON t BEGIN SELECT RAISE(ABORT, 'not today'); END`)
	_, err := b.db.Exec(`INSERT INTO t VALUES (1)`)
	var refused *event.ConfigurationError
	if err := sqlitestore.Classify("insert", err); err == nil || errors.As(err, &refused) {
		t.Errorf("got %v", err)
	}
}

// A database that was not migrated says so, to whoever uses it.
func TestMissingTablesSayWhatToDo(t *testing.T) {
	db, err := sqlitestore.Open(filepath.Join(t.TempDir(), "empty.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	_, err = db.ExecContext(t.Context(), `INSERT INTO outbox (topic) VALUES ('t')`)
	if err := sqlitestore.Classify("publish", err); err == nil || !strings.Contains(err.Error(), "no such table: outbox") || !strings.Contains(err.Error(), "call Migrate first") {
		t.Errorf("got %v", err)
	}
}

func TestWriteRollsBack(t *testing.T) {
	b := newBox(t)
	boom := errors.New("boom")
	insert := func(tx *sql.Tx) {
		_, err := tx.Exec(`INSERT INTO outbox (topic, payload) VALUES ('news', '1')`)
		b.check(err)
	}
	if err := sqlitestore.Write(b.ctx, b.db, func(tx *sql.Tx) error { insert(tx); return boom }); err != boom {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(b.ctx)
	if err := sqlitestore.Write(ctx, b.db, func(tx *sql.Tx) error { insert(tx); cancel(); return nil }); err == nil {
		t.Error("a canceled transaction was committed")
	}
	b.want("rows", b.text(`SELECT count(*) FROM outbox`), "0")
}

func TestWakerWakesTheListenersOfItsDatabase(t *testing.T) {
	b, other := newBox(t), newBox(t)
	ctx, cancel := context.WithCancel(b.ctx)
	woken, ended := make(chan string), make(chan error)
	listen := func(name string, db *sql.DB) {
		go func() { ended <- sqlitestore.NewWaker(db).Listen(ctx, func() { woken <- name }) }()
		if got := <-woken; got != name { // once at its start
			t.Errorf("%s woke", got)
		}
	}
	listen("a", b.db)
	listen("b", b.db)
	listen("other", other.db)
	go func() { _ = sqlitestore.NewWaker(b.db).Announce(ctx) }()
	if first, second := <-woken, <-woken; first == second || first == "other" || second == "other" {
		t.Errorf("woke %s and %s", first, second)
	}
	cancel()
	for range 3 {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	}
	b.check(sqlitestore.NewWaker(b.db).Announce(b.ctx)) // nobody listens any more
}

// TestWaitingWritersHoldNoConnection: a pool of two serves readers while one
// writer is inside and many wait.
func TestWaitingWritersHoldNoConnection(t *testing.T) {
	b := newBox(t)
	b.db.SetMaxOpenConns(2)
	const waiting = 20
	ready, done := make(chan struct{}), make(chan error, waiting)
	err := sqlitestore.Write(b.ctx, b.db, func(tx *sql.Tx) error {
		for range waiting {
			go func() {
				ready <- struct{}{}
				done <- sqlitestore.Write(b.ctx, b.db, func(tx *sql.Tx) error {
					_, err := tx.Exec(`INSERT INTO outbox (topic, payload) VALUES ('news', '1')`)
					return err
				})
			}()
		}
		for range waiting {
			<-ready
			b.want("rows", b.text(`SELECT count(*) FROM outbox`), "0")
		}
		ctx, cancel := context.WithCancel(b.ctx)
		cancel()
		if err := sqlitestore.Write(ctx, b.db, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("a canceled writer got %v", err)
		}
		return nil
	})
	b.check(err)
	for range waiting {
		b.check(<-done)
	}
	b.want("rows", b.text(`SELECT count(*) FROM outbox`), "20")
}
