package gocode

import (
	"fmt"

	"github.com/dave/jennifer/jen"

	"github.com/lanebox/lanebox/generator/model"
)

func (g *generator) hasAssertions() bool { return len(g.aliases) > 0 }

// assertions renders declarations that do nothing but name the service's own
// types and their members, each behind a line comment, so that the compiler
// reports a mistake in the schema at its place in the schema. Line comments
// spoil the positions of what follows, so no code lives here. The compiler looks
// at files in the order of their names and stops after ten mistakes, so the name
// of this file is the first: the place in the schema is among those ten.
func (g *generator) assertions(f *jen.File) {
	comment(f, "The declarations below are never used. They name the types and members that the\n"+
		"schema takes from the service's own code; the line comments make the compiler report\n"+
		"a mistake at its place in the schema.")
	for i := range g.m.Keys {
		for _, p := range g.m.Keys[i].Parts {
			if p.Type.Kind == model.Foreign {
				g.assertKey(f, p.Type)
			}
		}
	}
	for i := range g.m.Events {
		g.assertEvent(f, &g.m.Events[i])
	}
	for _, s := range g.structs {
		for _, field := range s.Fields {
			g.assertType(f, field.Type)
		}
	}
}

func (g *generator) assertType(f *jen.File, t model.Type) {
	switch t.Kind {
	case model.List, model.Map:
		g.assertType(f, *t.Elem)
	case model.Foreign:
		f.Line()
		f.Var().Id("_").Add(g.located(t.GoType))
	}
}

// assertKey asserts that a key's own type is based on what the schema says: a
// conversion alone would turn a number into a character.
func (g *generator) assertKey(f *jen.File, t model.Type) {
	name := "IntKey"
	if foreignText(t) {
		name = "StringKey"
	}
	f.Line()
	f.Var().Id("_").Op("=").Qual(rtEvent, name).Index(jen.Op(g.line(t.GoType.Pos)).Add(g.located(t.GoType)))
}

// located is a go_type behind the place where the schema names it.
func (g *generator) located(t *model.GoType) *jen.Statement {
	// jennifer has no way to put a comment between the package and the name, so
	// a qualified name is written as the package, with the name behind it.
	return jen.Qual(t.Import, g.line(t.Pos)+" "+t.Name)
}

func (g *generator) assertEvent(f *jen.File, e *model.Event) {
	if e.GoType == nil {
		return
	}
	f.Line()
	f.Var().Id("_").Add(g.located(e.GoType))
	param := jen.Id("e").Op("*").Add(g.eventType(e))
	if e.Key != nil && len(e.KeyFields) > 0 {
		var args []jen.Code
		for _, s := range e.KeyFields {
			args = append(args, g.selector(e.KeyPos, s))
		}
		f.Line()
		f.Func().Id("_").Params(param.Clone()).Id(e.Key.GoName).Block(jen.Return(jen.Id("New" + e.Key.GoName).Call(args...)))
	}
	if e.VersionField != "" {
		f.Line()
		f.Func().Id("_").Params(param.Clone()).Int64().Block(
			jen.Return(jen.Int64().Parens(g.selector(e.VersionPos, e.VersionField))))
	}
}

// selector is a member of e behind the place where the schema names it. The
// compiler reports an unknown member at the member and a wrong type at the
// beginning of the expression, so both have a line comment.
func (g *generator) selector(pos model.Pos, s string) *jen.Statement {
	line := g.line(pos)
	return jen.Op(line).Id("e").Op(".").Op(line).Id(s)
}

// line is the comment that makes the compiler report what follows it at pos. The
// formatter puts a blank behind a comment, which counts as a column.
func (g *generator) line(pos model.Pos) string {
	return fmt.Sprintf("/*line %s:%d:%d*/", oneLine(g.m.File), max(pos.Line, 1), max(pos.Column-1, 1))
}
