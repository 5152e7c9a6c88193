package sqlserver

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/internal/sqlqueue"
	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/outbox"
)

// Move implements inbox.PushStore. When the outbox refuses a message, for
// example because its topic has no route, nothing of the call is kept and its
// runs are moved one by one, each in a transaction of its own, so that only the
// message that was refused stays behind.
func (s *InboxScope) Move(ctx context.Context, owner string, runs []lane.Run, remap inbox.Remap[*sql.Tx]) ([]lane.Verdict, error) {
	ctx, cancel := s.store.bounded(ctx)
	defer cancel()
	return (&mover{scope: s, owner: owner, remap: remap}).move(ctx, runs)
}

// MoveWaiting is Move for one run; it waits for the locks of the target keys, at
// most for wait, before it locks the bucket.
func (s *InboxScope) MoveWaiting(ctx context.Context, owner string, run lane.Run, remap inbox.Remap[*sql.Tx], wait time.Duration) (lane.Verdict, error) {
	ctx, cancel := s.store.bounded(ctx)
	defer cancel()
	verdicts, err := (&mover{scope: s, owner: owner, remap: remap, wait: wait}).move(ctx, []lane.Run{run})
	if err != nil {
		return lane.Verdict{}, err
	}
	return verdicts[0], nil
}

// A mover moves runs from the inbox to the outbox.
type mover struct {
	scope *InboxScope
	owner string
	remap inbox.Remap[*sql.Tx]
	wait  time.Duration // 0: locks are only tried

	// gone are messages that were found missing, broken those whose hook took the
	// transaction down with it, by sequence. They are left out of the next try.
	gone   map[int64]bool
	broken map[int64]error
}

// A movable is the part of a run that is about to be moved.
type movable struct {
	index   int // of the run
	rows    []lane.Row
	records [][]outbox.Record // of each row
}

// move moves runs in one transaction, or apart when the outbox refuses one of
// their messages.
func (m *mover) move(ctx context.Context, runs []lane.Run) ([]lane.Verdict, error) {
	return sqlqueue.MoveFunc(m.transaction).Move(ctx, runs)
}

// transaction moves runs in one transaction.
func (m *mover) transaction(ctx context.Context, runs []lane.Run) ([]lane.Verdict, error) {
	verdicts, err := m.try(ctx, runs)
	if err == nil || errors.Is(err, sqlqueue.ErrAgain) || errors.Is(err, sqlqueue.ErrUndone) {
		return verdicts, err
	}
	return nil, Classify("move messages", err)
}

func (m *mover) try(ctx context.Context, runs []lane.Run) ([]lane.Verdict, error) {
	open := begin
	if m.remap != nil {
		open = beginMarked
	}
	tx, err := open(ctx, m.scope.store.c.DB)
	if err != nil {
		return nil, err
	}
	defer tx.end()
	verdicts := make([]lane.Verdict, len(runs))
	prepare := m.plain
	if m.remap != nil {
		prepare = m.mapped
	}
	moving, err := prepare(ctx, tx, runs, verdicts)
	if err != nil || len(moving) == 0 {
		return verdicts, err
	}
	if err := m.store(ctx, tx, runs, moving, verdicts); err != nil {
		return verdicts, err
	}
	return verdicts, tx.commit(ctx)
}

// plain prepares runs that keep their messages as they are: one statement tries
// the locks of all keys.
func (m *mover) plain(ctx context.Context, tx *transaction, runs []lane.Run, verdicts []lane.Verdict) ([]movable, error) {
	var moving []movable
	for i, run := range runs {
		mv := movable{index: i}
		for _, row := range run.Rows {
			records := []outbox.Record{keep(&row.Message)}
			if err := m.storable(records); err != nil {
				verdicts[i].Err = err
				break
			}
			mv.rows, mv.records = append(mv.rows, row), append(mv.records, records)
		}
		if len(mv.rows) > 0 {
			moving = append(moving, mv)
		}
	}
	return m.lockKeys(ctx, tx, moving, verdicts)
}

// keep makes a record of a message as it is.
func keep(m *event.Message) outbox.Record {
	return outbox.Record{ID: m.ID, Topic: m.Topic, Key: m.Key, Payload: m.Payload, Headers: m.Headers, Version: m.Version}
}

// storable reports why records cannot be stored, or nil.
func (m *mover) storable(records []outbox.Record) error {
	for i := range records {
		if err := checkRecord(&records[i], m.scope.store.c.Binary); err != nil {
			return event.AsPermanent(err)
		}
	}
	return nil
}

