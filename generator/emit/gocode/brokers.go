package gocode

import (
	"fmt"
	"strings"

	"github.com/dave/jennifer/jen"

	"github.com/lanebox/lanebox/generator/model"
)

// A fact is a member of a topology; one without a value is left out.
type fact struct {
	name  string
	set   bool
	value jen.Code
}

// topology renders what the schema says about the broker's side of a flow.
func (g *generator) topology(f *jen.File, goName, typ, text string, facts []fact) {
	f.Line()
	comment(f, fmt.Sprintf("%sTopology %s", goName, text))
	f.Var().Id(goName+"Topology").Op("=").Qual(rtTopology, typ).BlockFunc(func(group *jen.Group) {
		for _, x := range facts {
			if x.set {
				group.Id(x.name).Op(":").Add(x.value).Op(",")
			}
		}
	})
}

func textFact(name, value string) fact { return fact{name, value != "", jen.Lit(value)} }

func flagFact(name string, value bool) fact { return fact{name, value, jen.True()} }

func numberFact(name string, value int) fact { return fact{name, value != 0, jen.Lit(value)} }

// listFact has a line for each text of a long list, so that a change of one is a
// change of one line.
func listFact(name string, list []string) fact {
	value := jen.Index().String().Values(literals(list)...)
	if len(list) > 2 {
		value = jen.Index().String().Custom(jen.Options{Open: "{", Close: "}", Separator: ",", Multi: true}, literals(list)...)
	}
	return fact{name, len(list) > 0, value}
}

// shardText says in a comment what a number of shards means.
func shardText(n int) string {
	if n < 2 {
		return ""
	}
	return fmt.Sprintf("\n\nIts %d shards are part of the order: with another number of them a key may move to\n"+
		"another queue, where its next message overtakes those that wait. Drain the queues first, or use new names.", n)
}

// destinationTopology renders the topology of a destination at a broker.
func (g *generator) destinationTopology(f *jen.File, d *model.Destination) {
	b := d.Broker
	if b == nil {
		return
	}
	text := fmt.Sprintf("is the broker's side of destination %s.", d.Name)
	switch d.Type {
	case "rabbitmq":
		facts := []fact{
			textFact("Name", d.Name), textFact("Exchange", b.Exchange), textFact("ExchangeType", b.ExchangeType),
		}
		if b.Ordered {
			text += shardText(len(b.Queues))
			facts = append(facts, flagFact("Ordered", true), listFact("ShardQueues", b.Queues), flagFact("Stream", b.Stream))
		} else {
			facts = append(facts, textFact("Queue", strings.Join(b.Queues, "")))
		}
		g.topology(f, d.GoName, "RabbitMQDestination", text, append(facts,
			textFact("RoutingKey", b.RoutingKey), numberFact("DeliveryLimit", b.DeliveryLimit), textFact("DeadLetterExchange", b.DeadLetterExchange),
			numberFact("MaxPriority", b.MaxPriority), fact{"MessageTTL", b.MessageTTL != 0, duration(b.MessageTTL)}))
	case "kafka":
		g.topology(f, d.GoName, "KafkaDestination", text, []fact{textFact("Name", d.Name), textFact("Topic", strings.Join(b.Topics, ""))})
	case "nats":
		g.topology(f, d.GoName, "NATSDestination", text, []fact{
			textFact("Name", d.Name), textFact("Stream", b.JetStream), textFact("Subject", b.Subject),
			flagFact("Declare", b.Declare), {"Duplicates", b.Duplicates != 0, duration(b.Duplicates)},
		})
	}
}

// sourceTopology renders the topology of a source at a broker.
func (g *generator) sourceTopology(f *jen.File, s *model.Source) {
	b := s.Broker
	if b == nil {
		return
	}
	text := fmt.Sprintf("is the broker's side of source %s.", s.Name)
	extract := fact{"Extract", true, g.extract(s)}
	switch s.Type {
	case "rabbitmq":
		g.topology(f, s.GoName, "RabbitMQSource", text, []fact{
			textFact("Name", s.Name), listFact("Queues", b.Queues), flagFact("Ordered", b.Ordered), flagFact("Declare", b.Declare),
			flagFact("Stream", b.Stream), textFact("Offset", b.Offset), numberFact("DeliveryLimit", b.DeliveryLimit),
			textFact("DeadLetterExchange", b.DeadLetterExchange), numberFact("Prefetch", b.Prefetch), extract,
		})
	case "kafka":
		g.topology(f, s.GoName, "KafkaSource", text, []fact{
			textFact("Name", s.Name), listFact("Topics", b.Topics), textFact("Group", b.Group), textFact("Start", b.Start), extract,
		})
	case "nats":
		g.topology(f, s.GoName, "NATSSource", text, []fact{
			textFact("Name", s.Name), textFact("Stream", b.JetStream), listFact("Subjects", b.Subjects), textFact("Durable", b.Durable),
			flagFact("Ordered", b.Ordered), textFact("Start", b.Start), extract,
		})
	}
}

// extract renders where a broker source finds what identifies a message.
func (g *generator) extract(s *model.Source) jen.Code {
	var facts []jen.Code
	add := func(x fact) {
		if x.set {
			facts = append(facts, jen.Id(x.name).Op(":").Add(x.value))
		}
	}
	var keys []jen.Code
	for _, r := range s.IdempotencyKey {
		keys = append(keys, jen.Values(literals(r)...))
	}
	add(fact{"IdempotencyKey", keys != nil, jen.Index().Index().String().Values(keys...)})
	add(listFact("EventType", s.EventType))
	add(listFact("AggregateID", s.AggregateID))
	add(textFact("AggregateIDMissing", s.AggregateIDMissing))
	return jen.Qual(rtTopology, "Extract").Values(facts...)
}
