package gocode

import (
	"fmt"
	"slices"

	"github.com/dave/jennifer/jen"

	"github.com/lanebox/lanebox/generator/model"
)

// publish renders the definitions of the events, the publisher, the sealed Event
// interface and the publishers of the catalogs.
func (g *generator) publish(f *jen.File) {
	g.publisher(f)
	g.options(f)
	for _, e := range g.published() {
		g.definition(f, e)
	}
	for i := range g.m.Catalogs {
		g.catalog(f, &g.m.Catalogs[i])
	}
}

func (g *generator) publisher(f *jen.File) {
	f.Line()
	comment(f, "A Publisher stores events in the outbox, in the transaction it was made for. Like\n"+
		"the transaction it must not be used by several goroutines at the same time.")
	f.Type().Id("Publisher").Struct(jen.Id("appender").Qual(rtOutbox, "Appender"))
	f.Line()
	comment(f, "NewPublisher returns a publisher that stores through a. Services call In of the\npackage of their database instead.")
	f.Func().Id("NewPublisher").Params(jen.Id("a").Qual(rtOutbox, "Appender")).Op("*").Id("Publisher").Block(
		jen.Return(jen.Op("&").Id("Publisher").Values(jen.Dict{jen.Id("appender"): jen.Id("a")})))
	for _, e := range g.published() {
		g.publishMethod(f, "Publisher", e)
	}
	g.batchMethods(f, "Publisher", "Event")
	for i := range g.m.Catalogs {
		c := &g.m.Catalogs[i]
		f.Line()
		comment(f, fmt.Sprintf("%s returns a publisher that takes the events of catalog %s only.", c.GoName, c.Name))
		f.Func().Params(jen.Id("p").Op("*").Id("Publisher")).Id(c.GoName).Params().Op("*").Id(c.GoName + "Publisher").Block(
			jen.Return(jen.Op("&").Id(c.GoName + "Publisher").Values(jen.Dict{jen.Id("appender"): jen.Id("p").Dot("appender")})))
	}
}

// publishMethod renders the method that publishes one event.
func (g *generator) publishMethod(f *jen.File, receiver string, e *model.Event) {
	key := "It takes part in no ordering unless a key is given with WithKey."
	if e.Key != nil {
		key = "It is ordered by " + e.Key.Name + ", or by the key given with WithKey."
	}
	f.Line()
	comment(f, doc(fmt.Sprintf("%s publishes %s. %s", e.GoName, e.Topic, key)))
	f.Func().Params(jen.Id("p").Op("*").Id(receiver)).Id(e.GoName).Params(
		jen.Id("ctx").Qual("context", "Context"),
		jen.Id("e").Add(g.eventType(e)),
		jen.Id("opts").Op("...").Qual(rtOutbox, "Option").Index(g.keyType(e)),
	).Error().Block(jen.Return(jen.Qual(rtOutbox, "Publish").Call(
		jen.Id("ctx"), jen.Id("p").Dot("appender"), jen.Op("&").Id(definitionName(e)), jen.Id("e"), jen.Id("opts").Op("..."))))
}

// batchMethods renders All and AllWithKey for the events of one interface.
func (g *generator) batchMethods(f *jen.File, receiver, event string) {
	all := func(name, runtimeName string, key bool) {
		params := []jen.Code{jen.Id("ctx").Qual("context", "Context")}
		args := []jen.Code{jen.Id("ctx"), jen.Id("p").Dot("appender")}
		if key {
			params = append(params, jen.Id("key").Qual(rtEvent, "AnyKey"))
			args = append(args, jen.Qual(rtEvent, "RawKeyOf").Call(jen.Id("key")))
		}
		f.Func().Params(jen.Id("p").Op("*").Id(receiver)).Id(name).
			Params(append(params, jen.Id("list").Op("...").Id(event))...).Error().Block(
			jen.Return(jen.Qual(rtOutbox, runtimeName).Call(append(args, jen.Id("drafts").Call(jen.Id("list")).Op("..."))...)))
	}
	f.Line()
	comment(f, "All publishes events in order and in one round trip, each with its own key or none.\n"+
		"When one of them is refused, none is stored.")
	all("All", "PublishAll", false)
	f.Line()
	comment(f, "AllWithKey is All with one explicit key for every event.")
	all("AllWithKey", "PublishAllWithKey", true)
}

