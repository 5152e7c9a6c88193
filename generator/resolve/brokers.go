package resolve

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/lanebox/lanebox/generator/diag"
	"github.com/lanebox/lanebox/generator/model"
	"github.com/lanebox/lanebox/generator/schema"
)

const (
	maxShards        = 1000   // of a flow
	maxAllShards     = 20_000 // of a schema
	maxDeliveryLimit = 1_000_000
	maxPriority      = 255
	maxPrefetch      = 65_535 // a 16-bit number in AMQP
	defaultPrefetch  = 256
	maxAMQPName      = 255
	maxBrokerName    = 200 // of a group, a stream or a consumer
	maxTemplate      = 255 // of a subject or routing key
	// minDuplicates is the shortest window that a NATS server takes.
	minDuplicates = 100 * time.Millisecond
)

// brokerFlow checks the keys of brokers in a source or destination.
func (r *resolver) brokerFlow(kind string, t schema.Text, b *schema.Broker, what string) {
	keys := schema.BrokerKeys(kind, t.V)
	for _, k := range b.Written {
		if slices.Contains(keys, k.V) {
			continue
		}
		keys := slices.DeleteFunc(slices.Clone(keys), func(key string) bool { return key == "broker" })
		hint := "remove it"
		if model.IsBroker(t.V) {
			hint = diag.OneOf(k.V, keys)
		}
		r.report(k.Mark, "unknown-key", hint, "%s is of type %s and has no %q", what, t.V, k.V)
	}
}

// brokerDestination resolves the broker's side of a destination; nil for one of
// another type.
func (r *resolver) brokerDestination(d *schema.Destination, what string) *model.Broker {
	b := new(model.Broker)
	r.brokerLabel(d.Broker.Broker, what)
	switch d.Type.V {
	case "rabbitmq":
		r.rabbitDestination(d, b, what)
	case "kafka":
		r.kafkaDestination(d, b, what)
	case "nats":
		r.natsDestination(d, b, what)
	default:
		return nil
	}
	return b
}

// brokerSource resolves the broker's side of a source; nil for one of another
// type.
func (r *resolver) brokerSource(s *schema.Source, what string) *model.Broker {
	b := new(model.Broker)
	r.brokerLabel(s.Broker.Broker, what)
	switch s.Type.V {
	case "rabbitmq":
		r.rabbitSource(s, b, what)
	case "kafka":
		r.kafkaSource(s, b, what)
	case "nats":
		r.natsSource(s, b, what)
	default:
		return nil
	}
	return b
}

// brokerLabel checks the name that a schema gives to a broker.
func (r *resolver) brokerLabel(t schema.Text, what string) {
	if problem := nameProblem(t.V); t.Set && problem != "" {
		r.report(t.Mark, "name", "", "%s: broker %q %s", what, t.V, problem)
	}
}

// missing reports a key that is not written; it says nothing when the file could
// not be read in full.
func (r *resolver) missing(at schema.Mark, key, hint, what string) {
	if !r.file.Faulty {
		r.report(at, "missing-key", hint, "%s has no %q", what, key)
	}
}

// useless reports those of the keys that are written.
func (r *resolver) useless(b *schema.Broker, hint, why, what string, keys ...string) {
	for _, key := range keys {
		if k := b.Key(key); k.Set {
			r.report(k.Mark, "no-effect", hint, "%s: %s %s", what, key, why)
		}
	}
}

// rabbitDestination resolves a destination of type rabbitmq.
func (r *resolver) rabbitDestination(d *schema.Destination, b *model.Broker, what string) {
	s := &d.Broker
	b.Ordered, b.Stream = s.Ordered.V, s.Stream.On.V
	b.Exchange = cmp.Or(s.Exchange.V, d.Name.V+".x")
	b.ExchangeType = s.ExchangeType.V
	b.RoutingKey = r.template(s.RoutingKey, what+": routing_key")
	r.streamSwitch(s, what)
	r.word(s.ExchangeType, what+": exchange_type", "topic", "direct", "fanout")
	r.queueArguments(s, b, what)
	if b.Ordered {
		r.orderedDestination(d, b, what)
	} else {
		r.unorderedDestination(d, b, what)
	}
	r.amqpName(s.Exchange, b.Ordered || b.ExchangeType != "", what+": exchange")
	r.amqpName(s.DeadLetterExchange, false, what+": dead_letter_exchange")
}

