package sqlserver

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/internal/rowtext"
)

// Receive implements inbox.ReceiveStore. Storing is one batch and one
// transaction. Messages that it left out are compared afterwards: only a later
// statement is sure to see the receipt of a transaction that it waited for.
func (s *Store) Receive(ctx context.Context, source inbox.SourceRef, messages []inbox.Incoming) ([]inbox.Disposition, error) {
	if len(messages) == 0 {
		return nil, nil
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	var ds []inbox.Disposition
	err := retry(ctx, func() (err error) {
		ds, err = receive(ctx, s.direct, source, messages)
		return err
	})
	if err != nil {
		return nil, err
	}
	return ds, nil
}

// ReceiveAt implements inbox.LogStore.
func (s *Store) ReceiveAt(ctx context.Context, source inbox.SourceRef, messages []inbox.Incoming, at inbox.Position) ([]inbox.Disposition, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	var ds []inbox.Disposition
	err := retry(ctx, func() error {
		return InTx(ctx, s.c.DB, func(tx *sql.Tx) (err error) {
			q := s.c.Bind(tx)
			if ds = nil; len(messages) > 0 {
				if ds, err = receive(ctx, q, source, messages); err != nil || slices.Contains(ds, inbox.Conflict) {
					return err
				}
			}
			return Classify("record the position", q.Advance(ctx, AdvanceParams{Source: source.Number, Log: at.Log, Position: at.Offset}))
		})
	})
	if err != nil {
		return nil, err
	}
	return ds, nil
}

// Position implements inbox.LogStore.
func (s *Store) Position(ctx context.Context, source inbox.SourceRef, log string) (offset int64, ok bool, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	rows, err := s.direct.Position(ctx, PositionParams{Source: source.Number, Log: log})
	if err != nil || len(rows) == 0 {
		return 0, false, Classify("read the position", err)
	}
	return rows[0], true, nil
}

// ReceiveIn is Receive inside a transaction of the caller, which must be READ
// COMMITTED. Nothing is retried, and the locks of the aggregates are held until
// the transaction ends. When it fails, the whole transaction is lost, as with
// NewAppender.
func (s *Store) ReceiveIn(ctx context.Context, tx *sql.Tx, source inbox.SourceRef, messages []inbox.Incoming) ([]inbox.Disposition, error) {
	if len(messages) == 0 {
		return nil, nil
	}
	ds, err := receive(ctx, s.c.Bind(tx), source, messages)
	if err != nil {
		fail(tx, err)
		return nil, err
	}
	return ds, nil
}

// receive stores messages and says what became of each. The error is classified.
func receive(ctx context.Context, q Queries, source inbox.SourceRef, messages []inbox.Incoming) ([]inbox.Disposition, error) {
	wait, err := lockTimeout(ctx, "receive")
	if err != nil {
		return nil, err
	}
	if err := checkIncoming(messages); err != nil {
		return nil, err
	}
	elements, payloads := receiveList(messages)
	positions, err := q.Receive(ctx, ReceiveParams{Messages: list(elements), Payloads: payloads, Scope: int32(source.Scope), Source: source.Number, LockTimeout: wait})
	if err != nil {
		return nil, Classify("receive", err)
	}
	ds := make([]inbox.Disposition, len(messages))
	for i := range ds {
		ds[i] = inbox.Duplicate
	}
	for _, p := range positions {
		if ds[p] = inbox.Stored; messages[p].Dead != "" {
			ds[p] = inbox.Buried
		}
	}
	if len(positions) == len(ds) {
		return ds, nil
	}
	return ds, compare(ctx, q, source, elements, ds)
}

// checkIncoming refuses what would not be stored byte for byte.
func checkIncoming(messages []inbox.Incoming) error {
	for i := range messages {
		m := &messages[i]
		if err := event.CheckKey(m.IdempotencyKey); err != nil {
			return fmt.Errorf("receive: message %d: idempotency %w", i+1, err)
		}
		if err := event.CheckText(m.EventType + m.AggregateID); err != nil {
			return fmt.Errorf("receive: message %d: event type or aggregate id: %w", i+1, err)
		}
	}
	return nil
}

// receiveList renders messages and their payloads.
func receiveList(messages []inbox.Incoming) (elements []receiveJSON, payloads []byte) {
	elements = make([]receiveJSON, len(messages))
	payloads = []byte{} // nil would be NULL
	for i := range messages {
		m := &messages[i]
		elements[i] = receiveJSON{
			KeyHash: hexOf(sha256.Sum256([]byte(m.IdempotencyKey))), IdempotencyKey: m.IdempotencyKey, Digest: hexOf(sha256.Sum256(m.Payload)),
			ID: event.NewUUID().String(), AggregateID: m.AggregateID, EventType: m.EventType,
			sliceJSON: sliceJSON{int64(len(payloads)), int64(len(m.Payload))},
			Headers:   rowtext.EncodeHeaders(m.Headers), Version: m.Version, Reason: rowtext.Clean(m.Dead),
		}
		payloads = append(payloads, m.Payload...)
	}
	return elements, padded(payloads)
}

// compare finds the conflicts among the messages that were left out.
func compare(ctx context.Context, q Queries, source inbox.SourceRef, elements []receiveJSON, ds []inbox.Disposition) error {
	var left []string
	for i, d := range ds {
		if d == inbox.Duplicate {
			left = append(left, elements[i].KeyHash)
		}
	}
	rows, err := q.Digests(ctx, DigestsParams{Source: source.Number, Hashes: list(left)})
	if err != nil {
		return Classify("compare duplicates", err)
	}
	digests := make(map[string]string, len(rows))
	for _, r := range rows {
		digests[hex.EncodeToString(r.KeyHash)] = hex.EncodeToString(r.Digest)
	}
	for i, d := range ds {
		digest, known := digests[elements[i].KeyHash]
		if d == inbox.Duplicate && known && elements[i].Digest != digest {
			ds[i] = inbox.Conflict
		}
	}
	return nil
}

// PurgeReceipts implements inbox.ReceiveStore.
func (s *Store) PurgeReceipts(ctx context.Context, source inbox.SourceRef, retention time.Duration, most int) (int, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	n, err := s.direct.PurgeReceipts(ctx, PurgeReceiptsParams{Source: source.Number, AgeMs: ms(retention), MaxRows: int64(most)})
	return int(n), Classify("purge receipts", err)
}
