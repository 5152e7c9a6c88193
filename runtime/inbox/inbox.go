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

// Raw is a stored message without a Go type.
type Raw = event.Message
