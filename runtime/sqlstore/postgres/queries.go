package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// A DBTX runs statements: *pgxpool.Pool, pgx.Tx, and the adapters of this
// package. It is the interface of sqlc's code.
type DBTX interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Queries are the queries of a generated package, bound to a DBTX. The types of
// parameters and rows have the fields of sqlc's types, so that generated code
// converts one into the other; the comments of the queries are in queries.sql.
type Queries interface {
	Publish(ctx context.Context, p PublishParams) error
	PublishOne(ctx context.Context, p PublishOneParams) error
	TryLocks(ctx context.Context, keys []string) ([]TryLocksRow, error)
	WaitLocks(ctx context.Context, keys []string) error

	Acquire(ctx context.Context, p AcquireParams) ([]AcquireRow, error)
	Release(ctx context.Context, p ReleaseParams) error
	Keep(ctx context.Context, p KeepParams) ([]KeepRow, error)
	Leave(ctx context.Context, owner string) error
	Fence(ctx context.Context, p FenceParams) ([]int16, error)

	Take(ctx context.Context, p TakeParams) ([]TakeRow, error)
	Complete(ctx context.Context, p CompleteParams) (CompleteRow, error)
	Receive(ctx context.Context, p ReceiveParams) ([]int64, error)
	Digests(ctx context.Context, p DigestsParams) ([]DigestsRow, error)
	Position(ctx context.Context, p PositionParams) ([]int64, error)
	Advance(ctx context.Context, p AdvanceParams) error
	PurgeReceipts(ctx context.Context, p PurgeReceiptsParams) (int64, error)
	Counts(ctx context.Context) ([]CountsRow, error)

	Outbox() QueueQueries
	Inbox() QueueQueries
}

// QueueQueries are the queries that outbox and inbox have both.
type QueueQueries interface {
	Fetch(ctx context.Context, p FetchParams) ([]FetchRow, error)
	SettleDone(ctx context.Context, p SettleDoneParams) (SettleRow, error)
	Settle(ctx context.Context, p SettleParams) (SettleRow, error)
	DeadLetters(ctx context.Context, p DeadLettersParams) ([]DeadLettersRow, error)
	Replay(ctx context.Context, p ReplayParams) ([]pgtype.UUID, error)
	Park(ctx context.Context, p ParkParams) error
	Unpark(ctx context.Context, p UnparkParams) (int64, error)
}

// PublishParams are the messages of a call, one array per column.
type PublishParams struct {
	Keys     []string
	IDs      []pgtype.UUID
	Topics   []string
	Payloads [][]byte
	Headers  []string
	Versions []int64
}

// PublishOneParams is one message.
type PublishOneParams struct {
	ID      pgtype.UUID
	Key     string
	Topic   string
	Payload []byte
	Headers string
	Version int64
}

// TryLocksRow says whether a key's lock was granted.
type TryLocksRow struct {
	Key    string
	Locked bool
}

// AcquireParams asks for buckets.
type AcquireParams struct {
	Owner   string
	TTL     time.Duration
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

// ReleaseParams gives buckets back.
type ReleaseParams struct {
	Buckets []int16
	Tokens  []int64
	Crashed []bool
	Scope   int32
	Owner   string
}

// KeepParams lists what a process holds, one element per lease.
type KeepParams struct {
	Owner        string
	TTL          time.Duration
	Scopes       []int32
	LeaseScopes  []int32
	LeaseBuckets []int16
	LeaseTokens  []int64
}

// KeepRow is the answer for one scope.
type KeepRow struct {
	Scope   int32
	Renewed []int16
	Parked  []int64
	Owners  int64
	Buckets int64
	Free    int64
	Expired int64
	Waiting bool
}

// FenceParams names leases of one scope.
type FenceParams struct {
	Buckets []int16
	Tokens  []int64
	Scope   int32
	Owner   string
}

// TakeParams names messages to remove.
type TakeParams struct {
	Lanes     []int64
	Sequences []int64
	Scope     int32
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

// ReceiveParams are incoming messages, one array per column.
type ReceiveParams struct {
	IdempotencyKeys []string
	Digests         [][]byte
	IDs             []pgtype.UUID
	AggregateIDs    []string
	EventTypes      []string
	Payloads        [][]byte
	Headers         []string
	Versions        []int64
	Reasons         []string
	Scope           int32
	Source          int32
}

// DigestsParams names receipts.
type DigestsParams struct {
	Source          int32
	IdempotencyKeys []string
}

// DigestsRow is a receipt.
type DigestsRow struct {
	IdempotencyKey string
	Digest         []byte
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

// PurgeReceiptsParams says which receipts to forget.
type PurgeReceiptsParams struct {
	Source  int32
	Age     time.Duration
	MaxRows int64
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

// FetchParams asks for the next messages, one element per cursor.
type FetchParams struct {
	MaxBytes  int64
	ScanLanes int64
	MaxLanes  int64
	Busy      []int64
	Buckets   []int16
	Tokens    []int64
	Lanes     []int64
	Afters    []int64
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
	ID        pgtype.UUID
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
	Scope     int32
	Buckets   []int16
	Tokens    []int64
	Owner     string
	Lanes     []int64
	Sequences []int64
}

// SettleParams are outcomes and the leases of their buckets.
type SettleParams struct {
	Scope     int32
	Buckets   []int16
	Tokens    []int64
	Owner     string
	Lanes     []int64
	Sequences []int64
	Outcomes  []int16
	Attempts  []int32
	Delays    []time.Duration
	Reasons   []string
	Errors    []string
}

// SettleRow says what a settlement changed.
type SettleRow struct {
	Leased  []int16
	Changed []int64
	Parked  []int64
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
	ID        pgtype.UUID
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

// ReplayParams names dead letters.
type ReplayParams struct {
	Scope int32
	IDs   []pgtype.UUID
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
