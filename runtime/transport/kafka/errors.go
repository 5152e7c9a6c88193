package kafka

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lanebox/lanebox/runtime/event"
)

// ErrClosed is returned by Send after Close. Nothing was sent.
var ErrClosed = errors.New("the destination is closed")

var (
	errUnanswered = errors.New("no answer in time; the message may have been taken")
	errWithdrawn  = errors.New("it could not be written in time and was withdrawn")
	errUnwritten  = errors.New("no broker to write to; it may be written later")
	errBlocked    = errors.New("the partition has not answered what was sent before")
	errFull       = errors.New("too many records wait for an answer")
)

// blames reports whether a broker's error is about a record itself. The client
// answers with it for every record that was buffered in the same partition, so it
// condemns a record only when that was sent alone.
func blames(err error) bool {
	for _, e := range []error{kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord, kerr.InvalidTimestamp} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// isTooLarge reports whether a broker found a batch too large.
func isTooLarge(err error) bool {
	return errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.RecordListTooLarge)
}

// isFatal reports whether a client that answers err may never send again.
func isFatal(err error) bool {
	for _, e := range []error{
		kgo.ErrClientClosed, kerr.InvalidProducerEpoch, kerr.OutOfOrderSequenceNumber, kerr.UnknownProducerID,
		kerr.InvalidProducerIDMapping, kerr.ProducerFenced, kerr.UnknownTopicID,
		kerr.ClusterAuthorizationFailed, kerr.TopicAuthorizationFailed, kerr.SaslAuthenticationFailed,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// hints are what an operator can do about an error that no message is to blame
// for. They cost no attempt: the broker took nothing.
var hints = []struct {
	err  error
	text string
}{
	{kerr.UnknownTopicOrPartition, "the topic does not exist: create it"},
	{kerr.UnknownTopicID, "the topic was deleted: create it"},
	{kerr.TopicAuthorizationFailed, "the user may not write to the topic: grant WRITE"},
	{kerr.ClusterAuthorizationFailed, "the user may not write with an idempotent producer: grant IDEMPOTENT_WRITE"},
	{kerr.SaslAuthenticationFailed, "the broker refuses the credentials"},
	{kerr.UnsupportedSaslMechanism, "the broker does not know the SASL mechanism"},
	{kerr.InvalidTopicException, "the broker refuses the topic"},
	{kerr.NotEnoughReplicas, "the topic has fewer in-sync replicas than min.insync.replicas"},
}

// classify marks an error that is not the record's own fault.
func classify(err error) error {
	for _, h := range hints {
		if errors.Is(err, h.err) {
			return event.AsUnavailable(fmt.Errorf("%s (%w)", h.text, err))
		}
	}
	switch {
	case errors.Is(err, kerr.ThrottlingQuotaExceeded), errors.Is(err, errFull), errors.Is(err, kgo.ErrMaxBuffered):
		return event.AsBackPressure(err, 0)
	case errors.Is(err, errBlocked), errors.Is(err, errUnwritten):
		return event.AsUnavailable(err)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return event.AsUnavailable(errWithdrawn) // the client gives up only what no broker has taken
	case isOfConnection(err):
		return event.AsUnavailable(fmt.Errorf("%w: %w", errWithdrawn, err)) // for the same reason
	}
	return err
}

// isOfConnection reports whether an error is that of a connection, with which the
// client also answers for records that it gives up while there is no broker.
func isOfConnection(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) || kgo.IsRetryableBrokerErr(err)
}

// aware adds to the error of something that was not sent what is known about the
// connection.
func (p *producer) aware(err error) error {
	class, _ := event.Classify(err)
	if class != event.Unavailable {
		return err
	}
	p.conn.Lock()
	defer p.conn.Unlock()
	if wait := time.Until(p.throttled); wait > 0 {
		return event.AsBackPressure(fmt.Errorf("%w; the broker throttles this client", err), wait)
	}
	if p.dialError != nil {
		return event.AsUnavailable(fmt.Errorf("%w; no connection: %w", err, p.dialError))
	}
	return err
}
