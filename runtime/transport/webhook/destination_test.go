package webhook

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/transport/internal/envelope"
	"github.com/lanebox/lanebox/runtime/transporttest"
)

func newDestination(t testing.TB, o Options) *Destination {
	t.Helper()
	d, err := NewDestination(nil, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// answering starts a server and returns its URL.
func answering(t testing.TB, h http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server.URL
}

func message() event.Message {
	return event.Message{
		ID: event.UUID{0x5f, 0x0c, 15: 0x17}, Sequence: 88121, Topic: "order.placed.v1", Key: "order 17%", Version: 3, Attempt: 2,
		Payload: []byte(`{"b":1,"a":1.0}`), CreatedAt: time.Date(2026, 5, 4, 10, 2, 11, 204e6, time.FixedZone("", 3600)),
		Headers: event.Headers{"correlationid": "c-1", "causationid": "c-0", "aggregatetype": "Order",
			"traceparent": "00-a-b-01", "tracestate": "v=1, w=2", "x-tenant": "acme", "evil\r\nx-a": "1\r\nx-b: 2"},
	}
}

func TestRequestIsCloudEventsBinaryMode(t *testing.T) {
	var got *http.Request
	var body []byte
	url := answering(t, func(w http.ResponseWriter, r *http.Request) {
		got = r
		body, _ = io.ReadAll(r.Body)
		w.WriteHeader(http.StatusNoContent)
	})
	d := newDestination(t, Options{URL: url + "/in?token=t0ken", Secret: "a", Secrets: []string{"b"}, Source: "/shop",
		Headers: map[string]string{"Authorization": "Bearer x"}})
	before := time.Now()
	if err := d.Send(t.Context(), message()); err != nil {
		t.Fatal(err)
	}
	if got.Method != "POST" || got.URL.RequestURI() != "/in?token=t0ken" || string(body) != `{"b":1,"a":1.0}` || got.ContentLength != int64(len(body)) {
		t.Errorf("%s %s %q", got.Method, got.URL, body)
	}
	want := map[string]string{
		"Ce-Specversion": "1.0", "Ce-Id": "5f0c0000-0000-0000-0000-000000000017", "Ce-Source": "/shop", "Ce-Type": "order.placed.v1",
		"Ce-Time": "2026-05-04T09:02:11.204Z", "Ce-Subject": "order%2017%25", "Ce-Partitionkey": "order%2017%25", "Ce-Aggregateid": "order%2017%25",
		"Ce-Sequence": "88121", "Ce-Aggregateversion": "3", "Ce-Attempt": "2", "Ce-Aggregatetype": "Order",
		"Ce-Correlationid": "c-1", "Ce-Causationid": "c-0", "Traceparent": "00-a-b-01", "Tracestate": "v=1, w=2",
		"Content-Type": "application/json", "Authorization": "Bearer x", "User-Agent": "lanebox", "Lanebox-X-Tenant": "acme",
		"Webhook-Id": "5f0c0000-0000-0000-0000-000000000017",
	}
	for name, value := range want {
		if v := got.Header.Values(name); len(v) != 1 || v[0] != value {
			t.Errorf("%s = %q, want %q", name, v, value)
		}
	}
	for name := range got.Header {
		if strings.EqualFold(name, "x-a") || strings.EqualFold(name, "x-b") {
			t.Errorf("header %s was injected", name)
		}
	}
	if n := len(strings.Fields(got.Header.Get("Webhook-Signature"))); n != 2 {
		t.Errorf("%d signatures", n)
	}
	for _, secret := range []string{"a", "b"} {
		if err := StandardWebhooks(secret).Verify(got.Header, body, time.Now()); err != nil {
			t.Errorf("secret %s: %v", secret, err)
		}
	}
	if err := StandardWebhooks("c").Verify(got.Header, body, before); err == nil {
		t.Error("any secret matches")
	}
}

func TestUnorderedUnsignedMessageLeavesHeadersOut(t *testing.T) {
	var got http.Header
	url := answering(t, func(_ http.ResponseWriter, r *http.Request) { got = r.Header })
	if err := newDestination(t, Options{URL: url}).Send(t.Context(), event.Message{Topic: "t"}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"Ce-Subject", "Ce-Partitionkey", "Ce-Aggregateid", "Ce-Time", "Ce-Aggregateversion", "Ce-Attempt", "Webhook-Signature", "Traceparent"} {
		if _, ok := got[name]; ok {
			t.Errorf("%s = %q", name, got[name])
		}
	}
	if got.Get("Ce-Source") != "lanebox" {
		t.Errorf("source %q", got.Get("Ce-Source"))
	}
}

func TestStatusClasses(t *testing.T) {
	status := http.StatusOK
	url := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(status)
	})
	d := newDestination(t, Options{URL: url})
	for status = 200; status <= 599; status++ {
		want, fails := event.Transient, status >= 300
		switch {
		case status == 429 || status == 503:
			want = event.BackPressure
		case status == 408 || status == 409 || status == 425:
		case status >= 400 && status <= 499:
			want = event.Permanent
		}
		err := d.Send(t.Context(), message())
		if (err != nil) != fails {
			t.Fatalf("%d: %v", status, err)
		}
		var e *Error
		if fails {
			if class, _ := event.Classify(err); class != want || !errors.As(err, &e) || e.Status != status {
				t.Errorf("%d: %v, want %v", status, class, want)
			}
		}
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	var other atomic.Int32
	target := answering(t, func(http.ResponseWriter, *http.Request) { other.Add(1) })
	for _, status := range []int{301, 302, 303, 307, 308} {
		url := answering(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, target, status) })
		own := &http.Client{}
		d, err := NewDestination(own, Options{URL: url})
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Send(t.Context(), message()); err == nil || !strings.Contains(err.Error(), "redirects are not followed") {
			t.Errorf("%d: %v", status, err)
		}
		if own.CheckRedirect != nil {
			t.Error("the caller's client was changed")
		}
	}
	if other.Load() != 0 {
		t.Error("a redirect was followed")
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	date := func(after time.Duration) string { return now.Add(after).Format(http.TimeFormat) }
	for _, c := range []struct {
		value, date string
		want        time.Duration
	}{
		{"", "", 0}, {"120", "", 2 * time.Minute}, {" 5 ", "", 5 * time.Second}, {"0", "", 0},
		{"-1", "", 0}, {"1.5", "", 0}, {"soon", "", 0}, {"99999999999999999999", "", 0},
		{"9223372036854775807", "", time.Duration(1<<31) * time.Second},
		{date(90 * time.Second), "", 90 * time.Second}, {date(-time.Hour), "", 0},
		// The receiver's clock is an hour behind.
		{date(-59 * time.Minute), date(-time.Hour), time.Minute},
	} {
		h := http.Header{}
		h.Set("Retry-After", c.value)
		h.Set("Date", c.date)
		if got := retryAfter(h, now); got != c.want {
			t.Errorf("%q with date %q = %v, want %v", c.value, c.date, got, c.want)
		}
	}
}