// queueArguments resolves the arguments of the queues that are declared.
func (r *resolver) queueArguments(s *schema.Broker, b *model.Broker, what string) {
	b.DeadLetterExchange = s.DeadLetterExchange.V
	b.DeliveryLimit = int(r.count(s.DeliveryLimit, 0, maxDeliveryLimit, what+": delivery_limit"))
	b.MaxPriority = int(r.count(s.MaxPriority, 0, maxPriority, what+": max_priority"))
	b.MessageTTL = r.span(s.MessageTTL, 0, time.Millisecond, what+": message_ttl")
	switch {
	case b.Stream:
		r.useless(s, "remove it", "has no effect on a stream, which keeps its messages", what, "delivery_limit", "dead_letter_exchange", "max_priority", "message_ttl")
	case b.MaxPriority > 0 && s.DeliveryLimit.Set:
		r.useless(s, "remove one of them", "has no effect beside max_priority, which quorum queues do not have", what, "delivery_limit")
	case b.DeliveryLimit > 0 && !s.DeadLetterExchange.Set:
		r.warn(s.Key("delivery_limit").Mark, "messages-dropped", "add dead_letter_exchange", "%s: the broker drops a message that was returned more than %d times", what, b.DeliveryLimit)
	}
}

// streamSwitch refuses the name of a stream where RabbitMQ has a switch.
func (r *resolver) streamSwitch(s *schema.Broker, what string) {
	if s.Stream.Name.Set {
		r.report(s.Stream.Name.Mark, "wrong-shape", "name it with queue or shard_queue", "%s: stream must be true or false, not %q", what, s.Stream.Name.V)
	}
}

// orderedDestination resolves the shards of a destination that keeps order.
func (r *resolver) orderedDestination(d *schema.Destination, b *model.Broker, what string) {
	s := &d.Broker
	b.ExchangeType = ""
	r.useless(s, "remove it", "has no effect on the exchange of an ordered destination, which lanebox declares", what, "exchange_type")
	if s.Queue.Set {
		b.Queues = []string{s.Queue.V}
		r.amqpName(s.Queue, true, what+": queue")
		r.useless(s, "name the shards with shard_queue, or remove it", "and queue exclude each other", what, "shards", "shard_queue")
	} else if s.Shards.Set {
		pattern := s.ShardQueue
		if !pattern.Set {
			pattern = schema.Text{Mark: s.Shards.Mark, V: d.Name.V + ".shard.%02d.q"}
		}
		b.Queues = r.shards(s.Shards, pattern, what)
	} else if s.Key("shards").Set {
		return // it could not be read
	} else {
		r.missing(s.Key("ordered").Mark, "shards", "write shards: 8, the number of queues over which keys are spread", what)
	}
	if b.Stream {
		return // what else is wrong with the arguments is said
	}
	const hint = "remove it, or send events without a key to a destination of their own"
	r.useless(s, hint, "lets messages of one key overtake each other, but the destination is ordered", what, "max_priority", "message_ttl")
	if s.DeadLetterExchange.Set && b.DeadLetterExchange == b.Exchange {
		r.report(s.DeadLetterExchange.Mark, "order", "name an exchange of its own", "%s: a message that is given up would come back behind later ones of its key, through its own exchange %q", what, b.Exchange)
	}
}

