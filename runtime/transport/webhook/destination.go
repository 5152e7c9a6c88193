package webhook

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/transport/internal/envelope"
	"github.com/lanebox/lanebox/runtime/transport/internal/extract"
)

// ErrClosed is returned by Send after Close. Nothing was sent.
var ErrClosed = errors.New("the destination is closed")

// Defaults of Options.
const (
	DefaultTimeout       = 30 * time.Second
	DefaultMaxConns      = 64
	DefaultMaxResponse   = 64 << 10
	DefaultMaxRetryAfter = time.Hour
)

// Options describe a Destination.
type Options struct {
	// URL is where messages are posted: absolute, http or https. User and
	// password in it are sent as basic authentication.
	URL string
	// Secret signs requests in the Standard Webhooks style; "" leaves them
	// unsigned. A secret "whsec_…" is base64 behind the prefix; any other text is
	// used as it is.
	Secret string
	// Secrets are further secrets that sign as well, so that a receiver may
	// change from one to the other at any time.
	Secrets []string
	// Headers are sent with every request, for example an API key.
	Headers map[string]string
	// Source is the CloudEvents source attribute, a URI reference that names the
	// sending service; default "lanebox".
	Source string
	// Timeout bounds one request with its answer; default 30 s. Keep it below the
	// time that a delivery may take.
	Timeout time.Duration
	// MaxConns is the number of connections to the host when NewDestination makes
	// the client; default 64. Set it to the destination's concurrency.
	MaxConns int
	// MaxBytes is the largest payload that is sent; 0 means no limit. A larger one
	// is a permanent failure.
	MaxBytes int64
	// MaxResponse is how many bytes of an answer are read, so that its connection
	// can be used again; default 64 KiB. A longer answer closes the connection.
	MaxResponse int64
	// MaxRetryAfter bounds what the receiver may ask for; default 1 hour.
	MaxRetryAfter time.Duration
}

// A Destination posts messages to one URL. It is safe for concurrent use.
//
// Failures are classified: 429 and 503 are back-pressure and carry Retry-After;
// 408, 409, 425, redirects and 5xx are transient; any other 4xx is permanent. A
// request for which no connection could be had (refused, DNS, TLS) is
// unavailable; a failure after that is transient, since the message may have
// arrived.
type Destination struct {
	client    *http.Client
	owned     bool // the client was made here
	target    *url.URL
	address   string // normalised, without credentials
	shown     string // for errors: without credentials and query
	options   Options
	keys      [][]byte
	redact    *strings.Replacer
	closed    atomic.Bool
	now       func() time.Time
	drainTime time.Duration
}

// NewDestination returns a destination that posts to o.URL. A nil client means
// one with suitable limits of its own; the given client is copied and follows no
// redirects. It returns an error when the options cannot work.
func NewDestination(client *http.Client, o Options) (*Destination, error) {
	target, err := parseURL(o.URL)
	if err != nil {
		return nil, fmt.Errorf("webhook destination: %w", err)
	}
	if err := o.complete(); err != nil {
		return nil, fmt.Errorf("webhook destination %s: %w", shownURL(target), err)
	}
	var secrets []string
	if o.Secret != "" {
		secrets = append(secrets, o.Secret)
	}
	keys, err := secretKeys(append(secrets, o.Secrets...))
	if err != nil {
		return nil, fmt.Errorf("webhook destination %s: %w", shownURL(target), err)
	}
	d := &Destination{
		owned: client == nil, target: target, address: address(target), shown: shownURL(target),
		options: o, keys: keys, redact: redactor(target, o), now: time.Now, drainTime: 2 * time.Second,
	}
	d.client = withoutRedirects(client, o)
	return d, nil
}

