// Package lane is the seam between the loops that deliver messages and the
// databases that keep them.
//
// A lane is the messages that are ordered among themselves. Its number is a
// 64-bit hash of the ordering key, computed by the database; two keys with the
// same number share a lane, which is harmless. A scope is one set of lanes that
// is leased and claimed on its own: an outbox destination, a pull source, or
// all push sources together.
//
// Replicas lease buckets of lanes, not lanes and not rows. A lease carries the
// owner's name and a fencing token, and every statement that changes something
// checks both, so that an owner whose bucket was taken over changes nothing.
// Expiry is decided by the database's clock alone: durations cross this seam,
// deadlines never do.
package lane

import (
	"context"
	"errors"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
)

// ErrLeaseLost says that a bucket is no longer leased by the caller under the
// token it named. Nothing was changed.
var ErrLeaseLost = errors.New("lease lost: another owner has the bucket")

// ErrBusy says that a run could not be moved now because another transaction
// holds the lock of its key. Nothing was changed and no attempt is spent.
var ErrBusy = errors.New("the key is locked by another transaction")

// A Scope is the stable number of a destination, a pull source, or of all push
// sources together. The generator derives it from the name.
type Scope int32

// A Bucket is one share of a scope's lanes.
type Bucket int16

// A Lease is the right to deliver and settle the lanes of one bucket.
type Lease struct {
	Bucket Bucket
	// Token rises by one with every change of owner.
	Token int64
	// Lo and Hi are the bucket's first and last lane. Lo is the unordered lane:
	// its messages have no key and are independent of each other.
	Lo, Hi int64
	// Crashed says that the former owner did not give the bucket back: the
	// messages it had in flight are suspects (see schedule.Machine).
	Crashed bool
}

// A Cursor says where to go on in one bucket.
type Cursor struct {
	Lease Lease
	// Lane is the first lane to look at.
	Lane int64
	// After skips the unordered lane's messages up to this sequence.
	After int64
}

// A Row is one waiting message together with what is recorded about it.
type Row struct {
	Bucket Bucket
	Lane   int64
	// Attempts is the number of recorded deliveries so far.
	Attempts int
	// Held says that the row has a hold row, which Done and Dead remove.
	Held bool
	// DueIn is above zero for a message of the unordered lane that waits for a
	// retry or is parked: it is listed so that the cursor can pass it, without
	// payload, and must not be delivered. Keyed lanes that wait are not listed.
	DueIn   time.Duration
	Message event.Message
}

// Unordered reports whether the row belongs to the unordered lane of l.
func (r *Row) Unordered(l Lease) bool { return r.Lane == l.Lo }

// FetchParams asks for the next runs of the leased buckets.
type FetchParams struct {
	Owner string
	// Cursors are served in this order; a full page leaves the last ones out.
	Cursors []Cursor
	// Busy are keyed lanes to step over because their messages are in memory.
	Busy []int64
	// MaxLanes is the number of lanes returned per bucket, MaxRun the number of
	// consecutive messages returned per keyed lane, MaxRows the size of the page,
	// ScanLanes the number of lanes looked at per bucket. All must be positive.
	MaxLanes, MaxRun, MaxRows, ScanLanes int
}

// A Page is the answer to a fetch: rows in cursor order, then lane order, then
// sequence order.
type Page struct {
	Rows []Row
	// Next holds the cursor to go on with for each bucket that was served, in
	// the order of the request; a bucket that gave nothing because its lease is
	// lost or expired is missing.
	Next []Cursor
	// Wrapped lists the buckets that were seen to their end: their next cursor
	// is at Lo again.
	Wrapped []Bucket
	// Full says that MaxRows cut the page short: fetch again at once.
	Full bool
}

// An Outcome is what became of one message.
type Outcome uint8

const (
	// Done removes the message: it was delivered.
	Done Outcome = iota
	// Retry holds the message's lane (or, without a key, the message alone) for
	// Delay and records Attempts.
	Retry
	// Dead moves the message to the dead letters and frees its lane.
	Dead
	// Park leaves the message at the head of its lane until an operator decides.
	Park
	// Start records Attempts before a suspect is delivered; the lane is due at
	// once. If the process dies, the record remains.
	Start
)

