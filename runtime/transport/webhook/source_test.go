package webhook

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/transporttest"
)

var quiet = slog.New(slog.DiscardHandler)

// orders is a source like the one in the schema's example.
func orders() SourceConfig {
	return SourceConfig{
		Name: "orders", Path: "/orders", Logger: quiet, MaxBytes: 64 << 10,
		IdempotencyKey: [][]string{{"$.eventId"}, {"header:x-event-id"}},
		EventType:      []string{"$.type", "header:x-github-event"},
		AggregateID:    []string{"$.orderId", "$.order.id"},
	}
}

const goodBody = `{"eventId":"e-1","type":"order.placed","orderId":"order-42"}`

func newSource(t testing.TB, c SourceConfig, v Verifier) (*Source, *transporttest.Ledger) {
	t.Helper()
	ledger := &transporttest.Ledger{}
	s, err := NewSource(transporttest.NewReceiver(ledger, 128<<10), c, v)
	if err != nil {
		t.Fatal(err)
	}
	return s, ledger
}

func post(body string, headers ...string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		if headers[i+1] == "" {
			r.Header.Del(headers[i])
			continue
		}
		r.Header[http.CanonicalHeaderKey(headers[i])] = append(r.Header[http.CanonicalHeaderKey(headers[i])], headers[i+1])
	}
	return r
}

// contentType replaces the media type of a request.
func withType(r *http.Request, values ...string) *http.Request {
	r.Header["Content-Type"] = values
	return r
}

func serve(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// wantProblem checks status and problem document and returns its detail.
func wantProblem(t *testing.T, w *httptest.ResponseRecorder, status int, name string) string {
	t.Helper()
	var p problem
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
		t.Fatalf("status %d with body %q: %v", w.Code, w.Body, err)
	}
	if w.Code != status || p.Status != status || p.Type != "urn:lanebox:problem:"+name || p.Detail == "" || p.Title == "" {
		t.Fatalf("got %d %+v; want %d %s", w.Code, p, status, name)
	}
	if got := w.Header().Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("content type %q", got)
	}
	return p.Detail
}

func TestStoredThenDuplicateThenConflict(t *testing.T) {
	s, ledger := newSource(t, orders(), Unsigned())
	if w := serve(s, post(goodBody)); w.Code != http.StatusAccepted || w.Body.String() != "{\"status\":\"stored\"}\n" {
		t.Fatalf("first: %d %s", w.Code, w.Body)
	}
	if w := serve(s, post(goodBody)); w.Code != http.StatusOK || w.Body.String() != "{\"status\":\"duplicate\"}\n" {
		t.Fatalf("second: %d %s", w.Code, w.Body)
	}
	wantProblem(t, serve(s, post(strings.Replace(goodBody, "42", "43", 1))), http.StatusUnprocessableEntity, "conflict")
	stored := ledger.Stored()
	if len(stored) != 1 || stored[0].IdempotencyKey != "e-1" || stored[0].EventType != "order.placed" ||
		stored[0].AggregateID != "order-42" || string(stored[0].Payload) != goodBody {
		t.Errorf("stored %+v", stored)
	}
}

func TestFiftyEqualRequestsAtOnceAreStoredOnce(t *testing.T) {
	s, ledger := newSource(t, orders(), Unsigned())
	server := httptest.NewServer(s)
	defer server.Close()
	statuses := make(chan int, 50)
	start := make(chan struct{})
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			<-start
			r, err := http.Post(server.URL, "application/json", strings.NewReader(goodBody))
			if err != nil {
				t.Error(err)
				return
			}
			r.Body.Close()
			statuses <- r.StatusCode
		})
	}
	close(start)
	all.Wait()
	close(statuses)
	count := map[int]int{}
	for status := range statuses {
		count[status]++
	}
	if count[202] != 1 || count[200] != 49 || len(ledger.Stored()) != 1 {
		t.Errorf("statuses %v, stored %d", count, len(ledger.Stored()))
	}
}

