// Package event holds the words that every part of lanebox shares: messages,
// identifiers, ordering keys and the classes of errors. It performs no I/O.
package event

import (
	"time"
)

// A Message is one committed message as a destination or a handler sees it.
// Its fields must not be changed by the receiver; Payload and Headers may be
// shared with later attempts.
type Message struct {
	// ID identifies the message. Repeated deliveries, and all copies of a
	// message that is routed to several destinations, carry the same ID.
	ID UUID
	// Sequence rises within a lane in commit order. It is not dense, and it
	// says nothing about messages of other lanes.
	Sequence int64
	// Topic is the event type, such as "order.placed.v1".
	Topic string
	// Key is the ordering key (in the inbox: the aggregate id). Empty means
	// that the message takes part in no ordering.
	Key string
	// Payload is the body, byte for byte as it was stored.
	Payload []byte
	// Headers travel with the message; nil means none.
	Headers Headers
	// Version is the aggregate's version, or 0 when the key declares none.
	Version int64
	// CreatedAt is the database's time at which the message was stored.
	CreatedAt time.Time
	// Source names the source an inbox message came from; empty in the outbox.
	Source string
	// IdempotencyKey is the key an inbox message was deduplicated by; empty in
	// the outbox.
	IdempotencyKey string
	// Attempt is 1 for the first recorded delivery.
	Attempt int
}

// Headers are a message's string headers, for example trace context.
type Headers map[string]string

// Names of the headers that lanebox itself reads and writes.
const (
	HeaderTraceParent   = "traceparent"
	HeaderTraceState    = "tracestate"
	HeaderCorrelationID = "correlationid"
	HeaderCausationID   = "causationid"
	// HeaderAggregateType carries the aggregate that the event's key declares.
	HeaderAggregateType = "aggregatetype"
	// HeaderContentType is the media type of the payload; absent means
	// application/json.
	HeaderContentType = "content-type"
	// HeaderRedelivered is "true", and HeaderDeliveryCount a number, on a message
	// whose broker says that it was delivered before it was stored. They speak of
	// that delivery alone and are not sent on.
	HeaderRedelivered   = "redelivered"
	HeaderDeliveryCount = "delivery-count"
)
