package gocode

import (
	"fmt"
	"slices"
	"time"

	"github.com/dave/jennifer/jen"

	"github.com/lanebox/lanebox/generator/model"
)

// schema renders what the schema says about topics, destinations and sources,
// for the dialect packages and for services that look things up.
func (g *generator) schema(f *jen.File) {
	comment(f, "This generated code needs version 0.1 of the lanebox runtime, or a later one. If the\n"+
		"constant below is not defined, the runtime is older than the generator that was used:\n"+
		"run \"go get github.com/lanebox/lanebox@latest\", or generate again with an older lanebox.")
	f.Const().Id("_").Op("=").Qual(rtRuntime, "IsAtLeastVersion0_1")
	if len(g.m.Events) > 0 {
		f.Line()
		comment(f, "The topics of the events.")
		f.Const().DefsFunc(func(group *jen.Group) {
			for i := range g.m.Events {
				group.Id("Topic" + g.m.Events[i].GoName).Op("=").Lit(g.m.Events[i].Topic)
			}
		})
	}
	g.scopes(f)
	g.routes(f)
	for i := range g.m.Destinations {
		d := &g.m.Destinations[i]
		g.policy(f, d.GoName+"Destination", fmt.Sprintf("destination %s", d.Name), d.Delivery)
		g.destinationTopology(f, d)
	}
	for i := range g.m.Sources {
		g.source(f, &g.m.Sources[i])
	}
}

// scopes renders the stable numbers by which the database knows destinations
// and sources.
func (g *generator) scopes(f *jen.File) {
	if len(g.m.Destinations)+len(g.m.Sources) == 0 {
		return
	}
	f.Line()
	comment(f, "The numbers of destinations and sources in the database. They depend on the names\n"+
		"alone, so that editing the schema never re-routes stored messages.")
	f.Const().DefsFunc(func(group *jen.Group) {
		for i := range g.m.Destinations {
			d := &g.m.Destinations[i]
			group.Id(d.GoName+"Destination").Qual(rtLane, "Scope").Op("=").Lit(int(d.Number))
		}
		for i := range g.m.Sources {
			s := &g.m.Sources[i]
			group.Id(s.GoName+"Source").Qual(rtLane, "Scope").Op("=").Lit(int(s.Number))
		}
		if g.hasPush() {
			comment(group, "PushSources is the scope that all push sources share.")
			group.Id("PushSources").Qual(rtLane, "Scope").Op("=").Lit(int(model.PushScope))
		}
	})
}

func (g *generator) hasPush() bool {
	return slices.ContainsFunc(g.m.Sources, func(s model.Source) bool { return !s.Pull })
}

// policy renders the delivery policy of a destination or pull source; what is
// zero takes the default of the runtime.
func (g *generator) policy(f *jen.File, name, what string, d model.Delivery) {
	f.Line()
	comment(f, fmt.Sprintf("%sPolicy is how %s is delivered.", name, what))
	f.Func().Id(name+"Policy").Params().Qual(rtSchedule, "Policy").Block(
		jen.Return(jen.Qual(rtSchedule, "Policy").BlockFunc(func(group *jen.Group) {
			member := func(name string, set bool, value jen.Code) {
				if set {
					group.Id(name).Op(":").Add(value).Op(",")
				}
			}
			member("Concurrency", d.Concurrency != 0, jen.Lit(d.Concurrency))
			member("MaxUnsettled", d.MaxUnsettled != 0, jen.Lit(d.MaxUnsettled))
			member("SettleEach", d.SettleEach, jen.True())
			member("Timeout", d.Timeout != 0, duration(d.Timeout))
			member("Lease", d.Lease != 0, duration(d.Lease))
			member("MaxAttempts", d.MaxAttempts != 0, jen.Lit(d.MaxAttempts))
			member("RetryBase", d.RetryBase != 0, duration(d.RetryBase))
			member("RetryCap", d.RetryCap != 0, duration(d.RetryCap))
			member("ParkDead", d.ParkDead, jen.True())
		})))
}

// duration writes d in the largest unit that divides it.
func duration(d time.Duration) *jen.Statement {
	units := []struct {
		length time.Duration
		name   string
	}{{time.Hour, "Hour"}, {time.Minute, "Minute"}, {time.Second, "Second"}, {time.Millisecond, "Millisecond"}, {time.Microsecond, "Microsecond"}}
	for _, u := range units {
		if d%u.length == 0 {
			if d == u.length {
				return jen.Qual("time", u.name)
			}
			return jen.Lit(int(d/u.length)).Op("*").Qual("time", u.name)
		}
	}
	return jen.Lit(int(d))
}

func (g *generator) source(f *jen.File, s *model.Source) {
	if s.Pull {
		g.policy(f, s.GoName+"Source", fmt.Sprintf("source %s", s.Name), s.Delivery)
	}
	g.sourceTopology(f, s)
	g.receiver(f, s)
	if s.Type == "http" {
		g.sourceConfig(f, s, s.GoName+"Source")
	}
}

