package sqlserver

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/internal/rowtext"
	"github.com/lanebox/lanebox/runtime/internal/sqlqueue"
	"github.com/lanebox/lanebox/runtime/lane"
)

// queueOf returns the queries of the queue that a scope belongs to.
func (s *Store) queueOf(scope lane.Scope) QueueQueries {
	if s.c.Destinations[scope] {
		return s.direct.Outbox()
	}
	return s.direct.Inbox()
}

// DeadLetters lists the dead letters of a scope in the order of their sequence.
func (s *Store) DeadLetters(ctx context.Context, scope lane.Scope) ([]lane.DeadLetter, error) {
	return sqlqueue.DeadLetters(func(after int64, most int) ([]lane.DeadLetter, error) {
		return s.DeadLettersAfter(ctx, scope, after, most)
	})
}

// DeadLettersAfter lists at most most dead letters of a scope whose sequence is
// above after.
func (s *Store) DeadLettersAfter(ctx context.Context, scope lane.Scope, after int64, most int) ([]lane.DeadLetter, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	rows, err := s.queueOf(scope).DeadLetters(ctx, DeadLettersParams{Scope: int32(scope), After: after, MaxRows: int64(most)})
	if err != nil {
		return nil, Classify("list dead letters", err)
	}
	letters := make([]lane.DeadLetter, len(rows))
	for i, r := range rows {
		letters[i] = lane.DeadLetter{
			Lane: r.Lane,
			Message: event.Message{ID: idOf(r.ID), Sequence: r.Sequence, Topic: r.Topic, Key: r.Key, Payload: r.Payload,
				Headers: rowtext.DecodeHeaders(r.Headers), Version: r.Version, CreatedAt: utc(r.CreatedAt), Source: s.c.Sources[r.Source],
				IdempotencyKey: r.IdempotencyKey},
			Attempts: int(r.Attempts), Reason: r.Reason, Error: r.LastError, DiedAt: utc(r.DiedAt),
		}
	}
	return letters, nil
}

// replayPiece is how many dead letters one transaction puts back. SQL Server
// tries to lock the whole table from 5,000 locks of a statement on, and a
// transaction holds one for each key.
const replayPiece = 500

// Replay puts dead letters back at the end of their lanes, in their old order,
// with their old ids and new sequences, under the locks of their keys, several
// hundred in one transaction. It returns how many it put back, also when a later
// transaction fails; one that somebody else replayed at the same time is not
// counted.
func (s *Store) Replay(ctx context.Context, scope lane.Scope, ids ...event.UUID) (int, error) {
	left := slices.Clone(ids)
	for n := 0; ; {
		back, err := s.replaySome(ctx, scope, left)
		n += len(back)
		if err != nil || len(back) == 0 {
			return n, err
		}
		left = slices.DeleteFunc(left, func(id event.UUID) bool { return back[id] })
	}
}

// replaySome puts the first of several dead letters back and returns which.
func (s *Store) replaySome(ctx context.Context, scope lane.Scope, ids []event.UUID) (map[event.UUID]bool, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	var replayed []string
	err := retry(ctx, func() error {
		wait, err := lockTimeout(ctx, "replay")
		if err != nil {
			return err
		}
		p := ReplayParams{MaxRows: replayPiece, Ids: idList(ids), Scope: int32(scope), LockTimeout: wait}
		replayed, err = s.queueOf(scope).Replay(ctx, p)
		return Classify("replay", err)
	})
	if err != nil {
		return nil, err
	}
	back := make(map[event.UUID]bool, len(replayed))
	for _, text := range replayed {
		back[idOf(text)] = true
	}
	return back, nil
}

// ParkKey stops the deliveries of one key until ReleaseKey; what is in flight
// may still finish.
func (s *Store) ParkKey(ctx context.Context, scope lane.Scope, key, reason string) error {
	if err := event.CheckKey(key); err != nil {
		return fmt.Errorf("park: %w", err)
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	p := ParkParams{Scope: int32(scope), Key: key, Reason: rowtext.Clean(reason)}
	return retry(ctx, func() error { return Classify("park", s.queueOf(scope).Park(ctx, p)) })
}

// ReleaseKey ends every park of a key: the operator's and that of an exhausted
// message at its head, whose attempts start again. A retry that was due later
// still is. The reason is not recorded.
func (s *Store) ReleaseKey(ctx context.Context, scope lane.Scope, key, reason string) error {
	if err := event.CheckKey(key); err != nil {
		return fmt.Errorf("release: %w", err)
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	return retry(ctx, func() error {
		_, err := s.queueOf(scope).Unpark(ctx, UnparkParams{Scope: int32(scope), Key: key})
		return Classify("release", err)
	})
}

// Counts counts what is in every scope. It reads the tables from end to end.
func (s *Store) Counts(ctx context.Context) ([]lane.Counts, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	rows, err := s.direct.Counts(ctx)
	if err != nil {
		return nil, Classify("count", err)
	}
	counts := make([]lane.Counts, len(rows))
	for i, r := range rows {
		counts[i] = lane.Counts{Scope: lane.Scope(r.Scope), Kind: r.Kind, Name: r.Name, Waiting: r.Waiting, Retrying: r.Retrying,
			Parked: r.Parked, Dead: r.Dead, Oldest: time.Duration(r.OldestMs) * time.Millisecond}
	}
	return counts, nil
}
