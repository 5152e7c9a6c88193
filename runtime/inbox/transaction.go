package inbox

import (
	"context"

	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/outbox"
)

// A Message is one message on its way to a typed handler.
type Message[E any] struct {
	// Event is the decoded payload.
	Event E
	// Raw is the message as it was stored.
	Raw Raw
}

// A PullStore runs handlers of one source inside transactions of type Tx
// (pgx.Tx, *sql.Tx).
type PullStore[Tx any] interface {
	// Handle begins a READ COMMITTED transaction, runs fn in it, removes the
	// message as the transaction's last statement, fenced by owner and token, and
	// commits. When the fence does not hold it rolls back and returns
	// lane.ErrLeaseLost. An error of fn rolls back and is returned as it is.
	Handle(ctx context.Context, owner string, row lane.Row, lease lane.Lease, fn func(ctx context.Context, tx Tx) error) error
}

// A PushStore moves messages from the inbox to the outbox.
type PushStore[Tx any] interface {
	// Move moves the runs of several lanes in one transaction of its own: it
	// tries the locks of the target keys, never waiting for one; locks the
	// buckets; removes the inbox rows, fenced by owner and token; and stores the
	// outbox rows in order. A verdict per run comes back: lane.ErrBusy for a key
	// that is locked, lane.ErrLeaseLost for a lost bucket, otherwise Completed.
	//
	// remap, when not nil, turns each message into the records to store, inside
	// the transaction; nil stores it under its own event type, aggregate id and
	// body. An error of remap stops its run at that message.
	Move(ctx context.Context, owner string, runs []lane.Run, remap Remap[Tx]) ([]lane.Verdict, error)
}

// Remap turns a stored message into the records to publish instead of it.
// Records without a key take the aggregate id as key.
type Remap[Tx any] func(ctx context.Context, tx Tx, m Raw) ([]outbox.Record, error)
