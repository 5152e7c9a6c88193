package envelope

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/topology"
)

func message() event.Message {
	return event.Message{
		ID: event.UUID{1, 2}, Sequence: 42, Topic: "order.placed.v1", Key: "k\x7f", Payload: []byte(`{"id":"x"}`),
		Version: 3, Attempt: 2, CreatedAt: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC),
		Headers: event.Headers{
			"tenant": "acme", "X-Upper": " v ", "id": "mine", event.HeaderContentType: "text/plain",
			event.HeaderTraceParent: "00-1", event.HeaderTraceState: "bad\n", event.HeaderRedelivered: "true", event.HeaderDeliveryCount: "9",
		},
	}
}

func TestFieldsAreInAFixedOrder(t *testing.T) {
	want := []Field{
		{Attribute, "specversion", "1.0", ""},
		{Attribute, "id", "01020000-0000-0000-0000-000000000000", ""},
		{Attribute, "source", "here", ""},
		{Attribute, "type", "order.placed.v1", ""},
		{Attribute, "subject", "k\x7f", ""},
		{Attribute, "partitionkey", "k\x7f", ""},
		{Attribute, "aggregateid", "k\x7f", ""},
		{Attribute, "sequence", "42", ""},
		{Attribute, "time", "2026-01-02T03:04:05.000006Z", ""},
		{Attribute, "aggregateversion", "3", ""},
		{Attribute, "attempt", "2", ""},
		{Own, "X-Upper", " v ", ""},
		{Own, "id", "mine", ""},
		{Attribute, "tenant", "acme", ""},
		{Plain, "traceparent", "00-1", ""},
	}
	for range 20 {
		if got := Fields("here", message()); !slices.Equal(got, want) {
			t.Fatalf("got %v", got)
		}
	}
}

func TestContentType(t *testing.T) {
	for value, want := range map[string]string{"": "application/json", "text/plain; charset=utf-8": "text/plain; charset=utf-8", "no type\n": ""} {
		got, err := ContentType(event.Message{Headers: event.Headers{event.HeaderContentType: value}})
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%q gives %q, %v", value, got, err)
		}
	}
}

func TestRoundTrip(t *testing.T) {
	m := message()
	d, err := NewDecoder(topology.Extract{})
	if err != nil {
		t.Fatal(err)
	}
	got := d.Incoming(Received{Fields: Fields("here", m), Body: m.Payload, Key: "other", MessageID: "other"})
	if got.IdempotencyKey != m.ID.String() || got.EventType != m.Topic || got.AggregateID != m.Key || got.Version != 3 || got.Dead != "" {
		t.Errorf("got %+v", got)
	}
	want := event.Headers{
		"tenant": "acme", "X-Upper": " v ", "id": "mine", "traceparent": "00-1", "ce-id": m.ID.String(), "ce-source": "here",
		"ce-type": m.Topic, "ce-time": "2026-01-02T03:04:05.000006Z", "ce-subject": m.Key, "ce-sequence": "42",
	}
	if !maps.Equal(got.Headers, want) {
		t.Errorf("headers %v", got.Headers)
	}
}

func plain(pairs ...string) (out []Field) {
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, Field{Kind: Plain, Name: pairs[i], Value: pairs[i+1]})
	}
	return out
}

func TestHeadersThatNobodyMaySet(t *testing.T) {
	got := Headers([]Field{
		{Own, "traceparent", "forged", ""}, {Own, "ce-id", "forged", ""}, {Own, "redelivered", "true", ""}, {Plain, "delivery-count", "7", ""},
		{Plain, "twice", "a", ""}, {Plain, "twice", "b", ""}, {Plain, "bad", "\xff", ""}, {Own, "nul", "\x00", ""},
		{Attribute, "tenant", "x", "is broken"}, {Attribute, "we ird", "x", ""},
	})
	if got != nil {
		t.Errorf("kept %v", got)
	}
}

