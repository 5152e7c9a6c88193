package kafka

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/topology"
	"github.com/lanebox/lanebox/runtime/transport/internal/envelope"
)

func decoder(t testing.TB) *envelope.Decoder {
	t.Helper()
	d, err := envelope.NewDecoder(topology.Extract{})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// FuzzRoundTrip sends hostile text through a record: it must arrive as it was.
func FuzzRoundTrip(f *testing.F) {
	f.Add("tenant", "acme", "k", []byte("{}"))
	f.Add("X-We ird\r\n", "\x00\xff", "ü|\\", []byte{0, 0xff})
	f.Add("lanebox-x", "v", "ce_id", []byte(nil))
	f.Fuzz(func(t *testing.T, name, value, key string, payload []byte) {
		m := newMessage(key, 1)
		m.Payload, m.Headers = payload, event.Headers{name: value}
		r, err := newEncoder("t", "s", 1).encode(m)
		if err != nil {
			if name != event.HeaderContentType {
				t.Fatal(err)
			}
			return
		}
		got := decode(decoder(t), r)
		if !bytes.Equal(got.Payload, payload) || got.IdempotencyKey != m.ID.String() || got.EventType != m.Topic {
			t.Errorf("got %+v", got)
		}
		if event.CheckKey(key) == nil && (got.AggregateID != key || got.Dead != "") {
			t.Errorf("key %q became %q (%s)", key, got.AggregateID, got.Dead)
		}
		storable := utf8.ValidString(name) && utf8.ValidString(value) && !strings.ContainsRune(name+value, 0)
		if name != "" && storable && !envelope.IsReserved(name) && got.Headers[name] != value {
			t.Errorf("header %q: %q became %q", name, value, got.Headers[name])
		}
	})
}

// FuzzForeignRecord decodes what anybody may have written: it always has an
// idempotency key that can be stored, and a type unless it is dead.
func FuzzForeignRecord(f *testing.F) {
	f.Add("x-event-type", "t", "ce_id", "1", []byte("k"), []byte("{}"))
	f.Add("ce_id", "", "ce_id", "\xff", []byte{0xff}, []byte(nil))
	f.Fuzz(func(t *testing.T, name1, value1, name2, value2 string, key, value []byte) {
		r := &kgo.Record{Topic: strings.Repeat("t", 249), Key: key, Value: value, Headers: []kgo.RecordHeader{
			{Key: name1, Value: []byte(value1)}, {Key: name2, Value: []byte(value2)}, {Key: name1, Value: nil},
		}}
		m := decode(decoder(t), r)
		if m.IdempotencyKey == "" || m.EventType == "" && m.Dead == "" {
			t.Errorf("got %+v", m)
		}
		for name, value := range m.Headers {
			if !utf8.ValidString(name) || !utf8.ValidString(value) {
				t.Errorf("header %q: %q", name, value)
			}
		}
	})
}

// TestManyHeaders must not take for ever.
func TestManyHeaders(t *testing.T) {
	r := &kgo.Record{Value: []byte("{}")}
	for range 200_000 {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: "h"})
	}
	if m := decode(decoder(t), r); len(m.Headers) != 0 || m.Dead == "" {
		t.Errorf("%d headers, dead because %q", len(m.Headers), m.Dead)
	}
}
