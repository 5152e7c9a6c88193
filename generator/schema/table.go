package schema

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"gopkg.in/yaml.v3"

	"github.com/lanebox/lanebox/generator/diag"
)

// A reader turns a node into a V and describes in JSON Schema what it accepts.
type reader[V any] struct {
	// read reports what is wrong with n, which is what ("destination
	// \"warehouse\": timeout"), and leaves v as far as it got.
	read func(l *loader, n *yaml.Node, what string, v *V)
	// json is the JSON Schema of the value.
	json func() object
}

// object is a JSON object under construction.
type object = map[string]any

// A property is a key of a mapping that fills a T.
type property[T any] struct {
	name     string // snake_case
	doc      string // for editors
	required bool
	read     func(l *loader, key, value *yaml.Node, what string, t *T)
	json     func() object
	// reserved keys are read, so that a check can speak about them, but are not
	// part of the JSON Schema.
	reserved bool
	// types are those values of the key type beside which the key makes sense; nil
	// means all.
	types []string
}

// prop declares a property that a reader fills.
func prop[T, V any](name, doc string, r reader[V], member func(*T) *V) property[T] {
	return property[T]{name: name, doc: doc, json: r.json, read: func(l *loader, _, value *yaml.Node, what string, t *T) {
		r.read(l, value, within(what, name), member(t))
	}}
}

// root is what messages call the outermost mapping.
const root = "the schema"

// within names a key of something in messages.
func within(what, key string) string {
	if what == root {
		return key
	}
	return what + ": " + key
}

// must makes a property required.
func must[T any](p property[T]) property[T] {
	p.required = true
	return p
}

// noting makes a property also record where its key stands, the first time.
func noting[T any](p property[T], member func(*T) *Mark) property[T] {
	read := p.read
	p.read = func(l *loader, key, value *yaml.Node, what string, t *T) {
		if m := member(t); m.Pos.Line == 0 {
			*m = l.mark(key)
		}
		read(l, key, value, what, t)
	}
	return p
}

// A table says which keys a mapping has.
type table[T any] struct {
	title      string // in the JSON Schema's $defs
	doc        string
	properties []property[T]
	// explained are keys that people expect and that are not there for a reason.
	explained map[string]string
}

// names are the keys that a message may propose for a mapping.
func (t *table[T]) names(n *yaml.Node) []string {
	var names []string
	kind := typeOf(n)
	for _, p := range t.properties {
		if !p.reserved && (p.types == nil || slices.Contains(p.types, kind)) {
			names = append(names, p.name)
		}
	}
	return names
}

// property returns the property that key spells, in snake_case or camelCase.
func (t *table[T]) property(key string) *property[T] {
	for i := range t.properties {
		if name := t.properties[i].name; name == key || camel(name) == key {
			return &t.properties[i]
		}
	}
	return nil
}

// camel writes a snake_case name in camelCase.
func camel(name string) string {
	parts := strings.Split(name, "_")
	for i, p := range parts[1:] {
		parts[i+1] = strings.ToUpper(p[:1]) + p[1:]
	}
	return strings.Join(parts, "")
}

// read fills v from a mapping.
func (t *table[T]) read(l *loader, n *yaml.Node, what string, v *T) {
	if !l.isMapping(n, what) {
		return
	}
	first := map[string]*yaml.Node{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode {
			l.report(l.mark(key), "key-not-text", "", "a key of %s must be text", what)
			continue
		}
		p := t.property(key.Value)
		if p == nil {
			l.unknownKey(key, what, t.explained[key.Value], t.names(n))
			continue
		}
		if before := first[p.name]; before != nil {
			l.duplicate(key, before, "key")
			continue
		}
		first[p.name] = key
		p.read(l, key, value, what, v)
	}
	for _, p := range t.properties {
		if p.required && first[p.name] == nil {
			l.report(l.mark(n), "missing-key", "", "%s has no %q", what, p.name)
		}
	}
}

// unknownKey reports a key that a mapping does not have.
func (l *loader) unknownKey(key *yaml.Node, what, explanation string, names []string) {
	hint := explanation
	if hint == "" && len(l.found) < maxFound {
		hint = diag.OneOf(key.Value, names)
	}
	l.report(l.mark(key), "unknown-key", hint, "unknown key %q in %s", key.Value, what)
}

// duplicate reports a second use of a key.
func (l *loader) duplicate(key, first *yaml.Node, kind string) {
	spelled := ""
	if key.Value != first.Value {
		spelled = fmt.Sprintf(" as %q", first.Value)
	}
	l.report(l.mark(key), "duplicate", "", "duplicate %s %q (first at line %d%s)", kind, key.Value, first.Line, spelled)
}

// isMapping reports a node that is no mapping.
func (l *loader) isMapping(n *yaml.Node, what string) bool {
	if n.Kind == yaml.MappingNode {
		return true
	}
	l.wrongShape(n, what, "a mapping")
	return false
}