// unorderedDestination resolves a destination whose exchange or queue may have
// any consumers.
func (r *resolver) unorderedDestination(d *schema.Destination, b *model.Broker, what string) {
	s := &d.Broker
	r.useless(s, "write ordered: true", "needs an ordered destination", what, "shards", "shard_queue")
	if b.Stream {
		r.useless(s, "write ordered: true", "needs an ordered destination", what, "stream")
	}
	if !s.Queue.Set {
		if !s.Key("exchange").Set && !s.Key("exchange_type").Set && !s.Key("queue").Set && !s.Key("shards").Set {
			r.missing(d.Name.Mark, "exchange", "write ordered: true, shards: 8 to keep the order of each key; or queue, or exchange", what)
		}
		r.useless(s, "remove it; whoever declares the queues of the exchange sets it", "has no effect without a queue", what, "delivery_limit", "dead_letter_exchange", "max_priority", "message_ttl")
		return
	}
	b.Queues = []string{s.Queue.V}
	r.amqpName(s.Queue, true, what+": queue")
	if !s.Exchange.Set && !s.ExchangeType.Set {
		b.ExchangeType = "topic"
	}
	if b.ExchangeType == "direct" && (b.RoutingKey == "" || strings.Contains(b.RoutingKey, "{")) {
		r.report(s.ExchangeType.Mark, "topology", "write topic or fanout, or a routing_key without placeholders", "%s: queue %q cannot be bound to all messages of a direct exchange", what, s.Queue.V)
	}
}

// shardPattern is a queue name with one place for a number.
var shardPattern = regexp.MustCompile(`^[^%]*%(?:0[1-9])?d[^%]*$`)

// shards returns the names of the shards.
func (r *resolver) shards(count schema.Value[int64], pattern schema.Text, what string) []string {
	n := int(r.count(count, 1, maxShards, what+": shards"))
	switch {
	case !strings.Contains(pattern.V, "%"):
		r.report(pattern.Mark, "shard-queue", fmt.Sprintf("write %q", pattern.V+".%02d"), "%s: shard_queue %q has no place for the number of a shard", what, pattern.V)
		return nil
	case !shardPattern.MatchString(pattern.V):
		r.report(pattern.Mark, "shard-queue", "write %02d once, and no other %", "%s: shard_queue %q is not a name with one place for a number", what, pattern.V)
		return nil
	}
	if r.allShards += n; r.allShards > maxAllShards {
		r.report(count.Mark, "out-of-range", "", "%s: the schema has more than %d shards", what, maxAllShards)
		return nil
	}
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf(pattern.V, i)
	}
	r.amqpName(schema.Text{Mark: pattern.Mark, V: names[n-1], Set: true}, true, what+": shard_queue")
	return names
}

// amqpName checks the name of a queue or exchange; declared says that lanebox may
// have to create it.
func (r *resolver) amqpName(t schema.Text, declared bool, what string) {
	problem := ""
	switch {
	case !t.Set:
		return
	case t.V == "":
		problem = "is empty"
	case len(t.V) > maxAMQPName:
		problem = fmt.Sprintf("has %d bytes; the limit is %d", len(t.V), maxAMQPName)
	case strings.ContainsFunc(t.V, unicode.IsControl):
		problem = "contains a control character"
	case strings.TrimSpace(t.V) != t.V:
		problem = "begins or ends with a blank"
	case declared && strings.HasPrefix(t.V, "amq."):
		problem = "begins with amq., which only the broker itself may declare"
	}
	if problem != "" {
		r.report(t.Mark, "broker-name", "", "%s %q %s", what, t.V, problem)
	}
}

// rabbitSource resolves a source of type rabbitmq.
func (r *resolver) rabbitSource(s *schema.Source, b *model.Broker, what string) {
	k := &s.Broker
	r.streamSwitch(k, what)
	b.Stream = k.Stream.On.V
	b.Ordered = !k.Ordered.Set || k.Ordered.V
	b.Declare = !k.Declare.Set || k.Declare.V
	b.Prefetch = int(r.count(k.Prefetch, defaultPrefetch, maxPrefetch, what+": prefetch"))
	b.Queues = r.consumed(s, what)
	r.queueArguments(k, b, what)
	if !b.Declare {
		r.useless(k, "remove it", "has no effect on queues that are not declared", what, "delivery_limit", "dead_letter_exchange")
	}
	if !b.Stream {
		r.useless(k, "remove it, or write stream: true", "has no effect on a queue, which is read from its head", what, "offset")
		return
	}
	if k.Ordered.Set && !k.Ordered.V {
		r.useless(k, "remove it", "has no effect on a stream, which is always read in order", what, "ordered")
	}
	b.Offset = "first"
	if k.Offset.Set {
		b.Offset = k.Offset.V
		if _, err := time.Parse(time.RFC3339, b.Offset); err != nil && b.Offset != "first" && b.Offset != "last" {
			r.report(k.Offset.Mark, "offset", "write first, last or a time such as 2026-01-31T08:00:00Z", "%s: offset cannot be %q", what, b.Offset)
		}
	}
}

