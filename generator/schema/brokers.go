package schema

import (
	"slices"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/lanebox/lanebox/generator/model"
)

// A Broker is the part of a source or destination that only brokers have. Loading
// reads every key; which of them a type has is in BrokerKeys.
type Broker struct {
	// Written are the keys, in snake_case, where they stand.
	Written []Text

	Broker             Text
	Exchange           Text
	ExchangeType       Text
	Queue              Text
	Queues             []Text
	Ordered            Value[bool]
	Shards             Value[int64]
	ShardQueue         Text
	Stream             Stream
	RoutingKey         Text
	DeliveryLimit      Value[int64]
	DeadLetterExchange Text
	MaxPriority        Value[int64]
	MessageTTL         Value[time.Duration]
	Offset             Text
	Prefetch           Value[int64]
	Declare            Value[bool]
	Topic              Text
	Topics             []Text
	Group              Text
	Start              Text
	Subject            Text
	Subjects           []Text
	Durable            Text
	Duplicates         Value[time.Duration]
}

// Key returns where a key stands; its Set is false if it is not written.
func (b *Broker) Key(name string) Text {
	for _, k := range b.Written {
		if k.V == name {
			return k
		}
	}
	return Text{}
}

// A Stream is the name of a stream of NATS, or says whether queues of RabbitMQ
// are streams.
type Stream struct {
	Name Text
	On   Value[bool]
}

// stream reads a Stream.
var stream = reader[Stream]{
	read: func(l *loader, n *yaml.Node, what string, v *Stream) {
		if n.Kind == yaml.ScalarNode && n.Tag == "!!bool" {
			yes.read(l, n, what, &v.On)
			return
		}
		name.read(l, n, what, &v.Name)
	},
	json: func() object { return object{"anyOf": []any{yes.json(), name.json()}} },
}

// A brokerKey is a key that only brokers have.
type brokerKey struct {
	property[Broker]
	// destinations and sources are the types that have the key.
	destinations, sources string
}

// brokerKeys are the keys of all brokers, in the order in which messages list
// them.
var brokerKeys = []brokerKey{
	{prop("topic", "The topic.", name, func(b *Broker) *Text { return &b.Topic }), "kafka", "kafka"},
	{prop("topics", "The topics.", oneOrMore, func(b *Broker) *[]Text { return &b.Topics }), "", "kafka"},
	{prop("group", "The consumer group.", name, func(b *Broker) *Text { return &b.Group }), "", "kafka"},
	{prop("exchange", "The exchange; default the destination's name and .x. Without exchange_type it must exist, unless the destination is ordered.", name, func(b *Broker) *Text { return &b.Exchange }), "rabbitmq", ""},
	{prop("exchange_type", "Has an unordered exchange declared: topic, direct or fanout.", words("topic", "direct", "fanout"), func(b *Broker) *Text { return &b.ExchangeType }), "rabbitmq", ""},
	{prop("queue", "The queue.", name, func(b *Broker) *Text { return &b.Queue }), "rabbitmq", "rabbitmq"},
	{prop("queues", "The queues.", oneOrMore, func(b *Broker) *[]Text { return &b.Queues }), "", "rabbitmq"},
	{prop("ordered", "Whether each key's order is kept: one active consumer per queue. Sources: default true.", yes, func(b *Broker) *Value[bool] { return &b.Ordered }), "rabbitmq", "rabbitmq nats"},
	{prop("shards", "The number of queues over which keys are spread.", number, func(b *Broker) *Value[int64] { return &b.Shards }), "rabbitmq", "rabbitmq"},
	{prop("shard_queue", "The names of the shards, with a place for their number; a destination's default is its name and .shard.%02d.q.", name, func(b *Broker) *Text { return &b.ShardQueue }), "rabbitmq", "rabbitmq"},
	{prop("stream", "RabbitMQ: whether the queues are streams; NATS: the name of the stream.", stream, func(b *Broker) *Stream { return &b.Stream }), "rabbitmq nats", "rabbitmq nats"},
	{prop("routing_key", "The routing key, with {key}, {type} and {header:name}; default {type}.", name, func(b *Broker) *Text { return &b.RoutingKey }), "rabbitmq", ""},
	{prop("delivery_limit", "After how many returns a message goes to dead_letter_exchange.", number, func(b *Broker) *Value[int64] { return &b.DeliveryLimit }), "rabbitmq", "rabbitmq"},
	{prop("dead_letter_exchange", "Where declared queues send what they give up.", name, func(b *Broker) *Text { return &b.DeadLetterExchange }), "rabbitmq", "rabbitmq"},
	{prop("max_priority", "The priorities of a declared queue; not for events with a key.", number, func(b *Broker) *Value[int64] { return &b.MaxPriority }), "rabbitmq", ""},
	{prop("message_ttl", "How long a declared queue keeps a message; not for events with a key.", duration, func(b *Broker) *Value[time.Duration] { return &b.MessageTTL }), "rabbitmq", ""},
	{prop("offset", "Where a stream is read from at first: first (default), last, or a time of RFC 3339.", prose, func(b *Broker) *Text { return &b.Offset }), "", "rabbitmq"},
	{prop("prefetch", "Unacknowledged messages per queue, and messages per transaction; default 256.", number, func(b *Broker) *Value[int64] { return &b.Prefetch }), "", "rabbitmq"},
	{prop("subject", "The subject: a destination's template with {key}, {type} and {header:name} (default the destination's name and .{type}), a source's filter.", name, func(b *Broker) *Text { return &b.Subject }), "nats", "nats"},
	{prop("subjects", "The filters of a source; default the whole stream.", oneOrMore, func(b *Broker) *[]Text { return &b.Subjects }), "", "nats"},
	{prop("durable", "The name of the durable consumer.", name, func(b *Broker) *Text { return &b.Durable }), "", "nats"},
	{prop("duplicates", "The window in which the server drops repeated message ids; default the stream's.", duration, func(b *Broker) *Value[time.Duration] { return &b.Duplicates }), "nats", ""},
	{prop("declare", "Whether missing queues (RabbitMQ source) or the missing stream (NATS destination) are created; default true.", yes, func(b *Broker) *Value[bool] { return &b.Declare }), "nats", "rabbitmq"},
	{prop("broker", "A name for the broker, where the schema speaks of several: what has one name there is not the same.", name, func(b *Broker) *Text { return &b.Broker }), "rabbitmq kafka nats", "rabbitmq kafka nats"},
	{prop("start", "Where a new consumer begins: first (default) or last.", words("first", "last"), func(b *Broker) *Text { return &b.Start }), "", "kafka nats"},
}

