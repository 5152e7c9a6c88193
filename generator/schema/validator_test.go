package schema_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// A validator knows the part of JSON Schema that the generated one uses, and
// fails on any keyword that it does not know.
type validator struct {
	t    *testing.T
	root map[string]any
}

// resolve follows a $ref.
func (v *validator) resolve(ref string) map[string]any {
	name, ok := strings.CutPrefix(ref, "#/$defs/")
	target, found := v.root["$defs"].(map[string]any)[name].(map[string]any)
	if !ok || !found {
		v.t.Fatalf("$ref %q leads nowhere", ref)
	}
	return target
}

// refs checks that every $ref leads somewhere.
func (v *validator) refs(node any) {
	switch n := node.(type) {
	case map[string]any:
		if ref, ok := n["$ref"].(string); ok {
			v.resolve(ref)
		}
		for _, child := range n {
			v.refs(child)
		}
	case []any:
		for _, child := range n {
			v.refs(child)
		}
	}
}

// check returns why value does not fit, or "".
func (v *validator) check(s map[string]any, value any, at string) string {
	for keyword, arg := range s {
		if problem := v.keyword(s, keyword, arg, value, at); problem != "" {
			return problem
		}
	}
	return ""
}

func (v *validator) keyword(s map[string]any, keyword string, arg, value any, at string) string {
	object, isObject := value.(map[string]any)
	list, isList := value.([]any)
	text, isText := value.(string)
	switch keyword {
	case "$schema", "$defs", "title", "description", "required", "properties", "additionalProperties":
	case "$ref":
		return v.check(v.resolve(arg.(string)), value, at)
	case "type":
		_, isInt := value.(int)
		_, isBool := value.(bool)
		if _, isTime := value.(time.Time); isTime {
			isText = true
		}
		if !map[string]bool{"object": isObject, "array": isList, "string": isText, "integer": isInt, "boolean": isBool}[arg.(string)] {
			return fmt.Sprintf("%s: %v is no %v", at, value, arg)
		}
	case "enum":
		if !slices.Contains(arg.([]any), value) {
			return fmt.Sprintf("%s: %v is none of %v", at, value, arg)
		}
	case "pattern":
		if isText && !regexp.MustCompile(arg.(string)).MatchString(text) {
			return fmt.Sprintf("%s: %q does not match %v", at, text, arg)
		}
	case "minLength":
		if isText && len(text) < int(arg.(float64)) {
			return at + ": too short"
		}
	case "minimum":
		if n, ok := value.(int); ok && n < int(arg.(float64)) {
			return at + ": too small"
		}
	case "minItems":
		if isList && len(list) < int(arg.(float64)) {
			return at + ": too few"
		}
	case "maxItems":
		if isList && len(list) > int(arg.(float64)) {
			return at + ": too many"
		}
	case "minProperties":
		if isObject && len(object) < int(arg.(float64)) {
			return at + ": too few keys"
		}
	case "maxProperties":
		if isObject && len(object) > int(arg.(float64)) {
			return at + ": too many keys"
		}
	case "items":
		for i, item := range list {
			if problem := v.check(arg.(map[string]any), item, fmt.Sprintf("%s[%d]", at, i)); problem != "" {
				return problem
			}
		}
	case "anyOf", "allOf":
		return v.combined(keyword, arg.([]any), value, at)
	default:
		v.t.Fatalf("%s: unknown keyword %q", at, keyword)
	}
	if keyword == "type" && isObject {
		return v.members(s, object, at)
	}
	return ""
}

func (v *validator) combined(keyword string, alternatives []any, value any, at string) string {
	var problems []string
	for _, a := range alternatives {
		problem := v.check(a.(map[string]any), value, at)
		if problem == "" && keyword == "anyOf" {
			return ""
		}
		if problem != "" {
			problems = append(problems, problem)
		}
	}
	return strings.Join(problems, "; ")
}

func (v *validator) members(s, value map[string]any, at string) string {
	properties, _ := s["properties"].(map[string]any)
	required, _ := s["required"].([]any)
	for _, name := range required {
		if _, ok := value[name.(string)]; !ok {
			return fmt.Sprintf("%s: no %v", at, name)
		}
	}
	for name, member := range value {
		p, ok := properties[name].(map[string]any)
		if !ok {
			p, ok = s["additionalProperties"].(map[string]any)
		}
		if !ok {
			return fmt.Sprintf("%s: unknown key %q", at, name)
		}
		if problem := v.check(p, member, at+"."+name); problem != "" {
			return problem
		}
	}
	return ""
}
