package memstore

import (
	"context"
	"sync"

	"github.com/lanebox/lanebox/runtime/lane"
)

// An Op names a call that crosses the seam to the database.
type Op string

// The calls in which faults can be injected.
const (
	OpAcquire  Op = "acquire"
	OpRelease  Op = "release"
	OpFetch    Op = "fetch"
	OpSettle   Op = "settle"
	OpKeep     Op = "keep"
	OpLeave    Op = "leave"
	OpAnnounce Op = "announce"
	OpAppend   Op = "append"
	OpCommit   Op = "commit"
	OpReceive  Op = "receive"
	OpPurge    Op = "purge"
	OpHandle   Op = "handle"
	OpMove     Op = "move"
)

// A Call is one call that is about to run.
type Call struct {
	Op Op
	// Scope is 0 for calls that concern no single scope.
	Scope lane.Scope
	// Owner is empty for calls that no lease owner makes.
	Owner string
}

// A Fault is what goes wrong with one call. The zero Fault is none.
type Fault struct {
	// Stall, when not nil, keeps the call waiting until it is closed or the
	// call's context ends; the latter fails the call before it had any effect.
	Stall <-chan struct{}
	// Err fails the call before it had any effect.
	Err error
	// Lost runs the call and then answers with this error all the same, like a
	// connection that breaks after the commit.
	Lost error
}

// Intercept asks f before every call which fault it meets; nil stops it. f is
// called from many goroutines and must not call into the DB.
func (db *DB) Intercept(f func(Call) Fault) {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.fault = f
}

// FailNext makes the next n calls of op fail without effect, in addition to
// what Intercept decides.
func (db *DB) FailNext(op Op, n int, err error) { db.onNext(op, n, Fault{Err: err}) }

// LoseNextAnswer makes the next call of op succeed and answer with err.
func (db *DB) LoseNextAnswer(op Op, err error) { db.onNext(op, 1, Fault{Lost: err}) }

// StallNext makes the next call of op wait until resume is called or the
// call's context ends. Calling resume again does nothing.
func (db *DB) StallNext(op Op) (resume func()) {
	stall := make(chan struct{})
	db.onNext(op, 1, Fault{Stall: stall})
	return sync.OnceFunc(func() { close(stall) })
}

// onNext puts a fault for the next n calls of op in front of what there is.
func (db *DB) onNext(op Op, n int, fault Fault) {
	db.mu.Lock()
	defer db.mu.Unlock()
	var mu sync.Mutex
	before := db.fault
	db.fault = func(c Call) Fault {
		mu.Lock()
		hit := c.Op == op && n > 0
		if hit {
			n--
		}
		mu.Unlock()
		if hit {
			return fault
		}
		if before != nil {
			return before(c)
		}
		return Fault{}
	}
}

// enter applies the fault of one call. A non-nil err means that the call must
// not run; answer is what it must answer after it ran, or nil.
func (db *DB) enter(ctx context.Context, c Call) (answer, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	db.mu.Lock()
	f := db.fault
	db.mu.Unlock()
	if f == nil {
		return nil, nil
	}
	fault := f(c)
	if fault.Stall != nil {
		select {
		case <-fault.Stall:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return fault.Lost, fault.Err
}
