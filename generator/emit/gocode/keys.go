package gocode

import (
	"fmt"
	"go/token"
	"slices"

	"github.com/dave/jennifer/jen"

	"github.com/lanebox/lanebox/generator/model"
	"github.com/lanebox/lanebox/generator/naming"
)

// keys renders one distinct type per key. It is a struct, so that neither a
// constant nor another key's value converts to it.
func (g *generator) keys(f *jen.File) {
	for i := range g.m.Keys {
		k := &key{g: g, Key: &g.m.Keys[i]}
		f.Line()
		comment(f, k.doc())
		if len(k.Parts) == 0 {
			k.constant(f)
			continue
		}
		k.declaration(f)
		k.constructor(f)
		k.value(f)
		k.orderingKey(f)
		k.stringer(f)
		switch {
		case len(k.Parts) > 1:
			k.objectCodec(f)
		case isText(k.Parts[0].Type):
			k.textCodec(f)
		default:
			k.numberCodec(f)
		}
	}
}

// A key renders the declarations of one key type.
type key struct {
	g *generator
	*model.Key
}

func (k *key) doc() string {
	text := k.GoName + " is the ordering key " + k.Name
	if k.Aggregate != "" {
		text += " of aggregate " + k.Aggregate
	}
	rule := "Events with equal keys are delivered in commit order. The zero " + k.GoName + " is the empty key."
	if len(k.Parts) == 0 {
		rule = "It has one value: all its events are delivered in commit order, one at a time."
	}
	return doc(text+".", k.Key.Doc, rule)
}

// constant renders a key that has one value.
func (k *key) constant(f *jen.File) {
	f.Type().Id(k.GoName).Struct()
	f.Line()
	comment(f, fmt.Sprintf("New%s returns the only %s.", k.GoName, k.GoName))
	f.Func().Id("New" + k.GoName).Params().Id(k.GoName).Block(jen.Return(jen.Id(k.GoName).Values()))
	f.Line()
	comment(f, "OrderingKey returns the bytes that are compared.")
	f.Func().Params(jen.Id(k.GoName)).Id("OrderingKey").Params().String().Block(jen.Return(jen.Lit(k.Prefix + k.Const)))
	k.stringer(f)
}

// field is the name of the struct member that holds a part.
func (k *key) field(p model.KeyPart) string {
	if len(k.Parts) == 1 {
		return "value"
	}
	if k.flag() == p.GoName {
		return p.GoName + "Value"
	}
	return p.GoName
}

// flag is the name of the member that tells the zero value from a key made of
// numbers that are 0; "" when a part is empty in the zero value.
func (k *key) flag() string {
	for _, p := range k.Parts {
		if isText(p.Type) {
			return ""
		}
	}
	return "set"
}

func (k *key) declaration(f *jen.File) {
	f.Type().Id(k.GoName).StructFunc(func(group *jen.Group) {
		for _, p := range k.Parts {
			group.Id(k.field(p)).Add(k.g.goType(p.Type))
		}
		if k.flag() != "" {
			group.Id(k.flag()).Bool()
		}
	})
}

// params are the parts as parameters; neighbours of one type share it.
func (k *key) params() []jen.Code {
	var list []jen.Code
	for i := 0; i < len(k.Parts); {
		t := k.g.goType(k.Parts[i].Type)
		var ids []jen.Code
		for ; i < len(k.Parts) && k.g.goType(k.Parts[i].Type).GoString() == t.GoString(); i++ {
			ids = append(ids, jen.Id(k.Parts[i].GoName))
		}
		list = append(list, jen.List(ids...).Add(t))
	}
	return list
}

func (k *key) constructor(f *jen.File) {
	text := fmt.Sprintf("New%s returns the key of %s.", k.GoName, k.parameters())
	if k.flag() == "" {
		text += " An empty part makes the key empty."
	}
	if len(k.Parts) == 1 && k.flag() == "" {
		text = fmt.Sprintf("New%s returns the key of %s; empty for an empty one.", k.GoName, k.parameters())
	}
	f.Line()
	comment(f, text)
	f.Func().Id("New" + k.GoName).Params(k.params()...).Id(k.GoName).Block(
		jen.Return(jen.Id(k.GoName).ValuesFunc(func(group *jen.Group) {
			for _, p := range k.Parts {
				group.Id(k.field(p)).Op(":").Id(p.GoName)
			}
			if k.flag() != "" {
				group.Id(k.flag()).Op(":").True()
			}
		})))
}

func (k *key) parameters() string {
	var list []string
	for _, p := range k.Parts {
		list = append(list, p.GoName)
	}
	return names(list)
}

