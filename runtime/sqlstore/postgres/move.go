package postgres

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/internal/rowtext"
	"github.com/lanebox/lanebox/runtime/internal/sqlqueue"
	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/outbox"
)

// Move implements inbox.PushStore. When the outbox refuses a message, for
// example because its topic has no route, nothing of the call is kept and its
// runs are moved one by one, each in a transaction of its own, so that only the
// message that was refused stays behind.
func (s *InboxScope) Move(ctx context.Context, owner string, runs []lane.Run, remap inbox.Remap[pgx.Tx]) ([]lane.Verdict, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	return (&mover{scope: s, owner: owner, remap: remap}).move(ctx, runs)
}

// MoveWaiting is Move for one run; it waits for the locks of the target keys, at
// most for wait, before it locks the bucket.
func (s *InboxScope) MoveWaiting(ctx context.Context, owner string, run lane.Run, remap inbox.Remap[pgx.Tx], wait time.Duration) (lane.Verdict, error) {
	ctx, cancel := bounded(ctx)
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
	remap inbox.Remap[pgx.Tx]
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
	tx, err := m.scope.store.c.Pool.BeginTx(ctx, readCommitted)
	if err != nil {
		return nil, Classify("move messages", err)
	}
	defer rollback(ctx, tx)
	verdicts := make([]lane.Verdict, len(runs))
	var moving []movable
	if m.remap == nil {
		moving, err = m.plain(ctx, tx, runs, verdicts)
	} else {
		moving, err = m.mapped(ctx, tx, runs, verdicts)
	}
	if errors.Is(err, sqlqueue.ErrAgain) {
		return nil, err
	}
	if err != nil {
		return nil, Classify("move messages", err)
	}
	if len(moving) == 0 {
		return verdicts, nil
	}
	if err := m.store(ctx, tx, runs, moving, verdicts); err != nil {
		if errors.Is(err, sqlqueue.ErrUndone) || errors.Is(err, sqlqueue.ErrAgain) {
			return verdicts, err
		}
		return nil, Classify("move messages", err)
	}
	return verdicts, Classify("move messages", tx.Commit(ctx))
}

// plain prepares runs that keep their messages as they are: one statement tries
// the locks of all keys.
func (m *mover) plain(ctx context.Context, tx pgx.Tx, runs []lane.Run, verdicts []lane.Verdict) ([]movable, error) {
	var moving []movable
	var all []outbox.Record
	for i, run := range runs {
		mv := movable{index: i}
		for _, row := range run.Rows {
			if err := m.storable(row.Message.Payload); err != nil {
				verdicts[i].Err = event.AsPermanent(&event.ValidationError{Topic: row.Message.Topic, Err: err})
				break
			}
			mv.rows = append(mv.rows, row)
			mv.records = append(mv.records, []outbox.Record{keep(&row.Message)})
			all = append(all, mv.records[len(mv.records)-1]...)
		}
		if len(mv.rows) > 0 {
			moving = append(moving, mv)
		}
	}
	busy, err := m.lock(ctx, tx, all)
	if err != nil {
		return nil, err
	}
	free := moving[:0]
	for _, mv := range moving {
		if anyBusy(busy, mv.records) {
			verdicts[mv.index] = lane.Verdict{Err: lane.ErrBusy}
			continue
		}
		free = append(free, mv)
	}
	return free, nil
}

// storable reports why a payload cannot become an outbox payload, or nil.
func (m *mover) storable(payload []byte) error {
	if m.scope.store.c.Binary {
		return nil
	}
	return rowtext.CheckText(payload)
}

// keep makes a record of a message as it is.
func keep(m *event.Message) outbox.Record {
	return outbox.Record{ID: m.ID, Topic: m.Topic, Key: m.Key, Payload: m.Payload, Headers: m.Headers, Version: m.Version}
}

func anyBusy(busy map[string]bool, records [][]outbox.Record) bool {
	for _, rs := range records {
		for i := range rs {
			if busy[rs[i].Key] {
				return true
			}
		}
	}
	return false
}

