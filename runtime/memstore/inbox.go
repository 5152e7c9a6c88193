package memstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/outbox"
)

var (
	_ inbox.LogStore              = (*DB)(nil)
	_ inbox.PullStore[*Tx]        = (*scoped)(nil)
	_ inbox.PatientPushStore[*Tx] = (*scoped)(nil)
	_ outbox.Appender             = (*Tx)(nil)
)

// Receive implements inbox.ReceiveStore.
func (db *DB) Receive(ctx context.Context, source inbox.SourceRef, messages []inbox.Incoming) ([]inbox.Disposition, error) {
	return db.receive(ctx, source, messages, nil)
}

// ReceiveAt implements inbox.LogStore.
func (db *DB) ReceiveAt(ctx context.Context, source inbox.SourceRef, messages []inbox.Incoming, at inbox.Position) ([]inbox.Disposition, error) {
	return db.receive(ctx, source, messages, &at)
}

// Position implements inbox.LogStore.
func (db *DB) Position(_ context.Context, source inbox.SourceRef, log string) (int64, bool, error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	offset, ok := db.logs[logKey{source.Number, log}]
	return offset, ok, nil
}

func (db *DB) receive(ctx context.Context, source inbox.SourceRef, messages []inbox.Incoming, at *inbox.Position) ([]inbox.Disposition, error) {
	answer, err := db.enter(ctx, Call{Op: OpReceive, Scope: source.Scope})
	if err != nil {
		return nil, err
	}
	tx := db.Begin()
	dispositions, err := tx.Receive(ctx, source, messages)
	if err != nil {
		tx.Rollback(ctx)
		return nil, err
	}
	if at != nil && !slices.Contains(dispositions, inbox.Conflict) {
		tx.logs[logKey{source.Number, at.Log}] = at.Offset
	}
	if err := tx.commit(); err != nil {
		return nil, err
	}
	if answer != nil {
		return nil, answer
	}
	return dispositions, nil
}

