package sqlserver

import (
	"bytes"
	"encoding/hex"
	"encoding/json"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/internal/rowtext"
	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/outbox"
)

// The elements of the lists that queries take as one JSON text; OPENJSON reads
// them by these names.
type (
	leaseJSON struct {
		Bucket lane.Bucket `json:"b"`
		Token  int64       `json:"t"`
	}
	keptJSON struct {
		Scope  lane.Scope  `json:"s"`
		Bucket lane.Bucket `json:"b"`
		Token  int64       `json:"t"`
	}
	releasedJSON struct {
		Bucket  lane.Bucket `json:"b"`
		Token   int64       `json:"t"`
		Crashed int         `json:"c"`
	}
	cursorJSON struct {
		Bucket lane.Bucket `json:"b"`
		Token  int64       `json:"t"`
		Lane   int64       `json:"l"`
		After  int64       `json:"a"`
	}
	rowJSON struct {
		Lane     int64 `json:"l"`
		Sequence int64 `json:"s"`
	}
	outcomeJSON struct {
		Lane     int64  `json:"l"`
		Sequence int64  `json:"s"`
		Outcome  int    `json:"o"`
		Attempts int    `json:"a"`
		DelayMs  int64  `json:"d"`
		Reason   string `json:"r"`
		Error    string `json:"e"`
	}
	// publishJSON carries its payload as text, or says where it is among the
	// payloads.
	publishJSON struct {
		ID      string  `json:"i"`
		Key     string  `json:"k"`
		Topic   string  `json:"t"`
		Payload *string `json:"p,omitempty"`
		*sliceJSON
		Headers string `json:"h"`
		Version int64  `json:"v"`
	}
	sliceJSON struct {
		Offset int64 `json:"o"`
		Length int64 `json:"n"`
	}
	receiveJSON struct {
		KeyHash        string `json:"x"`
		IdempotencyKey string `json:"k"`
		Digest         string `json:"d"`
		ID             string `json:"i"`
		AggregateID    string `json:"g"`
		EventType      string `json:"t"`
		sliceJSON
		Headers string `json:"h"`
		Version int64  `json:"v"`
		Reason  string `json:"r"`
	}
)

// list renders elements as a JSON array; none are "[]". Texts must be valid
// UTF-8.
func list[T any](elements []T) string {
	if len(elements) == 0 {
		return "[]"
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(elements); err != nil { // numbers and texts always have a JSON form
		panic(err)
	}
	return string(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
}

// leaseList renders leases of one scope.
func leaseList(leases []lane.Lease) string {
	elements := make([]leaseJSON, len(leases))
	for i, l := range leases {
		elements[i] = leaseJSON{l.Bucket, l.Token}
	}
	return list(elements)
}

// idList renders message ids.
func idList(ids []event.UUID) string {
	elements := make([]string, len(ids))
	for i, id := range ids {
		elements[i] = id.String()
	}
	return list(elements)
}

// widths are the lengths to which payloads are filled up.
var widths = []int{256, 2048, 8000}

// padded fills up the payloads of a call with zeros, which no message has: the
// driver declares bytes with their length up to 8,000, and with "max" beyond or
// without any, and the server compiles a batch anew for every length.
func padded(payloads []byte) []byte {
	for _, width := range widths {
		if n := width - len(payloads); n >= 0 && n < width {
			return append(payloads, make([]byte, n)...)
		}
	}
	return payloads
}

// publishList renders records, and their payloads if they are bytes.
func publishList(records []outbox.Record, binary bool) (messages string, payloads []byte) {
	elements := make([]publishJSON, len(records))
	payloads = []byte{} // nil would be NULL
	for i := range records {
		r := &records[i]
		m := publishJSON{ID: messageID(r.ID).String(), Key: r.Key, Topic: r.Topic, Headers: rowtext.EncodeHeaders(r.Headers), Version: r.Version}
		if binary {
			m.sliceJSON = &sliceJSON{int64(len(payloads)), int64(len(r.Payload))}
			payloads = append(payloads, r.Payload...)
		} else {
			text := string(r.Payload)
			m.Payload = &text
		}
		elements[i] = m
	}
	return list(elements), padded(payloads)
}

// messageID returns id, or a new one for the zero UUID.
func messageID(id event.UUID) event.UUID {
	if id.IsZero() {
		return event.NewUUID()
	}
	return id
}

// hexOf renders a hash.
func hexOf(sum [32]byte) string { return hex.EncodeToString(sum[:]) }

// notNil keeps an empty payload from becoming NULL.
func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// idOf reads an id as the server writes it; a place where a walk ended has none.
func idOf(text string) event.UUID {
	id, err := event.ParseUUID(text)
	if err != nil {
		return event.UUID{}
	}
	return id
}
