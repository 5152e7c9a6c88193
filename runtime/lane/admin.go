package lane

import (
	"time"

	"github.com/lanebox/lanebox/runtime/event"
)

// A DeadLetter is a message that was given up on.
type DeadLetter struct {
	Lane    int64
	Message event.Message
	// Attempts is the number of recorded deliveries.
	Attempts      int
	Reason, Error string
	DiedAt        time.Time
}

// Counts is what a scope holds, for people and for commands. Counting reads
// whole tables; metrics must not be made from it.
type Counts struct {
	Scope Scope
	// Kind is "destination", "source" or "push".
	Kind, Name string
	// Waiting counts all messages that are not dead, Retrying those of them that
	// failed and wait for another attempt, Parked the messages and lanes that
	// wait for an operator.
	Waiting, Retrying, Parked, Dead int64
	// Oldest is the age of the oldest waiting message; 0 when there is none.
	Oldest time.Duration
}
