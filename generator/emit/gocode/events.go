package gocode

import (
	"fmt"
	"slices"

	"github.com/dave/jennifer/jen"

	"github.com/lanebox/lanebox/generator/model"
)

// events renders the event structs, the objects and enums in them, and the
// wrappers of go_type events.
func (g *generator) events(f *jen.File) {
	for _, line := range lines(fmt.Sprintf("Package %s holds the typed events of %s and publishes them.", g.m.Go.Package, g.m.File)) {
		f.PackageComment("// " + line)
	}
	for i := range g.m.Events {
		e := &g.m.Events[i]
		switch {
		case e.GoType != nil:
			if publishable(e) {
				g.ownEvent(f, e)
			}
		case e.Binary:
			g.binaryEvent(f, e)
		default:
			g.object(f, e.Struct, eventDoc(e), e)
		}
		g.decoder(f, e)
	}
	for _, s := range g.structs {
		if !g.isEvent(s) {
			g.object(f, s, doc(s.GoName+" is an object in the payload of events.", s.Doc), nil)
		}
	}
	for _, e := range g.enums {
		enum(f, e)
	}
}

func (g *generator) isEvent(s *model.Struct) bool {
	return slices.ContainsFunc(g.m.Events, func(e model.Event) bool { return e.Struct == s })
}

// eventDoc is the doc comment of an event's type.
func eventDoc(e *model.Event) string {
	key := "It has no key and takes part in no ordering."
	if e.Key != nil {
		key = "Key: " + e.Key.Name
		if e.Key.Aggregate != "" {
			key += " (aggregate " + e.Key.Aggregate + ")"
		}
		key += "."
	}
	to := "It is received only and cannot be published."
	if publishable(e) {
		var list []string
		for _, d := range e.Destinations {
			list = append(list, d.Name)
		}
		to = "It is sent to " + names(list) + "."
	}
	return doc(e.GoName+" is the event "+e.Topic+".", e.Doc, key+" "+to)
}

// object renders a struct with its Validate method; e is nil for an object
// inside events.
func (g *generator) object(f *jen.File, s *model.Struct, text string, e *model.Event) {
	f.Line()
	comment(f, text)
	f.Type().Id(s.GoName).StructFunc(func(group *jen.Group) {
		for _, field := range s.Fields {
			if field.Doc != "" {
				comment(group, field.Doc)
			}
			group.Id(field.GoName).Add(g.goType(field.Type)).Tag(tag(field.Name, field.Type.Optional))
		}
	})
	g.validate(f, s, e)
	g.marshal(f, s)
}

// marshal renders a MarshalJSON for objects with lists, maps or bytes that must
// not be null.
func (g *generator) marshal(f *jen.File, s *model.Struct) {
	var fill []jen.Code
	for _, field := range s.Fields {
		t := field.Type
		if t.Optional || t.Kind != model.List && t.Kind != model.Map && t.Kind != model.Bytes {
			continue
		}
		selector := jen.Id("e").Dot(field.GoName)
		fill = append(fill, jen.If(selector.Clone().Op("==").Nil()).Block(selector.Clone().Op("=").Add(g.goType(t)).Values()))
	}
	if fill == nil {
		return
	}
	f.Line()
	comment(f, "MarshalJSON writes a nil list, map or byte slice as an empty one.")
	f.Func().Params(jen.Id("e").Id(s.GoName)).Id("MarshalJSON").Params().Params(jen.Index().Byte(), jen.Error()).Block(
		append(append([]jen.Code{jen.Type().Id("plain").Id(s.GoName)}, fill...),
			jen.Return(jen.Qual(rtEvent, "EncodeJSON").Call(jen.Parens(jen.Op("*").Id("plain")).Call(jen.Op("&").Id("e")))))...)
}

// ownEvent renders the wrapper of an event whose payload is the service's own
// type. It is needed for All, which takes values of the sealed Event interface.
func (g *generator) ownEvent(f *jen.File, e *model.Event) {
	f.Line()
	comment(f, doc(eventDoc(e), "It wraps the service's own "+e.GoType.Name+", so that All can take it."))
	f.Type().Id(e.GoName).Struct(jen.Id("own").Add(g.eventType(e)))
	f.Line()
	comment(f, "New"+e.GoName+" returns e as an event for All.")
	f.Func().Id("New" + e.GoName).Params(jen.Id("e").Add(g.eventType(e))).Id(e.GoName).Block(
		jen.Return(jen.Id(e.GoName).Values(jen.Dict{jen.Id("own"): jen.Id("e")})))
}

// binaryEvent renders an event whose payload is bytes of whatever format.
func (g *generator) binaryEvent(f *jen.File, e *model.Event) {
	f.Line()
	comment(f, eventDoc(e))
	f.Type().Id(e.GoName).StructFunc(func(group *jen.Group) {
		comment(group, "Payload is stored byte for byte.")
		group.Id("Payload").Index().Byte()
	})
}

// decoder renders the function that reads an event from its payload.
func (g *generator) decoder(f *jen.File, e *model.Event) {
	f.Line()
	comment(f, fmt.Sprintf("Decode%s reads the event from the payload of a message and validates it.", e.GoName))
	f.Func().Id("Decode"+e.GoName).Params(jen.Id("payload").Index().Byte()).
		Params(g.eventType(e), jen.Error()).Block(jen.Return(g.decode(e)))
}

func (g *generator) decode(e *model.Event) *jen.Statement {
	switch payload := jen.Id("payload"); {
	case e.GoType != nil && e.Binary:
		return jen.Qual(rtEvent, "DecodeBinary").Index(g.eventType(e)).Call(payload)
	case e.GoType != nil:
		return jen.Qual(rtEvent, "DecodeJSON").Call(payload, jen.Qual(rtEvent, "ValidateOwn").Index(g.eventType(e)))
	case e.Binary:
		return jen.List(jen.Id(e.GoName).Values(jen.Dict{jen.Id("Payload"): payload}), jen.Nil())
	default:
		return jen.Qual(rtEvent, "DecodeJSON").Call(payload, validateMethod(e))
	}
}

// validateMethod is the Validate method of an event as a function of a pointer.
func validateMethod(e *model.Event) *jen.Statement {
	return jen.Parens(jen.Op("*").Id(e.GoName)).Dot("Validate")
}

func enum(f *jen.File, e *model.EnumType) {
	f.Line()
	comment(f, doc(e.GoName+" is an enum in the payload of events.", e.Doc))
	f.Type().Id(e.GoName).String()
	f.Line()
	comment(f, "The values of "+e.GoName+".")
	var values []jen.Code
	f.Const().DefsFunc(func(group *jen.Group) {
		for _, v := range e.Values {
			group.Id(v.GoName).Id(e.GoName).Op("=").Lit(v.Value)
			values = append(values, jen.Id(v.GoName))
		}
	})
	f.Line()
	comment(f, "Valid reports whether e is one of the values of "+e.GoName+".")
	f.Func().Params(jen.Id("e").Id(e.GoName)).Id("Valid").Params().Bool().Block(
		jen.Switch(jen.Id("e")).Block(jen.Case(values...).Block(jen.Return(jen.True()))),
		jen.Return(jen.False()))
}
