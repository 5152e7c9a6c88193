package gocode

import (
	"slices"

	"github.com/dave/jennifer/jen"

	"github.com/lanebox/lanebox/generator/model"
)

// validate renders the Validate method of an object.
func (g *generator) validate(f *jen.File, s *model.Struct, e *model.Event) {
	var checks []jen.Code
	for _, field := range s.Fields {
		if keyOf(e, field) {
			continue
		}
		if value := g.checked(field.Type, jen.Id("e").Dot(field.GoName)); value != nil {
			checks = append(checks, jen.Qual(rtEvent, "CheckField").Call(jen.Lit(field.Name), value))
		}
	}
	f.Line()
	comment(f, "Validate returns the first member that is not as the schema says, as a *event.FieldError, or nil.")
	f.Func().Params(jen.Id("e").Id(s.GoName)).Id("Validate").Params().Error().BlockFunc(func(group *jen.Group) {
		switch len(checks) {
		case 0:
			group.Return(jen.Nil())
		case 1:
			group.Return(checks[0])
		default:
			for i, check := range checks {
				checks[i] = jen.Line().Add(check)
			}
			group.Return(jen.Qual("cmp", "Or").Call(append(checks, jen.Line())...))
		}
	})
}

// keyOf reports whether field is the event's own key. It may be empty, since an
// explicit key may take its place; publishing checks that there is one.
func keyOf(e *model.Event, field model.Field) bool {
	return e != nil && field.Type.Kind == model.KeyRef && slices.Contains(e.KeyFields, field.GoName)
}

// checked returns an expression for what is wrong with value, or nil when every
// value of its type is right.
func (g *generator) checked(t model.Type, value *jen.Statement) *jen.Statement {
	if t.Kind == model.JSON && t.Optional {
		return jen.Qual(rtEvent, "CheckOptionalRawJSON").Call(value)
	}
	if pointer(t) {
		t.Optional = false
		if check := g.checkFunc(t); check != nil {
			return jen.Qual(rtEvent, "CheckOptional").Call(value, check)
		}
		return nil
	}
	switch t.Kind {
	case model.Object:
		return value.Dot("Validate").Call()
	case model.List, model.Map:
		check := g.checkFunc(*t.Elem)
		if check == nil && t.Kind == model.Map {
			check = jen.Qual(rtEvent, "CheckAny").Index(g.goType(*t.Elem)) // the keys are checked
		}
		if check == nil {
			return nil
		}
		name := map[model.Kind]string{model.List: "CheckEach", model.Map: "CheckValues"}[t.Kind]
		return jen.Qual(rtEvent, name).Call(value, check)
	}
	if check := g.checkFunc(t); check != nil {
		return check.Call(value)
	}
	return nil
}

// simpleChecks are the checks of values that need no type argument.
var simpleChecks = map[model.Kind]string{
	model.String: "CheckText", model.Float64: "CheckNumber", model.Time: "CheckTime", model.Date: "CheckDate",
	model.UUID: "CheckUUID", model.JSON: "CheckRawJSON", model.Enum: "CheckEnum", model.KeyRef: "CheckTypedKey",
	model.Foreign: "CheckOwn",
}

// checkFunc returns a function that checks a value of type t, or nil when every
// value is right.
func (g *generator) checkFunc(t model.Type) *jen.Statement {
	if name, ok := simpleChecks[t.Kind]; ok && !t.Optional {
		return jen.Qual(rtEvent, name)
	}
	if t.Kind == model.Object && !t.Optional {
		return jen.Id(t.Struct.GoName).Dot("Validate")
	}
	if !pointer(t) && t.Kind != model.List && t.Kind != model.Map {
		return nil
	}
	inner := g.checked(t, jen.Id("v"))
	if inner == nil {
		return nil
	}
	return jen.Func().Params(jen.Id("v").Add(g.goType(t))).Error().Block(jen.Return(inner))
}
