package model

import (
	"slices"
	"time"
)

// Brokers are the types of sources and destinations that are brokers.
var Brokers = []string{"rabbitmq", "kafka", "nats"}

// IsBroker reports whether a type of source or destination is a broker.
func IsBroker(transport string) bool { return slices.Contains(Brokers, transport) }

// A Broker is the broker's side of a source or destination. Which fields count
// depends on its type and direction; the others are zero.
type Broker struct {
	// RabbitMQ destination: where messages are published. ExchangeType is "topic",
	// "direct" or "fanout" for an unordered exchange that lanebox declares, "" for one
	// that exists, and for the exchange of shards, whose type is lanebox's own matter.
	Exchange, ExchangeType string
	// RoutingKey is a template whose placeholders are {key}, {type} and
	// {header:name}; "" is the message's type.
	RoutingKey string
	// DeliveryLimit and DeadLetterExchange are arguments of the queues that lanebox
	// declares, for sources too, MaxPriority and MessageTTL of the one queue of an
	// unordered destination; zero means none.
	DeliveryLimit      int
	DeadLetterExchange string
	MaxPriority        int
	MessageTTL         time.Duration

	// RabbitMQ. Queues are what a source consumes; for a destination the shards, or
	// the one queue of an unordered destination, if lanebox declares it. Ordered also
	// counts for NATS sources, Stream says that the queues are streams.
	Queues          []string
	Ordered, Stream bool
	// Offset is where a source begins in a stream: "first", "last" or a time of RFC
	// 3339. Prefetch bounds its unacknowledged messages per queue.
	Offset   string
	Prefetch int
	// Declare says that a RabbitMQ source declares missing queues, and that a NATS
	// destination creates a missing stream.
	Declare bool

	// Kafka. A destination has one topic.
	Topics []string
	Group  string
	// Start is where a Kafka or NATS source begins that is new: "first" or "last".
	Start string

	// NATS. Subject is a destination's template, with the placeholders of RoutingKey;
	// Subjects are a source's filters, none meaning the whole stream.
	JetStream  string
	Subject    string
	Subjects   []string
	Durable    string
	Duplicates time.Duration
}