func TestIncoming(t *testing.T) {
	body := `{"id":"b1","kind":"thing.v1","agg":"a1","null":null}`
	long := strings.Repeat("k", event.MaxKeyBytes+1)
	rules := topology.Extract{IdempotencyKey: [][]string{{"$.kind", "$.id"}}, EventType: []string{"$.kind"}, AggregateID: []string{"$.agg"}}
	for _, c := range []struct {
		name           string
		rules          topology.Extract
		in             Received
		key, kind, agg string
		version        int64
		deadSays       string
	}{
		{name: "rules come first", rules: rules, in: Received{Body: []byte(body), Key: "r", Fields: plain("x-aggregate-id", "h")},
			key: "thing.v1|b1", kind: "thing.v1", agg: "a1"},
		{name: "headers where rules find nothing", rules: topology.Extract{EventType: []string{"$.null"}, AggregateID: []string{"$.null"}, IdempotencyKey: [][]string{{"$.none"}}},
			in:  Received{Body: []byte(body), Key: "r", Fields: plain("X-Event-Type", "h.v1", "x-aggregate-id", "h", "X-IDEMPOTENCY-KEY", "i")},
			key: "i", kind: "h.v1", agg: "h"},
		{name: "record key and message id last", in: Received{Body: []byte("x"), Key: "r", MessageID: "t/0/7", Fields: plain("x-event-type", "h.v1")},
			key: "t/0/7", kind: "h.v1", agg: "r"},
		{name: "a record key that is no text", in: Received{Key: "\x00\xff", MessageID: "m", Fields: plain("x-event-type", "h.v1")},
			key: "m", kind: "h.v1", agg: "base64:AP8"},
		{name: "a record key that is too long", in: Received{Key: long, MessageID: "m", Fields: plain("x-event-type", "h.v1")},
			key: "m", kind: "h.v1", agg: fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(long)))},
		{name: "unordered unless required", in: Received{MessageID: "m", Fields: plain("x-event-type", "h.v1")}, key: "m", kind: "h.v1"},
		{name: "required by rules", rules: rules, in: Received{Body: []byte(`{"id":"1","kind":"k"}`)}, key: "k|1", kind: "k", deadSays: "no usable aggregate id: $.agg is missing"},
		{name: "rules, but unordered is fine", rules: topology.Extract{AggregateID: []string{"$.agg"}, AggregateIDMissing: "unordered"},
			in: Received{Body: []byte(`{}`), MessageID: "m", Fields: plain("x-event-type", "k")}, key: "m", kind: "k"},
		{name: "required without rules", rules: topology.Extract{AggregateIDMissing: "reject"}, in: Received{MessageID: "m", Fields: plain("x-event-type", "k")},
			key: "m", kind: "k", deadSays: "no usable aggregate id"},
		{name: "no type", in: Received{MessageID: "m"}, key: "m", deadSays: "no usable event type"},
		{name: "body is no JSON", rules: rules, in: Received{Body: []byte("{"), MessageID: "m", Fields: plain("x-event-type", "k")}, key: "m", deadSays: "the body cannot be read"},
		{name: "twice", in: Received{MessageID: "m", Fields: plain("x-event-type", "k", "X-Event-Type", "k")}, key: "m", deadSays: "occurs more than once"},
		{name: "flawed", in: Received{MessageID: "m", Fields: []Field{{Attribute, "id", "", "has a wrong percent escape"}, {Attribute, "type", "k", ""}}},
			key: "m", kind: "k", deadSays: "wrong percent escape"},
		{name: "version", in: Received{MessageID: "m", Fields: []Field{{Attribute, "type", "k", ""}, {Attribute, "aggregateversion", "7", ""}}}, key: "m", kind: "k", version: 7},
		{name: "wrong version", in: Received{MessageID: "m", Fields: []Field{{Attribute, "type", "k", ""}, {Attribute, "aggregateversion", "-1", ""}}}, key: "m", kind: "k", deadSays: "positive"},
		{name: "rules name attributes and the publisher's headers", rules: topology.Extract{EventType: []string{"header:ce_kind"}, AggregateID: []string{"header:x-agg"}},
			in: Received{MessageID: "m", Fields: []Field{{Attribute, "kind", "k", ""}, {Own, "X-Agg", "a", ""}}}, key: "m", kind: "k", agg: "a"},
	} {
		d, err := NewDecoder(c.rules)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		got := d.Incoming(c.in)
		if got.IdempotencyKey != c.key || got.EventType != c.kind || got.AggregateID != c.agg || got.Version != c.version {
			t.Errorf("%s: got %+v", c.name, got)
		}
		if (got.Dead != "") != (c.deadSays != "") || !strings.Contains(got.Dead, c.deadSays) {
			t.Errorf("%s: dead because %q", c.name, got.Dead)
		}
	}
}

func TestLastResortTellsMessagesApart(t *testing.T) {
	d, err := NewDecoder(topology.Extract{})
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]int{}
	for _, r := range []Received{
		{Body: []byte("a"), Fields: plain("x-event-type", "k")}, {Body: []byte("a"), Fields: plain("x-event-type", "k")},
		{Body: []byte("b"), Fields: plain("x-event-type", "k")}, {Body: []byte("a"), Fields: plain("x-event-type", "l")},
		{Body: []byte("a"), Key: "x", Fields: plain("x-event-type", "k")},
		{Body: []byte("a"), MessageID: strings.Repeat("m", 300), Fields: plain("x-event-type", "k")},
	} {
		m := d.Incoming(r)
		if event.CheckKey(m.IdempotencyKey) != nil {
			t.Errorf("%+v has the key %q", r, m.IdempotencyKey)
		}
		keys[m.IdempotencyKey]++
	}
	if len(keys) != 4 {
		t.Errorf("keys %v", keys)
	}
}

func TestDeliveryFacts(t *testing.T) {
	d, err := NewDecoder(topology.Extract{})
	if err != nil {
		t.Fatal(err)
	}
	m := d.Incoming(Received{MessageID: "m", Redelivered: true, DeliveryCount: 3})
	if !maps.Equal(m.Headers, event.Headers{"redelivered": "true", "delivery-count": "3"}) {
		t.Errorf("headers %v", m.Headers)
	}
}

func TestWrongRules(t *testing.T) {
	for _, e := range []topology.Extract{
		{EventType: []string{"id"}}, {AggregateID: []string{"$..x"}}, {IdempotencyKey: [][]string{{}}}, {IdempotencyKey: [][]string{{"header:"}}},
		{AggregateIDMissing: "maybe"},
	} {
		if _, err := NewDecoder(e); err == nil {
			t.Errorf("%+v was accepted", e)
		}
	}
}
