package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/lane"
)

// Config is what a generated package says about its schema.
type Config struct {
	DB *sql.DB
	// Bind returns the service's queries on a connection or transaction.
	Bind func(DBTX) Queries
	// Binary says that payloads of the outbox need not be UTF-8.
	Binary bool
	// Destinations are the scopes of the outbox; all others belong to the inbox.
	Destinations map[lane.Scope]bool
	// Sources are the names of the sources by their numbers.
	Sources map[int32]string
}

// A Store keeps outbox and inbox in an SQLite database. Every change runs in a
// transaction that takes the write lock first, whatever the data source name
// says. It is safe for concurrent use.
type Store struct{ c Config }

var (
	_ lane.Keeper    = (*Store)(nil)
	_ inbox.LogStore = (*Store)(nil)
)

// New returns a store. It sends nothing yet.
func New(c Config) *Store { return &Store{c: c} }

// write runs fn with the queries on a transaction that holds the write lock.
// Each statement is prepared once. The error is classified.
func (s *Store) write(ctx context.Context, op string, fn func(tx *sql.Tx, q Queries) error) error {
	return Classify(op, Write(ctx, s.c.DB, func(tx *sql.Tx) error {
		prepared := Prepare(tx)
		defer prepared.Close()
		return fn(tx, s.c.Bind(prepared))
	}))
}