// PurgeReceipts implements inbox.ReceiveStore.
func (db *DB) PurgeReceipts(ctx context.Context, source inbox.SourceRef, retention time.Duration, most int) (int, error) {
	answer, err := db.enter(ctx, Call{Op: OpPurge, Scope: source.Scope})
	if err != nil {
		return 0, err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	sc := db.scopes[source.Scope]
	if sc == nil {
		return 0, fmt.Errorf("purge receipts: scope %d does not exist", source.Scope)
	}
	kept := sc.idempotencyKeys(source.Number)
	now, n := db.now(), 0
	for k, r := range db.receipts {
		if n == most || k.source != source.Number || !r.since().Before(now.Add(-retention)) || kept[k.key] {
			continue
		}
		n++
		if r.gone.IsZero() {
			r.gone = now
			db.receipts[k] = r
		} else {
			delete(db.receipts, k)
		}
	}
	return n, answer
}

// idempotencyKeys returns those of a source's messages that wait or are dead.
func (sc *scope) idempotencyKeys(source int32) map[string]bool {
	keys := map[string]bool{}
	for _, rows := range sc.lanes {
		for _, r := range rows {
			if r.sourceNumber == source {
				keys[r.message.IdempotencyKey] = true
			}
		}
	}
	for _, d := range sc.dead {
		if d.sourceNumber == source {
			keys[d.message.IdempotencyKey] = true
		}
	}
	return keys
}

// scoped is an inbox scope as a worker or the relay sees it.
type scoped struct {
	db     *DB
	number lane.Scope
}

// Pull returns what the worker of a pull source needs.
func (db *DB) Pull(n lane.Scope) inbox.PullStore[*Tx] { return &scoped{db, n} }

// Push returns what the relay needs; n is the common push scope.
func (db *DB) Push(n lane.Scope) inbox.PushStore[*Tx] { return &scoped{db, n} }

// Handle implements inbox.PullStore.
func (s *scoped) Handle(ctx context.Context, owner string, r lane.Row, l lane.Lease, fn func(ctx context.Context, tx *Tx) error) error {
	answer, err := s.db.enter(ctx, Call{Op: OpHandle, Scope: s.number, Owner: owner})
	if err != nil {
		return err
	}
	sc, tx := s.db.scopes[s.number], s.db.Begin()
	defer tx.Rollback(ctx) // does nothing after the commit; undoes a panic of fn
	if err := fn(ctx, tx); err != nil {
		return err
	}
	if err := errors.Join(tx.failed, ctx.Err()); err != nil {
		return err
	}
	tx.before = func() error {
		switch {
		case !sc.passes(owner, l):
			return lane.ErrLeaseLost
		case sc.remove(r.Lane, r.Message.Sequence) == nil:
			return inbox.ErrGone
		}
		return nil
	}
	if err := tx.commit(); err != nil {
		return err
	}
	return answer
}

// Move implements inbox.PushStore. Where it meets a locked key or an error it
// keeps what the run did before: every message is moved as a whole or not.
func (s *scoped) Move(ctx context.Context, owner string, runs []lane.Run, remap inbox.Remap[*Tx]) ([]lane.Verdict, error) {
	answer, err := s.db.enter(ctx, Call{Op: OpMove, Scope: s.number, Owner: owner})
	if err != nil {
		return nil, err
	}
	verdicts, err := s.move(ctx, s.db.Begin(), owner, runs, remap)
	if err != nil {
		return nil, err
	}
	if answer != nil {
		return nil, answer
	}
	return verdicts, nil
}

// MoveWaiting implements inbox.PatientPushStore.
func (s *scoped) MoveWaiting(ctx context.Context, owner string, run lane.Run, remap inbox.Remap[*Tx], wait time.Duration) (lane.Verdict, error) {
	answer, err := s.db.enter(ctx, Call{Op: OpMove, Scope: s.number, Owner: owner})
	if err != nil {
		return lane.Verdict{}, err
	}
	tx := s.db.Begin()
	if len(run.Rows) > 0 && run.Rows[0].Message.Key != "" {
		waiting, cancel := context.WithTimeout(ctx, wait)
		err := s.db.acquire(waiting, tx, lockKey{lane: laneOf(0, run.Rows[0].Message.Key)})
		cancel()
		if err != nil {
			tx.Rollback(ctx)
			return lane.Verdict{Err: lane.ErrBusy}, ctx.Err()
		}
	}
	verdicts, err := s.move(ctx, tx, owner, []lane.Run{run}, remap)
	if err := errors.Join(err, answer); err != nil {
		return lane.Verdict{}, err
	}
	return verdicts[0], nil
}

// move moves runs in tx and ends it.
func (s *scoped) move(ctx context.Context, tx *Tx, owner string, runs []lane.Run, remap inbox.Remap[*Tx]) ([]lane.Verdict, error) {
	m := &move{db: s.db, sc: s.db.scopes[s.number], tx: tx, owner: owner, remap: remap}
	defer tx.Rollback(ctx)
	verdicts := make([]lane.Verdict, len(runs))
	for i, run := range runs {
		var err error
		if verdicts[i], err = m.run(ctx, run); err != nil {
			return nil, err
		}
	}
	tx.before = func() error { return m.complete(runs, verdicts) }
	if err := tx.commit(); err != nil {
		return nil, err
	}
	return verdicts, nil
}

// move is one call of Move.
type move struct {
	db    *DB
	sc    *scope
	tx    *Tx
	owner string
	remap inbox.Remap[*Tx]
}

// run moves one run up to its first failure.
func (m *move) run(ctx context.Context, run lane.Run) (lane.Verdict, error) {
	if !m.holds(run.Lease) {
		return lane.Verdict{Err: lane.ErrLeaseLost}, nil
	}
	for i, r := range run.Rows {
		if err := ctx.Err(); err != nil {
			return lane.Verdict{}, err
		}
		if err := m.message(ctx, r); err != nil {
			return lane.Verdict{Accepted: i, Completed: true, Err: err}, nil
		}
	}
	return lane.Verdict{Accepted: len(run.Rows), Completed: true}, nil
}

// holds reports whether the lease passes the fence now.
func (m *move) holds(l lane.Lease) bool {
	m.db.mu.Lock()
	defer m.db.mu.Unlock()
	return m.sc.passes(m.owner, l)
}

// message stores what one inbox message becomes, or nothing.
func (m *move) message(ctx context.Context, r lane.Row) error {
	saved := m.tx.save()
	records := []outbox.Record{{
		ID: r.Message.ID, Topic: r.Message.Topic, Payload: r.Message.Payload,
		Headers: r.Message.Headers, Version: r.Message.Version,
	}}
	if m.remap != nil {
		var err error
		if records, err = m.remap(ctx, m.tx, r.Message); err != nil {
			m.tx.restore(saved)
			return err
		}
	}
	for i := range records {
		if records[i].Key == "" {
			records[i].Key = r.Message.Key
		}
	}
	if err := m.db.checkRecords(records); err != nil {
		m.tx.restore(saved)
		return err
	}
	m.db.mu.Lock()
	defer m.db.mu.Unlock()
	for _, k := range recordLocks(records) {
		if !m.db.tryLocked(m.tx, k) {
			m.tx.restore(saved)
			return lane.ErrBusy
		}
	}
	if m.sc.find(r.Lane, r.Message.Sequence) == nil { // an operator was quicker
		m.tx.restore(saved)
		return nil
	}
	for _, x := range records {
		m.tx.store(x)
	}
	return nil
}

// complete removes what was moved. It runs at the commit, with the DB locked.
// A bucket that was taken over meanwhile undoes the whole transaction.
func (m *move) complete(runs []lane.Run, verdicts []lane.Verdict) error {
	for i, run := range runs {
		if verdicts[i].Accepted > 0 && !m.sc.passes(m.owner, run.Lease) {
			return fmt.Errorf("move: %w", lane.ErrLeaseLost)
		}
	}
	for i, run := range runs {
		for _, r := range run.Rows[:verdicts[i].Accepted] {
			m.sc.remove(r.Lane, r.Message.Sequence)
		}
	}
	return nil
}

// A savepoint remembers what a transaction had written.
type savepoint struct {
	inserts  int
	versions map[versionKey]int64
	failed   error
}

func (tx *Tx) save() savepoint {
	return savepoint{len(tx.inserts), maps.Clone(tx.versions), tx.failed}
}

// restore undoes what was written since s. Locks taken since are kept, as a
// database keeps them too.
func (tx *Tx) restore(s savepoint) {
	tx.inserts, tx.versions, tx.failed = tx.inserts[:s.inserts], s.versions, s.failed
}
