package sqlserver

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/outbox"
)

func TestListShapes(t *testing.T) {
	id := event.UUID{0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0xfe, 0xdc, 0xba, 0x98, 0x76, 0x54, 0x32, 0x10}
	const uuid = "01234567-89ab-cdef-fedc-ba9876543210"
	records := []outbox.Record{
		{ID: id, Topic: "t", Key: "k", Payload: []byte(`{"a":"<&>"}`), Headers: event.Headers{"h": "v"}, Version: 7},
		{ID: id, Topic: "t"},
	}
	text, none := publishList(records, false)
	binary, payloads := publishList(append(records, records[0]), true)
	for name, c := range map[string]struct{ got, want string }{
		"nothing":   {list([]rowJSON(nil)), `[]`},
		"leases":    {leaseList([]lane.Lease{{Bucket: -64, Token: 1<<62 + 1}}), `[{"b":-64,"t":4611686018427387905}]`},
		"kept":      {list([]keptJSON{{1, 2, 3}}), `[{"s":1,"b":2,"t":3}]`},
		"released":  {list([]releasedJSON{{2, 3, 1}}), `[{"b":2,"t":3,"c":1}]`},
		"cursors":   {list([]cursorJSON{{2, 3, -4, 5}}), `[{"b":2,"t":3,"l":-4,"a":5}]`},
		"rows":      {list([]rowJSON{{-1, 2}, {3, 4}}), `[{"l":-1,"s":2},{"l":3,"s":4}]`},
		"outcomes":  {list([]outcomeJSON{{1, 2, 3, 4, 5, "r", "<e>"}}), `[{"l":1,"s":2,"o":3,"a":4,"d":5,"r":"r","e":"<e>"}]`},
		"ids":       {idList([]event.UUID{id}), `["` + uuid + `"]`},
		"numbers":   {list([]int64{1, -2}), `[1,-2]`},
		"scopes":    {list([]lane.Scope{7}), `[7]`},
		"text":      {text, `[{"i":"` + uuid + `","k":"k","t":"t","p":"{\"a\":\"<&>\"}","h":"{\"h\":\"v\"}","v":7},{"i":"` + uuid + `","k":"","t":"t","p":"","h":"","v":0}]`},
		"no bytes":  {string(none), ""},
		"bytes":     {binary, `[{"i":"` + uuid + `","k":"k","t":"t","o":0,"n":11,"h":"{\"h\":\"v\"}","v":7},{"i":"` + uuid + `","k":"","t":"t","o":11,"n":0,"h":"","v":0},{"i":"` + uuid + `","k":"k","t":"t","o":11,"n":11,"h":"{\"h\":\"v\"}","v":7}]`},
		"their sum": {string(bytes.TrimRight(payloads, "\x00")), `{"a":"<&>"}{"a":"<&>"}`},
	} {
		if c.got != c.want {
			t.Errorf("%s: got\n%s\nwant\n%s", name, c.got, c.want)
		}
	}
	if none == nil || payloads == nil {
		t.Error("no payloads became NULL")
	}
}

// The bytes of a call have few lengths, whatever the messages have.
func TestPayloadsHaveFewLengths(t *testing.T) {
	for n, want := range map[int]int{0: 0, 1: 256, 255: 256, 256: 256, 257: 2048, 2048: 2048, 2049: 8000, 8000: 8000, 8001: 8001, 70000: 70000} {
		records := []outbox.Record{{Topic: "t", Payload: bytes.Repeat([]byte{1}, n)}}
		_, published := publishList(records, true)
		_, received := receiveList([]inbox.Incoming{{Payload: records[0].Payload}})
		for _, got := range [][]byte{published, received} {
			if len(got) != want || !bytes.Equal(bytes.TrimRight(got, "\x00"), records[0].Payload) {
				t.Errorf("%d bytes are sent as %d, want %d", n, len(got), want)
			}
		}
	}
}

func TestReceiveListShape(t *testing.T) {
	elements, payloads := receiveList([]inbox.Incoming{
		{IdempotencyKey: "a ", EventType: "t", AggregateID: "g", Payload: []byte{0, 0xff}, Version: 3},
		{IdempotencyKey: "ä", Dead: "bad\x00"},
	})
	if !bytes.Equal(payloads, append([]byte{0, 0xff}, make([]byte, 254)...)) {
		t.Errorf("payloads %x", payloads)
	}
	var got []map[string]any
	if err := json.Unmarshal([]byte(list(elements)), &got); err != nil {
		t.Fatal(err)
	}
	for i, want := range []map[string]any{
		{"k": "a ", "g": "g", "t": "t", "o": 0.0, "n": 2.0, "h": "", "v": 3.0, "r": ""},
		{"k": "ä", "g": "", "t": "", "o": 2.0, "n": 0.0, "v": 0.0, "r": "bad\uFFFD"},
	} {
		for name, value := range want {
			if got[i][name] != value {
				t.Errorf("message %d: %s is %v, want %v", i, name, got[i][name], value)
			}
		}
		for _, name := range []string{"x", "d"} {
			if s, ok := got[i][name].(string); !ok || len(s) != 64 || strings.ToLower(s) != s {
				t.Errorf("message %d: %s is %v", i, name, got[i][name])
			}
		}
		if _, err := event.ParseUUID(got[i]["i"].(string)); err != nil {
			t.Error(err)
		}
	}
	if got[0]["x"] == got[1]["x"] {
		t.Error("two idempotency keys have one hash")
	}
}

// What is in a list arrives as it was, whatever the text is.
func FuzzListText(f *testing.F) {
	f.Add("a\u2028b<&>\"\\\n\t😀", "\u0000")
	f.Fuzz(func(t *testing.T, key, text string) {
		key, text = strings.ToValidUTF8(key, ""), strings.ToValidUTF8(text, "")
		out, _ := publishList([]outbox.Record{{Topic: "t", Key: key, Payload: []byte(text)}}, false)
		var got []struct{ K, P string }
		if err := json.Unmarshal([]byte(out), &got); err != nil || len(got) != 1 || got[0].K != key || got[0].P != text {
			t.Errorf("%q, %q became %q: %v", key, text, got, err)
		}
	})
}