// value renders the accessor of what the key was made of.
func (k *key) value(f *jen.File) {
	f.Line()
	method := func(name string, results []jen.Code) {
		f.Func().Params(jen.Id("k").Id(k.GoName)).Id(name).Params().Params(results...).Block(
			jen.ReturnFunc(func(group *jen.Group) {
				for _, p := range k.Parts {
					group.Id("k").Dot(k.field(p))
				}
			}))
	}
	if len(k.Parts) == 1 {
		comment(f, "Value returns what the key was made of.")
		method("Value", []jen.Code{k.g.goType(k.Parts[0].Type)})
		return
	}
	comment(f, "Parts returns what the key was made of.")
	method("Parts", k.params())
}

func (k *key) orderingKey(f *jen.File) {
	var empty *jen.Statement
	or := func(cond *jen.Statement) {
		if empty == nil {
			empty = cond
			return
		}
		empty.Op("||").Add(cond)
	}
	var parts []jen.Code
	for _, p := range k.Parts {
		value := func() *jen.Statement { return jen.Id("k").Dot(k.field(p)) }
		if cond := emptyPart(p.Type, value()); cond != nil {
			or(cond)
		}
		parts = append(parts, partText(p.Type, value()))
	}
	if k.flag() != "" {
		or(jen.Op("!").Id("k").Dot(k.flag()))
	}
	result := parts[0]
	if len(parts) > 1 {
		result = jen.Qual(rtEvent, "JoinKey").Call(parts...)
	}
	if k.Prefix != "" {
		result = jen.Lit(k.Prefix).Op("+").Add(result)
	}
	plain := len(parts) == 1 && k.Prefix == "" && (k.Parts[0].Type.Kind == model.String || foreignText(k.Parts[0].Type) || k.Parts[0].Type.Kind == model.Enum)
	f.Line()
	comment(f, "OrderingKey returns the bytes that are compared; empty for the empty key.")
	f.Func().Params(jen.Id("k").Id(k.GoName)).Id("OrderingKey").Params().String().BlockFunc(func(group *jen.Group) {
		if !plain {
			group.If(empty).Block(jen.Return(jen.Lit("")))
		}
		group.Return(result)
	})
}

// isText reports whether the values of a part are written as text, of which the
// empty one means that there is none. The others are numbers.
func isText(t model.Type) bool {
	return t.Kind != model.Int32 && t.Kind != model.Int64 && (t.Kind != model.Foreign || foreignText(t))
}

func foreignText(t model.Type) bool { return t.Kind == model.Foreign && t.GoType.Kind == model.String }

// partText is the canonical text of a part.
func partText(t model.Type, value *jen.Statement) *jen.Statement {
	switch t.Kind {
	case model.String:
		return value
	case model.Enum:
		return jen.String().Parens(value)
	case model.UUID, model.Date:
		return value.Dot("String").Call()
	case model.KeyRef:
		return value.Dot("OrderingKey").Call()
	case model.Int64:
		return jen.Qual("strconv", "FormatInt").Call(value, jen.Lit(10))
	}
	if foreignText(t) {
		return jen.String().Parens(value)
	}
	return jen.Qual("strconv", "FormatInt").Call(jen.Int64().Parens(value), jen.Lit(10))
}

// emptyPart is the condition under which a part is missing; nil for numbers.
func emptyPart(t model.Type, value *jen.Statement) *jen.Statement {
	switch {
	case !isText(t):
		return nil
	case t.Kind == model.UUID, t.Kind == model.Date:
		return value.Dot("IsZero").Call()
	case t.Kind == model.KeyRef:
		return value.Dot("OrderingKey").Call().Op("==").Lit("")
	default:
		return value.Op("==").Lit("")
	}
}

func (k *key) stringer(f *jen.File) {
	f.Line()
	comment(f, "String returns the ordering key.")
	f.Func().Params(jen.Id("k").Id(k.GoName)).Id("String").Params().String().Block(
		jen.Return(jen.Id("k").Dot("OrderingKey").Call()))
}

// textCodec makes a key of one text the plain string in JSON.
func (k *key) textCodec(f *jen.File) {
	t := k.Parts[0].Type
	f.Line()
	comment(f, "MarshalText returns the value without the prefix of the key, so that the key is a plain string in JSON.")
	k.method(f, "MarshalText").Params().Params(jen.Index().Byte(), jen.Error()).BlockFunc(func(group *jen.Group) {
		if t.Kind == model.UUID || t.Kind == model.Date {
			group.If(jen.Id("k").Dot("value").Dot("IsZero").Call()).Block(jen.Return(jen.Nil(), jen.Nil()))
			group.Return(jen.Id("k").Dot("value").Dot("MarshalText").Call())
			return
		}
		group.Return(jen.Index().Byte().Parens(jen.Id("k").Dot("value")), jen.Nil())
	})
	f.Line()
	comment(f, "UnmarshalText reads what MarshalText wrote.")
	f.Func().Params(jen.Id("k").Op("*").Id(k.GoName)).Id("UnmarshalText").Params(jen.Id("text").Index().Byte()).Error().
		BlockFunc(func(group *jen.Group) {
			value := k.g.goType(t).Parens(jen.Id("text"))
			if t.Kind == model.UUID || t.Kind == model.Date {
				group.List(jen.Id("v"), jen.Err()).Op(":=").Qual(rtEvent, "ParseKeyText").Index(k.g.goType(t)).Call(jen.Id("text"))
				returnErr(group)
				value = jen.Id("v")
			}
			k.assign(group, value)
		})
}

