package resolve

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/lanebox/lanebox/generator/model"
	"github.com/lanebox/lanebox/generator/schema"
)

// checkBrokers checks what brokers do to the order of keys, when it is known
// which events go where.
func (r *resolver) checkBrokers() {
	if r.file.Faulty {
		return
	}
	ordered := r.orderedTraffic()
	for i, d := range r.destinationList {
		if d.Broker != nil && d.Type == "rabbitmq" && !d.Broker.Ordered {
			r.checkOrder(d, &r.file.Destinations[i], ordered[d])
		}
	}
	r.checkShared(ordered)
	r.checkConsumers()
}

// traffic is what has a key and is sent to a destination; zero if there is none.
type traffic struct {
	event *model.Event // the first event with a key
	push  string       // the name of a push source, whose messages have aggregate ids
}

func (t traffic) any() bool { return t.event != nil || t.push != "" }

// String names the traffic in messages.
func (t traffic) String() string {
	if t.event != nil {
		return fmt.Sprintf("event %q", t.event.Topic)
	}
	return fmt.Sprintf("what push source %q brings", t.push)
}

// orderedTraffic returns what has a key, for every destination.
func (r *resolver) orderedTraffic() map[*model.Destination]traffic {
	all := map[*model.Destination]traffic{}
	for _, e := range r.events {
		for _, d := range e.event.Destinations {
			if t := all[d]; e.event.Key != nil && t.event == nil {
				t.event = e.event
				all[d] = t
			}
		}
	}
	i := slices.IndexFunc(r.sourceList, func(s *sourceEntry) bool { return !s.source.Pull })
	if i < 0 {
		return all
	}
	for _, route := range r.model.Routes {
		for _, d := range route.To {
			t := all[d]
			t.push = r.sourceList[i].source.Name
			all[d] = t
		}
	}
	return all
}

// checkOrder refuses what has a key on a RabbitMQ destination that cannot keep its
// order.
func (r *resolver) checkOrder(d *model.Destination, at *schema.Destination, t traffic) {
	k, what := &at.Broker, fmt.Sprintf("destination %q", d.Name)
	const elsewhere = "remove it, or send events without a key to a destination of their own"
	refuse := func(m schema.Mark, hint, why string) {
		r.report(m, "order", hint, "%s cannot keep the order of %s: %s", what, t, why)
	}
	explicit := k.Ordered.Set // false, that is
	switch {
	case !t.any() || t.event == nil && explicit:
	case d.Broker.MaxPriority > 0:
		refuse(k.Key("max_priority").Mark, elsewhere, "messages of a higher priority overtake others of their key")
	case d.Broker.MessageTTL > 0:
		refuse(k.Key("message_ttl").Mark, elsewhere, "messages that expire leave their place, and come back behind later ones if they do")
	case d.Broker.DeadLetterExchange != "" && d.Broker.DeadLetterExchange == d.Broker.Exchange:
		refuse(k.DeadLetterExchange.Mark, "name an exchange of its own", "what is given up comes back behind later messages of its key")
	case !explicit && len(d.Broker.Queues) > 0:
		refuse(k.Key("queue").Mark, orderedHint, fmt.Sprintf("queue %q may have several consumers", d.Broker.Queues[0]))
	case !explicit:
		refuse(at.Name.Mark, orderedHint, fmt.Sprintf("the queues of exchange %q may have several consumers", d.Broker.Exchange))
	}
}

const orderedHint = "write ordered: true, shards: 8; or ordered: false, if no consumer needs the order of a key"

// address is a place at a broker that two destinations cannot share, and the keys
// that may name it.
type address struct {
	text string
	keys []string
}

// mark returns where the first of the keys stands, or else the name.
func mark(b *schema.Broker, name schema.Text, keys ...string) schema.Mark {
	for _, key := range keys {
		if k := b.Key(key); k.Set {
			return k.Mark
		}
	}
	return name.Mark
}

var anyPlaceholder = regexp.MustCompile(`\{[^}]*\}`)

// addresses returns where a destination sends to. Which broker that is, is known
// in Go alone: those without a label are taken to be one.
func addresses(d *model.Destination) []address {
	b := d.Broker
	switch d.Type {
	case "rabbitmq":
		list := []address{{fmt.Sprintf("exchange %q", b.Exchange), []string{"exchange"}}}
		for _, q := range b.Queues {
			list = append(list, address{fmt.Sprintf("queue %q", q), []string{"queue", "shard_queue", "shards"}})
		}
		return list
	case "kafka":
		if len(b.Topics) > 0 {
			return []address{{fmt.Sprintf("topic %q", b.Topics[0]), []string{"topic"}}}
		}
	case "nats":
		if b.JetStream != "" && b.Subject != "" {
			return []address{{fmt.Sprintf("subject %q of stream %q", subjectPattern(b.Subject), b.JetStream), []string{"subject", "stream"}}}
		}
	}
	return nil
}

// subjectPattern returns the subjects that a template can give, with wildcards: an
// event type is any number of words.
func subjectPattern(template string) string {
	before, _, found := strings.Cut(template, "{type}")
	pattern := anyPlaceholder.ReplaceAllString(before, "*")
	if found {
		pattern += ">"
	}
	return pattern
}

// checkShared refuses two destinations with one address, if what has a key goes
// to both: it would have two lanes there.
func (r *resolver) checkShared(ordered map[*model.Destination]traffic) {
	first := map[[3]string]*model.Destination{}
	for i, d := range r.destinationList {
		if d.Broker == nil || !ordered[d].any() {
			continue
		}
		at := &r.file.Destinations[i]
		for _, a := range addresses(d) {
			place := [3]string{d.Type, at.Broker.Broker.V, a.text}
			other, taken := first[place]
			if !taken {
				first[place] = d
				continue
			}
			if other == d {
				continue
			}
			r.report(mark(&at.Broker, at.Name, a.keys...), "shared-address", "route to one destination; if they are at different brokers, tell these apart with broker: name", "destination %q and destination %q (line %d) both send to %s, where the two lanes of a key would overtake each other", d.Name, other.Name, other.Pos.Line, a.text)
			break
		}
	}
}

// checkConsumers refuses two sources that take each other's messages.
func (r *resolver) checkConsumers() {
	first := map[[3]string]*model.Source{}
	for i, entry := range r.sourceList {
		s := entry.source
		if s.Broker == nil {
			continue
		}
		at := &r.file.Sources[i].Broker
		for _, text := range shares(s) {
			place := [3]string{s.Type, at.Broker.V, text}
			other, taken := first[place]
			if !taken {
				first[place] = s
			} else if other != s {
				m := mark(at, entry.name, "group", "durable", "queue", "queues", "shard_queue", "shards")
				r.report(m, "shared-consumer", "use one source, or give each its own; if they are at different brokers, tell these apart with broker: name", "source %q and source %q (line %d) share %s and would take each other's messages", s.Name, other.Name, other.Pos.Line, text)
				break
			}
		}
	}
}

// shares are the places whose messages go to one consumer only.
func shares(s *model.Source) []string {
	b := s.Broker
	var list []string
	switch s.Type {
	case "rabbitmq":
		if b.Stream {
			return nil // each source has a position of its own
		}
		for _, q := range b.Queues {
			list = append(list, fmt.Sprintf("queue %q", q))
		}
	case "kafka":
		for _, t := range b.Topics {
			list = append(list, fmt.Sprintf("topic %q of group %q", t, b.Group))
		}
	case "nats":
		list = append(list, fmt.Sprintf("consumer %q of stream %q", b.Durable, b.JetStream))
	}
	return list
}
