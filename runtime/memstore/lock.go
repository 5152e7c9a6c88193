package memstore

import (
	"context"
	"errors"
	"slices"

	"github.com/lanebox/lanebox/runtime/event"
)

// A lockKey names what a transaction locks: a lane number (as a SQL store's
// advisory lock does), or a receipt, as a unique index does.
type lockKey struct {
	lane    int64
	receipt receiptKey
}

// A lock is held by one transaction until that ends. Waiters are served in the
// order in which they came.
type lock struct {
	holder  *Tx
	waiters []*waiter
}

type waiter struct {
	tx      *Tx
	granted chan struct{}
}

var errDeadlock = errors.New("deadlock: two transactions wait for each other's keys")

// acquire takes the lock of k for tx and waits for it if it must.
func (db *DB) acquire(ctx context.Context, tx *Tx, k lockKey) error {
	db.mu.Lock()
	if db.tryLocked(tx, k) {
		db.mu.Unlock()
		return nil
	}
	if db.wouldDeadlock(tx, k) {
		db.mu.Unlock()
		return &event.RetryableError{Op: "lock key", Err: errDeadlock}
	}
	l, w := db.locks[k], &waiter{tx: tx, granted: make(chan struct{})}
	l.waiters = append(l.waiters, w)
	tx.waitsFor = l
	db.mu.Unlock()

	select {
	case <-w.granted:
		return nil
	case <-ctx.Done():
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	select {
	case <-w.granted: // it came at the same moment; rolling back returns it
	default:
		l.waiters = slices.DeleteFunc(l.waiters, func(x *waiter) bool { return x == w })
		tx.waitsFor = nil
	}
	return ctx.Err()
}

// tryLocked takes the lock of k for tx if nobody else has it. The caller holds
// the DB's mutex.
func (db *DB) tryLocked(tx *Tx, k lockKey) bool {
	l := db.locks[k]
	switch {
	case l == nil:
		db.locks[k] = &lock{holder: tx}
		tx.held = append(tx.held, k)
		return true
	case l.holder == tx:
		return true
	}
	return false
}

// wouldDeadlock follows the chain of holders from k and reports whether it
// comes back to tx.
func (db *DB) wouldDeadlock(tx *Tx, k lockKey) bool {
	for l := db.locks[k]; l != nil; l = l.holder.waitsFor {
		if l.holder == tx {
			return true
		}
	}
	return false
}

// releaseLocks hands every lock of tx to its next waiter. The caller holds the
// DB's mutex and has made the transaction's rows visible before: the next
// writer of a key must see them.
func (db *DB) releaseLocks(tx *Tx) {
	for _, k := range tx.held {
		l := db.locks[k]
		if len(l.waiters) == 0 {
			delete(db.locks, k)
			continue
		}
		next := l.waiters[0]
		l.waiters = l.waiters[1:]
		l.holder = next.tx
		next.tx.waitsFor = nil
		next.tx.held = append(next.tx.held, k)
		close(next.granted)
	}
	tx.held = nil
}