// A Settlement is the outcome of one message of a leased bucket.
type Settlement struct {
	Bucket   Bucket
	Lane     int64
	Sequence int64
	Outcome  Outcome
	// Attempts is the number of recorded deliveries including this one.
	Attempts int
	// Delay is how long Retry holds the lane.
	Delay time.Duration
	// Held says that the row has a hold row to remove.
	Held bool
	// Reason is the class of the failure ("permanent", "attempts exhausted",
	// …), Error the last error; both only with Retry, Dead, Park and Start.
	Reason, Error string
}

// A Ref names one message of a scope.
type Ref struct {
	Lane     int64
	Sequence int64
}

// A SettleResult says what a settlement changed.
type SettleResult struct {
	// Fenced are the buckets that are no longer the caller's: of them nothing
	// was changed.
	Fenced []Bucket
	// Gone are messages of buckets that passed the fence, which were not there
	// any more: an operator removed or moved them.
	Gone []Ref
	// Parked are lanes of the buckets that an operator parked.
	Parked []int64
}

// AcquireParams asks for buckets.
type AcquireParams struct {
	Owner string
	// MaxFree limits how many buckets are taken that were given back or never
	// owned. Buckets whose lease expired without being given back are taken all.
	MaxFree int
	TTL     time.Duration
}

// A Store is one scope of a database, for one delivering loop. It is safe for
// concurrent use. Its methods return database errors wrapped; a canceled
// context leaves nothing half done.
type Store interface {
	// Acquire leases buckets. It never waits for another replica. Rows must be
	// fetched by a later call, never in the same statement.
	Acquire(ctx context.Context, p AcquireParams) ([]Lease, error)
	// Release gives buckets back at once; nothing of them may be in flight. A
	// lease with Crashed set leaves its bucket marked as crashed for the next
	// owner. Buckets that are no longer the owner's are left alone.
	Release(ctx context.Context, owner string, leases []Lease) error
	// Fetch reads the next messages of the owner's buckets; it writes nothing.
	// Buckets whose lease is lost or expired give nothing.
	Fetch(ctx context.Context, p FetchParams) (Page, error)
	// Settle records outcomes in one transaction, fenced by owner and token.
	// leases must hold the lease of every bucket that occurs.
	Settle(ctx context.Context, owner string, leases []Lease, s []Settlement) (SettleResult, error)
}

// KeepParams lists everything that a process holds.
type KeepParams struct {
	Owner  string
	TTL    time.Duration
	Scopes []ScopeLeases
}

// ScopeLeases are the leases a process holds in one scope.
type ScopeLeases struct {
	Scope  Scope
	Leases []Lease
}

// Kept is the answer for one scope.
type Kept struct {
	Scope Scope
	// Renewed are the buckets whose lease was extended; a bucket that is missing
	// is lost.
	Renewed []Bucket
	// Parked are lanes of those buckets that an operator parked.
	Parked []int64
	// Owners is the number of live processes that serve the scope, this one
	// included; Buckets the number of buckets of the scope.
	Owners, Buckets int
	// Free is the number of buckets that were given back or never owned, Expired
	// the number whose owner let the lease expire.
	Free, Expired int
	// Waiting says that at least one message waits in the scope.
	Waiting bool
}

// A Keeper keeps a process alive in the database: one call renews every lease,
// records a heartbeat for every scope and looks for waiting messages.
type Keeper interface {
	// Keep does all of that in one round trip. A process counts as live in a
	// scope while its last heartbeat is younger than TTL.
	Keep(ctx context.Context, p KeepParams) ([]Kept, error)
	// Leave removes the process's heartbeats, so that its peers take their fair
	// share at once.
	Leave(ctx context.Context, owner string) error
}

// A Waker tells a process that messages may be waiting. Waking too often is
// harmless; the polling floor works without it.
type Waker interface {
	// Listen calls wake whenever another process announced messages, and once
	// after every reconnection. It returns when ctx ends.
	Listen(ctx context.Context, wake func()) error
	// Announce tells the other processes.
	Announce(ctx context.Context) error
}
