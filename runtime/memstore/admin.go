package memstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/lane"
)

// Counts is what waits in one scope.
type Counts struct {
	// Waiting counts all messages in the queue, Held those with a retry or park
	// of their own, Parked the lanes that an operator parked.
	Waiting, Held, Parked, Dead int
}

// scope returns a scope with the DB locked; the caller unlocks it when err is
// nil.
func (db *DB) scope(op string, n lane.Scope) (*scope, error) {
	db.mu.Lock()
	if sc := db.scopes[n]; sc != nil {
		return sc, nil
	}
	db.mu.Unlock()
	return nil, fmt.Errorf("%s: scope %d does not exist", op, n)
}

// DeadLetters lists the dead letters of a scope in sequence order.
func (db *DB) DeadLetters(_ context.Context, n lane.Scope) ([]lane.DeadLetter, error) {
	sc, err := db.scope("dead letters", n)
	if err != nil {
		return nil, err
	}
	defer db.mu.Unlock()
	letters := make([]lane.DeadLetter, 0, len(sc.dead))
	for _, d := range sc.dead {
		letters = append(letters, lane.DeadLetter{
			Lane: d.lane, Message: d.message, Attempts: d.attempts, Reason: d.reason, Error: d.lastError, DiedAt: d.died,
		})
	}
	slices.SortFunc(letters, func(a, b lane.DeadLetter) int { return cmp.Compare(a.Message.Sequence, b.Message.Sequence) })
	return letters, nil
}

// Replay puts dead letters back at the end of their lanes, in their old order,
// with their old ids and new sequence numbers, under the locks of their keys.
// It returns how many it found.
func (db *DB) Replay(ctx context.Context, n lane.Scope, ids ...event.UUID) (int, error) {
	tx := db.Begin()
	defer tx.Rollback(ctx)
	locks, err := db.deadLocks(n, ids)
	if err != nil {
		return 0, err
	}
	if err := tx.lockAll(ctx, locks); err != nil {
		return 0, err
	}
	replayed := 0
	tx.before = func() error {
		replayed = tx.replay(db.scopes[n], ids)
		return nil
	}
	err = tx.commit()
	return replayed, err
}

// deadLocks returns the locks of the dead letters' lanes.
func (db *DB) deadLocks(n lane.Scope, ids []event.UUID) ([]lockKey, error) {
	sc, err := db.scope("replay", n)
	if err != nil {
		return nil, err
	}
	defer db.mu.Unlock()
	var locks []lockKey
	for _, d := range sc.dead {
		if slices.Contains(ids, d.message.ID) && d.message.Key != "" {
			locks = append(locks, lockKey{lane: d.lane})
		}
	}
	return locks, nil
}

// replay takes dead letters out and stores them as new rows of tx. It runs at
// the commit. A letter that came after the locks were chosen is left alone.
func (tx *Tx) replay(sc *scope, ids []event.UUID) int {
	slices.SortFunc(sc.dead, func(a, b *deadRow) int { return cmp.Compare(a.message.Sequence, b.message.Sequence) })
	before := len(sc.dead)
	sc.dead = slices.DeleteFunc(sc.dead, func(d *deadRow) bool {
		locked := d.message.Key == "" || tx.db.tryLocked(tx, lockKey{lane: d.lane})
		if !locked || !slices.Contains(ids, d.message.ID) {
			return false
		}
		r := d.row
		tx.add(sc, &r)
		return true
	})
	return before - len(sc.dead)
}

// ParkKey stops the deliveries of one key until ReleaseKey; what is in flight
// may still finish.
func (db *DB) ParkKey(_ context.Context, n lane.Scope, key, reason string) error {
	sc, err := db.scope("park", n)
	if err != nil {
		return err
	}
	defer db.mu.Unlock()
	sc.hold(db.keyLane(sc, key), 0, &hold{parked: true, reason: "parked", lastError: reason})
	return nil
}