func TestRefusals(t *testing.T) {
	longKey := strings.Repeat("k", event.MaxKeyBytes+1)
	for name, c := range map[string]struct {
		r      *http.Request
		status int
		kind   string
		detail string
	}{
		"GET":                  {httptest.NewRequest("GET", "/", nil), 405, "method", "POST"},
		"PUT":                  {httptest.NewRequest("PUT", "/", strings.NewReader(goodBody)), 405, "method", "POST"},
		"not JSON":             {post(`{"eventId":`), 400, "json", "byte 11"},
		"empty":                {post(""), 400, "json", "cannot be read"},
		"trailing":             {post(goodBody + "x"), 400, "json", "byte"},
		"UTF-16 with a mark":   {post("\xff\xfe{\x00}\x00"), 400, "json", "byte 1"},
		"text":                 {withType(post(goodBody), "text/plain"), 415, "content-type", "application/json"},
		"form":                 {withType(post("payload=1"), "application/x-www-form-urlencoded"), 415, "content-type", "application/json"},
		"utf-16":               {withType(post(goodBody), "application/json; charset=utf-16"), 415, "content-type", "UTF-8"},
		"latin-1":              {withType(post(goodBody), `application/vnd.x+json; charset="ISO-8859-1"`), 415, "content-type", "UTF-8"},
		"two content types":    {withType(post(goodBody), "application/json", "text/plain"), 415, "content-type", "more than once"},
		"broken content type":  {withType(post(goodBody), "application/json; charset"), 415, "content-type", ""},
		"deflate":              {post(goodBody, "Content-Encoding", "deflate"), 415, "content-encoding", "gzip, once"},
		"br":                   {post(goodBody, "Content-Encoding", "br"), 415, "content-encoding", "gzip"},
		"gzip, gzip":           {post(goodBody, "Content-Encoding", "gzip, gzip"), 415, "content-encoding", "once"},
		"gzip twice":           {post(goodBody, "Content-Encoding", "gzip", "Content-Encoding", "gzip"), 415, "content-encoding", "once"},
		"not gzip":             {post(goodBody, "Content-Encoding", "gzip"), 400, "gzip", "not valid gzip"},
		"cut gzip":             {post(zip(goodBody)[:30], "Content-Encoding", "gzip"), 400, "gzip", "not valid gzip"},
		"gzip and more":        {post(zip(goodBody)+"more", "Content-Encoding", "gzip"), 400, "gzip", "not valid gzip"},
		"gzip of gzip":         {post(zip(zip(goodBody)), "Content-Encoding", "gzip"), 400, "json", "not JSON"},
		"too large":            {post(`{"x":"` + strings.Repeat("x", 64<<10) + `"}`), 413, "too-large", "65536"},
		"no key":               {post(`{"type":"t","orderId":"o"}`), 422, "extract", "idempotency key: $.eventId is missing; header x-event-id is missing"},
		"null key":             {post(`{"eventId":null,"type":"t","orderId":"o"}`), 422, "extract", "$.eventId is null"},
		"empty key":            {post(`{"eventId":"","type":"t","orderId":"o"}`), 422, "extract", "$.eventId is an empty string"},
		"object key":           {post(`{"eventId":{"a":1},"type":"t","orderId":"o"}`), 422, "extract", "$.eventId is an object"},
		"list key":             {post(`{"eventId":["a"],"type":"t","orderId":"o"}`), 422, "extract", "$.eventId is a list"},
		"boolean key":          {post(`{"eventId":true,"type":"t","orderId":"o"}`), 422, "extract", "$.eventId is a boolean"},
		"key twice":            {post(`{"eventId":"a","eventId":"b","type":"t","orderId":"o"}`), 422, "extract", "occurs twice"},
		"lone surrogate":       {post(`{"eventId":"\ud800","type":"t","orderId":"o"}`), 422, "extract", "Unicode"},
		"invalid UTF-8":        {post("{\"eventId\":\"\xff\",\"type\":\"t\",\"orderId\":\"o\"}"), 422, "extract", "Unicode"},
		"U+0000":               {post(`{"eventId":"a\u0000","type":"t","orderId":"o"}`), 422, "extract", "U+0000"},
		"long key":             {post(`{"eventId":"` + longKey + `","type":"t","orderId":"o"}`), 422, "extract", "256 bytes"},
		"header key twice":     {post(`{"type":"t","orderId":"o"}`, "X-Event-Id", "a", "X-Event-Id", "b"), 422, "extract", "more than once"},
		"header key not UTF-8": {post(`{"type":"t","orderId":"o"}`, "X-Event-Id", "\xff"), 422, "extract", "UTF-8"},
		"no type":              {post(`{"eventId":"e","orderId":"o"}`), 422, "extract", "event type"},
		"no aggregate":         {post(`{"eventId":"e","type":"t"}`), 422, "extract", "aggregate id: $.orderId is missing; $.order.id is missing"},
		"null aggregate":       {post(`{"eventId":"e","type":"t","orderId":null}`), 422, "extract", "$.orderId is null"},
		"long aggregate":       {post(`{"eventId":"e","type":"t","orderId":"` + longKey + `"}`), 422, "extract", "256 bytes"},
		"unroutable":           {post(`{"eventId":"e","type":"unroutable.v1","orderId":"o"}`), 422, "refused", "not accepted"},
		"version":              {post(goodBody, "ce-aggregateversion", "x"), 400, "version", "ce-aggregateversion"},
		"version twice":        {post(goodBody, "ce-aggregateversion", "1", "ce-aggregateversion", "2"), 400, "version", "one positive number"},
	} {
		t.Run(name, func(t *testing.T) {
			s, ledger := newSource(t, orders(), Unsigned())
			w := serve(s, c.r)
			if detail := wantProblem(t, w, c.status, c.kind); !strings.Contains(detail, c.detail) {
				t.Errorf("detail %q does not say %q", detail, c.detail)
			}
			if c.status == 405 && w.Header().Get("Allow") != "POST" {
				t.Errorf("Allow = %q", w.Header().Get("Allow"))
			}
			if len(ledger.Stored()) != 0 {
				t.Error("something was stored")
			}
		})
	}
}

