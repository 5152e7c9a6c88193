package postgres

import (
	"bytes"
	"context"
	"crypto/sha256"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/internal/rowtext"
)

// Receive implements inbox.ReceiveStore. Storing is one statement. Messages that
// it left out are compared afterwards: only a later statement is sure to see the
// receipt of a transaction that it waited for.
func (s *Store) Receive(ctx context.Context, source inbox.SourceRef, messages []inbox.Incoming) ([]inbox.Disposition, error) {
	if len(messages) == 0 {
		return nil, nil
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	var ds []inbox.Disposition
	err := retry(ctx, func() (err error) {
		ds, err = receive(ctx, s.direct, source, messages)
		return err
	})
	return ds, err
}

// ReceiveAt implements inbox.LogStore.
func (s *Store) ReceiveAt(ctx context.Context, source inbox.SourceRef, messages []inbox.Incoming, at inbox.Position) ([]inbox.Disposition, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	var ds []inbox.Disposition
	err := retry(ctx, func() (err error) {
		ds, err = s.receiveAt(ctx, source, messages, at)
		return err
	})
	return ds, err
}

// receiveAt is one try of ReceiveAt.
func (s *Store) receiveAt(ctx context.Context, source inbox.SourceRef, messages []inbox.Incoming, at inbox.Position) (ds []inbox.Disposition, err error) {
	err = InTx(ctx, s.c.Pool, func(tx pgx.Tx) (err error) {
		if ds, err = s.ReceiveIn(ctx, tx, source, messages); err != nil || slices.Contains(ds, inbox.Conflict) {
			return err
		}
		p := AdvanceParams{Source: source.Number, Log: at.Log, Position: at.Offset}
		return Classify("record the position", s.c.Bind(tx).Advance(ctx, p))
	})
	return ds, Classify("receive", err)
}

// Position implements inbox.LogStore.
func (s *Store) Position(ctx context.Context, source inbox.SourceRef, log string) (int64, bool, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	rows, err := s.direct.Position(ctx, PositionParams{Source: source.Number, Log: log})
	if err != nil || len(rows) == 0 {
		return 0, false, Classify("position", err)
	}
	return rows[0], true, nil
}

// ReceiveIn is Receive inside a transaction of the caller, which must be READ
// COMMITTED. Nothing is retried, and the locks of the aggregates are held until
// the transaction ends.
func (s *Store) ReceiveIn(ctx context.Context, tx pgx.Tx, source inbox.SourceRef, messages []inbox.Incoming) ([]inbox.Disposition, error) {
	if len(messages) == 0 {
		return nil, nil
	}
	return receive(ctx, s.c.Bind(tx), source, messages)
}

func receive(ctx context.Context, q Queries, source inbox.SourceRef, messages []inbox.Incoming) ([]inbox.Disposition, error) {
	p := receiveParams(source, messages)
	positions, err := q.Receive(ctx, p)
	if err != nil {
		return nil, Classify("receive", err)
	}
	ds, err := dispositions(ctx, q, p, positions)
	if err != nil {
		return nil, err
	}
	for i := range ds {
		if ds[i] == inbox.Stored && messages[i].Dead != "" {
			ds[i] = inbox.Buried
		}
	}
	return ds, nil
}

func receiveParams(source inbox.SourceRef, messages []inbox.Incoming) ReceiveParams {
	n := len(messages)
	p := ReceiveParams{
		IdempotencyKeys: make([]string, n), Digests: make([][]byte, n), IDs: make([]pgtype.UUID, n), AggregateIDs: make([]string, n),
		EventTypes: make([]string, n), Payloads: make([][]byte, n), Headers: make([]string, n), Versions: make([]int64, n),
		Reasons: make([]string, n), Scope: int32(source.Scope), Source: source.Number,
	}
	for i := range messages {
		m := &messages[i]
		digest := sha256.Sum256(m.Payload)
		p.IdempotencyKeys[i], p.Digests[i], p.IDs[i], p.AggregateIDs[i] = m.IdempotencyKey, digest[:], uuid(event.NewUUID()), m.AggregateID
		p.Reasons[i] = m.Dead
		p.EventTypes[i], p.Payloads[i], p.Headers[i], p.Versions[i] = m.EventType, notNil(m.Payload), rowtext.EncodeHeaders(m.Headers), m.Version
	}
	return p
}

// dispositions says what became of each message, given the positions (from 1)
// of those that were stored.
func dispositions(ctx context.Context, q Queries, p ReceiveParams, positions []int64) ([]inbox.Disposition, error) {
	ds := make([]inbox.Disposition, len(p.IdempotencyKeys))
	for i := range ds {
		ds[i] = inbox.Duplicate
	}
	for _, position := range positions {
		ds[position-1] = inbox.Stored
	}
	if len(positions) == len(ds) {
		return ds, nil
	}
	var left []string
	for i, d := range ds {
		if d != inbox.Stored {
			left = append(left, p.IdempotencyKeys[i])
		}
	}
	rows, err := q.Digests(ctx, DigestsParams{Source: p.Source, IdempotencyKeys: left})
	if err != nil {
		return nil, Classify("compare duplicates", err)
	}
	digests := make(map[string][]byte, len(rows))
	for _, r := range rows {
		digests[r.IdempotencyKey] = r.Digest
	}
	for i, d := range ds {
		digest, known := digests[p.IdempotencyKeys[i]]
		if d == inbox.Duplicate && known && !bytes.Equal(digest, p.Digests[i]) {
			ds[i] = inbox.Conflict
		}
	}
	return ds, nil
}

// PurgeReceipts implements inbox.ReceiveStore.
func (s *Store) PurgeReceipts(ctx context.Context, source inbox.SourceRef, retention time.Duration, max int) (int, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	n, err := s.direct.PurgeReceipts(ctx, PurgeReceiptsParams{Source: source.Number, Age: retention, MaxRows: int64(max)})
	return int(n), Classify("purge receipts", err)
}
