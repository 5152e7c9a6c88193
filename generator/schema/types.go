package schema

import (
	"fmt"
	"strings"

	"gopkg.in/yaml.v3"
)

// typeProperties are the keys of a type written as a mapping.
func typeProperties[T any](member func(*T) *Type) []property[T] {
	// form reads one of the five keys that say what the type is.
	form := func(key, doc string, json func() object, read func(l *loader, n *yaml.Node, what string, t *Type)) property[T] {
		return property[T]{name: key, doc: doc, json: json, read: func(l *loader, k, n *yaml.Node, what string, v *T) {
			t := member(v)
			if t.Pos.Line != 0 {
				l.report(l.mark(k), "two-types", "keep one of type, enum, fields, map and go_type", "%s has more than one type", what)
				return
			}
			t.Mark = l.mark(n)
			read(l, n, what+": "+key, t)
		}}
	}
	return []property[T]{
		form("type", typeDoc, typeJSON, func(l *loader, n *yaml.Node, what string, t *Type) {
			optional := t.Optional
			readType(l, n, what, t)
			t.Optional = t.Optional || optional
		}),
		form("enum", "The values of an enum.", func() object { return listOf(enumValueJSON()) }, func(l *loader, n *yaml.Node, what string, t *Type) {
			t.Form = EnumForm
			sequence(enumValueReader).read(l, n, what, &t.Enum)
		}),
		form("fields", "The members of an object.", func() object { return object{"$ref": "#/$defs/fields"} }, func(l *loader, n *yaml.Node, what string, t *Type) {
			t.Form = ObjectForm
			fieldsReader().read(l, n, what, &t.Fields)
		}),
		form("map", "The values of a map with string keys.", typeJSON, func(l *loader, n *yaml.Node, what string, t *Type) {
			t.Form, t.Elem = MapForm, new(Type)
			readType(l, n, what, t.Elem)
		}),
		form("go_type", "A Go type of the service: import path, dot, name.", name.json, func(l *loader, n *yaml.Node, what string, t *Type) {
			name.read(l, n, what, &t.GoType)
			if t.GoType.Set {
				t.Form = GoForm
			}
		}),
		prop("go_kind", "What a go_type in a key is based on.", words("string", "int64"), func(v *T) *Text { return &member(v).GoKind }),
		{name: "optional", doc: "Whether the value may be missing.", json: yes.json, read: func(l *loader, _, n *yaml.Node, what string, v *T) {
			var b Value[bool]
			yes.read(l, n, what+": optional", &b)
			member(v).Optional = member(v).Optional || b.V
		}},
	}
}

// readType reads a type expression.
func readType(l *loader, n *yaml.Node, what string, t *Type) {
	t.Mark = l.mark(n)
	switch n.Kind {
	case yaml.SequenceNode:
		if len(n.Content) != 1 {
			l.report(t.Mark, "list-type", "a list is written [string], an enum {enum: [a, b]}", "%s: a list has exactly one element type", what)
			return
		}
		t.Form, t.Elem = ListForm, new(Type)
		readType(l, n.Content[0], what, t.Elem)
	case yaml.MappingNode:
		at := t.Mark
		t.Mark = Mark{}
		typeTable.read(l, n, what, t)
		if t.Pos.Line == 0 {
			l.report(at, "missing-key", "write type, enum, fields, map or go_type", "%s has no type", what)
			t.Mark = at
		}
	default:
		readTypeName(l, n, what, t)
	}
}

// readTypeName reads a scalar type expression.
func readTypeName(l *loader, n *yaml.Node, what string, t *Type) {
	var text Text
	if !l.nameOf(n, what, &text) {
		return
	}
	if hint := foreignSpelling(text.V); hint != "" {
		l.report(t.Mark, "type-spelling", hint, "%s: unknown type %q", what, shorten(text.V))
		return
	}
	t.Form = NameForm
	t.Name, t.Optional = strings.CutSuffix(text.V, "?")
}

// foreignSpelling says how to write a list or map that is spelled as elsewhere.
func foreignSpelling(s string) string {
	for _, open := range []string{"list<", "array<", "List<"} {
		if elem, ok := strings.CutPrefix(s, open); ok {
			return fmt.Sprintf("a list is written [%s]", strings.TrimSuffix(elem, ">"))
		}
	}
	if elem, ok := strings.CutSuffix(s, "[]"); ok {
		return fmt.Sprintf("a list is written [%s]", elem)
	}
	if strings.HasPrefix(s, "map<") || strings.HasPrefix(s, "map[") {
		elem := s[strings.LastIndexAny(s, ",<[] ")+1:]
		if elem = strings.Trim(elem, "<>[], "); elem == "" {
			elem = strings.Trim(s[len("map<"):], "<>[], ")
		}
		if elem == "" {
			elem = "string"
		}
		return fmt.Sprintf("a map is written {map: %s}; its keys are strings", elem)
	}
	return ""
}

