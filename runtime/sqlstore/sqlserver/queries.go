package sqlserver

import (
	"context"
	"database/sql"
	"time"
)

// A DBTX sends statements: *sql.DB, *sql.Conn and *sql.Tx do. It is the
// interface of the generated query code.
type DBTX interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Queries are the queries of a generated package, bound to a DBTX. The types of
// parameters and rows have the fields of the generated types, so that one
// converts into the other; the comments of the queries are in queries.sql.
// Lists travel as one JSON array each; their members are named below.
// Durations are milliseconds.
type Queries interface {
	Publish(ctx context.Context, p PublishParams) error
	PublishOne(ctx context.Context, p PublishOneParams) error
	// TryLocks takes a JSON array of keys.
	TryLocks(ctx context.Context, keys string) ([]TryLocksRow, error)
	WaitLocks(ctx context.Context, p WaitLocksParams) error

	Acquire(ctx context.Context, p AcquireParams) ([]AcquireRow, error)
	Release(ctx context.Context, p ReleaseParams) error
	Keep(ctx context.Context, p KeepParams) ([]KeepRow, error)
	Leave(ctx context.Context, owner string) error
	// Fence returns the buckets that are still the owner's.
	Fence(ctx context.Context, p FenceParams) ([]int16, error)

	Take(ctx context.Context, p TakeParams) ([]TakeRow, error)
	Complete(ctx context.Context, p CompleteParams) (CompleteRow, error)
	// Receive returns the positions (from 0) of the messages it stored.
	Receive(ctx context.Context, p ReceiveParams) ([]int64, error)
	Digests(ctx context.Context, p DigestsParams) ([]DigestsRow, error)
	PurgeReceipts(ctx context.Context, p PurgeReceiptsParams) (int64, error)
	// Position returns how far a source has read a log: one row or none.
	Position(ctx context.Context, p PositionParams) ([]int64, error)
	// Advance records how far a source has read a log; it never goes back.
	Advance(ctx context.Context, p AdvanceParams) error
	Counts(ctx context.Context) ([]CountsRow, error)

	Outbox() QueueQueries
	Inbox() QueueQueries
}

// QueueQueries are the queries that outbox and inbox have both.
type QueueQueries interface {
	Fetch(ctx context.Context, p FetchParams) ([]FetchRow, error)
	SettleDone(ctx context.Context, p SettleDoneParams) ([]SettleRow, error)
	Settle(ctx context.Context, p SettleParams) ([]SettleRow, error)
	DeadLetters(ctx context.Context, p DeadLettersParams) ([]DeadLettersRow, error)
	// Replay returns the ids it put back, as the server writes them.
	Replay(ctx context.Context, p ReplayParams) ([]string, error)
	Park(ctx context.Context, p ParkParams) error
	Unpark(ctx context.Context, p UnparkParams) (int64, error)
}

// PublishParams are the messages of a call.
type PublishParams struct {
	// Messages has the members i, k, t, h, v and p, or o and n when payloads are
	// bytes.
	Messages string
	// Payloads holds the payloads that o and n (offset and length) cut out; empty
	// when payloads are text.
	Payloads    []byte
	LockTimeout int32
}

// PublishOneParams is one message; an empty key, empty headers and version 0 are
// stored as NULL.
type PublishOneParams struct {
	ID          string
	Key         string
	Topic       string
	Payload     []byte // sent as text unless payloads are bytes
	Headers     string
	Version     int64
	LockTimeout int32
}

// TryLocksRow says whether the lock of the key at Position (from 0) was granted.
type TryLocksRow struct {
	Position int64
	Locked   bool
}

// WaitLocksParams names keys, a JSON array, and how long to wait for all of
// their locks.
type WaitLocksParams struct {
	Keys        string
	LockTimeout int32
}

// AcquireParams asks for buckets.
type AcquireParams struct {
	Owner   string
	TtlMs   int64
	Scope   int32
	MaxFree int64
}

// AcquireRow is a leased bucket.
type AcquireRow struct {
	Bucket  int16
	Lo      int64
	Hi      int64
	Token   int64
	Crashed bool
}

// ReleaseParams gives buckets back; Leases has the members b, t and c.
type ReleaseParams struct {
	Leases string
	Scope  int32
	Owner  string
}

// KeepParams lists what a process holds: Scopes is an array of numbers, Leases
// has the members s, b and t.
type KeepParams struct {
	Owner  string
	TtlMs  int64
	Scopes string
	Leases string
}

// The kinds of KeepRow.
const (
	KeepRenewed int16 = 1 // a renewed bucket
	KeepParked  int16 = 2 // a parked lane of a renewed bucket
	KeepOwners  int16 = 3 // how many owners are alive, the caller included
	KeepBuckets int16 = 4 // how many buckets the scope has
	KeepFree    int16 = 5 // how many of them have no owner
	KeepExpired int16 = 6 // how many have an owner whose lease ended
	KeepWaiting int16 = 7 // 1 when messages wait, else 0
)