func TestAccepted(t *testing.T) {
	for name, c := range map[string]struct {
		r                     *http.Request
		key, kind, aggregates string
		payload               string
	}{
		"no content type":    {withType(post(goodBody)), "e-1", "order.placed", "order-42", goodBody},
		"charset":            {withType(post(goodBody), `application/json; charset="UTF-8"`), "e-1", "order.placed", "order-42", goodBody},
		"+json":              {withType(post(goodBody), "application/vnd.acme.v1+json"), "e-1", "order.placed", "order-42", goodBody},
		"byte order mark":    {post("\ufeff" + goodBody), "e-1", "order.placed", "order-42", "\ufeff" + goodBody},
		"identity":           {post(goodBody, "Content-Encoding", "identity"), "e-1", "order.placed", "order-42", goodBody},
		"gzip":               {post(zip(goodBody), "Content-Encoding", "GZIP"), "e-1", "order.placed", "order-42", goodBody},
		"large numbers":      {post(`{"eventId":9007199254740993,"type":"t","orderId":18446744073709551615}`), "9007199254740993", "t", "18446744073709551615", ""},
		"1.0":                {post(`{"eventId":1.0,"type":"t","orderId":1}`), "1.0", "t", "1", ""},
		"untouched payload":  {post("{\"b\":1,\"a\":1.0,\"a\":2, \"eventId\":\"\\u0065\", \"type\":\"t\", \"orderId\":\"o\" }\n"), "e", "t", "o", ""},
		"second rule":        {post(`{"eventId":null,"order":{"id":"o"}}`, "X-Event-Id", "h", "X-GitHub-Event", "push"), "h", "push", "o", ""},
		"non-ASCII header":   {post(`{"type":"t","orderId":"o"}`, "X-Event-Id", "ключ"), "ключ", "t", "o", ""},
		"the text null":      {post(`{"eventId":"null","type":"t","orderId":"null"}`), "null", "t", "null", ""},
		"invalid elsewhere":  {post("{\"x\":\"\xff\\ud800\",\"eventId\":\"e\",\"type\":\"t\",\"orderId\":\"o\"}"), "e", "t", "o", ""},
		"header of 255 byte": {post(`{"type":"t","orderId":"o"}`, "X-Event-Id", strings.Repeat("x", 255)), strings.Repeat("x", 255), "t", "o", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if c.payload == "" {
				body, err := io.ReadAll(c.r.Body)
				if err != nil {
					t.Fatal(err)
				}
				c.payload, c.r.Body = string(body), io.NopCloser(bytes.NewReader(body))
			}
			s, ledger := newSource(t, orders(), Unsigned())
			if w := serve(s, c.r); w.Code != http.StatusAccepted {
				t.Fatalf("%d %s", w.Code, w.Body)
			}
			m := ledger.Stored()[0]
			if m.IdempotencyKey != c.key || m.EventType != c.kind || m.AggregateID != c.aggregates || string(m.Payload) != c.payload {
				t.Errorf("stored %q %q %q %q", m.IdempotencyKey, m.EventType, m.AggregateID, m.Payload)
			}
		})
	}
}