func TestRetryAfterIsPassedOnAndBounded(t *testing.T) {
	status, after := 0, ""
	url := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", after)
		w.WriteHeader(status)
	})
	d := newDestination(t, Options{URL: url, MaxRetryAfter: time.Minute})
	for _, c := range []struct {
		status int
		after  string
		class  event.Class
		wait   time.Duration
	}{
		{503, "7", event.BackPressure, 7 * time.Second}, {429, "7000", event.BackPressure, time.Minute},
		{429, "", event.BackPressure, 0}, {500, "3", event.Transient, 3 * time.Second}, {404, "3", event.Permanent, 0},
	} {
		status, after = c.status, c.after
		class, wait := event.Classify(d.Send(t.Context(), message()))
		if class != c.class || wait != c.wait {
			t.Errorf("%d with %q: %v, %v", c.status, c.after, class, wait)
		}
	}
}

func TestErrorsAreBoundedTextWithoutSecrets(t *testing.T) {
	body := ""
	url := answering(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, body, " ", r.Header, r.URL, "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	})
	d := newDestination(t, Options{
		URL:    strings.Replace(url, "http://", "http://user:passw0rd@", 1) + "/path?token=t0ken-1",
		Secret: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", Headers: map[string]string{"X-Api-Key": "k3y-1", "Authorization": "Token t0ken-2"},
	})
	for _, body = range []string{"plain", strings.Repeat("é", 10_000), "\x00\xff\x1b[31m\r\n bad", "passw0rd t0ken-1 k3y-1 t0ken-2"} {
		err := d.Send(t.Context(), message())
		text := err.Error()
		if !utf8.ValidString(text) || strings.ContainsAny(text, "\x00\x1b\r\n") || len(text) > maxSnippet+200 {
			t.Errorf("error %q", text)
		}
		for _, secret := range []string{"passw0rd", "t0ken", "k3y", "MfKQ9r8G"} {
			if strings.Contains(text, secret) {
				t.Errorf("%q holds %q", text, secret)
			}
		}
		if !strings.Contains(text, "/path: answered 400 Bad Request") {
			t.Errorf("error %q does not say where and what", text)
		}
	}
	// Errors of the client repeat the URL.
	refused, _ := net.Listen("tcp", "127.0.0.1:0")
	address := refused.Addr().String()
	refused.Close()
	d = newDestination(t, Options{URL: "http://user:passw0rd@" + address + "/p?token=t0ken-1&pin=123"})
	if text := d.Send(t.Context(), message()).Error(); strings.Contains(text, "passw0rd") || strings.Contains(text, "[redacted]") || strings.Contains(text, "t0ken") || !strings.Contains(text, "refused") {
		t.Errorf("error %q", text)
	}
}

func TestConnectionsAreUsedAgain(t *testing.T) {
	var conns atomic.Int32
	size := 0
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if size%2 == 1 {
			w.WriteHeader(http.StatusInternalServerError)
		}
		w.Write(make([]byte, size))
	}))
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			conns.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	d := newDestination(t, Options{URL: server.URL})
	for _, size = range []int{0, 1, 4096, 4097, 60_000, 60_001, 7} {
		d.Send(t.Context(), message())
	}
	if got := conns.Load(); got != 1 {
		t.Errorf("%d connections", got)
	}
	size = DefaultMaxResponse + 100_000 // more than is read: closed, not drained
	d.Send(t.Context(), message())
	d.Send(t.Context(), message())
	if got := conns.Load(); got != 2 {
		t.Errorf("%d connections after a long answer", got)
	}
}

