package sqlite

import (
	"context"
	"database/sql"
	"sync"
)

// A Waker passes wake-ups on between the loops of one operating system process
// that use the same *sql.DB. SQLite has no way to tell other processes: they
// find new messages by polling. It implements lane.Waker and is safe for
// concurrent use.
type Waker struct{ db *sql.DB }

// NewWaker returns the waker of db.
func NewWaker(db *sql.DB) *Waker { return &Waker{db: db} }

// listeners are the functions to call, by database. An entry lives only while
// its Listen runs.
var listeners = struct {
	sync.Mutex
	byDB map[*sql.DB]map[*listener]bool
}{byDB: map[*sql.DB]map[*listener]bool{}}

type listener struct{ wake func() }

// Listen calls wake after every Announce until ctx ends, and once at its start.
// It returns the context's error.
func (w *Waker) Listen(ctx context.Context, wake func()) error {
	l := &listener{wake: wake}
	listeners.Lock()
	if listeners.byDB[w.db] == nil {
		listeners.byDB[w.db] = map[*listener]bool{}
	}
	listeners.byDB[w.db][l] = true
	listeners.Unlock()
	defer l.leave(w.db)
	wake()
	<-ctx.Done()
	return ctx.Err()
}

// leave removes l, and with the last listener the entry of db.
func (l *listener) leave(db *sql.DB) {
	listeners.Lock()
	defer listeners.Unlock()
	delete(listeners.byDB[db], l)
	if len(listeners.byDB[db]) == 0 {
		delete(listeners.byDB, db)
	}
}

// Announce wakes all listeners of the database in this process.
func (w *Waker) Announce(context.Context) error {
	listeners.Lock()
	woken := make([]*listener, 0, len(listeners.byDB[w.db]))
	for l := range listeners.byDB[w.db] {
		woken = append(woken, l)
	}
	listeners.Unlock()
	for _, l := range woken {
		l.wake()
	}
	return nil
}
