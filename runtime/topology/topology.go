// Package topology holds what a schema says about the broker's side of a flow:
// names, shards, routing, and where a message's identity is found. Generated
// code fills it in, transports read it, and it needs no client library.
package topology

import "time"

// Extract says where a source finds what identifies a message; the first rule
// that finds something wins. A rule is a path ("$.eventId") or a header
// ("header:x-event-id"). Without rules, and where rules find nothing, the
// CloudEvents attributes of the message count, then the headers
// x-idempotency-key, x-event-type and x-aggregate-id.
type Extract struct {
	// IdempotencyKey may be composite: all rules of an inner list are joined.
	IdempotencyKey [][]string
	EventType      []string
	AggregateID    []string
	// AggregateIDMissing is "reject" or "unordered"; "" means unordered unless
	// AggregateID has rules.
	AggregateIDMissing string
}

// RabbitMQDestination is a destination of type rabbitmq.
type RabbitMQDestination struct {
	// Name is the destination's name in the schema.
	Name string
	// Exchange is where messages are published. ExchangeType is the type of an
	// unordered one that lanebox declares: "topic", "direct" or "fanout"; "" means
	// that it exists already and is only checked.
	Exchange, ExchangeType string
	// Queue is the one queue that lanebox declares for an unordered destination and
	// binds to everything; "" if queues are somebody else's.
	Queue string
	// Ordered says that keys are spread over Shards, queues with a single active
	// consumer each, whose names ShardQueues lists.
	Ordered     bool
	ShardQueues []string
	// Stream says that the shards are streams instead of quorum queues.
	Stream bool
	// RoutingKey is a template such as "{header:tenant}.order.{key}.{type}"; "" means
	// the message's type. It never decides the shard.
	RoutingKey string
	// DeliveryLimit is after how many returns a shard's message goes to
	// DeadLetterExchange; 0 and "" mean the broker's default and none.
	DeliveryLimit      int
	DeadLetterExchange string
	// MaxPriority and MessageTTL are arguments of Queue, 0 meaning none; ordered
	// destinations have neither. A queue with priorities is no quorum queue.
	MaxPriority int
	MessageTTL  time.Duration
}

// RabbitMQSource is a source of type rabbitmq.
type RabbitMQSource struct {
	Name string
	// Queues are consumed side by side: one queue, or the shards of a destination.
	Queues []string
	// Ordered says that each queue must have a single active consumer.
	Ordered bool
	// Declare says that lanebox declares queues that do not exist; existing ones are
	// checked in any case.
	Declare bool
	// Stream says that the queues are streams. Offset is where a new one begins:
	// "first", "last" or a time of RFC 3339.
	Stream bool
	Offset string
	// DeliveryLimit and DeadLetterExchange are those of a queue that is declared; see
	// RabbitMQDestination.
	DeliveryLimit      int
	DeadLetterExchange string
	// Prefetch bounds the unacknowledged messages of a queue, and so the messages
	// of one transaction; 0 means 256.
	Prefetch int
	Extract  Extract
}

// KafkaDestination is a destination of type kafka.
type KafkaDestination struct {
	Name, Topic string
}

// KafkaSource is a source of type kafka.
type KafkaSource struct {
	Name   string
	Topics []string
	// Group is the consumer group.
	Group string
	// Start is where a new group begins: "first" or "last".
	Start   string
	Extract Extract
}

// NATSDestination is a destination of type nats: a JetStream stream.
type NATSDestination struct {
	Name, Stream string
	// Subject is a template such as "orders.{key}.{type}".
	Subject string
	// Declare says that lanebox creates the stream when it does not exist.
	Declare bool
	// Duplicates is the window in which the server drops repeated message ids; 0
	// means the stream's own.
	Duplicates time.Duration
}

// NATSSource is a source of type nats: a durable consumer of a stream.
type NATSSource struct {
	Name, Stream string
	// Subjects filter the stream; none means all of it.
	Subjects []string
	// Durable is the consumer's name.
	Durable string
	// Ordered says that one puller at a time takes the consumer's messages.
	Ordered bool
	// Start is where a new consumer begins: "first" or "last".
	Start   string
	Extract Extract
}
