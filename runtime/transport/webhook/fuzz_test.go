package webhook

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/lanebox/lanebox/runtime/event"
)

// FuzzSource sends hostile requests. Whatever comes, the answer is one of the
// documented ones, and what is stored has a usable key and the body's bytes.
func FuzzSource(f *testing.F) {
	f.Add("POST", goodBody, "application/json", "", "x-event-id", "a")
	f.Add("POST", zip(goodBody), "application/json; charset=utf-8", "gzip", "ce-id", "%C3%A9")
	f.Add("POST", `{"eventId":null,"eventId":{}}`, "text/plain", "gzip, gzip", "ce-aggregateversion", "-1")
	f.Add("GET", "\ufeff{\"eventId\":\"\\ud800\"}", "", "identity", "lanebox-%0a", "\xff")
	f.Fuzz(func(t *testing.T, method, body, contentType, encoding, name, value string) {
		r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(body))
		r.Method = method
		r.Header["Content-Type"] = []string{contentType}
		r.Header["Content-Encoding"] = []string{encoding}
		r.Header[http.CanonicalHeaderKey(name)] = []string{value}
		for _, c := range []SourceConfig{orders(), {Name: "headers", Logger: quiet, MaxBytes: 64 << 10}} {
			r.Body = http.NoBody
			if body != "" {
				r.Body = post(body).Body
			}
			s, ledger := newSource(t, c, Unsigned())
			w := serve(s, r)
			checkAnswer(t, w)
			stored := ledger.Stored()
			if (w.Code == http.StatusAccepted) != (len(stored) == 1) {
				t.Fatalf("%d with %d stored", w.Code, len(stored))
			}
			for _, m := range stored {
				if event.CheckKey(m.IdempotencyKey) != nil || event.CheckKey(m.EventType) != nil || m.AggregateID != "" && event.CheckKey(m.AggregateID) != nil {
					t.Fatalf("stored %+v", m)
				}
				if !strings.EqualFold(strings.TrimSpace(encoding), "gzip") && !strings.EqualFold(strings.TrimSpace(encoding), "x-gzip") && string(m.Payload) != body {
					t.Fatalf("payload %q of body %q", m.Payload, body)
				}
				for name, value := range m.Headers {
					if !utf8.ValidString(name) || !utf8.ValidString(value) {
						t.Fatalf("header %q: %q", name, value)
					}
				}
			}
		}
	})
}

func checkAnswer(t *testing.T, w *httptest.ResponseRecorder) {
	t.Helper()
	switch w.Code {
	case 202:
		return
	case 400, 405, 413, 415, 422:
		var p problem
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || p.Status != w.Code || p.Detail == "" {
			t.Fatalf("%d with %q", w.Code, w.Body)
		}
		return
	}
	t.Fatalf("status %d: %s", w.Code, w.Body)
}
