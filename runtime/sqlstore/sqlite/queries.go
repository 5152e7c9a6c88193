package sqlite

import (
	"context"
	"database/sql"
)

// A DBTX sends statements: *sql.DB, *sql.Tx and *Prepared do. sqlc's code asks
// for the same methods.
type DBTX interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Queries are the queries that sqlc compiled for a service, as its generated
// package hands them over. The structs have the fields of sqlc's, so that one
// converts into the other; durations are milliseconds, lists JSON arrays.
type Queries interface {
	Expired(ctx context.Context, p ExpiredParams) ([]ExpiredRow, error)
	Acquire(ctx context.Context, p AcquireParams) ([]AcquireRow, error)
	Fence(ctx context.Context, p FenceParams) ([]FenceRow, error)
	Renew(ctx context.Context, p RenewParams) (int64, error)
	Release(ctx context.Context, p ReleaseParams) (int64, error)
	Heartbeat(ctx context.Context, scope int64, owner string) error
	Forget(ctx context.Context, scope, leaseMs int64) error
	Leave(ctx context.Context, owner string) error
	Share(ctx context.Context, scope int64) (ShareRow, error)
	Parked(ctx context.Context, scope, lo, hi int64) ([]int64, error)
	Unhold(ctx context.Context, scope, lane, sequence int64) error
	LaneOf(ctx context.Context, key string) (int64, error)
	Park(ctx context.Context, scope, lane int64, reason string) error
	Unpark(ctx context.Context, scope, lane int64) (int64, error)
	Counts(ctx context.Context) ([]CountsRow, error)

	Publish(ctx context.Context, p PublishParams) error
	Receive(ctx context.Context, p ReceiveParams) error
	Refuse(ctx context.Context, p RefuseParams) error
	Drop(ctx context.Context, p DropParams) error
	Position(ctx context.Context, p PositionParams) ([]int64, error)
	Advance(ctx context.Context, p AdvanceParams) error
	AddReceipt(ctx context.Context, p AddReceiptParams) (int64, error)
	Digest(ctx context.Context, source int64, idempotencyKey string) ([]byte, error)
	PurgeReceipts(ctx context.Context, p PurgeReceiptsParams) (int64, error)
	MarkGone(ctx context.Context, p PurgeReceiptsParams) (int64, error)

	Outbox() QueueQueries
	Inbox() QueueQueries
}

// QueueQueries are the queries that outbox and inbox share.
type QueueQueries interface {
	Unordered(ctx context.Context, p UnorderedParams) ([]MessageRow, error)
	Fetch(ctx context.Context, p FetchParams) ([]MessageRow, error)
	Walk(ctx context.Context, p WalkParams) (WalkRow, error)
	Remove(ctx context.Context, p RemoveParams) ([]int64, error)
	Hold(ctx context.Context, p HoldParams) (int64, error)
	Bury(ctx context.Context, p BuryParams) (int64, error)
	DeadLetters(ctx context.Context, p DeadLettersParams) ([]DeadLetterRow, error)
	Replay(ctx context.Context, p ReplayParams) (int64, error)
	DropDead(ctx context.Context, p ReplayParams) (int64, error)
}

// ExpiredParams asks for buckets that may be leased.
type ExpiredParams struct{ Scope, MaxFree int64 }

// ExpiredRow is a bucket that may be leased; Crashed is 1 when its owner did not
// give it back.
type ExpiredRow struct{ Bucket, Crashed int64 }

// AcquireParams leases buckets.
type AcquireParams struct {
	Owner   string
	LeaseMs int64
	Scope   int64
	Buckets string
}

// AcquireRow is a leased bucket.
type AcquireRow struct{ Bucket, Token, Lo, Hi int64 }

// FenceParams names a lease.
type FenceParams struct {
	Scope, Bucket int64
	Owner         string
	Token         int64
}

