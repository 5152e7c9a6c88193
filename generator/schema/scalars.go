package schema

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"
)

// name reads text that must be text to every tool: names, types, enum values.
var name = reader[Text]{
	read: func(l *loader, n *yaml.Node, what string, v *Text) { l.nameOf(n, what, v) },
	json: func() object { return object{"type": "string", "minLength": 1} },
}

// words reads a name out of a fixed list. Whether it is in the list is checked by
// package resolve, which also knows the words that are to come.
func words(list ...string) reader[Text] {
	return reader[Text]{read: name.read, json: func() object { return object{"type": "string", "enum": list} }}
}

// prose reads text for people; a plain number or date is text here too.
var prose = reader[Text]{
	read: func(l *loader, n *yaml.Node, what string, v *Text) {
		if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
			l.wrongShape(n, what, "text")
			return
		}
		*v = Text{Mark: l.mark(n), V: n.Value, Set: true}
	},
	json: func() object { return object{"type": "string"} },
}

// anyText is a name that may be empty, when it is quoted.
var anyText = reader[Text]{read: name.read, json: func() object { return object{"type": "string"} }}

// yes reads true or false.
var yes = reader[Value[bool]]{
	read: func(l *loader, n *yaml.Node, what string, v *Value[bool]) {
		if n.Kind != yaml.ScalarNode || n.Tag != "!!bool" || n.Value != "true" && n.Value != "false" {
			l.wrongShape(n, what, "true or false")
			return
		}
		*v = Value[bool]{Mark: l.mark(n), V: n.Value == "true", Set: true}
	},
	json: func() object { return object{"type": "boolean"} },
}

var digits = regexp.MustCompile(`^(0|[1-9][0-9]{0,18})$`)

// number reads a whole number that is not negative.
var number = reader[Value[int64]]{
	read: func(l *loader, n *yaml.Node, what string, v *Value[int64]) {
		if n.Kind != yaml.ScalarNode || n.Style != 0 || !digits.MatchString(n.Value) {
			shape := "a whole number"
			if strings.HasPrefix(n.Value, "-") {
				shape = "a whole number that is not negative"
			}
			l.wrongShape(n, what, shape)
			return
		}
		i, err := strconv.ParseInt(n.Value, 10, 64)
		if err != nil {
			l.report(l.mark(n), "out-of-range", "", "%s is too large", what)
			return
		}
		*v = Value[int64]{Mark: l.mark(n), V: i, Set: true}
	},
	json: func() object { return object{"type": "integer", "minimum": 0} },
}

var sizes = regexp.MustCompile(`^([1-9][0-9]{0,9})(KiB|MiB)$`)

// size reads a number of bytes: 65536, 64KiB or 1MiB.
var size = reader[Value[int64]]{
	read: func(l *loader, n *yaml.Node, what string, v *Value[int64]) {
		match := sizes.FindStringSubmatch(n.Value)
		if n.Kind != yaml.ScalarNode || match == nil {
			if n.Kind == yaml.ScalarNode && n.Style == 0 && digits.MatchString(n.Value) {
				number.read(l, n, what, v)
				return
			}
			l.wrongShape(n, what, "a size such as 65536, 64KiB or 1MiB")
			return
		}
		i, _ := strconv.ParseInt(match[1], 10, 64)
		if match[2] == "KiB" {
			i <<= 10
		} else {
			i <<= 20
		}
		*v = Value[int64]{Mark: l.mark(n), V: i, Set: true}
	},
	json: func() object {
		return object{"anyOf": []any{object{"type": "integer", "minimum": 1}, object{"type": "string", "pattern": sizes.String()}}}
	},
}

var durations = regexp.MustCompile(`^(?:([0-9]{1,6})d)?((?:[0-9]+(?:\.[0-9]+)?(?:ns|us|µs|ms|s|m|h))*)$`)

// duration reads a length of time in Go's notation, or in days: 250ms, 1m30s, 7d.
var duration = reader[Value[time.Duration]]{
	read: func(l *loader, n *yaml.Node, what string, v *Value[time.Duration]) {
		d, ok := parseDuration(n.Value)
		if n.Kind != yaml.ScalarNode || !ok {
			l.wrongShape(n, what, "a duration such as 250ms, 5s, 1m30s or 7d")
			return
		}
		*v = Value[time.Duration]{Mark: l.mark(n), V: d, Set: true}
	},
	json: func() object {
		return object{"type": "string", "pattern": strings.ReplaceAll(durations.String(), "?:", "")}
	},
}

