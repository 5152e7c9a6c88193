package outbox

import (
	"context"

	"github.com/lanebox/lanebox/runtime/event"
)

// A Destination accepts messages. Implementations are safe for concurrent use;
// two messages of one lane are never sent at the same time.
type Destination interface {
	// Send returns nil only when the message is safe at the other side. An error
	// is classified with event.AsPermanent, AsBackPressure or AsUnavailable;
	// anything else is transient. Send returns soon after ctx ends; the message
	// may or may not have arrived then.
	Send(ctx context.Context, m event.Message) error
}

// A RunDestination takes an unbroken run of consecutive messages of one lane,
// in order, whole or up to a first failure with nothing behind it.
type RunDestination interface {
	Destination
	// SendRun returns how many messages, from the first on, are safe. When that
	// is less than len(run), err says why the next one is not.
	SendRun(ctx context.Context, run []event.Message) (accepted int, err error)
	// MaxRun is the longest run SendRun takes; at least 1.
	MaxRun() int
}

// An Addressed destination names where it sends to, so that two destinations
// that share one address are found at start: one lane must be one destination.
type Addressed interface {
	// Address returns a normalised transport address, such as a URL without
	// credentials. Empty means unknown.
	Address() string
}