// BrokerKeys returns the keys that a "source" or "destination" of a type has.
func BrokerKeys(kind, transport string) []string {
	var names []string
	for _, k := range brokerKeys {
		if slices.Contains(k.types(kind), transport) {
			names = append(names, k.name)
		}
	}
	return names
}

// types are the types of sources or destinations that have the key.
func (k brokerKey) types(kind string) []string {
	if kind == "source" {
		return strings.Fields(k.sources)
	}
	return strings.Fields(k.destinations)
}

// brokerProperties are the keys of brokers inside a source or destination. All
// are read, so that a check can say what a type has instead.
func brokerProperties[T any](kind string, member func(*T) *Broker) []property[T] {
	var list []property[T]
	for _, k := range brokerKeys {
		types := k.types(kind)
		list = append(list, property[T]{
			name: k.name, doc: k.doc, json: k.json, reserved: len(types) == 0, types: types,
			read: func(l *loader, key, value *yaml.Node, what string, t *T) {
				b := member(t)
				b.Written = append(b.Written, Text{Mark: l.mark(key), V: k.name, Set: true})
				k.read(l, key, value, what, b)
			},
		})
	}
	return list
}

// typeOf returns what a mapping says its type is.
func typeOf(n *yaml.Node) string {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == "type" && n.Content[i+1].Kind == yaml.ScalarNode {
			return n.Content[i+1].Value
		}
	}
	return ""
}

// transports are the types of sources and destinations.
var transports = words(append([]string{"http", "handler"}, model.Brokers...)...)

const lanesRetry = "lanebox retries by itself and in order: see retry"

// explainedFlow are keys that people expect in sources and destinations.
func explainedFlow(more map[string]string) map[string]string {
	explained := map[string]string{
		"retry_queue": lanesRetry, "retry_exchange": lanesRetry, "retryQueue": lanesRetry, "retryExchange": lanesRetry,
	}
	for _, k := range []string{"url", "secret", "token", "host", "port", "vhost", "user", "username", "password",
		"credentials", "tls", "brokers", "servers", "bootstrap_servers", "bootstrapServers", "seeds"} {
		explained[k] = serviceCode
	}
	for k, why := range more {
		explained[k] = why
	}
	return explained
}
