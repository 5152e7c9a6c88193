package sqlite

import (
	"errors"
	"fmt"
	"strings"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/internal/immediate"
)

// Classify gives a database error its meaning. A lock that somebody else holds
// becomes *event.RetryableError, a message that lanebox's trigger refused
// becomes *event.ConfigurationError (without a topic: only the caller knows
// it). Anything else is wrapped with op, what the caller was doing; nil stays
// nil, and an error that already has a meaning stays as it is.
func Classify(op string, err error) error {
	if err == nil {
		return nil
	}
	var configuration *event.ConfigurationError
	var retryable *event.RetryableError
	if errors.As(err, &configuration) || errors.As(err, &retryable) {
		return err
	}
	if reason, ok := refusal(err); ok {
		return &event.ConfigurationError{Reason: reason}
	}
	if immediate.Busy(err) {
		return &event.RetryableError{Op: op, Err: err}
	}
	return fmt.Errorf("%s: %w", op, err)
}

const (
	// codeTrigger is SQLITE_CONSTRAINT_TRIGGER, the code of RAISE(ABORT, …).
	codeTrigger = 1811
	// mark opens the message of everything that lanebox's triggers refuse.
	mark = "lanebox: "
)

// refusal returns the reason that lanebox's trigger gave. The driver puts its
// own words before the message and the code behind it.
func refusal(err error) (string, bool) {
	var coded interface {
		error
		Code() int
	}
	if !errors.As(err, &coded) || coded.Code() != codeTrigger {
		return "", false
	}
	_, reason, ok := strings.Cut(coded.Error(), mark)
	return strings.TrimSuffix(reason, fmt.Sprintf(" (%d)", codeTrigger)), ok
}
