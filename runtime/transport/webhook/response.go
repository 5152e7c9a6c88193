package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/lanebox/lanebox/runtime/event"
)

// maxSnippet is how many bytes of an answer an error quotes.
const maxSnippet = 256

// An Error is a failed delivery. Its text is bounded, valid UTF-8 and free of
// the destination's secrets.
type Error struct {
	// Status is the HTTP status of the answer; 0 when there was none.
	Status int
	text   string
	err    error
}

func (e *Error) Error() string { return e.text }

// Unwrap returns the error of the HTTP client, if that was the reason.
func (e *Error) Unwrap() error { return e.err }

// refusal turns an answer other than 2xx into a classified error. head is the
// beginning of its body.
func (d *Destination) refusal(r *http.Response, head []byte) error {
	text := fmt.Sprintf("POST %s: answered %d %s", d.shown, r.StatusCode, http.StatusText(r.StatusCode))
	if r.StatusCode >= 300 && r.StatusCode <= 399 {
		text += " (redirects are not followed)"
	}
	if snippet := d.clean(string(head)); snippet != "" {
		text += ": " + snippet
	}
	err := &Error{Status: r.StatusCode, text: text}
	wait := min(retryAfter(r.Header, d.now()), d.options.MaxRetryAfter)
	switch {
	case r.StatusCode == http.StatusTooManyRequests, r.StatusCode == http.StatusServiceUnavailable:
		return event.AsBackPressure(err, wait)
	case isPermanent(r.StatusCode):
		return event.AsPermanent(err)
	}
	return &event.DeliveryError{Class: event.Transient, RetryAfter: wait, Err: err}
}

func isPermanent(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return status >= 400 && status <= 499
}

// retryAfter reads Retry-After in either form. A date is taken relative to the
// answer's own Date, so that clocks need not agree. 0 means none.
func retryAfter(h http.Header, now time.Time) time.Duration {
	value := strings.TrimSpace(h.Get("Retry-After"))
	if seconds, err := strconv.ParseUint(value, 10, 64); err == nil {
		return time.Duration(min(seconds, 1<<31)) * time.Second
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		now = date
	}
	return max(0, at.Sub(now))
}

// clean makes text fit for an error: secrets are replaced, what cannot be
// printed becomes a blank, and it is cut at a character.
func (d *Destination) clean(text string) string {
	text = d.redact.Replace(strings.ToValidUTF8(text, "\uFFFD"))
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
	text = strings.Join(strings.Fields(text), " ")
	if len(text) <= maxSnippet {
		return text
	}
	cut := maxSnippet
	for !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + "…"
}

// progress remembers how far a request came.
type progress struct {
	mu        sync.Mutex
	asked     bool // a connection was asked for
	connected bool // one was given
	written   bool // the request may be on the wire
}

// watch returns a context whose request reports to p.
func (p *progress) watch(ctx context.Context) context.Context {
	set := func(change func()) {
		p.mu.Lock()
		defer p.mu.Unlock()
		change()
	}
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		// The transport asks again after an idle connection turned out to be dead
		// before anything was written to it.
		GetConn:      func(string) { set(func() { p.asked, p.connected = true, false }) },
		GotConn:      func(httptrace.GotConnInfo) { set(func() { p.connected = true }) },
		WroteHeaders: func() { set(func() { p.written = true }) },
		WroteRequest: func(httptrace.WroteRequestInfo) { set(func() { p.written = true }) },
	})
}

// unsent reports whether the request that failed with err was certainly not
// sent. A client that reports no progress is judged by its error alone.
func (p *progress) unsent(err error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asked {
		return !p.connected && !p.written
	}
	var (
		op          *net.OpError
		dns         *net.DNSError
		certificate *tls.CertificateVerificationError
		host        x509.HostnameError
	)
	return errors.As(err, &op) && op.Op == "dial" || errors.As(err, &dns) ||
		errors.As(err, &certificate) || errors.As(err, &host)
}
