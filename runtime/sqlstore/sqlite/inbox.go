package sqlite

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/outbox"
)

var (
	_ inbox.PullStore[*sql.Tx] = (*InboxScope)(nil)
	_ inbox.PushStore[*sql.Tx] = (*InboxScope)(nil)
)

// Receive implements inbox.ReceiveStore.
func (s *Store) Receive(ctx context.Context, source inbox.SourceRef, messages []inbox.Incoming) ([]inbox.Disposition, error) {
	return s.receive(ctx, source, messages, nil)
}

// ReceiveAt implements inbox.LogStore.
func (s *Store) ReceiveAt(ctx context.Context, source inbox.SourceRef, messages []inbox.Incoming, at inbox.Position) ([]inbox.Disposition, error) {
	return s.receive(ctx, source, messages, &at)
}

// Position implements inbox.LogStore.
func (s *Store) Position(ctx context.Context, source inbox.SourceRef, log string) (int64, bool, error) {
	rows, err := s.c.Bind(s.c.DB).Position(ctx, PositionParams{Source: int64(source.Number), Log: log})
	if err != nil || len(rows) == 0 {
		return 0, false, Classify("position", err)
	}
	return rows[0], true, nil
}

func (s *Store) receive(ctx context.Context, source inbox.SourceRef, messages []inbox.Incoming, at *inbox.Position) ([]inbox.Disposition, error) {
	dispositions := make([]inbox.Disposition, len(messages))
	err := s.write(ctx, "receive", func(_ *sql.Tx, q Queries) (err error) {
		for i, m := range messages {
			if dispositions[i], err = receive(ctx, q, int64(source.Number), m); err != nil {
				return err
			}
		}
		if at == nil || slices.Contains(dispositions, inbox.Conflict) {
			return nil
		}
		return q.Advance(ctx, AdvanceParams{Source: int64(source.Number), Log: at.Log, Position: at.Offset})
	})
	if err != nil {
		return nil, err
	}
	return dispositions, nil
}

// receive stores one message unless its receipt is there already.
func receive(ctx context.Context, q Queries, source int64, m inbox.Incoming) (inbox.Disposition, error) {
	digest := sha256.Sum256(m.Payload)
	n, err := q.AddReceipt(ctx, AddReceiptParams{Source: source, IdempotencyKey: m.IdempotencyKey, Digest: digest[:]})
	if err != nil {
		return 0, err
	}
	if n == 0 {
		known, err := q.Digest(ctx, source, m.IdempotencyKey)
		if err != nil || !bytes.Equal(known, digest[:]) {
			return inbox.Conflict, err
		}
		return inbox.Duplicate, nil
	}
	headers, err := EncodeHeaders(m.Headers)
	if err != nil {
		return 0, err
	}
	err = q.Receive(ctx, ReceiveParams{
		Source: source, ID: event.NewUUID().String(), AggregateID: m.AggregateID, EventType: m.EventType,
		IdempotencyKey: m.IdempotencyKey, Payload: notNull(m.Payload), Headers: headers, Version: m.Version,
	})
	if err != nil || m.Dead == "" {
		return inbox.Stored, err
	}
	return inbox.Buried, bury(ctx, q, source, m)
}

// bury moves a message that was just received to the dead letters.
func bury(ctx context.Context, q Queries, source int64, m inbox.Incoming) error {
	p := RefuseParams{Reason: inbox.ReasonRefused, LastError: m.Dead, Source: source, IdempotencyKey: m.IdempotencyKey}
	if err := q.Refuse(ctx, p); err != nil {
		return err
	}
	return q.Drop(ctx, DropParams{Source: source, IdempotencyKey: m.IdempotencyKey})
}

// PurgeReceipts implements inbox.ReceiveStore.
func (s *Store) PurgeReceipts(ctx context.Context, source inbox.SourceRef, retention time.Duration, most int) (int, error) {
	var n int64
	err := s.write(ctx, "purge receipts", func(_ *sql.Tx, q Queries) (err error) {
		p := PurgeReceiptsParams{Source: int64(source.Number), RetentionMs: Milliseconds(retention), MaxRows: int64(most)}
		if n, err = q.PurgeReceipts(ctx, p); err != nil {
			return err
		}
		p.MaxRows -= n
		marked, err := q.MarkGone(ctx, p)
		n += marked
		return err
	})
	return int(n), err
}

// Handle implements inbox.PullStore. Nobody else can write while the handler's
// transaction is open, so a lease that holds before the handler runs holds after
// it; the completion checks it again all the same. Since the handler holds the
// write lock of the file, it should be quick: leases are renewed behind it.
//
// fn must not end its transaction. When it did, with tx.Commit or in plain SQL,
// the message is not completed.
func (s *InboxScope) Handle(ctx context.Context, owner string, row lane.Row, lease lane.Lease, fn func(ctx context.Context, tx *sql.Tx) error) error {
	return Write(ctx, s.store.c.DB, func(tx *sql.Tx) error {
		q := s.store.c.Bind(tx)
		if _, err := s.holds(ctx, q, owner, lease); err != nil {
			return err
		}
		if err := lend(ctx, tx, func() error { return fn(ctx, tx) }); err != nil {
			return err
		}
		b, err := s.holds(ctx, q, owner, lease)
		if err != nil {
			return err
		}
		found, err := s.take(ctx, q, b, row)
		if err == nil && !found {
			return inbox.ErrGone
		}
		return Classify("complete", err)
	})
}