// lockKeys takes the locks of the target keys and returns the runs that got
// theirs; the others are busy. Nothing else of the database is locked before.
func (m *mover) lockKeys(ctx context.Context, tx *transaction, moving []movable, verdicts []lane.Verdict) ([]movable, error) {
	keys := keysOf(moving)
	if len(keys) == 0 {
		return moving, nil
	}
	if m.wait > 0 {
		return m.waitForKeys(ctx, tx, keys, moving, verdicts)
	}
	rows, err := m.scope.store.c.Bind(tx).TryLocks(ctx, list(keys))
	if err != nil {
		return nil, err
	}
	free := map[string]bool{}
	for _, r := range rows {
		if r.Locked {
			free[keys[r.Position]] = true
		}
	}
	var kept []movable
	for _, mv := range moving {
		if allFree(free, mv.records) {
			kept = append(kept, mv)
		} else {
			verdicts[mv.index] = lane.Verdict{Err: lane.ErrBusy}
		}
	}
	return kept, nil
}

// waitForKeys waits for locks. SQL Server ends the transaction when it does not
// get them in time.
func (m *mover) waitForKeys(ctx context.Context, tx *transaction, keys []string, moving []movable, verdicts []lane.Verdict) ([]movable, error) {
	wait, err := lockTimeout(ctx, "wait for keys")
	if err == nil {
		wait = max(1, min(wait, int32(m.wait.Milliseconds())))
		err = Classify("wait for keys", m.scope.store.c.Bind(tx).WaitLocks(ctx, WaitLocksParams{Keys: list(keys), LockTimeout: wait}))
	}
	var again *event.RetryableError
	if errors.As(err, &again) {
		return nil, undo(moving, verdicts)
	}
	return moving, err
}

// keysOf returns the keys of what is about to be moved, each once.
func keysOf(moving []movable) []string {
	seen := map[string]bool{}
	var keys []string
	for _, mv := range moving {
		for _, records := range mv.records {
			for i := range records {
				if key := records[i].Key; key != "" && !seen[key] {
					seen[key] = true
					keys = append(keys, key)
				}
			}
		}
	}
	return keys
}

func allFree(free map[string]bool, records [][]outbox.Record) bool {
	for _, rs := range records {
		for i := range rs {
			if rs[i].Key != "" && !free[rs[i].Key] {
				return false
			}
		}
	}
	return true
}

// mapped prepares runs through the mapping hooks. Each run has a savepoint, and
// each message in it has one, so that a hook that fails and a run that is busy
// leave nothing behind.
func (m *mover) mapped(ctx context.Context, tx *transaction, runs []lane.Run, verdicts []lane.Verdict) ([]movable, error) {
	var moving []movable
	for i, run := range runs {
		if _, err := tx.ExecContext(ctx, saveRun); err != nil {
			return nil, err
		}
		mv, err := m.mapRun(ctx, tx, run, &verdicts[i])
		if err != nil {
			return nil, err
		}
		if len(mv.rows) == 0 {
			continue
		}
		mv.index = i
		free, err := m.lockKeys(ctx, tx, []movable{mv}, verdicts)
		if err != nil {
			return nil, err
		}
		if len(free) == 0 {
			if _, err := tx.ExecContext(ctx, undoRun); err != nil {
				return nil, err
			}
		}
		moving = append(moving, free...)
	}
	return moving, nil
}

func (m *mover) mapRun(ctx context.Context, tx *transaction, run lane.Run, verdict *lane.Verdict) (movable, error) {
	var mv movable
	for _, row := range run.Rows {
		sequence := row.Message.Sequence
		if err := m.broken[sequence]; err != nil {
			verdict.Err = err
			return mv, nil
		}
		var records []outbox.Record
		if !m.gone[sequence] {
			var hook, err error
			if records, hook, err = m.mapMessage(ctx, tx, row); err != nil {
				return mv, err
			}
			if hook != nil {
				verdict.Err = hook
				return mv, nil
			}
		}
		mv.rows, mv.records = append(mv.rows, row), append(mv.records, records)
	}
	return mv, nil
}

// A ROLLBACK to a savepoint goes to the latest of its name.
const (
	saveRun     = `SAVE TRANSACTION lanebox_run`
	undoRun     = `ROLLBACK TRANSACTION lanebox_run`
	saveMessage = `SAVE TRANSACTION lanebox_message`
	undoMessage = `ROLLBACK TRANSACTION lanebox_message`
)

// mapMessage runs the hook of a message. Records without a key take the message's.
// The error hook concerns the message alone, and nothing of it is left behind; err
// ends the transaction.
func (m *mover) mapMessage(ctx context.Context, tx *transaction, row lane.Row) (records []outbox.Record, hook, err error) {
	if _, err := tx.ExecContext(ctx, saveMessage); err != nil {
		return nil, nil, err
	}
	records, hook = m.runHook(ctx, tx.Tx, row.Message)
	if ctx.Err() != nil {
		return nil, nil, ctx.Err()
	}
	if lost := tx.whole(ctx); lost != nil {
		return nil, nil, m.breaks(row, cmp.Or(hook, lost))
	}
	if hook == nil {
		for i := range records {
			if records[i].Key == "" {
				records[i].Key = row.Message.Key
			}
		}
		hook = m.storable(records)
	}
	if hook == nil {
		return records, nil, nil
	}
	_, err = tx.ExecContext(ctx, undoMessage)
	return nil, hook, err
}