func (o *Options) complete() error {
	o.Source = cmp.Or(o.Source, "lanebox")
	o.Timeout = cmp.Or(o.Timeout, DefaultTimeout)
	o.MaxConns = cmp.Or(o.MaxConns, DefaultMaxConns)
	o.MaxResponse = cmp.Or(o.MaxResponse, DefaultMaxResponse)
	o.MaxRetryAfter = cmp.Or(o.MaxRetryAfter, DefaultMaxRetryAfter)
	if o.Timeout < 0 || o.MaxConns < 0 || o.MaxResponse < 0 || o.MaxRetryAfter < 0 || o.MaxBytes < 0 {
		return errors.New("limits must not be negative")
	}
	for name, value := range o.Headers {
		if err := checkStatic(name, value); err != nil {
			return err
		}
	}
	return nil
}

// checkStatic refuses static headers that cannot be sent, that the message
// decides, or that change how the client treats the request.
func checkStatic(name, value string) error {
	lower := strings.ToLower(name)
	switch {
	case !extract.IsToken(name):
		return fmt.Errorf("%q is not a header name", name)
	case !envelope.IsVisible(value):
		return fmt.Errorf("header %s: the value must be printable ASCII", name)
	case strings.HasPrefix(lower, ceHeader), strings.HasPrefix(lower, ownHeader), strings.HasPrefix(lower, "webhook-"):
		return fmt.Errorf("header %s is set by the message", name)
	}
	switch lower {
	case "content-type", "content-length", "content-encoding", "transfer-encoding", "host", "connection",
		"trailer", "te", "upgrade", "expect", event.HeaderTraceParent, event.HeaderTraceState:
		return fmt.Errorf("header %s cannot be set", name)
	case "idempotency-key", "x-idempotency-key":
		// net/http repeats requests that carry one on its own, unrecorded.
		return fmt.Errorf("header %s cannot be the same for all messages; receivers find the id in ce-id", name)
	}
	return nil
}

func parseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, errors.New("the URL cannot be read") // err repeats the URL with its secrets
	}
	switch {
	case text == "":
		return nil, errors.New("the URL is empty")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("the URL must begin with http:// or https://")
	case u.Hostname() == "" || u.Opaque != "":
		return nil, errors.New("the URL names no host")
	}
	u.Fragment, u.RawFragment = "", ""
	return u, nil
}

// shownURL is u without user, query and fragment.
func shownURL(u *url.URL) string {
	c := *u
	c.User, c.RawQuery, c.ForceQuery = nil, "", false
	return c.String()
}

// address normalises u for comparison. A query is replaced by a digest of it:
// it may tell receivers apart, and it may hold a token.
func address(u *url.URL) string {
	host := strings.ToLower(u.Hostname())
	if port := u.Port(); port != "" && (u.Scheme != "http" || port != "80") && (u.Scheme != "https" || port != "443") {
		host = net.JoinHostPort(host, port)
	} else if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	text := u.Scheme + "://" + host + cmp.Or(u.EscapedPath(), "/")
	if u.RawQuery != "" {
		sum := sha256.Sum256([]byte(u.Query().Encode()))
		text += "?" + hex.EncodeToString(sum[:8])
	}
	return text
}

func withoutRedirects(client *http.Client, o Options) *http.Client {
	c := http.Client{Transport: newTransport(o)}
	if client != nil {
		c = *client
	}
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &c
}

func newTransport(o Options) *http.Transport {
	dialer := &net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           dialer.DialContext,
		ForceAttemptHTTP2:     true,
		TLSClientConfig:       &tls.Config{MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:   5 * time.Second,
		MaxConnsPerHost:       o.MaxConns,
		MaxIdleConns:          o.MaxConns,
		MaxIdleConnsPerHost:   o.MaxConns,
		IdleConnTimeout:       60 * time.Second,
		ExpectContinueTimeout: time.Second,
		DisableCompression:    true,
	}
}

// Address returns the URL in a normal form, without user and password; a query
// is shown as a digest only.
func (d *Destination) Address() string { return d.address }

// Close ends unused connections; later calls of Send fail with ErrClosed.
// Requests on their way are not touched.
func (d *Destination) Close() error {
	d.closed.Store(true)
	if d.owned {
		d.client.CloseIdleConnections()
	}
	return nil
}