// lock tries the locks of the records' keys and returns those it did not get.
// With a wait it waits for them instead.
func (m *mover) lock(ctx context.Context, tx pgx.Tx, records []outbox.Record) (busy map[string]bool, err error) {
	seen := map[string]bool{}
	var keys []string
	for i := range records {
		if key := records[i].Key; key != "" && !seen[key] {
			seen[key] = true
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return nil, nil
	}
	if m.wait > 0 {
		return m.lockWaiting(ctx, tx, keys, seen)
	}
	rows, err := m.scope.store.c.Bind(tx).TryLocks(ctx, keys)
	if err != nil {
		return nil, err
	}
	busy = map[string]bool{}
	for _, r := range rows {
		if !r.Locked {
			busy[r.Key] = true
		}
	}
	return busy, nil
}

// lockWaiting waits for locks, in a savepoint that a timeout rolls back to.
func (m *mover) lockWaiting(ctx context.Context, tx pgx.Tx, keys []string, all map[string]bool) (map[string]bool, error) {
	inner, err := tx.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer rollback(ctx, inner)
	ms := strconv.FormatInt(max(1, m.wait.Milliseconds()), 10)
	if _, err := inner.Exec(ctx, `SELECT set_config('lock_timeout', $1, true)`, ms); err != nil {
		return nil, err
	}
	if err := m.scope.store.c.Bind(inner).WaitLocks(ctx, keys); err != nil {
		var retryable *event.RetryableError
		if errors.As(Classify("wait for keys", err), &retryable) {
			return all, nil
		}
		return nil, err
	}
	if _, err := inner.Exec(ctx, `SELECT set_config('lock_timeout', '0', true)`); err != nil {
		return nil, err
	}
	return nil, inner.Commit(ctx)
}

// mapped prepares runs through the mapping hooks. Each run has a savepoint, and
// each message in it has one, so that a hook that fails leaves nothing behind.
func (m *mover) mapped(ctx context.Context, tx pgx.Tx, runs []lane.Run, verdicts []lane.Verdict) ([]movable, error) {
	var moving []movable
	for i, run := range runs {
		mv, err := m.mapRun(ctx, tx, run, &verdicts[i])
		if err != nil {
			return nil, err
		}
		if len(mv.rows) > 0 {
			mv.index = i
			moving = append(moving, mv)
		}
	}
	return moving, nil
}

func (m *mover) mapRun(ctx context.Context, tx pgx.Tx, run lane.Run, verdict *lane.Verdict) (movable, error) {
	var mv movable
	var all []outbox.Record
	outer, err := tx.Begin(ctx)
	if err != nil {
		return mv, err
	}
	defer rollback(ctx, outer)
	for _, row := range run.Rows {
		var records []outbox.Record
		err := m.broken[row.Message.Sequence]
		if err == nil && !m.gone[row.Message.Sequence] {
			records, err = m.mapMessage(ctx, outer, row.Message)
		}
		if err != nil {
			if ctx.Err() != nil {
				return movable{}, err
			}
			if !usable(outer) {
				return movable{}, m.breaks(row, err)
			}
			verdict.Err = err
			break
		}
		mv.rows, mv.records = append(mv.rows, row), append(mv.records, records)
		all = append(all, records...)
	}
	busy, err := m.lock(ctx, outer, all)
	if err != nil {
		return movable{}, err
	}
	if len(busy) > 0 {
		*verdict = lane.Verdict{Err: lane.ErrBusy}
		return movable{}, nil
	}
	return mv, outer.Commit(ctx)
}

// usable reports whether statements can still be run in tx.
func usable(tx pgx.Tx) bool {
	conn := tx.Conn().PgConn()
	return !conn.IsClosed() && conn.TxStatus() == 'T'
}

// breaks notes that the hook of a message closed its connection, ended its
// transaction or hid an error of it, so that nothing of it is left for the other
// messages.
func (m *mover) breaks(row lane.Row, err error) error {
	if m.broken == nil {
		m.broken = map[int64]error{}
	}
	m.broken[row.Message.Sequence] = err
	return sqlqueue.ErrAgain
}

// mapMessage runs the hook in a savepoint of its own, for at most half of the
// time that is left, so that a hook that hangs leaves time for the others. Records
// without a key take the message's.
func (m *mover) mapMessage(ctx context.Context, tx pgx.Tx, msg event.Message) ([]outbox.Record, error) {
	inner, err := tx.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer rollback(ctx, inner)
	lent := &lentTx{Tx: inner}
	records, err := m.runHook(ctx, lent, msg)
	if err != nil {
		return nil, err
	}
	if lent.ended || outside(inner) {
		return nil, errEnded
	}
	for i := range records {
		if records[i].Key == "" {
			records[i].Key = msg.Key
		}
		if err := m.storable(records[i].Payload); err != nil {
			return nil, event.AsPermanent(&event.ValidationError{Topic: records[i].Topic, Err: err})
		}
	}
	return records, inner.Commit(ctx)
}

func (m *mover) runHook(ctx context.Context, tx pgx.Tx, msg event.Message) ([]outbox.Record, error) {
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
func (m *mover) store(ctx context.Context, tx pgx.Tx, runs []lane.Run, moving []movable, verdicts []lane.Verdict) error {
	q := m.scope.store.c.Bind(Claims(tx))
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
	return NewAppender(m.scope.store.c.Bind(tx), m.scope.store.c.Binary).Append(ctx, records)
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
	p := FenceParams{Scope: int32(m.scope.scope), Owner: m.owner, Buckets: []int16{}, Tokens: []int64{}}
	seen := map[lane.Lease]bool{}
	for _, mv := range moving {
		if l := runs[mv.index].Lease; !seen[l] {
			seen[l] = true
			p.Buckets, p.Tokens = append(p.Buckets, int16(l.Bucket)), append(p.Tokens, l.Token)
		}
	}
	held, err := q.Fence(ctx, p)
	if err != nil {
		return nil, false, err
	}
	leased := map[int16]bool{}
	for _, b := range held {
		leased[b] = true
	}
	for _, mv := range moving {
		if !leased[int16(runs[mv.index].Lease.Bucket)] {
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
	p := TakeParams{Scope: int32(m.scope.scope), Lanes: []int64{}, Sequences: []int64{}}
	for _, mv := range moving {
		for i := range mv.rows {
			p.Lanes = append(p.Lanes, mv.rows[i].Lane)
			p.Sequences = append(p.Sequences, mv.rows[i].Message.Sequence)
		}
	}
	rows, err := q.Take(ctx, p)
	if err != nil {
		return nil, err
	}
	removed := make(map[int64]bool, len(rows))
	for _, r := range rows {
		removed[r.Sequence] = true
	}
	return removed, nil
}
