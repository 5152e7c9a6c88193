package sqlite

import (
	"errors"
	"fmt"
	"strings"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/internal/immediate"
	"github.com/lanebox/lanebox/runtime/internal/sqlqueue"
)

// Classify gives a database error its meaning. A lock that somebody else holds
// becomes *event.RetryableError, a message that lanebox's trigger refused
// becomes *event.ConfigurationError. Anything else is wrapped with op, what the caller was doing; nil stays
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
	if topic, reason, ok := refusal(err); ok {
		return &event.ConfigurationError{Topic: topic, Reason: reason}
	}
	if immediate.Busy(err) {
		return &event.RetryableError{Op: op, Err: err}
	}
	if strings.Contains(err.Error(), "no such table: ") {
		return sqlqueue.Missing(op, err)
	}
	return fmt.Errorf("%s: %w", op, err)
}

// mark opens the message of everything that lanebox's triggers refuse. They
// hand it to SQLite as a path that is no JSON path: RAISE could not name what it
// refuses before SQLite 3.47. SQLite quotes it in its own message.
const mark = "JSON path: 'lanebox: "

// refusal returns the topic and the reason that lanebox's trigger gave, which
// come as "VERB TOPIC: REASON".
func refusal(err error) (topic, reason string, ok bool) {
	_, message, ok := strings.Cut(err.Error(), mark)
	if !ok {
		return "", "", false
	}
	if end := strings.LastIndex(message, "'"); end >= 0 { // behind it is the driver's code
		message = message[:end]
	}
	_, message, _ = strings.Cut(strings.ReplaceAll(message, "''", "'"), " ")
	colon := strings.LastIndex(message, ": ") // reasons have none
	if colon < 0 {
		return "", message, true
	}
	return message[:colon], message[colon+2:], true
}