// Keep implements lane.Keeper.
func (s *Store) Keep(ctx context.Context, p lane.KeepParams) ([]lane.Kept, error) {
	kept := make([]lane.Kept, 0, len(p.Scopes))
	err := s.write(ctx, "keep leases", func(_ *sql.Tx, q Queries) error {
		for _, x := range p.Scopes {
			k, err := keep(ctx, q, p, x)
			if err != nil {
				return err
			}
			kept = append(kept, k)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return kept, nil
}

// keep renews the leases of one scope and looks at what is going on in it.
func keep(ctx context.Context, q Queries, p lane.KeepParams, x lane.ScopeLeases) (lane.Kept, error) {
	k, scope, ttl := lane.Kept{Scope: x.Scope}, int64(x.Scope), Milliseconds(p.TTL)
	for _, l := range x.Leases {
		n, err := q.Renew(ctx, RenewParams{LeaseMs: ttl, Scope: scope, Bucket: int64(l.Bucket), Owner: p.Owner, Token: l.Token})
		if err != nil {
			return k, err
		}
		if n == 0 {
			continue
		}
		k.Renewed = append(k.Renewed, l.Bucket)
		parked, err := q.Parked(ctx, scope, l.Lo, l.Hi)
		if err != nil {
			return k, err
		}
		k.Parked = append(k.Parked, parked...)
	}
	if err := q.Heartbeat(ctx, scope, p.Owner); err != nil {
		return k, err
	}
	if err := q.Forget(ctx, scope, ttl); err != nil {
		return k, err
	}
	share, err := q.Share(ctx, scope)
	k.Owners, k.Buckets, k.Free, k.Expired = int(share.Owners), int(share.Buckets), int(share.Free), int(share.Expired)
	k.Waiting = share.Waiting == 1
	return k, err
}

// Leave implements lane.Keeper.
func (s *Store) Leave(ctx context.Context, owner string) error {
	return s.write(ctx, "leave", func(_ *sql.Tx, q Queries) error { return q.Leave(ctx, owner) })
}

// message returns a message as it was stored.
func (s *Store) message(r *MessageRow) (event.Message, error) {
	id, err := event.ParseUUID(r.ID)
	if err != nil {
		return event.Message{}, fmt.Errorf("message %d: %w", r.Sequence, err)
	}
	return event.Message{
		ID: id, Sequence: r.Sequence, Topic: r.Topic, Key: r.Key, Payload: r.Payload, Headers: DecodeHeaders(r.Headers),
		Version: r.Version, CreatedAt: Time(r.CreatedAt), Source: s.c.Sources[int32(r.Source)], IdempotencyKey: r.IdempotencyKey,
	}, nil
}

// deadLettersPage is the number of dead letters read at once.
const deadLettersPage = 500

// DeadLetters lists the dead letters of a scope in the order of their sequence.
func (s *Store) DeadLetters(ctx context.Context, scope lane.Scope) ([]lane.DeadLetter, error) {
	var letters []lane.DeadLetter
	for after := int64(0); ; after = letters[len(letters)-1].Message.Sequence {
		page, err := s.DeadLettersAfter(ctx, scope, after, deadLettersPage)
		letters = append(letters, page...)
		if err != nil || len(page) < deadLettersPage {
			return letters, err
		}
	}
}

// DeadLettersAfter lists at most most dead letters of a scope whose sequence is
// above after.
func (s *Store) DeadLettersAfter(ctx context.Context, scope lane.Scope, after int64, most int) ([]lane.DeadLetter, error) {
	rows, err := s.queue(s.c.Bind(s.c.DB), scope).DeadLetters(ctx, DeadLettersParams{Scope: int64(scope), After: after, MaxRows: int64(most)})
	if err != nil {
		return nil, Classify("list dead letters", err)
	}
	letters := make([]lane.DeadLetter, len(rows))
	for i, r := range rows {
		m, err := s.message(&r.MessageRow)
		if err != nil {
			return nil, err
		}
		letters[i] = lane.DeadLetter{
			Lane: r.Lane, Message: m, Attempts: int(r.Attempts), Reason: r.Reason, Error: r.LastError, DiedAt: Time(r.DiedAt),
		}
	}
	return letters, nil
}

// queue returns the queries of the queue that a scope belongs to.
func (s *Store) queue(q Queries, scope lane.Scope) QueueQueries {
	if s.c.Destinations[scope] {
		return q.Outbox()
	}
	return q.Inbox()
}

// Replay puts dead letters at the end of their lanes, in their old order and
// with their old ids. It returns how many it found.
func (s *Store) Replay(ctx context.Context, scope lane.Scope, ids ...event.UUID) (int, error) {
	var n int64
	err := s.write(ctx, "replay", func(_ *sql.Tx, q Queries) (err error) {
		p := ReplayParams{Scope: int64(scope), Ids: IDs(ids)}
		if n, err = s.queue(q, scope).Replay(ctx, p); err != nil {
			return err
		}
		_, err = s.queue(q, scope).DropDead(ctx, p)
		return err
	})
	return int(n), err
}

// ParkKey stops the deliveries of one key until ReleaseKey; what is in flight may
// still finish.
func (s *Store) ParkKey(ctx context.Context, scope lane.Scope, key, reason string) error {
	return s.withLane(ctx, "park", key, func(q Queries, l int64) error { return q.Park(ctx, int64(scope), l, Text(reason)) })
}

// ReleaseKey ends every park of a key: the operator's and that of an exhausted
// message at its head, whose attempts start again. A retry that was due later
// still is. The reason is not recorded.
func (s *Store) ReleaseKey(ctx context.Context, scope lane.Scope, key, reason string) error {
	return s.withLane(ctx, "release", key, func(q Queries, l int64) error {
		_, err := q.Unpark(ctx, int64(scope), l)
		return err
	})
}

// withLane calls fn with the lane of a key.
func (s *Store) withLane(ctx context.Context, op, key string, fn func(q Queries, l int64) error) error {
	if err := event.CheckKey(key); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return s.write(ctx, op, func(_ *sql.Tx, q Queries) error {
		l, err := q.LaneOf(ctx, key)
		if err != nil {
			return err
		}
		return fn(q, l)
	})
}

// Counts counts what every scope holds. It reads whole tables.
func (s *Store) Counts(ctx context.Context) ([]lane.Counts, error) {
	rows, err := s.c.Bind(s.c.DB).Counts(ctx)
	if err != nil {
		return nil, Classify("count", err)
	}
	counts := make([]lane.Counts, len(rows))
	for i, r := range rows {
		counts[i] = lane.Counts{
			Scope: lane.Scope(r.Scope), Kind: r.Kind, Name: r.Name, Waiting: r.Waiting, Retrying: r.Retrying, Parked: r.Parked, Dead: r.Dead,
			Oldest: time.Duration(r.OldestMs) * time.Millisecond,
		}
	}
	return counts, nil
}