// wrongShape reports a node of the wrong kind.
func (l *loader) wrongShape(n *yaml.Node, what, want string) {
	got := map[yaml.Kind]string{yaml.MappingNode: "a mapping", yaml.SequenceNode: "a list"}[n.Kind]
	switch {
	case n.Kind == yaml.ScalarNode && n.Tag == "!!null":
		got = "empty"
	case n.Kind == yaml.ScalarNode:
		got = fmt.Sprintf("%q", shorten(n.Value))
	}
	l.report(l.mark(n), "wrong-shape", "", "%s must be %s, not %s", what, want, got)
}

// shorten keeps messages readable.
func shorten(s string) string {
	if runes := []rune(s); len(runes) > 60 {
		return string(runes[:57]) + "…"
	}
	return s
}

// entries reads a mapping from names to things: name: {…}.
func entries[T any](kind string, name func(*T) *Text, value func() reader[T]) reader[[]T] {
	return reader[[]T]{
		read: func(l *loader, n *yaml.Node, what string, list *[]T) {
			if !l.isMapping(n, what) {
				return
			}
			first := map[string]*yaml.Node{}
			for i := 0; i+1 < len(n.Content); i += 2 {
				key := n.Content[i]
				var t T
				if !l.nameOf(key, "the name of "+article(kind), name(&t)) {
					continue
				}
				if before := first[key.Value]; before != nil {
					l.duplicate(key, before, kind)
					continue
				}
				first[key.Value] = key
				label := fmt.Sprintf("%s %q", kind, shorten(key.Value))
				if owner, nested := strings.CutSuffix(what, ": fields"); nested {
					label += " of " + owner
				}
				value().read(l, n.Content[i+1], label, &t)
				*list = append(*list, t)
			}
		},
		json: func() object { return object{"type": "object", "additionalProperties": value().json()} },
	}
}

// article puts a or an before a word.
func article(word string) string {
	if strings.ContainsRune("aeiou", rune(word[0])) {
		return "an " + word
	}
	return "a " + word
}

// sequence reads a list of things.
func sequence[T any](value func() reader[T]) reader[[]T] {
	return reader[[]T]{
		read: func(l *loader, n *yaml.Node, what string, list *[]T) {
			if n.Kind != yaml.SequenceNode {
				l.wrongShape(n, what, "a list")
				return
			}
			for _, child := range n.Content {
				var t T
				value().read(l, child, what, &t)
				*list = append(*list, t)
			}
		},
		json: func() object { return object{"type": "array", "items": value().json()} },
	}
}

// nameOf reads a node as a name: text that every YAML tool reads as text.
func (l *loader) nameOf(n *yaml.Node, what string, v *Text) bool {
	if n.Kind != yaml.ScalarNode {
		l.wrongShape(n, what, "text")
		return false
	}
	m := l.mark(n)
	if n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) == 0 {
		if other := readsAs(n); other != "" {
			hint := fmt.Sprintf("quote it: %q", n.Value)
			if n.Value == "" {
				hint = "write a value"
			}
			l.report(m, "not-text", hint, "%s must be text, but %s", what, other)
			return false
		}
	}
	*v = Text{Mark: m, V: n.Value, Set: true}
	return true
}

// readsAs says what else than text a plain scalar means to some YAML tool, or "".
func readsAs(n *yaml.Node) string {
	switch {
	case n.Value == "":
		return "there is none"
	case n.Tag == "!!null":
		return fmt.Sprintf("%s reads as null", n.Value)
	case n.Tag == "!!bool":
		return fmt.Sprintf("%s reads as a boolean", n.Value)
	case n.Tag == "!!int", n.Tag == "!!float":
		return fmt.Sprintf("%s reads as a number", n.Value)
	case n.Tag == "!!timestamp":
		return fmt.Sprintf("%s reads as a date", n.Value)
	}
	switch strings.ToLower(n.Value) {
	case "y", "n", "yes", "no", "on", "off":
		return fmt.Sprintf("YAML 1.1 tools read %s as a boolean", n.Value)
	}
	if numeric(n.Value) {
		return fmt.Sprintf("YAML 1.1 tools read %s as a number", n.Value)
	}
	return ""
}

// numeric reports whether plain text looks like a number to YAML 1.1, which also
// knows 0o12, 1_000, and 12:30:45 in base 60.
func numeric(s string) bool {
	s = strings.TrimLeft(s, "+-")
	if s == "" || !unicode.IsDigit(rune(s[0])) && s[0] != '.' {
		return false
	}
	digits := false
	for _, r := range s {
		switch {
		case r >= '0' && r <= '9':
			digits = true
		case r != '_' && r != ':' && r != '.' && r != ',':
			return false
		}
	}
	return digits
}