// consumed returns the queues of a source: one, several or shards.
func (r *resolver) consumed(s *schema.Source, what string) []string {
	k := &s.Broker
	var ways []string
	for _, key := range []string{"queue", "queues", "shards"} {
		if k.Key(key).Set {
			ways = append(ways, key)
		}
	}
	switch {
	case len(ways) == 0 && k.ShardQueue.Set:
		r.missing(k.Key("shard_queue").Mark, "shards", "write the number of shards that the sender has", what)
		return nil
	case len(ways) == 0:
		r.missing(s.Name.Mark, "queue", "write queue: "+strings.ToLower(s.Name.V)+", or shards and shard_queue", what)
		return nil
	case len(ways) > 1:
		r.useless(k, "keep one of them", "and "+ways[0]+" exclude each other", what, ways[1:]...)
	}
	if ways[0] != "shards" {
		r.useless(k, "add shards, or remove it", "has no effect without shards", what, "shard_queue")
	}
	switch ways[0] {
	case "queue":
		r.amqpName(k.Queue, true, what+": queue")
		return []string{k.Queue.V}
	case "queues":
		return r.distinct(k.Queues, what+": queues", func(t schema.Text) { r.amqpName(t, true, what+": queue") })
	}
	if !k.ShardQueue.Set {
		if !k.Key("shard_queue").Set {
			r.missing(k.Key("shards").Mark, "shard_queue", "write how the sender names its shards, such as warehouse.shard.%02d.q", what)
		}
		return nil
	}
	return r.shards(k.Shards, k.ShardQueue, what)
}

// distinct returns a list of texts, each once, and has each of them checked.
func (r *resolver) distinct(list []schema.Text, what string, check func(schema.Text)) []string {
	var out []string
	seen := map[string]bool{}
	for _, t := range list {
		if seen[t.V] {
			r.report(t.Mark, "duplicate", "", "%s: duplicate %q", what, t.V)
			continue
		}
		seen[t.V] = true
		check(t)
		out = append(out, t.V)
	}
	return out
}

// kafkaDestination resolves a destination of type kafka.
func (r *resolver) kafkaDestination(d *schema.Destination, b *model.Broker, what string) {
	if !d.Broker.Topic.Set {
		if !d.Broker.Key("topic").Set {
			r.missing(d.Name.Mark, "topic", "write topic: "+strings.ToLower(d.Name.V), what)
		}
		return
	}
	r.kafkaTopic(d.Broker.Topic, what)
	b.Topics = []string{d.Broker.Topic.V}
}

// kafkaSource resolves a source of type kafka.
func (r *resolver) kafkaSource(s *schema.Source, b *model.Broker, what string) {
	k := &s.Broker
	topics := k.Topics
	switch {
	case k.Key("topic").Set && k.Key("topics").Set:
		r.useless(k, "keep one of them", "and topic exclude each other", what, "topics")
	case k.Topic.Set:
		topics = []schema.Text{k.Topic}
	case !k.Key("topic").Set && !k.Key("topics").Set:
		r.missing(s.Name.Mark, "topic", "write topic: "+strings.ToLower(s.Name.V), what)
	}
	b.Topics = r.distinct(topics, what+": topics", func(t schema.Text) { r.kafkaTopic(t, what) })
	b.Group = k.Group.V
	r.brokerName(k.Group, "", what+": group")
	if !k.Key("group").Set {
		r.missing(s.Name.Mark, "group", "name the service's consumer group: all its replicas share it, no other service does", what)
	}
	b.Start = r.start(k.Start, what)
}

// start resolves where a new consumer begins.
func (r *resolver) start(t schema.Text, what string) string {
	if r.word(t, what+": start", "first", "last") {
		return t.V
	}
	return "first"
}

var kafkaTopicName = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)