func TestConnectionsPerHostAreLimited(t *testing.T) {
	var open, most atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		switch s {
		case http.StateNew:
			if n := open.Add(1); n > most.Load() {
				most.Store(n)
			}
		case http.StateClosed:
			open.Add(-1)
		}
	}
	server.Start()
	defer server.Close()
	d := newDestination(t, Options{URL: server.URL, MaxConns: 3})
	var all sync.WaitGroup
	for range 60 {
		all.Go(func() {
			if err := d.Send(t.Context(), message()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if got := most.Load(); got > 3 {
		t.Errorf("%d connections at a time", got)
	}
}

func TestAnswerBodyThatNeverEndsDoesNotHoldTheLane(t *testing.T) {
	for _, status := range []int{200, 500} {
		url := answering(t, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(status)
			w.Write([]byte("part"))
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		})
		d := newDestination(t, Options{URL: url})
		d.drainTime = 10 * time.Millisecond
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		err := d.Send(ctx, message())
		if ctx.Err() != nil {
			t.Error("Send waited for the body")
		}
		if (err == nil) != (status == 200) {
			t.Errorf("%d: %v", status, err)
		}
		if err != nil && !strings.HasSuffix(err.Error(), "500 Internal Server Error: part") {
			t.Errorf("error %q", err)
		}
	}
}

func TestUnavailableWhenNothingWasSent(t *testing.T) {
	tlsServer := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a request arrived") }))
	tlsServer.Config.ErrorLog = log.New(io.Discard, "", 0)
	tlsServer.StartTLS() // its certificate is unknown to the client
	defer tlsServer.Close()
	refused, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused.Close()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts nothing, so TLS never begins
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	dialer := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.DNSError{Err: "no such host", Name: "nowhere.invalid", IsNotFound: true}
	}}}
	for name, c := range map[string]struct {
		client *http.Client
		url    string
	}{
		"refused":               {nil, "http://" + refused.Addr().String()},
		"certificate":           {nil, tlsServer.URL},
		"no TLS on that port":   {nil, strings.Replace(answering(t, func(http.ResponseWriter, *http.Request) {}), "http", "https", 1)},
		"TLS handshake stalls":  {nil, "https://" + silent.Addr().String()},
		"DNS":                   {dialer, "http://nowhere.invalid"},
		"old TLS version":       {&http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{MaxVersion: tls.VersionTLS10, MinVersion: tls.VersionTLS10}}}, tlsServer.URL},
		"DNS, opaque transport": {&http.Client{Transport: opaque{&net.DNSError{Err: "no such host"}}}, "http://nowhere.invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := NewDestination(c.client, Options{URL: c.url, Timeout: 300 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			err = d.Send(t.Context(), message())
			if class, _ := event.Classify(err); class != event.Unavailable {
				t.Errorf("%v: %v", class, err)
			}
		})
	}
}