// FenceRow is the bucket of a lease that still holds; Live is 1 before its end.
type FenceRow struct{ Lo, Hi, Live int64 }

// RenewParams extends a lease.
type RenewParams struct {
	LeaseMs, Scope, Bucket int64
	Owner                  string
	Token                  int64
}

// ReleaseParams gives a lease back; Crashed is 1 to leave the mark of a crash.
type ReleaseParams struct {
	Crashed, Scope, Bucket int64
	Owner                  string
	Token                  int64
}

// ShareRow tells how a scope is shared out; Waiting is 1 or 0.
type ShareRow struct{ Owners, Buckets, Free, Expired, Waiting int64 }

// CountsRow is what a scope holds.
type CountsRow struct {
	Scope                                     int64
	Kind, Name                                string
	Waiting, OldestMs, Retrying, Parked, Dead int64
}

// PublishParams is one outbox message; an empty key, empty headers and version 0
// are stored as NULL.
type PublishParams struct {
	ID, Topic, Key string
	Payload        []byte
	Headers        string
	Version        int64
}

// ReceiveParams is one inbox message.
type ReceiveParams struct {
	Source                                     int64
	ID, AggregateID, EventType, IdempotencyKey string
	Payload                                    []byte
	Headers                                    string
	Version                                    int64
}

// RefuseParams names a message that was just received, and why it is dead.
type RefuseParams struct {
	Reason, LastError string
	Source            int64
	IdempotencyKey    string
}

// DropParams names a message by its idempotency key.
type DropParams struct {
	Source         int64
	IdempotencyKey string
}

// PositionParams names a log of a source.
type PositionParams struct {
	Source int64
	Log    string
}

// AdvanceParams is a position in a log of a source.
type AdvanceParams struct {
	Source   int64
	Log      string
	Position int64
}

// AddReceiptParams is one receipt.
type AddReceiptParams struct {
	Source         int64
	IdempotencyKey string
	Digest         []byte
}

// PurgeReceiptsParams names old receipts.
type PurgeReceiptsParams struct{ Source, RetentionMs, MaxRows int64 }

// UnorderedParams asks for messages of an unordered lane.
type UnorderedParams struct{ Scope, Lane, After, MaxRows int64 }

// FetchParams asks for runs of keyed lanes.
type FetchParams struct {
	Scope, MaxRun, MaxRows, FromLane, Hi, ScanLanes int64
	Busy                                            string
	MaxLanes                                        int64
}

// MessageRow is one waiting message. Source and IdempotencyKey are only set in
// the inbox, DueInMs only in the unordered lane.
type MessageRow struct {
	Sequence, Lane, Attempts, Held, DueInMs int64
	ID, Key, Topic                          string
	Payload                                 []byte
	Headers                                 string
	Version, CreatedAt, Source              int64
	IdempotencyKey                          string
}

// WalkParams asks where a fetch stopped.
type WalkParams struct{ ScanLanes, Scope, FromLane, Hi int64 }

// WalkRow is the last lane that a fetch looked at; More is 1 when others follow.
type WalkRow struct{ Lane, More int64 }

// RemoveParams names messages between two lanes.
type RemoveParams struct {
	Sequences     string
	Scope, Lo, Hi int64
}

// HoldParams records a failure.
type HoldParams struct {
	Attempts, DelayMs, Parked int64
	Reason, LastError         string
	Sequence, Scope, Lane     int64
}

// BuryParams moves a message to the dead letters.
type BuryParams struct {
	Attempts              int64
	Reason, LastError     string
	Sequence, Scope, Lane int64
}

// DeadLettersParams asks for a page of dead letters.
type DeadLettersParams struct{ Scope, After, MaxRows int64 }

// DeadLetterRow is one dead letter.
type DeadLetterRow struct {
	MessageRow
	DiedAt            int64
	Reason, LastError string
}

// ReplayParams names dead letters.
type ReplayParams struct {
	Scope int64
	Ids   string
}
