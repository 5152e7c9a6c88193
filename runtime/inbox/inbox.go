package inbox

import (
	"context"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/lane"
)

// Incoming is one message as a source extracted it, before it is stored.
type Incoming struct {
	// IdempotencyKey deduplicates within the source; it must not be empty.
	IdempotencyKey string
	EventType      string
	// AggregateID orders the message; empty means unordered.
	AggregateID string
	// Payload is kept byte for byte.
	Payload []byte
	Headers event.Headers
	// Version is the aggregate's version, or 0.
	Version int64
	// Dead, when it is not empty, says why the message can never be handled. It is
	// stored among the dead letters of its source then, with its receipt.
	Dead string
}

// A Disposition says what storing a message did.
type Disposition uint8

const (
	// Stored: the message is new and is now in the inbox.
	Stored Disposition = iota
	// Duplicate: the same message was stored before; nothing was changed.
	Duplicate
	// Conflict: another body was stored under the same idempotency key; nothing
	// was changed.
	Conflict
	// Buried: the message is new and is now among the dead letters.
	Buried
)

// A SourceRef identifies a source in the database.
type SourceRef struct {
	// Name is the source's name in the schema.
	Name string
	// Number is the stable number of the source itself.
	Number int32
	// Scope is the set of lanes its messages belong to: the source's own in pull
	// mode, the common push scope in push mode.
	Scope lane.Scope
}

// A ReceiveStore stores incoming messages. It is safe for concurrent use.
type ReceiveStore interface {
	// Receive stores messages in order in one transaction of its own, takes the
	// locks of their aggregates before it draws sequence numbers, and returns one
	// disposition per message. Duplicates inside the call are found as well.
	Receive(ctx context.Context, source SourceRef, messages []Incoming) ([]Disposition, error)
	// PurgeReceipts forgets receipts whose message is neither in the inbox nor in
	// the dead letters, in two steps: a receipt older than the retention is first
	// marked as gone, and forgotten by a call that finds the mark older than the
	// retention too. So a receipt lives for one to two retentions after its
	// message (and until the next call), however long the message waited. A call
	// marks or forgets at most max receipts and returns how many; since it does
	// either once to each, repeated calls come to an end.
	PurgeReceipts(ctx context.Context, source SourceRef, retention time.Duration, max int) (int, error)
}

// ReasonRefused is the reason of dead letters that a source could not refuse at
// receipt; their error says why. See Incoming.Dead.
const ReasonRefused = "refused"

// A Position is how far a source has read a log whose broker keeps no position
// for it.
type Position struct {
	// Log names what is read, within the source: a stream or a partition.
	Log string
	// Offset is that of the last message whose fate is recorded.
	Offset int64
}

// A LogStore keeps the positions of sources beside their messages. It is safe
// for concurrent use.
type LogStore interface {
	ReceiveStore
	// ReceiveAt is Receive that also records the position, in the same
	// transaction. A position never goes back: a lower one changes nothing. When a
	// message is in conflict the position stays, since that message's fate is not
	// recorded yet.
	ReceiveAt(ctx context.Context, source SourceRef, messages []Incoming, at Position) ([]Disposition, error)
	// Position returns the offset that ReceiveAt recorded last; ok is false when
	// there is none.
	Position(ctx context.Context, source SourceRef, log string) (offset int64, ok bool, err error)
}

// SourceStats counts what a broker source saw since it was made.
type SourceStats struct {
	// Stored, Duplicates and Buried count messages by what became of them. Buried
	// ones are dead letters: undecodable, not accepted, or another body under a
	// known idempotency key.
	Stored, Duplicates, Buried int64
	// Redelivered counts messages that the broker marked as delivered before.
	Redelivered int64
	// Reordered counts messages of one aggregate that came in another order than
	// their publisher's sequence or version says and were put right; Disordered
	// those where it was too late.
	Reordered, Disordered int64
	// Wandered counts aggregates that came from more than one queue or partition.
	Wandered int64
	// Failures counts calls of the database that failed and were repeated,
	// Reconnects how often the connection to the broker was made again.
	Failures, Reconnects int64
}

// Raw is a stored message without a Go type.
type Raw = event.Message