// kafkaTopic checks the name of a topic.
func (r *resolver) kafkaTopic(t schema.Text, what string) {
	switch {
	case !kafkaTopicName.MatchString(t.V) || t.V == "." || t.V == "..":
		r.report(t.Mark, "broker-name", "use ASCII letters, digits and . _ -", "%s: %q cannot be the name of a Kafka topic", what, t.V)
	case len(t.V) > 249:
		r.report(t.Mark, "broker-name", "", "%s: topic has %d bytes; the limit is 249", what, len(t.V))
	}
}

// brokerName checks a name that must not contain the forbidden characters,
// blanks or control characters.
func (r *resolver) brokerName(t schema.Text, forbidden, what string) {
	switch {
	case !t.Set:
	case t.V == "":
		r.report(t.Mark, "broker-name", "", "%s is empty", what)
	case len(t.V) > maxBrokerName:
		r.report(t.Mark, "broker-name", "", "%s has %d bytes; the limit is %d", what, len(t.V), maxBrokerName)
	default:
		for _, c := range t.V {
			if unicode.IsControl(c) || unicode.IsSpace(c) || strings.ContainsRune(forbidden, c) {
				r.report(t.Mark, "broker-name", "use letters, digits, _ and -", "%s %q contains %q", what, t.V, c)
				return
			}
		}
	}
}