// holds returns the bucket of a lease, or lane.ErrLeaseLost.
func (s *InboxScope) holds(ctx context.Context, q Queries, owner string, lease lane.Lease) (FenceRow, error) {
	b, held, err := s.fence(ctx, q, owner, lease)
	if err == nil && !held {
		return b, lane.ErrLeaseLost
	}
	return b, Classify("check the lease", err)
}

// take removes one message together with its hold; found is false when it is
// gone.
func (s *InboxScope) take(ctx context.Context, q Queries, b FenceRow, row lane.Row) (found bool, err error) {
	gone, err := s.remove(ctx, q, b, []lane.Settlement{{Lane: row.Lane, Sequence: row.Message.Sequence, Held: row.Held}})
	return len(gone) == 0, err
}

// Move implements inbox.PushStore. It never answers lane.ErrBusy: the write lock
// of the file is the lock of every key. A hook that takes the transaction down
// with it is left out of the next try.
func (s *InboxScope) Move(ctx context.Context, owner string, runs []lane.Run, remap inbox.Remap[*sql.Tx]) ([]lane.Verdict, error) {
	verdicts := make([]lane.Verdict, len(runs))
	broken := map[int64]error{}
	try := func(tx *sql.Tx, q Queries) (err error) {
		m := move{scope: s, tx: tx, q: q, remap: remap, broken: broken}
		for i, run := range runs {
			if verdicts[i], err = m.run(ctx, owner, run); err != nil {
				return err
			}
		}
		return nil
	}
	err := s.store.write(ctx, "move", try)
	for errors.Is(err, errAgain) { // every time one message less
		err = s.store.write(ctx, "move", try)
	}
	if err != nil {
		return nil, err
	}
	return verdicts, nil
}

// A move is one try of Move.
type move struct {
	scope *InboxScope
	tx    *sql.Tx
	q     Queries
	remap inbox.Remap[*sql.Tx]
	// broken are messages whose hook took the transaction down with it.
	broken map[int64]error
}

// A refusedError is an error that concerns one message; the transaction goes on.
type refusedError struct{ error }

func (e refusedError) Unwrap() error { return e.error }

var (
	// errAgain says that a transaction is to be tried again without the messages
	// that are known as broken by now.
	errAgain = errors.New("a message is left out of the next try")
	// errPassed undoes what was done for a message that an operator removed.
	errPassed = errors.New("the message is gone")
)

// run moves the messages of one run up to the first that is refused. Each of
// them is moved as a whole or not at all. An error of the database ends the
// transaction.
func (m *move) run(ctx context.Context, owner string, run lane.Run) (lane.Verdict, error) {
	b, err := m.scope.holds(ctx, m.q, owner, run.Lease)
	if errors.Is(err, lane.ErrLeaseLost) {
		return lane.Verdict{Err: lane.ErrLeaseLost}, nil
	}
	if err != nil {
		return lane.Verdict{}, err
	}
	for i, row := range run.Rows {
		err := m.broken[row.Message.Sequence]
		if err == nil {
			err = Atomically(ctx, m.tx, func() error { return m.message(ctx, b, row) })
		}
		var refused refusedError
		switch {
		case err == nil, errors.Is(err, errPassed):
		case !errors.As(err, &refused):
			return lane.Verdict{}, err
		case m.broken[row.Message.Sequence] == nil && errors.Is(err, errLost):
			m.broken[row.Message.Sequence] = err
			return lane.Verdict{}, errAgain
		default:
			return lane.Verdict{Accepted: i, Completed: true, Err: refused.error}, nil
		}
	}
	return lane.Verdict{Accepted: len(run.Rows), Completed: true}, nil
}

// message moves one message. The hook comes first: should it end the transaction,
// the message is still there.
func (m *move) message(ctx context.Context, b FenceRow, row lane.Row) error {
	records := []outbox.Record{{
		ID: row.Message.ID, Topic: row.Message.Topic, Payload: row.Message.Payload, Headers: row.Message.Headers, Version: row.Message.Version,
	}}
	if m.remap != nil {
		err := lend(ctx, m.tx, func() (err error) {
			records, err = m.runHook(ctx, row.Message)
			return err
		})
		if err != nil && ctx.Err() != nil {
			return err
		}
		if err != nil {
			return refusedError{err}
		}
	}
	found, err := m.scope.take(ctx, m.q, b, row)
	if err != nil {
		return err
	}
	if !found {
		return errPassed
	}
	for _, r := range records {
		if r.Key == "" {
			r.Key = row.Message.Key
		}
		if err := m.store(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// runHook runs the hook for at most half of the time that is left, so that one
// that hangs leaves time for the other messages.
func (m *move) runHook(ctx context.Context, msg event.Message) ([]outbox.Record, error) {
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/2)
		defer cancel()
	}
	return m.remap(ctx, m.tx, msg)
}

// store publishes one record; what can never be published is refused.
func (m *move) store(ctx context.Context, r outbox.Record) error {
	if r.ID.IsZero() {
		r.ID = event.NewUUID()
	}
	if !m.scope.store.c.Binary && !utf8.Valid(r.Payload) {
		return refusedError{event.AsPermanent(&event.ValidationError{Topic: r.Topic, Err: errors.New("payload is not valid UTF-8")})}
	}
	err := publish(ctx, m.q, r)
	var configuration *event.ConfigurationError
	if errors.As(err, &configuration) {
		return refusedError{event.AsPermanent(configuration)}
	}
	return err
}