// KeepRow is one fact about a scope. The kinds from KeepOwners on come once per
// scope of the call.
type KeepRow struct {
	Scope int32
	Kind  int16
	Value int64
}

// FenceParams names leases of one scope; Leases has the members b and t.
type FenceParams struct {
	Leases string
	Scope  int32
	Owner  string
}

// TakeParams names messages to remove; Rows has the members l and s.
type TakeParams struct {
	Rows  string
	Scope int32
}

// TakeRow is a removed message.
type TakeRow struct {
	Lane     int64
	Sequence int64
}

// CompleteParams names a message and the lease of its bucket.
type CompleteParams struct {
	Scope    int32
	Bucket   int16
	Token    int64
	Owner    string
	Lane     int64
	Sequence int64
}

// CompleteRow says whether the fence held and the message was there.
type CompleteRow struct {
	Leased  bool
	Removed bool
}

// ReceiveParams are incoming messages. Messages has the members x, k, d, i, g,
// t, h, v, o, n and r: one with a reason r goes to the dead letters.
type ReceiveParams struct {
	Messages    string
	Payloads    []byte
	Scope       int32
	Source      int32
	LockTimeout int32
}

// DigestsParams names receipts; Hashes is an array of hexadecimal key hashes.
type DigestsParams struct {
	Source int32
	Hashes string
}

// DigestsRow is a receipt.
type DigestsRow struct {
	KeyHash []byte
	Digest  []byte
}

// PurgeReceiptsParams says which receipts to forget.
type PurgeReceiptsParams struct {
	Source  int32
	AgeMs   int64
	MaxRows int64
}

// PositionParams names a log of a source.
type PositionParams struct {
	Source int32
	Log    string
}

// AdvanceParams is a position in a log of a source.
type AdvanceParams struct {
	Source   int32
	Log      string
	Position int64
}

// CountsRow is what is in one scope.
type CountsRow struct {
	Scope    int32
	Kind     string
	Name     string
	Waiting  int64
	OldestMs int64
	Retrying int64
	Parked   int64
	Dead     int64
}

// FetchParams asks for the next messages. Cursors has the members b, t, l and a;
// Busy is an array of lanes.
type FetchParams struct {
	MaxBytes  int64
	ScanLanes int64
	MaxLanes  int64
	Busy      string
	Cursors   string
	Scope     int32
	Owner     string
	MaxRows   int64
	MaxRun    int64
}

// FetchRow is a message, or with Stop 1 or 2 the place where a walk ended; with
// Stop 3 a message that is too much for the page.
type FetchRow struct {
	Bucket    int16
	Lane      int64
	Sequence  int64
	Stop      int64
	Attempts  int32
	Held      bool
	DueMs     int64
	ID        string
	Key       string
	Topic     string
	Payload   []byte
	Headers   string
	Version   int64
	CreatedAt time.Time
	// Source and IdempotencyKey belong to the inbox.
	Source         int32
	IdempotencyKey string
}

// SettleDoneParams are delivered messages and the leases of their buckets.
type SettleDoneParams struct {
	Scope  int32
	Leases string
	Owner  string
	Rows   string
}

// SettleParams are outcomes and the leases of their buckets. Outcomes has the
// members l, s, o, a, d, r and e.
type SettleParams struct {
	Scope    int32
	Leases   string
	Owner    string
	Outcomes string
}

// The kinds of SettleRow.
const (
	SettleLeased  int16 = 1 // a bucket that passed the fence
	SettleChanged int16 = 2 // the sequence of a message that was changed
	SettleParked  int16 = 3 // a parked lane of a bucket that passed
)

// SettleRow is one fact about a settlement.
type SettleRow struct {
	Kind  int16
	Value int64
}

// DeadLettersParams asks for a page of dead letters.
type DeadLettersParams struct {
	Scope   int32
	After   int64
	MaxRows int64
}

// DeadLettersRow is a dead letter.
type DeadLettersRow struct {
	Lane      int64
	Sequence  int64
	ID        string
	Key       string
	Topic     string
	Payload   []byte
	Headers   string
	Version   int64
	Attempts  int32
	Reason    string
	LastError string
	CreatedAt time.Time
	DiedAt    time.Time
	// Source and IdempotencyKey belong to the inbox.
	Source         int32
	IdempotencyKey string
}

// ReplayParams names dead letters; Ids is an array of ids.
type ReplayParams struct {
	MaxRows     int64
	Ids         string
	Scope       int32
	LockTimeout int32
}

// ParkParams names a key.
type ParkParams struct {
	Scope  int32
	Key    string
	Reason string
}

// UnparkParams names a key.
type UnparkParams struct {
	Scope int32
	Key   string
}
