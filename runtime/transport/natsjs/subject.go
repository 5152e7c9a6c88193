package natsjs

import (
	"errors"
	"fmt"
	"strings"

	"github.com/lanebox/lanebox/runtime/event"
)

const (
	// maxSubject is the longest subject that is sent, in bytes. A server ends the
	// connection when a protocol line, subject and reply address included, is longer
	// than its limit of 4096 bytes.
	maxSubject = 2048
	// emptyToken stands for an empty value. Its own byte is always escaped, so no
	// value is written like it.
	emptyToken = "~"
)

// A subjectTemplate builds subjects: tokens that are literal, or hold one
// placeholder each.
type subjectTemplate struct {
	text   string
	tokens []subjectToken
}

// A subjectToken is prefix, value and suffix; what is "" for a literal.
type subjectToken struct {
	prefix, what, suffix string
}

// Placeholders of a template; "header:name" is the third.
const (
	keyPlaceholder    = "key"
	typePlaceholder   = "type"
	headerPlaceholder = "header:"
)

// parseSubject reads a template such as "orders.{key}.{type}" or
// "{header:tenant}.orders.{key}". A token holds at most one placeholder, so that
// different values always give different subjects.
func parseSubject(text string) (*subjectTemplate, error) {
	if text == "" {
		return nil, errors.New("the subject is empty")
	}
	t := &subjectTemplate{text: text}
	for _, token := range splitTokens(text) {
		parsed, err := parseToken(token)
		if err != nil {
			return nil, fmt.Errorf("subject %q: %w", text, err)
		}
		t.tokens = append(t.tokens, parsed)
	}
	return t, nil
}

// splitTokens splits at dots outside braces: a header's name may contain some.
func splitTokens(text string) []string {
	var tokens []string
	start, depth := 0, 0
	for i := range len(text) {
		switch text[i] {
		case '{':
			depth++
		case '}':
			depth--
		case '.':
			if depth <= 0 {
				tokens = append(tokens, text[start:i])
				start = i + 1
			}
		}
	}
	return append(tokens, text[start:])
}

func parseToken(token string) (subjectToken, error) {
	prefix, rest, found := strings.Cut(token, "{")
	if !found {
		return subjectToken{prefix: token}, checkLiteral(token, true)
	}
	what, suffix, found := strings.Cut(rest, "}")
	switch {
	case !found:
		return subjectToken{}, fmt.Errorf("%q has no closing brace", token)
	case strings.Contains(suffix, "{"):
		return subjectToken{}, fmt.Errorf("%q has two placeholders; separate them with a dot", token)
	}
	if name, ok := strings.CutPrefix(what, headerPlaceholder); what != keyPlaceholder && what != typePlaceholder && (!ok || name == "") {
		return subjectToken{}, fmt.Errorf("{%s} is unknown; write {key}, {type} or {header:name}", what)
	}
	return subjectToken{prefix, what, suffix}, errors.Join(checkLiteral(prefix, false), checkLiteral(suffix, false))
}

// checkLiteral refuses text that would change the structure of a subject.
func checkLiteral(text string, alone bool) error {
	if text == "" && alone {
		return errors.New("a token is empty")
	}
	for i := range len(text) {
		if c := text[i]; c <= ' ' || c > '~' || c == '*' || c == '>' || c == '}' {
			return fmt.Errorf("%q contains %q", text, c)
		}
	}
	return nil
}

// subject returns the subject of a message, or an error when it would be too long
// or the message has no header of a placeholder.
func (t *subjectTemplate) subject(m event.Message) (string, error) {
	var b strings.Builder
	for i, token := range t.tokens {
		if i > 0 {
			b.WriteByte('.')
		}
		b.WriteString(token.prefix)
		switch token.what {
		case "":
		case keyPlaceholder:
			writeToken(&b, m.Key)
		case typePlaceholder:
			writeTokens(&b, m.Topic)
		default:
			name := strings.TrimPrefix(token.what, headerPlaceholder)
			value, ok := m.Headers[name]
			if !ok {
				return "", fmt.Errorf("the subject needs header %q, which the message does not have", name)
			}
			writeToken(&b, value)
		}
		b.WriteString(token.suffix)
	}
	if b.Len() > maxSubject {
		return "", fmt.Errorf("the subject has %d bytes; the limit is %d", b.Len(), maxSubject)
	}
	return b.String(), nil
}

// writeTokens writes a value whose dots separate tokens, such as an event type.
func writeTokens(b *strings.Builder, value string) {
	for i, part := range strings.Split(value, ".") {
		if i > 0 {
			b.WriteByte('.')
		}
		writeToken(b, part)
	}
}

// writeToken writes a value as one token: letters, digits, '-' and '_' stay, every
// other byte becomes %XX, and an empty value becomes "~". No two values are
// written alike.
func writeToken(b *strings.Builder, value string) {
	const digits = "0123456789ABCDEF"
	if value == "" {
		b.WriteString(emptyToken)
	}
	for i := range len(value) {
		if c := value[i]; isPlain(c) {
			b.WriteByte(c)
		} else {
			b.Write([]byte{'%', digits[c>>4], digits[c&15]})
		}
	}
}

func isPlain(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_'
}

// pattern returns the subject of a stream that takes every subject of the
// template. It is an error when that would be all subjects there are.
func (t *subjectTemplate) pattern() (string, error) {
	var tokens []string
	for _, token := range t.tokens {
		switch token.what {
		case "":
			tokens = append(tokens, token.prefix)
			continue
		case typePlaceholder: // any number of tokens
			tokens = append(tokens, ">")
		default:
			tokens = append(tokens, "*")
			continue
		}
		break
	}
	if t.tokens[0].what != "" {
		return "", fmt.Errorf("subject %q begins with a placeholder: a stream for it would take everything; begin with a fixed word", t.text)
	}
	return strings.Join(tokens, "."), nil
}