// breaks notes that the hook of a message took the transaction down, so that
// nothing of it is left for the other messages.
func (m *mover) breaks(row lane.Row, err error) error {
	if m.broken == nil {
		m.broken = map[int64]error{}
	}
	m.broken[row.Message.Sequence] = err
	return sqlqueue.ErrAgain
}

// runHook runs the hook for at most half of the time that is left, so that one
// that hangs leaves time for the others.
func (m *mover) runHook(ctx context.Context, tx *sql.Tx, msg event.Message) ([]outbox.Record, error) {
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/2)
		defer cancel()
	}
	return m.remap(ctx, tx, msg)
}

// store locks the buckets, removes the inbox rows and adds the outbox rows. The
// effects of hooks cannot be taken back for single runs any more: when a bucket
// is lost, everything is undone and the other runs are tried again; when a message
// is gone, everything is tried again without it.
func (m *mover) store(ctx context.Context, tx *transaction, runs []lane.Run, moving []movable, verdicts []lane.Verdict) error {
	q := m.scope.store.c.Bind(tx)
	moving, lost, err := m.fence(ctx, q, runs, moving, verdicts)
	if err != nil {
		return err
	}
	if lost && m.remap != nil {
		return undo(moving, verdicts)
	}
	if len(moving) == 0 {
		return nil
	}
	removed, err := m.take(ctx, q, moving)
	if err != nil {
		return err
	}
	var records []outbox.Record
	missing := false
	for _, mv := range moving {
		for i, row := range mv.rows {
			if sequence := row.Message.Sequence; removed[sequence] {
				records = append(records, mv.records[i]...)
			} else if m.remap != nil && !m.gone[sequence] {
				m.misses(sequence)
				missing = true
			}
		}
		verdicts[mv.index].Accepted, verdicts[mv.index].Completed = len(mv.rows), true
	}
	if missing {
		return sqlqueue.ErrAgain
	}
	return NewAppender(tx.Tx, m.scope.store.c.Bind, m.scope.store.c.Binary).Append(ctx, records)
}

// undo gives the runs that could have been moved another round.
func undo(moving []movable, verdicts []lane.Verdict) error {
	for _, mv := range moving {
		verdicts[mv.index] = lane.Verdict{Err: lane.ErrBusy}
	}
	return sqlqueue.ErrUndone
}

// misses notes that somebody removed a message, which is passed over then.
func (m *mover) misses(sequence int64) {
	if m.gone == nil {
		m.gone = map[int64]bool{}
	}
	m.gone[sequence] = true
}

// fence locks the buckets of the runs and drops the runs whose lease is lost.
func (m *mover) fence(ctx context.Context, q Queries, runs []lane.Run, moving []movable, verdicts []lane.Verdict) (kept []movable, lost bool, err error) {
	var leases []lane.Lease
	seen := map[lane.Lease]bool{}
	for _, mv := range moving {
		if l := runs[mv.index].Lease; !seen[l] {
			seen[l] = true
			leases = append(leases, l)
		}
	}
	held, err := q.Fence(ctx, FenceParams{Leases: leaseList(leases), Scope: int32(m.scope.scope), Owner: m.owner})
	if err != nil {
		return nil, false, err
	}
	leased := map[lane.Bucket]bool{}
	for _, b := range held {
		leased[lane.Bucket(b)] = true
	}
	for _, mv := range moving {
		if !leased[runs[mv.index].Lease.Bucket] {
			lost = true
			verdicts[mv.index] = lane.Verdict{Err: lane.ErrLeaseLost}
			continue
		}
		kept = append(kept, mv)
	}
	return kept, lost, nil
}

// take removes the inbox rows and returns the sequences it found.
func (m *mover) take(ctx context.Context, q Queries, moving []movable) (map[int64]bool, error) {
	var rows []rowJSON
	for _, mv := range moving {
		for i := range mv.rows {
			rows = append(rows, rowJSON{mv.rows[i].Lane, mv.rows[i].Message.Sequence})
		}
	}
	found, err := q.Take(ctx, TakeParams{Rows: list(rows), Scope: int32(m.scope.scope)})
	if err != nil {
		return nil, err
	}
	removed := make(map[int64]bool, len(found))
	for _, r := range found {
		removed[r.Sequence] = true
	}
	return removed, nil
}
