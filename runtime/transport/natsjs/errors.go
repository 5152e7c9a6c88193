package natsjs

import (
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/lanebox/lanebox/runtime/event"
)

// Codes of the server's answers that the client has no names for.
const (
	codeAccountResources   jetstream.ErrorCode = 10002
	codeInsufficient       jetstream.ErrorCode = 10023
	codeMemoryResources    jetstream.ErrorCode = 10028
	codeStorageResources   jetstream.ErrorCode = 10047
	codeMessageTooLarge    jetstream.ErrorCode = 10054
	codeWrongStream        jetstream.ErrorCode = 10060
	codeStoreFailed        jetstream.ErrorCode = 10077
	codeHeaderTooLarge     jetstream.ErrorCode = 10097
	codeSealed             jetstream.ErrorCode = 10109
	codeDuplicateInProcess jetstream.ErrorCode = 10158
	codeTooManyRequests    jetstream.ErrorCode = 10167
)

// refused classifies an error with which a publish was refused before anything
// was written.
func refused(err error) error {
	if errors.Is(err, nats.ErrMaxPayload) || errors.Is(err, nats.ErrBadSubject) {
		return event.AsPermanent(err)
	}
	return event.AsUnavailable(err)
}

// failed classifies an error that came instead of an acknowledgement. An answer
// of the server that is an error means that the message was not stored; anything
// else leaves that open.
func failed(stream, subject string, err error) error {
	if err == nil {
		return nil
	}
	var api *jetstream.APIError
	switch {
	case errors.As(err, &api):
		return answered(api)
	case errors.Is(err, jetstream.ErrNoStreamResponse):
		return event.AsUnavailable(fmt.Errorf("no stream takes the subject %q: stream %s is missing, has other subjects or no leader, or JetStream is off", subject, stream))
	}
	return err
}

func answered(err *jetstream.APIError) error {
	switch err.ErrorCode {
	case codeMessageTooLarge, codeHeaderTooLarge:
		return event.AsPermanent(err)
	case codeStoreFailed, codeAccountResources, codeInsufficient, codeMemoryResources, codeStorageResources,
		codeTooManyRequests, codeDuplicateInProcess:
		// The stream or the account is full, or busy.
		return event.AsBackPressure(err, 0)
	case codeWrongStream:
		return event.AsUnavailable(fmt.Errorf("another stream takes this subject: %w", err))
	case codeSealed:
		return event.AsUnavailable(err)
	}
	if err.Code == 429 {
		return event.AsBackPressure(err, 0)
	}
	if err.Code >= 500 {
		return event.AsUnavailable(err)
	}
	return err
}

// unsent says that a message's time was over before its turn came.
func unsent(why error) error {
	return event.AsUnavailable(fmt.Errorf("not sent: %w", why))
}

// A topologyError says that what is on the server cannot keep what the schema
// promises. It unwraps to an *event.ConfigurationError.
type topologyError struct{ err *event.ConfigurationError }

func (e *topologyError) Error() string { return e.err.Reason }
func (e *topologyError) Unwrap() error { return e.err }

// wrongTopology returns a topologyError about a stream or consumer.
func wrongTopology(what, format string, args ...any) error {
	return &topologyError{&event.ConfigurationError{Topic: what, Reason: what + " " + fmt.Sprintf(format, args...)}}
}

// isWrongTopology reports whether err says that the topology is wrong.
func isWrongTopology(err error) bool {
	var wrong *event.ConfigurationError
	return errors.As(err, &wrong)
}
