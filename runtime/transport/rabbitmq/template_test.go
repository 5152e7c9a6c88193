package rabbitmq

import (
	"strings"
	"testing"

	"github.com/lanebox/lanebox/runtime/event"
)

func TestTemplate(t *testing.T) {
	m := event.Message{Topic: "order.placed.v1", Key: "o-1", Headers: event.Headers{"tenant": "acme", "empty": ""}}
	for text, want := range map[string]string{
		"":                                   "order.placed.v1",
		"{header:tenant}.order.{key}.{type}": "acme.order.o-1.order.placed.v1",
		"orders":                             "orders",
		"{header:empty}.x":                   ".x",
		"{key}{key}":                         "o-1o-1",
	} {
		parsed, err := parseTemplate(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if got, err := parsed.render(m); got != want || err != nil {
			t.Errorf("%q gives %q, %v", text, got, err)
		}
	}
}

func TestTemplateThatCannotWork(t *testing.T) {
	for _, text := range []string{"{", "}", "{key", "a}", "{}", "{header:}", "{tenant}", "{key}}"} {
		if _, err := parseTemplate(text); err == nil {
			t.Errorf("%q was accepted", text)
		}
	}
	parsed, err := parseTemplate("{header:tenant}.{key}")
	if err != nil {
		t.Fatal(err)
	}
	for name, m := range map[string]event.Message{
		"no header": {Key: "k"},
		"too long":  {Key: strings.Repeat("k", 255), Headers: event.Headers{"tenant": "a"}},
	} {
		if got, err := parsed.render(m); err == nil {
			t.Errorf("%s: gives %q", name, got)
		}
	}
}