// opaque is a transport that reports no progress.
type opaque struct{ err error }

func (o opaque) RoundTrip(*http.Request) (*http.Response, error) { return nil, o.err }

func TestUnknownProgressIsTransient(t *testing.T) {
	d, err := NewDestination(&http.Client{Transport: opaque{io.ErrUnexpectedEOF}}, Options{URL: "http://x"})
	if err != nil {
		t.Fatal(err)
	}
	err = d.Send(t.Context(), message())
	if class, _ := event.Classify(err); class != event.Transient || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%v: %v", class, err)
	}
}

func TestHTTP2(t *testing.T) {
	var proto atomic.Value
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		proto.Store(r.Proto)
		w.WriteHeader(http.StatusConflict)
	}))
	server.EnableHTTP2 = true
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	d, err := NewDestination(server.Client(), Options{URL: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		err = d.Send(t.Context(), message())
		if class, _ := event.Classify(err); class != event.Transient || proto.Load() != "HTTP/2.0" {
			t.Errorf("%v over %v: %v", class, proto.Load(), err)
		}
	}
	server.Close()
	transporttest.Eventually(t, "the client sees that the server went", func() bool {
		class, _ := event.Classify(d.Send(t.Context(), message()))
		return class == event.Unavailable
	})
}

func TestNoAnswerInTimeIsTransient(t *testing.T) {
	release := make(chan struct{})
	url := answering(t, func(http.ResponseWriter, *http.Request) { <-release })
	t.Cleanup(func() { close(release) })
	err := newDestination(t, Options{URL: url, Timeout: 50 * time.Millisecond}).Send(t.Context(), message())
	if class, _ := event.Classify(err); class != event.Transient || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v: %v", class, err)
	}
}