func TestWithoutRulesForTheBodyAnyBodyIsTaken(t *testing.T) {
	c := SourceConfig{Name: "files", Logger: quiet}
	for _, body := range []string{"", "\x00\xff", "not json"} {
		s, ledger := newSource(t, c, Unsigned())
		r := withType(post(body, "X-Idempotency-Key", "k", "X-Event-Type", "t"), "application/octet-stream")
		if w := serve(s, r); w.Code != http.StatusAccepted {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		m := ledger.Stored()[0]
		if string(m.Payload) != body || m.AggregateID != "" || m.Headers["content-type"] != "application/octet-stream" {
			t.Errorf("stored %+v", m)
		}
	}
	s, _ := newSource(t, c, Unsigned())
	r := withType(post("{}", "X-Idempotency-Key", "k", "X-Event-Type", "t"), "application/json; charset=utf-16")
	wantProblem(t, serve(s, r), http.StatusUnsupportedMediaType, "content-type")
}

func TestCompositeKeysAreJoinedWithoutCollision(t *testing.T) {
	c := orders()
	c.IdempotencyKey = [][]string{{"$.psp", "header:x-event-code"}}
	s, ledger := newSource(t, c, Unsigned())
	for _, pair := range [][2]string{{"a|b", "c"}, {"a", "b|c"}} {
		w := serve(s, post(fmt.Sprintf(`{"psp":%q,"type":"t","orderId":"o"}`, pair[0]), "X-Event-Code", pair[1]))
		if w.Code != http.StatusAccepted {
			t.Fatalf("%v: %d %s", pair, w.Code, w.Body)
		}
	}
	if got := len(ledger.Stored()); got != 2 {
		t.Errorf("stored %d", got)
	}
	detail := wantProblem(t, serve(s, post(`{"psp":"a","type":"t","orderId":"o"}`)), http.StatusUnprocessableEntity, "extract")
	if !strings.Contains(detail, "x-event-code is missing") {
		t.Errorf("detail %q", detail)
	}
}

func TestMissingAggregateMayBeUnordered(t *testing.T) {
	c := orders()
	c.AggregateIDMissing = "unordered"
	for _, value := range []string{"null", `""`, "{}", "[]", "false"} {
		s, ledger := newSource(t, c, Unsigned())
		w := serve(s, post(`{"eventId":"e","type":"t","orderId":`+value+`}`))
		if w.Code != http.StatusAccepted || ledger.Stored()[0].AggregateID != "" {
			t.Errorf("%s: %d %s", value, w.Code, w.Body)
		}
	}
	// What cannot be read is refused all the same.
	s, _ := newSource(t, c, Unsigned())
	wantProblem(t, serve(s, post(`{"eventId":"e","type":"t","orderId":"a","orderId":"b"}`)), http.StatusUnprocessableEntity, "extract")
}

func TestGzipBombs(t *testing.T) {
	c := orders()
	c.MaxBytes = 512 << 10
	for name, body := range map[string]string{
		"64 MiB of zeros": zeros(t, 64<<20),
		"many members":    strings.Repeat(zip(strings.Repeat("x", 8<<10)), 600),
	} {
		if int64(len(body)) > c.MaxBytes {
			t.Fatalf("%s: the bomb has %d bytes and is refused as sent", name, len(body))
		}
		s, ledger := newSource(t, c, Unsigned())
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		wantProblem(t, serve(s, post(body, "Content-Encoding", "gzip")), http.StatusRequestEntityTooLarge, "too-large")
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > 16*uint64(c.MaxBytes) {
			t.Errorf("%s took %d bytes of memory", name, used)
		}
		if ledger.Tries() != 0 {
			t.Errorf("%s reached the store", name)
		}
	}
	s, _ := newSource(t, orders(), Unsigned()) // refused as sent, unread
	wantProblem(t, serve(s, post(zeros(t, 64<<20), "Content-Encoding", "gzip")), http.StatusRequestEntityTooLarge, "too-large")
}

func TestNothingIsDecompressedBeforeTheSignature(t *testing.T) {
	s, _ := newSource(t, orders(), GitHub("secret"))
	w := serve(s, post(zeros(t, 10<<20), "Content-Encoding", "gzip", "X-Hub-Signature-256", "sha256="+strings.Repeat("0", 64)))
	wantProblem(t, w, http.StatusUnauthorized, "unverified")
}

func TestSignatureCoversTheBytesAsSent(t *testing.T) {
	s, ledger := newSource(t, orders(), GitHub("secret"))
	body := zip(goodBody)
	w := serve(s, post(body, "Content-Encoding", "gzip", "X-Hub-Signature-256", githubSignature("secret", body)))
	if w.Code != http.StatusAccepted || string(ledger.Stored()[0].Payload) != goodBody {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	w = serve(s, post(body, "Content-Encoding", "gzip", "X-Hub-Signature-256", githubSignature("secret", goodBody)))
	wantProblem(t, w, http.StatusUnauthorized, "unverified")
}

func TestKeptHeadersHoldNoCredentials(t *testing.T) {
	c := orders()
	c.KeepHeaders = []string{"X-Tenant"}
	s, ledger := newSource(t, c, Bearer("token"))
	w := serve(s, post(goodBody,
		"Authorization", "Bearer token", "Cookie", "a=b", "X-Api-Key", "k", "X-Hub-Signature-256", "s", "X-Forwarded-For", "1.2.3.4",
		"Traceparent", "00-a-b-01", "Tracestate", "a=1", "User-Agent", "tester", "X-GitHub-Event", "push", "X-Tenant", "acme",
		"Ce-Correlationid", "c%20d", "Ce-Id", "other", "Ce-Specversion", "1.0", "Ce-Attempt", "3", "Ce-Broken", "%zz",
		"Lanebox-X-Own", "mine", "Lanebox-Ce-Id", "forged", "Lanebox-Content-Type", "forged", "Webhook-Id", "a"))
	if w.Code != http.StatusAccepted {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	want := map[string]string{
		"content-type": "application/json", "traceparent": "00-a-b-01", "tracestate": "a=1", "user-agent": "tester",
		"x-github-event": "push", "x-tenant": "acme", "correlationid": "c d", "ce-id": "other", "x-own": "mine", "webhook-id": "a",
	}
	got := ledger.Stored()[0].Headers
	for name, value := range want {
		if got[name] != value {
			t.Errorf("header %s = %q, want %q", name, got[name], value)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("header %s was kept", name)
		}
	}
}

func TestProblemsNeverEchoSecretsOrValues(t *testing.T) {
	for _, v := range []Verifier{GitHub("s3cret-a"), Stripe("s3cret-a"), StandardWebhooks("s3cret-a"), Bearer("s3cret-a"), APIKey("X-Key", "s3cret-a"), leaky{}} {
		s, _ := newSource(t, orders(), v)
		for _, h := range [][]string{
			{}, {"Authorization", "Bearer s3cret-b", "X-Key", "s3cret-b", "X-Hub-Signature-256", "sha256=s3cret-b",
				"Stripe-Signature", "t=1,v1=s3cret-b", "Webhook-Id", "s3cret-b", "Webhook-Timestamp", "s3cret-b", "Webhook-Signature", "v1,s3cret-b"},
			{"Authorization", "Basic s3cret-b", "Stripe-Signature", "s3cret-b", "Webhook-Id", "1", "Webhook-Timestamp", "1", "Webhook-Signature", "v1,czNjcmV0LWI="},
		} {
			w := serve(s, post(goodBody, h...))
			wantProblem(t, w, http.StatusUnauthorized, "unverified")
			if strings.Contains(w.Body.String()+fmt.Sprint(w.Header()), "s3cret") {
				t.Errorf("%T echoes: %s %v", v, w.Body, w.Header())
			}
		}
	}
}

// leaky is a verifier of a service that says too much.
type leaky struct{}

func (leaky) Verify(http.Header, []byte, time.Time) error { return errors.New("wanted s3cret-a") }

func TestVerifierThatCannotDecideAsksToComeAgain(t *testing.T) {
	s, _ := newSource(t, orders(), down{})
	w := serve(s, post(goodBody))
	wantProblem(t, w, http.StatusServiceUnavailable, "verify")
	if w.Header().Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
}

type down struct{}

func (down) Verify(http.Header, []byte, time.Time) error {
	return event.AsUnavailable(errors.New("key service is down"))
}

func TestFailuresToStoreAskToComeAgain(t *testing.T) {
	for name, c := range map[string]struct {
		err    error
		status int
		kind   string
		after  string
	}{
		"database":      {errors.New("password=s3cret refused"), 503, "unavailable", "2"},
		"back-pressure": {event.AsBackPressure(errors.New("s3cret"), 2500*time.Millisecond), 503, "unavailable", "3"},
		"lost":          {&event.RetryableError{Op: "insert", Err: errors.New("s3cret")}, 503, "unavailable", "2"},
		"permanent":     {event.AsPermanent(errors.New("s3cret")), 422, "refused", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s, ledger := newSource(t, orders(), Unsigned())
			ledger.Before(func(context.Context, int, inbox.Incoming) error { return c.err })
			w := serve(s, post(goodBody))
			wantProblem(t, w, c.status, c.kind)
			if got := w.Header().Get("Retry-After"); got != c.after {
				t.Errorf("Retry-After = %q, want %q", got, c.after)
			}
			if strings.Contains(w.Body.String(), "s3cret") {
				t.Errorf("the answer tells internals: %s", w.Body)
			}
		})
	}
}

func TestReceiverLimitBelowTheSourceLimit(t *testing.T) {
	s, err := NewSource(transporttest.NewReceiver(&transporttest.Ledger{}, 10), orders(), Unsigned())
	if err != nil {
		t.Fatal(err)
	}
	wantProblem(t, serve(s, post(goodBody)), http.StatusRequestEntityTooLarge, "too-large")
}

func TestTooManyRequestsAtATime(t *testing.T) {
	for _, status := range []int{503, 429} {
		c := orders()
		c.MaxConcurrent, c.BusyStatus, c.RetryAfter = 1, status, 7*time.Second
		s, ledger := newSource(t, c, Unsigned())
		entered, leave := make(chan struct{}), make(chan struct{})
		ledger.Before(func(context.Context, int, inbox.Incoming) error {
			close(entered)
			<-leave
			return nil
		})
		first := make(chan int)
		go func() { first <- serve(s, post(goodBody)).Code }()
		<-entered
		w := serve(s, post(goodBody))
		wantProblem(t, w, status, "busy")
		if w.Header().Get("Retry-After") != "7" {
			t.Errorf("Retry-After = %q", w.Header().Get("Retry-After"))
		}
		close(leave)
		if got := <-first; got != http.StatusAccepted {
			t.Errorf("the first request got %d", got)
		}
		ledger.Before(nil)
		if w := serve(s, post(goodBody)); w.Code != http.StatusOK {
			t.Errorf("after the slot was free: %d", w.Code)
		}
	}
}

func TestAnswerComesAfterTheCommitOnly(t *testing.T) {
	s, ledger := newSource(t, orders(), Unsigned())
	w := httptest.NewRecorder()
	ledger.After(func(context.Context, int, inbox.Incoming) error {
		if w.Code != 200 || w.Body.Len() != 0 || len(w.Header()) != 0 { // the recorder starts with 200
			t.Error("something was answered before the commit")
		}
		return nil
	})
	s.ServeHTTP(w, post(goodBody))
	if w.Code != http.StatusAccepted || len(ledger.Stored()) != 1 {
		t.Errorf("%d", w.Code)
	}
}

func TestSenderThatHangsUpIsHandled(t *testing.T) {
	s, ledger := newSource(t, orders(), Unsigned())
	ctx, cancel := context.WithCancel(t.Context())
	ledger.Before(func(ctx context.Context, _ int, _ inbox.Incoming) error {
		cancel()
		<-ctx.Done()
		return ctx.Err()
	})
	wantProblem(t, serve(s, post(goodBody).WithContext(ctx)), http.StatusServiceUnavailable, "unavailable")
	ledger.Before(nil)
	if w := serve(s, post(goodBody)); w.Code != http.StatusAccepted {
		t.Errorf("sent again: %d", w.Code)
	}
}

func TestProcessThatDiesAfterTheCommitLeavesOneRow(t *testing.T) {
	s, ledger := newSource(t, orders(), Unsigned())
	server := httptest.NewUnstartedServer(s)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.Start()
	defer server.Close()
	ledger.After(func(_ context.Context, try int, _ inbox.Incoming) error {
		if try == 1 {
			panic(http.ErrAbortHandler)
		}
		return nil
	})
	if r, err := http.Post(server.URL, "application/json", strings.NewReader(goodBody)); err == nil {
		r.Body.Close()
		t.Fatalf("the first request was answered: %d", r.StatusCode)
	}
	r, err := http.Post(server.URL, "application/json", strings.NewReader(goodBody))
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	if r.StatusCode != http.StatusOK || len(ledger.Stored()) != 1 {
		t.Errorf("%d, stored %d", r.StatusCode, len(ledger.Stored()))
	}
}

func TestShutdownFinishesSlowRequests(t *testing.T) {
	const count = 20
	s, ledger := newSource(t, orders(), Unsigned())
	server := httptest.NewServer(s)
	defer server.Close()
	var entered sync.WaitGroup
	entered.Add(count)
	leave := make(chan struct{})
	ledger.Before(func(context.Context, int, inbox.Incoming) error {
		entered.Done()
		<-leave
		return nil
	})
	statuses := make(chan int, count)
	for n := range count {
		go func() {
			r, err := http.Post(server.URL, "application/json", strings.NewReader(fmt.Sprintf(`{"eventId":%d,"type":"t","orderId":"o"}`, n)))
			if err != nil {
				t.Error(err)
				statuses <- 0
				return
			}
			r.Body.Close()
			statuses <- r.StatusCode
		}()
	}
	entered.Wait()
	done := make(chan error)
	go func() { done <- server.Config.Shutdown(context.Background()) }()
	close(leave)
	for range count {
		if status := <-statuses; status != http.StatusAccepted {
			t.Errorf("status %d", status)
		}
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// raw sends bytes to a server and returns the first answer.
func raw(t *testing.T, address, request string, then func(*http.Response, net.Conn)) {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	then(r, c)
}

func TestExpectContinue(t *testing.T) {
	s, ledger := newSource(t, orders(), Bearer("token"))
	server := httptest.NewServer(s)
	defer server.Close()
	address := server.Listener.Addr().String()
	head := "POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: %d\r\nAuthorization: Bearer %s\r\n\r\n"

	// Refused before the body is asked for.
	raw(t, address, fmt.Sprintf(head, len(goodBody), "wrong"), func(r *http.Response, _ net.Conn) {
		if r.StatusCode != http.StatusUnauthorized {
			t.Errorf("wrong token: %d", r.StatusCode)
		}
	})
	raw(t, address, fmt.Sprintf(head, 1<<40, "token"), func(r *http.Response, _ net.Conn) {
		if r.StatusCode != http.StatusRequestEntityTooLarge {
			t.Errorf("too large: %d", r.StatusCode)
		}
	})
	raw(t, address, fmt.Sprintf(head, len(goodBody), "token"), func(r *http.Response, c net.Conn) {
		if r.StatusCode != http.StatusContinue {
			t.Fatalf("good: %d", r.StatusCode)
		}
		io.WriteString(c, goodBody)
		if r, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || r.StatusCode != http.StatusAccepted {
			t.Errorf("after the body: %v, %v", r, err)
		}
	})
	if len(ledger.Stored()) != 1 {
		t.Errorf("stored %d", len(ledger.Stored()))
	}
}

func TestBodyThatEndsEarlyOrNever(t *testing.T) {
	s, ledger := newSource(t, orders(), Unsigned())
	server := httptest.NewUnstartedServer(s)
	server.Config.ReadTimeout = 200 * time.Millisecond
	server.Start()
	defer server.Close()
	head := "POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
	raw(t, server.Listener.Addr().String(), head, func(r *http.Response, _ net.Conn) {
		if r.StatusCode != http.StatusRequestTimeout {
			t.Errorf("slow body: %d", r.StatusCode)
		}
	})
	r := post("")
	r.Body = io.NopCloser(io.MultiReader(strings.NewReader("{"), failing{}))
	wantProblem(t, serve(s, r), http.StatusBadRequest, "body")
	chunked := "POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n20000\r\n" + strings.Repeat("x", 0x20000) + "\r\n0\r\n\r\n"
	raw(t, server.Listener.Addr().String(), chunked, func(r *http.Response, _ net.Conn) {
		if r.StatusCode != http.StatusRequestEntityTooLarge {
			t.Errorf("large chunked body: %d", r.StatusCode)
		}
	})
	if ledger.Tries() != 0 {
		t.Error("something reached the store")
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestMux(t *testing.T) {
	first, ledger := newSource(t, orders(), Unsigned())
	c := orders()
	c.Name, c.Path = "more", "/orders/more"
	second, _ := newSource(t, c, Unsigned())
	m, err := NewMux(first, second)
	if err != nil {
		t.Fatal(err)
	}
	if w := serve(m, post(goodBody)); w.Code != http.StatusAccepted || len(ledger.Stored()) != 1 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	for _, path := range []string{"/", "/orders/", "//orders", "/orders/x", "/Orders", "/orders/../orders", "/orders%2Fmore/"} {
		r := post(goodBody)
		r.URL.Path = path
		wantProblem(t, serve(m, r), http.StatusNotFound, "path")
	}
	w := serve(m, httptest.NewRequest("GET", "/orders", nil))
	wantProblem(t, w, http.StatusMethodNotAllowed, "method")
	if w.Header().Get("Allow") != "POST" {
		t.Error("no Allow")
	}
	if _, err := NewMux(first, second, first); err == nil || !strings.Contains(err.Error(), "same path /orders") {
		t.Errorf("equal paths: %v", err)
	}
	for _, path := range []string{"", "orders", "/orders/", "/a/../b", "//a", "/a?b", "/{id}"} {
		c.Path = path
		s, _ := newSource(t, c, Unsigned())
		if _, err := NewMux(s); err == nil {
			t.Errorf("path %q was accepted", path)
		}
	}
}

func TestNewSourceRefuses(t *testing.T) {
	change := func(f func(*SourceConfig)) SourceConfig {
		c := orders()
		f(&c)
		return c
	}
	r := transporttest.NewReceiver(&transporttest.Ledger{}, 0)
	for want, c := range map[string]struct {
		r Receiver
		c SourceConfig
		v Verifier
	}{
		"receiver is nil":        {nil, orders(), Unsigned()},
		"webhook.Unsigned()":     {r, orders(), nil},
		"no secret was given":    {r, orders(), GitHub()},
		"a secret is empty":      {r, orders(), Stripe("a", "")},
		"not base64":             {r, orders(), StandardWebhooks("whsec_!")},
		"secret is empty":        {r, orders(), StandardWebhooks("")},
		"tolerance":              {r, orders(), StripeWithin(0, "a")},
		"tolerance must":         {r, orders(), StandardWebhooksWithin(-1, "a")},
		"http source orders: no": {r, orders(), Bearer()},
		"is empty":               {r, orders(), APIKey("X-Key", " ")},
		"not a header name":      {r, orders(), APIKey("X Key", "a")},
		"several values":         {r, change(func(c *SourceConfig) { c.AggregateID = []string{"$..id"} }), Unsigned()},
		"header:name":            {r, change(func(c *SourceConfig) { c.EventType = []string{"type"} }), Unsigned()},
		"alternative is empty":   {r, change(func(c *SourceConfig) { c.IdempotencyKey = [][]string{{}} }), Unsigned()},
		"names no field":         {r, change(func(c *SourceConfig) { c.IdempotencyKey = [][]string{{"$"}} }), Unsigned()},
		"AggregateIDMissing":     {r, change(func(c *SourceConfig) { c.AggregateIDMissing = "maybe" }), Unsigned()},
		"BusyStatus":             {r, change(func(c *SourceConfig) { c.BusyStatus = 500 }), Unsigned()},
		"negative":               {r, change(func(c *SourceConfig) { c.MaxBytes = -1 }), Unsigned()},
		`"Cookie" cannot be`:     {r, change(func(c *SourceConfig) { c.KeepHeaders = []string{"Cookie"} }), Unsigned()},
	} {
		if _, err := NewSource(c.r, c.c, c.v); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error about %q, got %v", want, err)
		}
	}
}

func zip(text string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	io.WriteString(w, text)
	w.Close()
	return b.String()
}

// zeros returns a small gzip stream of size zeros.
func zeros(t *testing.T, size int64) string {
	t.Helper()
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	chunk := make([]byte, 1<<20)
	for ; size > 0; size -= int64(len(chunk)) {
		w.Write(chunk)
	}
	w.Close()
	return b.String()
}

// A body that is too large is read to its end, up to a limit: a sender that
// still writes would have its connection reset before it reads why.
func TestBodyThatIsTooLargeIsDrained(t *testing.T) {
	for name, c := range map[string]struct {
		size, declared, read int64
		expect               string
	}{
		"declared":              {3 << 20, 3 << 20, 3 << 20, ""},
		"of unknown length":     {3 << 20, -1, 3 << 20, ""},
		"far too large":         {1 << 30, 1 << 30, maxDrain, ""},
		"not sent unless asked": {3 << 20, 3 << 20, 0, "100-continue"},
	} {
		s, ledger := newSource(t, orders(), Unsigned())
		body := &io.LimitedReader{R: endless{}, N: c.size}
		r := post("", "Expect", c.expect)
		r.Body, r.ContentLength = io.NopCloser(body), c.declared
		wantProblem(t, serve(s, r), http.StatusRequestEntityTooLarge, "too-large")
		if read := c.size - body.N; read != c.read {
			t.Errorf("%s: %d bytes were read, want %d", name, read, c.read)
		}
		if n := len(ledger.Stored()); n != 0 {
			t.Errorf("%s: %d messages were stored", name, n)
		}
	}
}

// endless is blanks for ever.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}