// ReleaseKey ends every park of a key: the operator's and that of an exhausted
// message at its head, whose attempts start again. A retry that was due later
// still is.
func (db *DB) ReleaseKey(_ context.Context, n lane.Scope, key, _ string) error {
	sc, err := db.scope("release", n)
	if err != nil {
		return err
	}
	defer db.mu.Unlock()
	l := db.keyLane(sc, key)
	for sequence, h := range sc.holds[l] {
		if h.parked {
			sc.unhold(l, sequence)
		}
	}
	return nil
}

// Counts counts what is in a scope.
func (db *DB) Counts(_ context.Context, n lane.Scope) (Counts, error) {
	sc, err := db.scope("counts", n)
	if err != nil {
		return Counts{}, err
	}
	defer db.mu.Unlock()
	c := Counts{Dead: len(sc.dead)}
	for _, rows := range sc.lanes {
		c.Waiting += len(rows)
	}
	for _, holds := range sc.holds {
		for sequence := range holds {
			if sequence == 0 {
				c.Parked++
			} else {
				c.Held++
			}
		}
	}
	return c, nil
}

// keyLane returns the lane of a key: in the outbox a hash of the key alone, in
// an inbox of the key within its scope.
func (db *DB) keyLane(sc *scope, key string) int64 {
	if sc.inbox {
		return laneOf(int32(sc.number), key)
	}
	return laneOf(0, key)
}

// A LeaseState is the lease row of one bucket.
type LeaseState struct {
	Bucket lane.Bucket
	Token  int64
	// Owner is empty when the bucket was given back or never owned.
	Owner string
	// Until is when the lease ends by the database's clock.
	Until time.Time
}

// Leases lists the lease rows of a scope in bucket order.
func (db *DB) Leases(n lane.Scope) []LeaseState {
	sc, err := db.scope("leases", n)
	if err != nil {
		return nil
	}
	defer db.mu.Unlock()
	states := make([]LeaseState, 0, len(sc.buckets))
	for _, b := range sc.buckets {
		states = append(states, LeaseState{b.number, b.token, b.owner, b.until})
	}
	return states
}

// Waiting lists the waiting messages of a scope in lane order.
func (db *DB) Waiting(n lane.Scope) []event.Message {
	sc, err := db.scope("waiting", n)
	if err != nil {
		return nil
	}
	defer db.mu.Unlock()
	var messages []event.Message
	for _, l := range sc.order {
		for _, r := range sc.lanes[l] {
			messages = append(messages, r.message)
		}
	}
	return messages
}

// ExpireLeases ends the leases of one owner in a scope now, as if it had
// stalled; an empty owner means everybody's.
func (db *DB) ExpireLeases(n lane.Scope, owner string) {
	if sc, err := db.scope("expire", n); err == nil {
		defer db.mu.Unlock()
		for _, b := range sc.buckets {
			if b.owner != "" && (owner == "" || b.owner == owner) {
				b.until = db.now().Add(-time.Second)
			}
		}
	}
}

// MakeDue ends the wait of every retry of a scope now; parks stay.
func (db *DB) MakeDue(n lane.Scope) {
	if sc, err := db.scope("make due", n); err == nil {
		defer db.mu.Unlock()
		for _, holds := range sc.holds {
			for _, h := range holds {
				h.due = db.now().Add(-time.Second)
			}
		}
	}
}

// Remove deletes a waiting message, as an operator's skip does, whoever has
// fetched it. It does nothing when there is no such message.
func (db *DB) Remove(_ context.Context, n lane.Scope, id event.UUID) error {
	sc, err := db.scope("remove", n)
	if err != nil {
		return err
	}
	defer db.mu.Unlock()
	for l, rows := range sc.lanes {
		for _, r := range rows {
			if r.message.ID == id {
				sc.remove(l, r.message.Sequence)
				return nil
			}
		}
	}
	return nil
}
