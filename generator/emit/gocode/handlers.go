package gocode

import (
	"fmt"

	"github.com/dave/jennifer/jen"

	"github.com/lanebox/lanebox/generator/model"
)

func (g *generator) hasHandlers() bool {
	for i := range g.m.Sources {
		if s := &g.m.Sources[i]; s.Pull || s.Map {
			return true
		}
	}
	return false
}

// handlers renders one handler interface per pull source and one hook type per
// mapped push source. They are generic over the transaction, so that they do not
// depend on a database.
func (g *generator) handlers(f *jen.File) {
	for i := range g.m.Sources {
		s := &g.m.Sources[i]
		if s.Pull {
			g.handler(f, s)
		}
		if s.Map {
			g.hook(f, s)
		}
	}
}

func (g *generator) handler(f *jen.File, s *model.Source) {
	name := s.GoName + "Handler"
	f.Line()
	comment(f, doc(fmt.Sprintf("%s handles the messages of source %s, one at a time per aggregate.", name, s.Name), s.Doc,
		"A method that returns nil commits tx together with the completion of the message. After an error tx is\n"+
			"rolled back and the message is tried again, unless the error says otherwise (event.AsPermanent). What a\n"+
			"method does outside tx may happen more than once."))
	f.Type().Id(name).Types(jen.Id("Tx").Any()).InterfaceFunc(func(group *jen.Group) {
		for _, e := range s.Events {
			comment(group, doc(e.GoName+" handles "+e.Topic+".", e.Doc))
			group.Id(e.GoName).Params(jen.Id("ctx").Qual("context", "Context"), jen.Id("tx").Id("Tx"),
				jen.Id("m").Qual(rtInbox, "Message").Index(g.eventType(e))).Error()
		}
		if s.Other {
			comment(group, "Other handles every other event type.")
			group.Id("Other").Params(jen.Id("ctx").Qual("context", "Context"), jen.Id("tx").Id("Tx"), jen.Id("m").Qual(rtInbox, "Raw")).Error()
		}
	})
	result := jen.Map(jen.String()).Qual(rtInbox, "Handler").Index(jen.Id("Tx"))
	f.Line()
	comment(f, fmt.Sprintf("Handle%s returns the methods of h by event type, for the worker of source %s.", s.GoName, s.Name))
	f.Func().Id("Handle" + s.GoName).Types(jen.Id("Tx").Any()).Params(jen.Id("h").Id(name).Index(jen.Id("Tx"))).Add(result).Block(
		jen.Return(result.Clone().BlockFunc(func(group *jen.Group) {
			for _, e := range s.Events {
				group.Id("Topic"+e.GoName).Op(":").Qual(rtInbox, "Decode").
					Call(jen.Id("Decode"+e.GoName), jen.Id("h").Dot(e.GoName)).Op(",")
			}
			if s.Other {
				group.Qual(rtInbox, "OtherTypes").Op(":").Id("h").Dot("Other").Op(",")
			}
		})))
}

func (g *generator) hook(f *jen.File, s *model.Source) {
	name := s.GoName + "Map"
	f.Line()
	comment(f, doc(fmt.Sprintf("%s turns one message of source %s into the events to publish instead of it, none\n"+
		"included. It runs in the transaction that moves the message.", name, s.Name), s.Doc,
		"The events take the message's aggregate id as key, so that they stay in order. A key given with Keyed wins;\n"+
			"the order of the source ends there. An error leaves the message where it is: it is tried again, unless the\n"+
			"error says otherwise (event.AsPermanent)."))
	f.Type().Id(name).Types(jen.Id("Tx").Any()).Func().Params(jen.Id("ctx").Qual("context", "Context"), jen.Id("tx").Id("Tx"),
		jen.Id("m").Qual(rtInbox, "Raw")).Params(jen.Index().Id("Event"), jen.Error())
	f.Line()
	comment(f, fmt.Sprintf("Remap%s returns hook in the form the relay takes.", s.GoName))
	f.Func().Id("Remap"+s.GoName).Types(jen.Id("Tx").Any()).Params(jen.Id("hook").Id(name).Index(jen.Id("Tx"))).
		Qual(rtInbox, "Remap").Index(jen.Id("Tx")).Block(
		jen.Return(jen.Func().Params(jen.Id("ctx").Qual("context", "Context"), jen.Id("tx").Id("Tx"), jen.Id("m").Qual(rtInbox, "Raw")).
			Params(jen.Index().Qual(rtOutbox, "Record"), jen.Error()).Block(
			jen.List(jen.Id("list"), jen.Err()).Op(":=").Id("hook").Call(jen.Id("ctx"), jen.Id("tx"), jen.Id("m")),
			jen.If(jen.Err().Op("!=").Nil()).Block(jen.Return(jen.Nil(), jen.Err())),
			jen.Return(jen.Qual(rtOutbox, "Records").Call(jen.Id("ctx"), jen.Id("m").Dot("Key"), jen.Id("drafts").Call(jen.Id("list")).Op("..."))))))
}
