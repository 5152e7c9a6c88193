// Package extract finds the idempotency key, event type and aggregate id of an
// incoming message, in its JSON body or in its headers. A value is either found
// as it was written or refused with a reason; it is never guessed. The texts of
// its errors name rules and reasons, never values.
package extract

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/lanebox/lanebox/runtime/event"
)

// A NoValueError says that no rule led to a usable value.
type NoValueError struct {
	// Reasons has one sentence per rule that was tried.
	Reasons []string
}

func (e *NoValueError) Error() string { return strings.Join(e.Reasons, "; ") }

// An InvalidError says that a value is there but cannot be taken without
// guessing: it occurs twice, or it is not text.
type InvalidError struct {
	Rule, Reason string
}

func (e *InvalidError) Error() string { return e.Rule + " " + e.Reason }

// A Rule is one place to look at: a header or a path into the body.
type Rule struct {
	header string // lower case; empty for a path
	path   Path
}

// ParseRule reads "header:x-id" or a path such as "$.id".
func ParseRule(text string) (Rule, error) {
	if name, ok := strings.CutPrefix(text, "header:"); ok {
		name = strings.TrimSpace(name)
		if !IsToken(name) {
			return Rule{}, fmt.Errorf("rule %q: %q is not a header name", text, name)
		}
		return Header(name), nil
	}
	if !strings.HasPrefix(text, "$") {
		return Rule{}, fmt.Errorf("rule %q: write a path such as $.id, or header:name", text)
	}
	path, err := ParsePath(text)
	return Rule{path: path}, err
}

// Header is the rule that reads a header.
func Header(name string) Rule { return Rule{header: strings.ToLower(name)} }

// NeedsBody reports whether the rule looks into the body.
func (r Rule) NeedsBody() bool { return r.header == "" }

func (r Rule) String() string {
	if r.header != "" {
		return "header " + r.header
	}
	return r.path.text
}

// A Message is what rules look at.
type Message struct {
	// Header returns all values of a header, decoded. Its error says what is
	// wrong with them.
	Header func(name string) ([]string, error)
	// Body is the parsed body; it is used by path rules only.
	Body Document
}

// First returns the value of the first rule that has one.
func First(rules []Rule, m Message) (string, error) {
	var none NoValueError
	for _, r := range rules {
		value, err := r.find(m)
		if err == nil {
			return value, nil
		}
		missing, ok := err.(*NoValueError)
		if !ok {
			return "", err
		}
		none.Reasons = append(none.Reasons, missing.Reasons...)
	}
	return "", &none
}

// FirstJoined returns the value of the first alternative whose rules all have
// one. Several values are joined so that no two tuples collide.
func FirstJoined(alternatives [][]Rule, m Message) (string, error) {
	var none NoValueError
	for _, rules := range alternatives {
		value, err := joined(rules, m)
		if err == nil {
			return value, nil
		}
		missing, ok := err.(*NoValueError)
		if !ok {
			return "", err
		}
		none.Reasons = append(none.Reasons, missing.Reasons...)
	}
	return "", &none
}

func joined(rules []Rule, m Message) (string, error) {
	parts := make([]string, len(rules))
	for i, r := range rules {
		value, err := r.find(m)
		if err != nil {
			return "", err
		}
		parts[i] = value
	}
	if len(parts) == 1 {
		return parts[0], nil
	}
	return event.JoinKey(parts...), nil
}

func (r Rule) find(m Message) (string, error) {
	if r.NeedsBody() {
		return m.Body.Find(r.path)
	}
	values, err := m.Header(r.header)
	switch {
	case err != nil:
		return "", &InvalidError{Rule: r.String(), Reason: err.Error()}
	case len(values) > 1:
		return "", &InvalidError{Rule: r.String(), Reason: "occurs more than once"}
	case len(values) == 0:
		return "", &NoValueError{Reasons: []string{r.String() + " is missing"}}
	case values[0] == "":
		return "", &NoValueError{Reasons: []string{r.String() + " is empty"}}
	case !utf8.ValidString(values[0]):
		return "", &InvalidError{Rule: r.String(), Reason: "is not valid UTF-8"}
	}
	return values[0], nil
}

// IsToken reports whether name can be an HTTP header name.
func IsToken(name string) bool {
	for i := 0; i < len(name); i++ {
		if !IsTokenByte(name[i]) {
			return false
		}
	}
	return name != ""
}

// IsTokenByte reports whether c may occur in an HTTP header name.
func IsTokenByte(c byte) bool {
	switch {
	case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		return true
	}
	return c < unicode.MaxASCII && strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}
