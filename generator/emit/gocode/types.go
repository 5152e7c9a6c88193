package gocode

import (
	"github.com/dave/jennifer/jen"

	"github.com/lanebox/lanebox/generator/model"
)

// goType returns the Go type of t, as seen from the file it is rendered in.
func (g *generator) goType(t model.Type) *jen.Statement {
	plain := g.plainType(t)
	if pointer(t) {
		return jen.Op("*").Add(plain)
	}
	return plain
}

// pointer reports whether a missing value of t is a nil pointer.
func pointer(t model.Type) bool {
	switch t.Kind {
	case model.List, model.Map, model.Bytes, model.JSON:
		return false
	}
	return t.Optional
}

func (g *generator) plainType(t model.Type) *jen.Statement {
	switch t.Kind {
	case model.Bool, model.String, model.Int32, model.Int64, model.Float64:
		return jen.Id(string(t.Kind))
	case model.Decimal:
		return jen.Qual(rtEvent, "Decimal")
	case model.Bytes:
		return jen.Index().Byte()
	case model.Time:
		return jen.Qual("time", "Time")
	case model.Date:
		return jen.Qual(rtEvent, "Date")
	case model.Duration:
		return jen.Qual(rtEvent, "Duration")
	case model.UUID:
		return jen.Qual(rtEvent, "UUID")
	case model.JSON:
		return jen.Qual("encoding/json", "RawMessage")
	case model.Enum:
		return g.local(t.Enum.GoName)
	case model.Object:
		return g.local(t.Struct.GoName)
	case model.List:
		return jen.Index().Add(g.goType(*t.Elem))
	case model.Map:
		return jen.Map(jen.String()).Add(g.goType(*t.Elem))
	case model.KeyRef:
		return g.local(t.Key.GoName)
	case model.Foreign:
		return jen.Qual(t.GoType.Import, t.GoType.Name)
	}
	panic("gocode: unknown kind " + string(t.Kind)) // check refuses it before
}

// local names a type of the events package; the qualifier is left out inside it.
func (g *generator) local(name string) *jen.Statement { return jen.Qual(g.m.Go.Import, name) }

// eventType is the Go type that a service publishes and handles for e.
func (g *generator) eventType(e *model.Event) *jen.Statement {
	if e.GoType != nil {
		return jen.Qual(e.GoType.Import, e.GoType.Name)
	}
	return g.local(e.GoName)
}

// keyType is the Go type of the keys of e; an event that declares none takes
// text.
func (g *generator) keyType(e *model.Event) *jen.Statement {
	if e.Key == nil {
		return jen.Qual(rtEvent, "RawKey")
	}
	return g.local(e.Key.GoName)
}

// tag is the struct tag of a member.
func tag(name string, optional bool) map[string]string {
	switch {
	case optional:
		name += ",omitzero"
	case name == "-":
		name += "," // otherwise encoding/json leaves the member out
	}
	return map[string]string{"json": name}
}