// numberCodec makes a key of one number the plain number in JSON.
func (k *key) numberCodec(f *jen.File) {
	f.Line()
	comment(f, "MarshalJSON writes the plain number; the empty key is null.")
	k.method(f, "MarshalJSON").Params().Params(jen.Index().Byte(), jen.Error()).Block(
		jen.If(jen.Op("!").Id("k").Dot("set")).Block(jen.Return(jen.Index().Byte().Parens(jen.Lit("null")), jen.Nil())),
		jen.Return(jen.Index().Byte().Parens(partText(k.Parts[0].Type, jen.Id("k").Dot("value"))), jen.Nil()))
	k.unmarshalJSON(f, k.number(k.Parts[0].Type), func(v *jen.Statement) []jen.Code {
		if k.Parts[0].Type.Kind == model.Foreign {
			v = k.g.goType(k.Parts[0].Type).Parens(v)
		}
		return []jen.Code{v}
	})
}

// number is the type that a number is read as; a go_type may have methods of its
// own, which are not asked.
func (k *key) number(t model.Type) *jen.Statement {
	if t.Kind == model.Foreign {
		return jen.Int64()
	}
	return k.g.goType(t)
}

// objectCodec makes a composite key an object in JSON.
func (k *key) objectCodec(f *jen.File) {
	shape := "json" + k.GoName
	fields := k.jsonFields()
	f.Line()
	comment(f, shape+" is how "+k.GoName+" looks in JSON.")
	f.Type().Id(shape).StructFunc(func(group *jen.Group) {
		for i, p := range k.Parts {
			group.Id(fields[i]).Add(k.g.goType(p.Type)).Tag(tag(p.Name, false))
		}
	})
	f.Line()
	comment(f, "MarshalJSON writes an object with the parts of the key; the empty key is null.")
	k.method(f, "MarshalJSON").Params().Params(jen.Index().Byte(), jen.Error()).Block(
		jen.If(jen.Id("k").Dot("OrderingKey").Call().Op("==").Lit("")).Block(
			jen.Return(jen.Index().Byte().Parens(jen.Lit("null")), jen.Nil())),
		jen.Return(jen.Qual(rtEvent, "EncodeJSON").Call(jen.Op("&").Id(shape).ValuesFunc(func(group *jen.Group) {
			for i, p := range k.Parts {
				group.Id(fields[i]).Op(":").Id("k").Dot(k.field(p))
			}
		}))))
	k.unmarshalJSON(f, jen.Id(shape), func(v *jen.Statement) []jen.Code {
		var args []jen.Code
		for i := range k.Parts {
			args = append(args, v.Clone().Dot(fields[i]))
		}
		return args
	})
}

// jsonFields are the Go names of the parts in the object.
func (k *key) jsonFields() []string {
	var list []string
	for i, p := range k.Parts {
		name, err := naming.Exported(p.Name)
		if err != nil || slices.Contains(list, name) || !token.IsIdentifier(name) {
			name = fmt.Sprintf("Part%d", i+1)
		}
		list = append(list, name)
	}
	return list
}

func (k *key) unmarshalJSON(f *jen.File, as *jen.Statement, args func(v *jen.Statement) []jen.Code) {
	f.Line()
	comment(f, "UnmarshalJSON reads what MarshalJSON wrote.")
	f.Func().Params(jen.Id("k").Op("*").Id(k.GoName)).Id("UnmarshalJSON").Params(jen.Id("data").Index().Byte()).Error().
		BlockFunc(func(group *jen.Group) {
			group.If(jen.String().Parens(jen.Id("data")).Op("==").Lit("null")).Block(
				jen.Op("*").Id("k").Op("=").Id(k.GoName).Values(), jen.Return(jen.Nil()))
			group.Var().Id("v").Add(as)
			group.If(jen.Err().Op(":=").Qual("encoding/json", "Unmarshal").Call(jen.Id("data"), jen.Op("&").Id("v")),
				jen.Err().Op("!=").Nil()).Block(jen.Return(jen.Err()))
			k.assign(group, args(jen.Id("v"))...)
		})
}

func (k *key) method(f *jen.File, name string) *jen.Statement {
	return f.Func().Params(jen.Id("k").Id(k.GoName)).Id(name)
}

func (k *key) assign(group *jen.Group, args ...jen.Code) {
	group.Op("*").Id("k").Op("=").Id("New" + k.GoName).Call(args...)
	group.Return(jen.Nil())
}

func returnErr(group *jen.Group) {
	group.If(jen.Err().Op("!=").Nil()).Block(jen.Return(jen.Err()))
}
