package inbox

import (
	"errors"
	"fmt"
)

// Reasons why a message is refused at receipt; see RefusedError.
var (
	// ErrUnroutable: the event type has no route (push) or is none of the types
	// that the source declares (pull).
	ErrUnroutable = errors.New("the event type is not accepted")
	// ErrAggregateMissing: the source wants an aggregate id and there is none.
	ErrAggregateMissing = errors.New("the aggregate id is missing")
	// ErrBadKey: the idempotency key, event type or aggregate id cannot be
	// stored: empty, too long, or not valid UTF-8.
	ErrBadKey = errors.New("a key cannot be stored")
	// ErrBadHeader: a header's name or value is not valid UTF-8 text.
	ErrBadHeader = errors.New("a header cannot be stored")
	// ErrOversize: the body is larger than the receiver takes.
	ErrOversize = errors.New("the body is too large")
)

// A RefusedError says that a message can never be received as it is. Nothing of
// the call was stored. It wraps one of the reasons above.
type RefusedError struct {
	// Index is the message's position in the call.
	Index             int
	Source, EventType string
	// Err is one of the reasons above, wrapped with what is wrong.
	Err error
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("source %s refuses %q: %v", e.Source, e.EventType, e.Err)
}
func (e *RefusedError) Unwrap() error { return e.Err }

// Errors with which a handler that keeps its own version or state says what it
// found. A handler may wrap them. Its transaction is rolled back in every case.
var (
	// ErrDuplicate: this very message was applied before. It is completed.
	ErrDuplicate = errors.New("duplicate: the message was applied before")
	// ErrStale: the state is newer than the message. It is completed.
	ErrStale = errors.New("stale: the state is newer than the message")
	// ErrGap: a message before this one is missing. The lane waits, and no
	// attempt is spent.
	ErrGap = errors.New("gap: an earlier message is missing")
	// ErrConflict: the message contradicts the state. It goes to the dead
	// letters, as an error of event.AsPermanent does.
	ErrConflict = errors.New("conflict: the message contradicts the state")
)

// A GapError is an ErrGap that names the versions.
type GapError struct{ Expected, Got int64 }

func (e *GapError) Error() string {
	return fmt.Sprintf("gap: expected version %d, got %d", e.Expected, e.Got)
}

// Is makes errors.Is(e, ErrGap) true.
func (e *GapError) Is(target error) bool { return target == ErrGap }

// ErrGone says that a message is no longer in the inbox: an operator removed or
// moved it after it was fetched. A handler's transaction is rolled back with it.
var ErrGone = errors.New("the message is no longer in the inbox")