// receiver renders what the receiver of a source needs to know. A push source
// takes what has a route, a mapped one everything, since its hook decides; a
// pull source takes the events its handler knows.
func (g *generator) receiver(f *jen.File, s *model.Source) {
	name := s.GoName + "Source"
	f.Line()
	comment(f, fmt.Sprintf("%sReceiver describes source %s to its receiver. It takes %s.", s.GoName, s.Name, acceptRule(s)))
	f.Func().Id(s.GoName+"Receiver").Params(jen.Id("store").Qual(rtInbox, "ReceiveStore"), loggerParam()).Qual(rtInbox, "ReceiverConfig").Block(
		jen.Return(jen.Qual(rtInbox, "ReceiverConfig").BlockFunc(func(group *jen.Group) {
			member := func(name string, value jen.Code) { group.Id(name).Op(":").Add(value).Op(",") }
			scope := "PushSources"
			if s.Pull {
				scope = name
			}
			member("Source", jen.Qual(rtInbox, "SourceRef").Values(
				jen.Id("Name").Op(":").Lit(s.Name),
				jen.Id("Number").Op(":").Int32().Parens(jen.Id(name)),
				jen.Id("Scope").Op(":").Id(scope)))
			member("Store", jen.Id("store"))
			if accept := g.accept(s); accept != nil {
				member("Accept", accept)
			}
			if needsAggregate(s) {
				member("RequireAggregate", jen.True())
			}
			if s.MaxBytes != 0 {
				member("MaxBytes", jen.Lit(int(s.MaxBytes)))
			}
			if s.Receipts != 0 {
				member("Retention", duration(s.Receipts))
			}
			member("Logger", jen.Id("logger"))
		})))
}

// needsAggregate reports whether a message without an aggregate id is refused.
func needsAggregate(s *model.Source) bool {
	if s.Broker != nil {
		return s.AggregateIDMissing == "reject"
	}
	return s.Type == "http" && len(s.AggregateID) > 0 && s.AggregateIDMissing != "unordered"
}

func (g *generator) accept(s *model.Source) *jen.Statement {
	switch {
	case s.Map, s.Other:
		return nil
	case !s.Pull:
		return jen.Id("Routed")
	}
	topics := []jen.Code{jen.Id("eventType")}
	for _, e := range s.Events {
		topics = append(topics, jen.Id("Topic"+e.GoName))
	}
	return jen.Func().Params(jen.Id("eventType").String()).Bool().Block(
		jen.Return(matchAny(topics)))
}

// matchAny matches the first argument against the others, on a line each if they
// are many, so that a change of one is a change of one line.
func matchAny(args []jen.Code) *jen.Statement {
	f := jen.Qual(rtEvent, "MatchAnyTopic")
	if len(args) < 5 {
		return f.Call(args...)
	}
	return f.Custom(jen.Options{Open: "(", Close: ")", Separator: ",", Multi: true}, args...)
}

func acceptRule(s *model.Source) string {
	switch {
	case s.Map:
		return "every event type, since its mapping hook decides"
	case s.Other:
		return "every event type"
	case s.Pull:
		return "the event types that its handler handles"
	default:
		return "the event types that have a route"
	}
}

// routes renders which topics have a route.
func (g *generator) routes(f *jen.File) {
	patterns := []jen.Code{jen.Id("topic")}
	for _, p := range g.routed() {
		patterns = append(patterns, jen.Lit(p))
	}
	f.Line()
	comment(f, "Routed reports whether a topic has a route to some destination.")
	f.Func().Id("Routed").Params(jen.Id("topic").String()).Bool().Block(
		jen.Return(matchAny(patterns)))
}

// routed are the patterns of all routes, each once.
func (g *generator) routed() []string {
	var list []string
	for _, r := range g.m.Routes {
		for _, p := range r.Events {
			if !slices.Contains(list, p) {
				list = append(list, p)
			}
		}
	}
	return list
}

func (g *generator) sourceConfig(f *jen.File, s *model.Source, name string) {
	f.Line()
	comment(f, fmt.Sprintf("%sConfig says how source %s reads a request.", name, s.Name))
	f.Func().Id(name+"Config").Params(loggerParam()).Qual(rtWebhook, "SourceConfig").Block(
		jen.Return(jen.Qual(rtWebhook, "SourceConfig").BlockFunc(func(group *jen.Group) {
			member := func(name string, value jen.Code) { group.Id(name).Op(":").Add(value).Op(",") }
			member("Name", jen.Lit(s.Name))
			member("Path", jen.Lit(s.Path))
			if len(s.IdempotencyKey) > 0 {
				var rules []jen.Code
				for _, r := range s.IdempotencyKey {
					rules = append(rules, jen.Values(literals(r)...))
				}
				member("IdempotencyKey", jen.Index().Index().String().Values(rules...))
			}
			if len(s.EventType) > 0 {
				member("EventType", jen.Index().String().Values(literals(s.EventType)...))
			}
			if len(s.AggregateID) > 0 {
				member("AggregateID", jen.Index().String().Values(literals(s.AggregateID)...))
			}
			if s.AggregateIDMissing != "" {
				member("AggregateIDMissing", jen.Lit(s.AggregateIDMissing))
			}
			if s.MaxBytes != 0 {
				member("MaxBytes", jen.Lit(int(s.MaxBytes)))
			}
			member("Logger", jen.Id("logger"))
		})))
}

func loggerParam() *jen.Statement { return jen.Id("logger").Op("*").Qual("log/slog", "Logger") }

func literals(list []string) []jen.Code {
	var codes []jen.Code
	for _, s := range list {
		codes = append(codes, jen.Lit(s))
	}
	return codes
}
