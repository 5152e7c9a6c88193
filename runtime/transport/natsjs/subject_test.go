package natsjs

import (
	"strings"
	"testing"
	"unicode"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/lanebox/lanebox/runtime/event"
)

func subjectOf(t testing.TB, template string, m event.Message) string {
	t.Helper()
	p, err := parseSubject(template)
	if err != nil {
		t.Fatal(err)
	}
	s, err := p.subject(m)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSubjects(t *testing.T) {
	m := event.Message{Key: "a.b", Topic: "order.placed.v1", Headers: event.Headers{"tenant": "ac me", "x.y": "1", "empty": ""}}
	for template, want := range map[string]string{
		"orders":                          "orders",
		"orders.{key}.{type}":             "orders.a%2Eb.order.placed.v1",
		"{header:tenant}.o-{key}!.end":    "ac%20me.o-a%2Eb!.end",
		"{header:x.y}.{header:empty}.$up": "1.~.$up",
	} {
		if got := subjectOf(t, template, m); got != want {
			t.Errorf("%s gives %s, want %s", template, got, want)
		}
	}
	for value, want := range map[string]string{
		"": "~", "~": "%7E", "*": "%2A", ">": "%3E", "%41": "%2541", "A-z_9": "A-z_9", "é": "%C3%A9", " \r\n\x00\xff": "%20%0D%0A%00%FF",
	} {
		if got := subjectOf(t, "{key}", event.Message{Key: value}); got != want {
			t.Errorf("key %q gives %s, want %s", value, got, want)
		}
	}
	if got := subjectOf(t, "{type}", event.Message{Topic: ".größe..v1."}); got != "~.gr%C3%B6%C3%9Fe.~.v1.~" {
		t.Errorf("type gives %s", got)
	}
}

func TestWrongSubjects(t *testing.T) {
	for _, template := range []string{
		"", ".", "a..b", "a.", "a b", "a.*", "a.>", "{key}{type}", "{key", "key}", "{nothing}", "{header:}", "a\x00", "é", "{key}.{key>", "{}",
	} {
		if _, err := parseSubject(template); err == nil {
			t.Errorf("%q was accepted", template)
		}
	}
	p, err := parseSubject("a.{header:none}")
	if err != nil {
		t.Fatal(err)
	}
	if subject, err := p.subject(event.Message{Headers: event.Headers{"None": "x"}}); err == nil || !strings.Contains(err.Error(), `header "none"`) {
		t.Errorf("a message without the header goes to %q, %v", subject, err)
	}
	p, err = parseSubject("{key}.{header:long}")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.subject(event.Message{Headers: event.Headers{"long": strings.Repeat("x", maxSubject)}}); err == nil {
		t.Error("a subject longer than a protocol line was accepted")
	}
}

func TestPatternTakesWhatTheTemplateGives(t *testing.T) {
	for template, want := range map[string]string{
		"orders": "orders", "orders.{key}": "orders.*", "orders.{key}.{type}": "orders.*.>", "o.x-{key}.{type}.end": "o.*.>", "o.{header:t}.x": "o.*.x",
	} {
		p, err := parseSubject(template)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := p.pattern(); got != want || err != nil {
			t.Errorf("%s has the pattern %s, %v; want %s", template, got, err, want)
		}
	}
	p, err := parseSubject("{type}")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.pattern(); err == nil {
		t.Error("a stream that takes everything may be declared")
	}
}

// FuzzSubject checks that values never change a subject's structure, and that
// different values give different subjects.
func FuzzSubject(f *testing.F) {
	for _, pair := range [][2]string{{"", "~"}, {"a.b", "a%2Eb"}, {"a", "a "}, {"*", ">"}, {"\x00", "\xff"}, {"é", "e\u0301"}, {"%", "%25"}} {
		f.Add(pair[0], pair[1])
	}
	p, err := parseSubject("orders.{key}.x-{header:t}.end")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		if len(a) > 300 || len(b) > 300 {
			return
		}
		seen := map[string][2]string{}
		for _, m := range [][2]string{{a, b}, {b, a}, {a, a}, {b, b}} {
			s, err := p.subject(event.Message{Key: m[0], Headers: event.Headers{"t": m[1]}})
			if err != nil {
				t.Fatal(err)
			}
			if strings.Count(s, ".") != 3 || !server.IsValidLiteralSubject(s) || strings.ContainsFunc(s, func(r rune) bool { return r > unicode.MaxASCII || r <= ' ' }) {
				t.Errorf("%q gives the subject %q", m, s)
			}
			if before, ok := seen[s]; ok && before != m {
				t.Errorf("%q and %q give the subject %q", before, m, s)
			}
			seen[s] = m
		}
	})
}