// listJSON describes [T].
func listJSON() object {
	return object{"type": "array", "minItems": 1, "maxItems": 1, "items": typeJSON()}
}

// typeJSON describes a type expression.
func typeJSON() object { return object{"$ref": "#/$defs/type"} }

// fieldsReader reads the members of an object.
func fieldsReader() reader[[]Field] {
	return entries("field", func(f *Field) *Text { return &f.Name }, func() reader[Field] {
		return reader[Field]{read: readField, json: func() object {
			return object{"anyOf": []any{object{"type": "string", "minLength": 1}, listJSON(), object{"$ref": "#/$defs/field"}}}
		}}
	})
}

// readField reads what stands behind a field's name.
func readField(l *loader, n *yaml.Node, what string, f *Field) {
	if n.Kind != yaml.MappingNode {
		readType(l, n, what, &f.Type)
		return
	}
	fieldTable.read(l, n, what, f)
	if f.Type.Pos.Line == 0 {
		f.Type.Mark = l.mark(n)
		l.report(f.Type.Mark, "missing-key", "write type, enum, fields, map or go_type", "%s has no type", what)
	}
}

// enumValueReader reads a value of an enum: text, or a mapping.
func enumValueReader() reader[EnumValue] {
	return reader[EnumValue]{json: enumValueJSON, read: func(l *loader, n *yaml.Node, what string, v *EnumValue) {
		if n.Kind == yaml.MappingNode {
			enumValueTable.read(l, n, what, v)
			return
		}
		l.nameOf(n, what+": a value", &v.Value)
	}}
}

func enumValueJSON() object {
	return object{"anyOf": []any{object{"type": "string", "minLength": 1}, object{"$ref": "#/$defs/value"}}}
}

// readKeyType reads a key's type: a scalar type, or the parts of a composite key.
func readKeyType(l *loader, _, n *yaml.Node, what string, k *Key) {
	what += ": type"
	if n.Kind != yaml.SequenceNode {
		k.Type = new(Type)
		readType(l, n, what, k.Type)
		return
	}
	k.Composite = l.mark(n)
	for _, part := range n.Content {
		var p KeyPart
		if part.Kind == yaml.MappingNode && len(part.Content) == 2 {
			if l.nameOf(part.Content[0], what+": a part", &p.Name) {
				p.Type = new(Type)
				readType(l, part.Content[1], what+": "+p.Name.V, p.Type)
				k.Parts = append(k.Parts, p)
			}
			continue
		}
		if l.nameOf(part, what+": a part", &p.Name) {
			k.Parts = append(k.Parts, p)
		}
	}
}

func keyTypeJSON() object {
	part := object{"type": "object", "minProperties": 1, "maxProperties": 1, "additionalProperties": typeJSON()}
	return object{"anyOf": []any{
		object{"type": "string", "minLength": 1},
		object{"$ref": "#/$defs/element"},
		object{"type": "array", "minItems": 2, "items": object{"anyOf": []any{object{"type": "string", "minLength": 1}, part}}},
	}}
}

// keyUse reads what orders an event: a name, {key: field} or {key: [fields]}.
var keyUse = reader[*KeyUse]{
	read: func(l *loader, n *yaml.Node, what string, v **KeyUse) {
		use := new(KeyUse)
		if n.Kind != yaml.MappingNode {
			if l.nameOf(n, what, &use.Name) {
				*v = use
			}
			return
		}
		if len(n.Content) != 2 {
			l.report(l.mark(n), "wrong-shape", "write the name of a field, or {key: field}", "%s must name one key", what)
			return
		}
		if !l.nameOf(n.Content[0], what, &use.Name) {
			return
		}
		oneOrMore.read(l, n.Content[1], what+": "+use.Name.V, &use.Fields)
		if given := n.Content[1]; given.Kind != yaml.SequenceNode || len(use.Fields) == len(given.Content) {
			if len(use.Fields) > 0 {
				*v = use
			}
		}
	},
	json: func() object {
		return object{"anyOf": []any{
			name.json(),
			object{"type": "object", "minProperties": 1, "maxProperties": 1, "additionalProperties": oneOrMore.json()},
		}}
	},
}
