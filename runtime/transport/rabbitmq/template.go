package rabbitmq

import (
	"fmt"
	"strings"

	"github.com/lanebox/lanebox/runtime/event"
)

// maxShort is the length of AMQP's short strings, in bytes: names, routing keys
// and most properties.
const maxShort = 255

// A template renders routing keys. Its parts alternate between text and what is
// put there.
type template struct {
	parts []part
}

// A part is a text, or the value that its func takes from a message.
type part struct {
	text  string
	value func(event.Message) (string, error) // nil: text
}

// parseTemplate reads "{header:tenant}.order.{key}.{type}". An empty template is
// the message's type.
func parseTemplate(text string) (template, error) {
	if text == "" {
		text = "{type}"
	}
	var t template
	rest := text
	for rest != "" {
		plain, after, found := strings.Cut(rest, "{")
		if strings.Contains(plain, "}") {
			return t, fmt.Errorf("routing key %q: a } without {", text)
		}
		if plain != "" {
			t.parts = append(t.parts, part{text: plain})
		}
		if !found {
			break
		}
		name, behind, found := strings.Cut(after, "}")
		if !found {
			return t, fmt.Errorf("routing key %q: a { without }", text)
		}
		value, err := placeholder(name)
		if err != nil {
			return t, fmt.Errorf("routing key %q: %w", text, err)
		}
		t.parts = append(t.parts, part{value: value})
		rest = behind
	}
	return t, nil
}

func placeholder(name string) (func(event.Message) (string, error), error) {
	if header, ok := strings.CutPrefix(name, "header:"); ok && header != "" {
		return func(m event.Message) (string, error) {
			value, ok := m.Headers[header]
			if !ok {
				return "", fmt.Errorf("the routing key needs header %q, which the message does not have", header)
			}
			return value, nil
		}, nil
	}
	switch name {
	case "key":
		return func(m event.Message) (string, error) { return m.Key, nil }, nil
	case "type":
		return func(m event.Message) (string, error) { return m.Topic, nil }, nil
	}
	return nil, fmt.Errorf("{%s} is not known; write {key}, {type} or {header:name}", name)
}

// constant returns the routing key that all messages share; ok is false when
// they have their own.
func (t template) constant() (key string, ok bool) {
	for _, p := range t.parts {
		if p.value != nil {
			return "", false
		}
		key += p.text
	}
	return key, true
}

// render returns the routing key of m. An error is for good.
func (t template) render(m event.Message) (string, error) {
	var b strings.Builder
	for _, p := range t.parts {
		text := p.text
		if p.value != nil {
			var err error
			if text, err = p.value(m); err != nil {
				return "", err
			}
		}
		b.WriteString(text)
	}
	if b.Len() > maxShort {
		return "", fmt.Errorf("the routing key has %d bytes; the limit is %d", b.Len(), maxShort)
	}
	return b.String(), nil
}