// Send posts m and returns nil when the answer was 2xx.
func (d *Destination) Send(ctx context.Context, m event.Message) error {
	if d.closed.Load() {
		return event.AsUnavailable(fmt.Errorf("POST %s: %w", d.shown, ErrClosed))
	}
	if d.options.MaxBytes > 0 && int64(len(m.Payload)) > d.options.MaxBytes {
		return event.AsPermanent(fmt.Errorf("POST %s: the payload has %d bytes; the limit is %d", d.shown, len(m.Payload), d.options.MaxBytes))
	}
	if err := ctx.Err(); err != nil {
		return event.AsUnavailable(fmt.Errorf("POST %s: %w", d.shown, err))
	}
	ctx, cancel := context.WithTimeout(ctx, d.options.Timeout)
	defer cancel()
	var seen progress
	request, err := d.request(seen.watch(ctx), m)
	if err != nil {
		return event.AsPermanent(fmt.Errorf("POST %s: %w", d.shown, err))
	}
	response, err := d.client.Do(request)
	if err != nil {
		return d.failure(err, seen.unsent(err))
	}
	return d.answer(response, cancel)
}

func (d *Destination) request(ctx context.Context, m event.Message) (*http.Request, error) {
	media, err := envelope.ContentType(m)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, d.target.String(), bytes.NewReader(m.Payload))
	if err != nil {
		return nil, errors.New("the request cannot be built")
	}
	r.Header.Set("User-Agent", "lanebox")
	for name, value := range d.options.Headers {
		r.Header.Set(name, value)
	}
	r.Header.Set("Content-Type", media)
	setFields(r.Header, d.options.Source, m)
	sign(r.Header, d.keys, m.ID.String(), d.now(), m.Payload)
	return r, nil
}

// failure classifies an error without an answer.
func (d *Destination) failure(err error, unsent bool) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err // the wrapper repeats the URL with its query
	}
	err = &Error{text: fmt.Sprintf("POST %s: %s", d.shown, d.clean(err.Error())), err: err}
	if unsent {
		return event.AsUnavailable(err)
	}
	return err
}

// answer reads and classifies the response. A body that does not end soon is
// given up: the status has decided already.
func (d *Destination) answer(r *http.Response, cancel context.CancelFunc) error {
	defer r.Body.Close()
	timer := time.AfterFunc(d.drainTime, cancel)
	defer timer.Stop()
	if r.StatusCode >= 200 && r.StatusCode <= 299 {
		io.CopyN(io.Discard, r.Body, d.options.MaxResponse)
		return nil
	}
	head, _ := io.ReadAll(io.LimitReader(r.Body, min(d.options.MaxResponse, 4<<10)))
	io.CopyN(io.Discard, r.Body, d.options.MaxResponse-int64(len(head)))
	return d.refusal(r, head)
}

// redactor replaces what must not show up in logs and dead letters, should the
// receiver or a library repeat it.
func redactor(u *url.URL, o Options) *strings.Replacer {
	secrets := append([]string{o.Secret}, o.Secrets...)
	for _, s := range secrets {
		secrets = append(secrets, strings.TrimPrefix(s, secretPrefix))
	}
	if password, ok := u.User.Password(); ok {
		secrets = append(secrets, password)
	}
	for _, values := range u.Query() {
		secrets = append(secrets, values...)
	}
	secrets = append(secrets, u.RawQuery)
	for _, value := range o.Headers {
		secrets = append(secrets, value)
		if _, token, ok := strings.Cut(value, " "); ok {
			secrets = append(secrets, token)
		}
	}
	// Longer ones first: the first match wins. Very short ones would blot out
	// ordinary words and are no secrets.
	slices.SortFunc(secrets, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), strings.Compare(a, b)) })
	var pairs []string
	for _, s := range slices.Compact(secrets) {
		if len(s) >= 4 {
			pairs = append(pairs, s, "[redacted]")
		}
	}
	return strings.NewReplacer(pairs...)
}