func (g *generator) options(f *jen.File) {
	draft := jen.Id("draft").Params().Qual(rtOutbox, "Draft")
	f.Line()
	about := "An Event is an event of this package that can be published."
	if own := slices.IndexFunc(g.m.Events, func(e model.Event) bool { return e.GoType != nil && publishable(&e) }); own >= 0 {
		e := &g.m.Events[own]
		about += fmt.Sprintf("\nValues of the service's own types become one with a function such as New%s.", e.GoName)
	}
	comment(f, about)
	f.Type().Id("Event").Interface(draft.Clone())
	f.Line()
	comment(f, "WithKey orders the event by k instead of by its own key.")
	f.Func().Id("WithKey").Types(jen.Id("K").Qual(rtEvent, "Key")).Params(jen.Id("k").Id("K")).Qual(rtOutbox, "Option").Index(jen.Id("K")).Block(
		jen.Return(jen.Qual(rtOutbox, "WithKey").Call(jen.Id("k"))))
	f.Line()
	comment(f, "Keyed returns e with an explicit key, for All and for mapping hooks.")
	f.Func().Id("Keyed").Params(jen.Id("e").Id("Event"), jen.Id("key").Qual(rtEvent, "AnyKey")).Id("Event").Block(
		jen.Return(jen.Id("keyed").Values(jen.Dict{jen.Id("Event"): jen.Id("e"), jen.Id("key"): jen.Id("key")})))
	f.Line()
	f.Type().Id("keyed").Struct(jen.Id("Event"), jen.Id("key").Qual(rtEvent, "AnyKey"))
	f.Line()
	f.Func().Params(jen.Id("e").Id("keyed")).Add(draft.Clone()).Block(
		jen.If(jen.Id("e").Dot("Event").Op("==").Nil()).Block(jen.Return(jen.Qual(rtOutbox, "Draft").Values())),
		jen.Return(jen.Id("e").Dot("Event").Dot("draft").Call().Dot("WithKey").Call(jen.Id("e").Dot("key"))))
	f.Line()
	comment(f, "drafts returns the drafts of a list; a nil event becomes the zero Draft, which the\nruntime refuses.")
	f.Func().Id("drafts").Types(jen.Id("E").Id("Event")).Params(jen.Id("list").Index().Id("E")).Index().Qual(rtOutbox, "Draft").Block(
		jen.Id("all").Op(":=").Make(jen.Index().Qual(rtOutbox, "Draft"), jen.Len(jen.Id("list"))),
		jen.For(jen.List(jen.Id("i"), jen.Id("e")).Op(":=").Range().Id("list")).Block(
			jen.If(jen.Any().Parens(jen.Id("e")).Op("!=").Nil()).Block(
				jen.Id("all").Index(jen.Id("i")).Op("=").Id("e").Dot("draft").Call())),
		jen.Return(jen.Id("all")))
}

// definitionName is the variable that ties an event to the runtime.
func definitionName(e *model.Event) string { return "event" + e.GoName }

func (g *generator) definition(f *jen.File, e *model.Event) {
	event := g.eventType(e)
	f.Line()
	f.Var().Id(definitionName(e)).Op("=").Qual(rtOutbox, "Definition").Index(jen.List(g.keyType(e), event)).BlockFunc(func(group *jen.Group) {
		member := func(name string, value jen.Code) { group.Id(name).Op(":").Add(value).Op(",") }
		member("Topic", jen.Id("Topic"+e.GoName))
		if e.Key != nil {
			if e.Key.Aggregate != "" {
				member("Aggregate", jen.Lit(e.Key.Aggregate))
			}
			member("KeyName", jen.Lit(e.Key.Name))
			if len(e.KeyFields) > 0 {
				member("KeyFields", jen.Lit(names(e.KeyFields)))
			}
			member("Key", g.extractor(e))
		}
		if e.GoType != nil {
			member("Validate", jen.Qual(rtEvent, "ValidateOwn").Index(event.Clone()))
		} else if !e.Binary {
			member("Validate", validateMethod(e))
		}
		member("Encode", g.encode(e))
		if e.VersionField != "" {
			member("Version", jen.Func().Params(jen.Id("e").Op("*").Add(event.Clone())).Int64().Block(
				jen.Return(jen.Int64().Parens(jen.Id("e").Dot(e.VersionField)))))
		}
		if e.Binary {
			member("Binary", jen.True())
		}
	})
	f.Line()
	value := jen.Id("e")
	if e.GoType != nil {
		value = jen.Id("e").Dot("own")
	}
	f.Func().Params(jen.Id("e").Id(e.GoName)).Id("draft").Params().Qual(rtOutbox, "Draft").Block(
		jen.Return(jen.Qual(rtOutbox, "NewDraft").Call(jen.Op("&").Id(definitionName(e)), value)))
}

// extractor is the function that takes the key from an event.
func (g *generator) extractor(e *model.Event) *jen.Statement {
	var args []jen.Code
	for _, s := range e.KeyFields {
		args = append(args, jen.Id("e").Dot(s))
	}
	var result jen.Code
	switch {
	case e.KeyTyped:
		result = args[0]
	default:
		result = jen.Id("New" + e.Key.GoName).Call(args...)
	}
	param := jen.Id("e")
	if len(e.Key.Parts) == 0 {
		param = jen.Id("_")
	}
	return jen.Func().Params(param.Op("*").Add(g.eventType(e))).Id(e.Key.GoName).Block(jen.Return(result))
}

func (g *generator) encode(e *model.Event) *jen.Statement {
	if !e.Binary {
		return jen.Qual(rtEvent, "EncodeJSON").Index(g.eventType(e))
	}
	body := jen.Return(jen.Id("e").Dot("Payload"), jen.Nil())
	if e.GoType != nil {
		body = jen.Return(jen.Id("e").Dot("MarshalBinary").Call())
	}
	return jen.Func().Params(jen.Id("e").Op("*").Add(g.eventType(e))).Params(jen.Index().Byte(), jen.Error()).Block(body)
}

// catalog renders the publisher of a catalog and its sealed event interface.
func (g *generator) catalog(f *jen.File, c *model.Catalog) {
	receiver, event, mark := c.GoName+"Publisher", c.GoName+"Event", "in"+c.GoName
	f.Line()
	comment(f, fmt.Sprintf("%s is a Publisher that takes the events of catalog %s only.", receiver, c.Name))
	f.Type().Id(receiver).Struct(jen.Id("appender").Qual(rtOutbox, "Appender"))
	for _, e := range catalogEvents(c) {
		g.publishMethod(f, receiver, e)
	}
	g.batchMethods(f, receiver, event)
	f.Line()
	comment(f, fmt.Sprintf("%s is an event of catalog %s.", event, c.Name))
	f.Type().Id(event).Interface(jen.Id("Event"), jen.Id(mark).Params())
	f.Line()
	for _, e := range catalogEvents(c) {
		f.Func().Params(jen.Id(e.GoName)).Id(mark).Params().Block()
	}
}