func parseDuration(s string) (time.Duration, bool) {
	match := durations.FindStringSubmatch(s)
	if match == nil || s == "" {
		return 0, false
	}
	var d time.Duration
	if match[2] != "" {
		var err error
		if d, err = time.ParseDuration(match[2]); err != nil {
			return 0, false
		}
	}
	days, _ := strconv.ParseInt("0"+match[1], 10, 64)
	if days > 36500 || d > math.MaxInt64-time.Duration(days)*24*time.Hour {
		return 0, false
	}
	return d + time.Duration(days)*24*time.Hour, true
}

// oneOrMore reads one name or a list of names.
var oneOrMore = reader[[]Text]{
	read: func(l *loader, n *yaml.Node, what string, v *[]Text) {
		if n.Kind != yaml.SequenceNode {
			var t Text
			if l.nameOf(n, what, &t) {
				*v = append(*v, t)
			}
			return
		}
		for _, child := range n.Content {
			var t Text
			if l.nameOf(child, what, &t) {
				*v = append(*v, t)
			}
		}
		if len(n.Content) == 0 {
			l.report(l.mark(n), "empty-list", "", "%s is an empty list", what)
		}
	},
	json: func() object {
		return object{"anyOf": []any{name.json(), object{"type": "array", "items": name.json(), "minItems": 1}}}
	},
}

// rule reads one extraction rule: a path, header:name, or {header: name}.
func (l *loader) rule(n *yaml.Node, what string, v *Text) bool {
	if n.Kind != yaml.MappingNode {
		return l.nameOf(n, what, v)
	}
	if len(n.Content) != 2 || n.Content[0].Value != "header" {
		l.report(l.mark(n), "wrong-shape", "write $.field or header:name", "%s must be a path or a header", what)
		return false
	}
	if !l.nameOf(n.Content[1], what+": header", v) {
		return false
	}
	v.V = "header:" + v.V
	return true
}

// rules reads an extraction rule or a list of them, of which the first match wins.
var rules = reader[[]Text]{
	read: func(l *loader, n *yaml.Node, what string, v *[]Text) {
		var all [][]Text
		l.rules(n, what, false, &all)
		for _, r := range all {
			*v = append(*v, r...)
		}
	},
	json: func() object { return object{"anyOf": []any{ruleJSON(), listOf(ruleJSON())}} },
}

// keyRules is rules, where a list inside the list is a key of several parts.
var keyRules = reader[[][]Text]{
	read: func(l *loader, n *yaml.Node, what string, v *[][]Text) { l.rules(n, what, true, v) },
	json: func() object {
		return object{"anyOf": []any{ruleJSON(), listOf(object{"anyOf": []any{ruleJSON(), listOf(ruleJSON())}})}}
	},
}

func (l *loader) rules(n *yaml.Node, what string, composite bool, v *[][]Text) {
	if n.Kind != yaml.SequenceNode {
		var t Text
		if l.rule(n, what, &t) {
			*v = append(*v, []Text{t})
		}
		return
	}
	if len(n.Content) == 0 {
		l.report(l.mark(n), "empty-list", "", "%s is an empty list", what)
	}
	for _, child := range n.Content {
		if child.Kind != yaml.SequenceNode {
			l.rules(child, what, false, v)
			continue
		}
		if !composite {
			l.report(l.mark(child), "wrong-shape", "", "%s cannot have several parts; only idempotency_key_path can", what)
			continue
		}
		var parts []Text
		for _, c := range child.Content {
			var t Text
			if l.rule(c, what, &t) {
				parts = append(parts, t)
			}
		}
		if len(child.Content) == 0 {
			l.report(l.mark(child), "empty-list", "", "%s contains an empty list", what)
		} else if len(parts) == len(child.Content) {
			*v = append(*v, parts)
		}
	}
}

func ruleJSON() object {
	return object{"anyOf": []any{
		object{"type": "string", "pattern": `^(\$|header:.)`},
		object{"type": "object", "properties": object{"header": name.json()}, "required": []string{"header"}, "additionalProperties": false},
	}}
}

func listOf(items object) object { return object{"type": "array", "items": items, "minItems": 1} }

// ref makes a reader that the JSON Schema names instead of repeating.
func ref[V any](title string, r func() reader[V]) reader[V] {
	return reader[V]{
		read: func(l *loader, n *yaml.Node, what string, v *V) { r().read(l, n, what, v) },
		json: func() object { return object{"$ref": fmt.Sprintf("#/$defs/%s", title)} },
	}
}
