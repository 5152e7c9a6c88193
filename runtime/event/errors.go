package event

import (
	"errors"
	"fmt"
	"time"
)

// A ConfigurationError says that a message cannot be published as asked: its
// key is empty, too long or not valid UTF-8, or its topic has no route. Nothing
// was stored. Trying again with the same arguments fails again.
type ConfigurationError struct {
	Topic  string
	Reason string
}

func (e *ConfigurationError) Error() string {
	return fmt.Sprintf("publish %s: %s", e.Topic, e.Reason)
}

// A ValidationError says that an event's content was refused before it was
// stored. It wraps the reason.
type ValidationError struct {
	Topic string
	Err   error
}

func (e *ValidationError) Error() string { return fmt.Sprintf("publish %s: %v", e.Topic, e.Err) }
func (e *ValidationError) Unwrap() error { return e.Err }

// A RetryableError says that the database gave up a transaction that may
// succeed when it is run again from its beginning: a deadlock, a serialisation
// failure or a lock timeout. The transaction is lost; roll it back.
type RetryableError struct {
	Op  string
	Err error
}

func (e *RetryableError) Error() string {
	return fmt.Sprintf("%s: %v (run the transaction again)", e.Op, e.Err)
}
func (e *RetryableError) Unwrap() error { return e.Err }

// A Class says what a failed delivery means for the message.
type Class uint8

const (
	// Transient failures are tried again after a backoff; each spends an attempt.
	Transient Class = iota
	// Permanent failures send the message to the dead letters at once.
	Permanent
	// BackPressure means "later": the message waits and no attempt is spent.
	BackPressure
	// Unavailable means that the message was certainly not sent: no attempt is
	// spent.
	Unavailable
)

// String returns the class's name as it appears in logs and dead letters.
func (c Class) String() string {
	switch c {
	case Permanent:
		return "permanent"
	case BackPressure:
		return "back-pressure"
	case Unavailable:
		return "unavailable"
	default:
		return "transient"
	}
}

// A DeliveryError is a classified failure of a delivery.
type DeliveryError struct {
	Class Class
	// RetryAfter is how long the receiver asked to wait; 0 means it did not say.
	RetryAfter time.Duration
	Err        error
}

func (e *DeliveryError) Error() string { return e.Err.Error() }
func (e *DeliveryError) Unwrap() error { return e.Err }

// AsPermanent marks err as permanent: the message goes to the dead letters.
func AsPermanent(err error) error { return &DeliveryError{Class: Permanent, Err: err} }

// AsBackPressure marks err as "later". A retryAfter of 0 leaves the wait to the
// retry policy.
func AsBackPressure(err error, retryAfter time.Duration) error {
	return &DeliveryError{Class: BackPressure, RetryAfter: retryAfter, Err: err}
}

// AsUnavailable marks err as "certainly not sent".
func AsUnavailable(err error) error { return &DeliveryError{Class: Unavailable, Err: err} }

// Classify returns the class of err and the wait its sender asked for. An error
// that nobody classified is Transient.
func Classify(err error) (Class, time.Duration) {
	var d *DeliveryError
	if errors.As(err, &d) {
		return d.Class, d.RetryAfter
	}
	return Transient, 0
}