// The client must not send a request a second time on its own: an idle
// connection that the server closes while it answers is a failed delivery.
func TestClientDoesNotRepeatRequests(t *testing.T) {
	var requests atomic.Int32
	url := answering(t, func(w http.ResponseWriter, r *http.Request) {
		if requests.Add(1) > 1 {
			panic(http.ErrAbortHandler)
		}
	})
	d := newDestination(t, Options{URL: url})
	m := message()
	m.Headers = event.Headers{"idempotency-key": "x", "Idempotency-Key": "y", "x-idempotency-key": "z"}
	if err := d.Send(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	err := d.Send(t.Context(), m)
	if class, _ := event.Classify(err); err == nil || class != event.Transient || requests.Load() != 2 {
		t.Errorf("%v: %v after %d requests", class, err, requests.Load())
	}
}

func TestPayloadAndHeadersThatCannotBeSentArePermanent(t *testing.T) {
	url := answering(t, func(http.ResponseWriter, *http.Request) { t.Error("a request arrived") })
	d := newDestination(t, Options{URL: url, MaxBytes: 3})
	for _, m := range []event.Message{
		{Payload: []byte("1234")},
		{Headers: event.Headers{"content-type": "a\r\nb: c"}},
		{Headers: event.Headers{"content-type": "what is this"}},
	} {
		if class, _ := event.Classify(d.Send(t.Context(), m)); class != event.Permanent {
			t.Errorf("%+v: %v", m, class)
		}
	}
}

func TestAddress(t *testing.T) {
	for url, want := range map[string]string{
		"http://example.com":                      "http://example.com/",
		"HTTP://user:pw@Example.COM:80/":          "http://example.com/",
		"https://example.com:443/a%20b":           "https://example.com/a%20b",
		"https://example.com:8443/A/#frag":        "https://example.com:8443/A/",
		"http://[2001:DB8::1]:80/x":               "http://[2001:db8::1]/x",
		"http://[2001:db8::1]:81/x":               "http://[2001:db8::1]:81/x",
		"http://user:pw@example.com/h?token=abcd": "http://example.com/h?",
	} {
		got := newDestination(t, Options{URL: url}).Address()
		if got != want && !(strings.HasSuffix(want, "?") && strings.HasPrefix(got, want) && len(got) == len(want)+16) {
			t.Errorf("%s: %s, want %s", url, got, want)
		}
	}
	a := newDestination(t, Options{URL: "http://x/h?a=1&b=2"}).Address()
	if b := newDestination(t, Options{URL: "http://x/h?b=2&a=1"}).Address(); a != b {
		t.Errorf("%s and %s differ", a, b)
	}
	if b := newDestination(t, Options{URL: "http://x/h?b=2&a=2"}).Address(); a == b {
		t.Errorf("%s for different queries", a)
	}
}

func TestNewDestinationRefuses(t *testing.T) {
	header := func(name, value string) Options {
		return Options{URL: "http://x", Headers: map[string]string{name: value}}
	}
	for want, o := range map[string]Options{
		"URL is empty":        {},
		"http:// or https://": {URL: "ftp://x"},
		"must begin":          {URL: "example.com/hook"},
		"names no host":       {URL: "http:///path"},
		"no host":             {URL: "http:opaque"},
		"cannot be read":      {URL: "http://user:s3cret@x y/"},
		"not base64":          {URL: "http://x", Secret: "whsec_!"},
		"secret is empty":     {URL: "http://x", Secrets: []string{""}},
		"negative":            {URL: "http://x", Timeout: -1},
		"not a header name":   header("X\r\nY", "a"),
		"printable ASCII":     header("X-A", "a\r\nX-B: c"),
		"set by the message":  header("Ce-Id", "a"),
		"is set by":           header("Webhook-Signature", "a"),
		"cannot be set":       header("Content-Length", "3"),
		"ce-id":               header("Idempotency-Key", "3"),
	} {
		_, err := NewDestination(nil, o)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("want an error about %q, got %v", want, err)
		}
	}
}

func FuzzHeaderValues(f *testing.F) {
	f.Add("a", "b")
	f.Add("x y%", "ü\r\nx: y")
	f.Fuzz(func(t *testing.T, name, value string) {
		encoded := envelope.EncodeValue(value)
		if !envelope.IsVisible(encoded) || strings.ContainsAny(encoded, "\" ") {
			t.Fatalf("EncodeValue(%q) = %q", value, encoded)
		}
		if got, err := envelope.DecodeValue(encoded); err != nil || got != value {
			t.Fatalf("%q became %q, %v", value, got, err)
		}
		bare, h := http.Header{}, http.Header{}
		setFields(bare, "", event.Message{})
		setFields(h, "", event.Message{Headers: event.Headers{name: value}})
		for n := range h {
			for i := range len(n) {
				if c := n[i]; c <= ' ' || c >= 0x7f || c == ':' {
					t.Fatalf("header name %q", n)
				}
			}
		}
		if utf8.ValidString(name) && utf8.ValidString(value) && name != "" && !strings.ContainsRune(name+value, 0) && !envelope.IsReserved(name) {
			if got := messageHeaders(h, nil); got[name] != value || len(got) != len(messageHeaders(bare, nil))+1 {
				t.Fatalf("%q: %q became %q", name, value, got)
			}
		}
	})
}