// notInNATSNames are characters that the names of streams and consumers cannot
// have.
const notInNATSNames = `.*>/\`

// jetStream resolves the stream of a NATS source or destination.
func (r *resolver) jetStream(k *schema.Broker, name schema.Text, b *model.Broker, what string) {
	b.JetStream = k.Stream.Name.V
	r.brokerName(k.Stream.Name, notInNATSNames, what+": stream")
	switch {
	case k.Stream.On.Set:
		r.report(k.Stream.On.Mark, "wrong-shape", "write stream: "+natsName(name.V), "%s: stream must be the name of a stream, not %v", what, k.Stream.On.V)
	case !k.Key("stream").Set:
		r.missing(name.Mark, "stream", "write stream: "+natsName(name.V), what)
	}
}

// natsName proposes the name of a stream or consumer.
func natsName(name string) string {
	return strings.Map(func(c rune) rune {
		if strings.ContainsRune(notInNATSNames, c) || unicode.IsSpace(c) {
			return '-'
		}
		return c
	}, strings.ToUpper(name))
}

// natsDestination resolves a destination of type nats.
func (r *resolver) natsDestination(d *schema.Destination, b *model.Broker, what string) {
	k := &d.Broker
	r.jetStream(k, d.Name, b, what)
	b.Declare = !k.Declare.Set || k.Declare.V
	b.Duplicates = r.span(k.Duplicates, 0, minDuplicates, what+": duplicates")
	subject := k.Subject
	if !subject.Set {
		subject = schema.Text{Mark: d.Name.Mark, V: d.Name.V + ".{type}", Set: true}
	}
	if b.Subject = r.template(subject, what+": subject"); b.Subject != "" {
		r.subject(schema.Text{Mark: subject.Mark, V: b.Subject}, false, what)
	}
	if first, _, _ := strings.Cut(b.Subject, "."); b.Declare && strings.Contains(first, "{") {
		r.report(subject.Mark, "subject", "begin with a fixed word: orders.{key}; or write declare: false", "%s: subject %q begins with a placeholder, so that a stream for it would take everything", what, subject.V)
	}
}

// natsSource resolves a source of type nats.
func (r *resolver) natsSource(s *schema.Source, b *model.Broker, what string) {
	k := &s.Broker
	r.jetStream(k, s.Name, b, what)
	subjects := k.Subjects
	if k.Key("subject").Set && k.Key("subjects").Set {
		r.useless(k, "keep one of them", "and subject exclude each other", what, "subjects")
	} else if k.Subject.Set {
		subjects = []schema.Text{k.Subject}
	}
	b.Subjects = r.distinct(subjects, what+": subjects", func(t schema.Text) { r.subject(t, true, what) })
	b.Durable = k.Durable.V
	r.brokerName(k.Durable, notInNATSNames, what+": durable")
	if !k.Key("durable").Set {
		r.missing(s.Name.Mark, "durable", "name the service's consumer: all its replicas share it, no other service does", what)
	}
	b.Ordered = !k.Ordered.Set || k.Ordered.V
	b.Start = r.start(k.Start, what)
}

// subject checks a subject of NATS, which has wildcards or placeholders.
func (r *resolver) subject(t schema.Text, wildcards bool, what string) {
	tokens := strings.Split(anyPlaceholder.ReplaceAllString(t.V, "{}"), ".")
	bad := func(hint, format string, args ...any) {
		r.report(t.Mark, "subject", hint, "%s: subject %q %s", what, t.V, fmt.Sprintf(format, args...))
	}
	if len(t.V) > maxTemplate {
		bad("", "has %d bytes; the limit is %d", len(t.V), maxTemplate)
		return
	}
	if strings.HasPrefix(t.V, "$") || tokens[0] == "_INBOX" {
		bad("begin with a word of your own", "begins with %q, which the server keeps for itself", tokens[0])
		return
	}
	for i, token := range tokens {
		switch {
		case token == "":
			bad("write words with a single . between", "has an empty word")
			return
		case wildcards && (token == "*" || token == ">" && i == len(tokens)-1):
		case strings.ContainsAny(token, "*>"):
			hint := "* stands for one whole word, > for all that follow"
			if !wildcards {
				hint = "write a placeholder such as {key} or {type}"
			}
			bad(hint, "has a wildcard where none can stand")
			return
		case strings.ContainsFunc(token, func(c rune) bool { return c <= ' ' || c > '~' }):
			bad("use ASCII letters, digits, - and _", "contains a blank, or a character that is not ASCII")
			return
		case strings.Count(token, "{}") > 1:
			bad("separate them with a dot", "has a word with two placeholders, whose values would run together")
			return
		}
	}
}

// attributes are words that someone might take for placeholders.
var attributes = []string{"id", "source", "time", "subject", "topic", "event", "aggregate", "version", "sequence", "partitionkey", "destination", "attempt"}

// template checks a routing key or subject and returns it with the placeholders
// {key}, {type} and {header:name} alone; {name} is short for {header:name}. It
// returns "" for a template that is not written, or wrong.
func (r *resolver) template(t schema.Text, what string) string {
	if !t.Set {
		return ""
	}
	const hint = "the placeholders are {key}, {type} and {header:name}"
	if t.V == "" || len(t.V) > maxTemplate || strings.ContainsFunc(t.V, unicode.IsControl) {
		r.report(t.Mark, "template", hint, "%s %q is empty, longer than %d bytes, or contains a control character", what, t.V, maxTemplate)
		return ""
	}
	var out strings.Builder
	for rest := t.V; rest != ""; {
		literal, after, open := strings.Cut(rest, "{")
		if strings.Contains(literal, "}") {
			r.report(t.Mark, "template", hint, "%s %q has a } without a {", what, t.V)
			return ""
		}
		out.WriteString(literal)
		if !open {
			break
		}
		name, after, closed := strings.Cut(after, "}")
		if !closed {
			r.report(t.Mark, "template", hint, "%s %q has a { without a }", what, t.V)
			return ""
		}
		canonical, why := placeholder(name)
		if canonical == "" {
			r.report(t.Mark, "template", cmp.Or(why, hint), "%s %q has the unknown placeholder {%s}", what, t.V, name)
			return ""
		}
		out.WriteString(canonical)
		rest = after
	}
	return out.String()
}

// placeholder returns the canonical form of a placeholder, or "" and what to
// write instead.
func placeholder(name string) (canonical, hint string) {
	if name == "key" || name == "type" {
		return "{" + name + "}", ""
	}
	header, explicit := strings.CutPrefix(name, "header:")
	if !headerName.MatchString(header) {
		return "", ""
	}
	if !explicit {
		if s := diag.Suggest(name, []string{"key", "type"}); s != "" {
			return "", fmt.Sprintf("did you mean {%s}? A header is {header:%s}", s, name)
		}
		if slices.Contains(attributes, strings.ToLower(name)) {
			return "", fmt.Sprintf("use {key} or {type}; a header is {header:%s}", name)
		}
	}
	return "{header:" + header + "}", ""
}
