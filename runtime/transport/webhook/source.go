package webhook

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/transport/internal/extract"
)

// Defaults of SourceConfig.
const (
	DefaultMaxBytes      = 1 << 20
	DefaultMaxConcurrent = 256
	DefaultStoreTimeout  = 15 * time.Second
	DefaultRetryAfter    = 2 * time.Second
)

// A Receiver stores messages; *inbox.Receiver is one. A nil error means that
// the messages are committed. A *inbox.RefusedError, and an error that is
// permanent (event.Classify), refuse the message itself; any other error asks
// the sender to come again.
type Receiver interface {
	Receive(ctx context.Context, messages ...inbox.Incoming) ([]inbox.Disposition, error)
}

// SourceConfig describes a Source.
type SourceConfig struct {
	// Name is the source's name in the schema.
	Name string
	// Path is where a Mux mounts it: "/orders".
	Path string
	// IdempotencyKey, EventType and AggregateID say where to look: "$.id",
	// "$['a b']", "$.list[0].id" or "header:x-id". The first rule that leads to a
	// text or number wins. An idempotency key may be composite: all rules of an
	// inner list are needed and joined. Numbers are taken by their digits; null,
	// an empty string, booleans, objects and lists are no values.
	//
	// Without rules the headers of a lanebox Destination are read (ce-id, ce-type,
	// ce-partitionkey), then x-idempotency-key, x-event-type and x-aggregate-id.
	// The idempotency key of a Standard Webhooks source is then webhook-id, which
	// the signature covers.
	IdempotencyKey         [][]string
	EventType, AggregateID []string
	// AggregateIDMissing says what becomes of a message for which the AggregateID
	// rules find nothing: "reject" (default) or "unordered".
	AggregateIDMissing string
	// MaxBytes is the largest body, both as sent and decompressed; default 1 MiB.
	MaxBytes int64
	// MaxConcurrent is how many requests are served at a time; default 256. More
	// are answered with BusyStatus and Retry-After.
	MaxConcurrent int
	// BusyStatus is 503 (default) or 429.
	BusyStatus int
	// RetryAfter is what senders are told when a message cannot be stored now;
	// default 2 s.
	RetryAfter time.Duration
	// StoreTimeout bounds storing one message; default 15 s.
	StoreTimeout time.Duration
	// KeepHeaders are stored with the message besides content-type, traceparent,
	// tracestate, user-agent, CloudEvents attributes and the event headers of
	// known senders. Credentials are never kept.
	KeepHeaders []string
	// Logger hears of refusals (debug) and of failures to store (warn); nil means
	// slog.Default.
	Logger *slog.Logger
}

// A Source is an HTTP handler that takes one message per POST request. It
// answers 202 when the message was stored and 200 when it was stored before,
// both after the commit; everything else means "not stored" and comes with a
// problem document (RFC 9457) that says what to do:
//
//	400  the body is not JSON, not gzip or ended early; a header occurs twice
//	401  the signature or key is missing, wrong or too old
//	405  the method is not POST
//	408  the server's read timeout ended before the body did
//	413  the body is too large, as sent or decompressed
//	415  the content type, charset or content encoding is not readable
//	422  no usable key, type or aggregate id; no route for the type; or another
//	     body was stored under the same idempotency key
//	429  or 503: too many requests at a time, or the database is not there;
//	     Retry-After says when to come again
//
// A Mux adds 404. A Source is safe for concurrent use.
type Source struct {
	config   SourceConfig
	receiver Receiver
	verifier Verifier
	rules    rules
	slots    chan struct{}
	now      func() time.Time
}

// rules are the parsed extraction rules.
type rules struct {
	key             [][]extract.Rule
	kind, aggregate []extract.Rule
	needsBody       bool
	// optional says that a message without aggregate id is unordered.
	optional bool
}

// NewSource returns a handler that passes verified requests to r. It returns an
// error when the configuration cannot work; a nil v is one, since accepting
// unsigned requests must be said: Unsigned().
func NewSource(r Receiver, c SourceConfig, v Verifier) (*Source, error) {
	fail := func(err error) (*Source, error) { return nil, fmt.Errorf("http source %s: %w", c.Name, err) }
	if r == nil {
		return fail(errors.New("the receiver is nil"))
	}
	if err := checkVerifier(v); err != nil {
		return fail(err)
	}
	if err := c.complete(); err != nil {
		return fail(err)
	}
	parsed, err := parseRules(c, v)
	if err != nil {
		return fail(err)
	}
	return &Source{
		config: c, receiver: r, verifier: v, rules: parsed,
		slots: make(chan struct{}, c.MaxConcurrent), now: time.Now,
	}, nil
}

func checkVerifier(v Verifier) error {
	if v == nil {
		return errors.New("the verifier is nil; use webhook.Unsigned() to accept requests from anybody")
	}
	if b, ok := v.(builtin); ok {
		return b.check()
	}
	return nil
}

func (c *SourceConfig) complete() error {
	c.MaxBytes = cmp.Or(c.MaxBytes, DefaultMaxBytes)
	c.MaxConcurrent = cmp.Or(c.MaxConcurrent, DefaultMaxConcurrent)
	c.BusyStatus = cmp.Or(c.BusyStatus, http.StatusServiceUnavailable)
	c.RetryAfter = cmp.Or(c.RetryAfter, DefaultRetryAfter)
	c.StoreTimeout = cmp.Or(c.StoreTimeout, DefaultStoreTimeout)
	c.AggregateIDMissing = cmp.Or(c.AggregateIDMissing, "reject")
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	switch {
	case c.MaxBytes < 0 || c.MaxConcurrent < 0 || c.RetryAfter < 0 || c.StoreTimeout < 0:
		return errors.New("limits must not be negative")
	case c.AggregateIDMissing != "reject" && c.AggregateIDMissing != "unordered":
		return fmt.Errorf("AggregateIDMissing is %q; write \"reject\" or \"unordered\"", c.AggregateIDMissing)
	case c.BusyStatus != http.StatusServiceUnavailable && c.BusyStatus != http.StatusTooManyRequests:
		return fmt.Errorf("BusyStatus is %d; write 503 or 429", c.BusyStatus)
	}
	for _, name := range c.KeepHeaders {
		if !extract.IsToken(name) || isCredential(name) {
			return fmt.Errorf("header %q cannot be kept", name)
		}
	}
	return nil
}

// isCredential reports whether a header holds what must not be stored.
func isCredential(name string) bool {
	switch strings.ToLower(name) {
	case "authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key",
		"x-hub-signature", "x-hub-signature-256", "stripe-signature", webhookSignature:
		return true
	}
	return false
}

func parseRules(c SourceConfig, v Verifier) (rules, error) {
	var p rules
	var err error
	for _, texts := range c.IdempotencyKey {
		parsed, err := p.parse(texts)
		if err != nil || len(parsed) == 0 {
			return p, cmp.Or(err, errors.New("an idempotency key alternative is empty"))
		}
		p.key = append(p.key, parsed)
	}
	if p.kind, err = p.parse(c.EventType); err != nil {
		return p, err
	}
	if p.aggregate, err = p.parse(c.AggregateID); err != nil {
		return p, err
	}
	p.addDefaults(v)
	p.optional = p.optional || c.AggregateIDMissing == "unordered"
	return p, nil
}

func (p *rules) parse(texts []string) ([]extract.Rule, error) {
	var parsed []extract.Rule
	for _, text := range texts {
		r, err := extract.ParseRule(text)
		if err != nil {
			return nil, err
		}
		p.needsBody = p.needsBody || r.NeedsBody()
		parsed = append(parsed, r)
	}
	return parsed, nil
}

// addDefaults reads well-known headers where no rule was given.
func (p *rules) addDefaults(v Verifier) {
	headers := func(names ...string) (out []extract.Rule) {
		for _, name := range names {
			out = append(out, extract.Header(name))
		}
		return out
	}
	if len(p.key) == 0 {
		names := []string{"ce-id", "x-idempotency-key", webhookID}
		if _, ok := v.(*standard); ok {
			names = []string{webhookID}
		}
		for _, r := range headers(names...) {
			p.key = append(p.key, []extract.Rule{r})
		}
	}
	if len(p.kind) == 0 {
		p.kind = headers("ce-type", "x-event-type")
	}
	if len(p.aggregate) == 0 {
		p.aggregate, p.optional = headers("ce-partitionkey", "x-aggregate-id"), true
	}
}

// Name returns the source's name.
func (s *Source) Name() string { return s.config.Name }

// Path returns where the source wants to be mounted.
func (s *Source) Path() string { return s.config.Path }

// ServeHTTP implements http.Handler.
func (s *Source) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		newProblem(s.config.BusyStatus, "busy", "Too many requests at a time: send it again later.").
			later(s.config.RetryAfter).write(w)
		return
	}
	disposition, p := s.serve(r)
	if p != nil {
		s.config.Logger.DebugContext(r.Context(), "request refused",
			"source", s.config.Name, "status", p.Status, "reason", p.Detail)
		p.write(w)
		return
	}
	if disposition == inbox.Duplicate {
		writeJSON(w, http.StatusOK, jsonType, []byte(`{"status":"duplicate"}`))
		return
	}
	writeJSON(w, http.StatusAccepted, jsonType, []byte(`{"status":"stored"}`))
}

// serve takes the request's message in. Nothing of the body is read before the
// headers were looked at, and nothing is decompressed or parsed before the
// sender was verified.
func (s *Source) serve(r *http.Request) (inbox.Disposition, *problem) {
	encoding, p := s.checkHead(r)
	if p != nil {
		return 0, p
	}
	body, p := readBody(r, s.config.MaxBytes)
	if p != nil {
		return 0, p
	}
	if !verifiesHeadersOnly(s.verifier) {
		if p := s.verify(r, body); p != nil {
			return 0, p
		}
	}
	payload, p := decompress(body, encoding, s.config.MaxBytes)
	if p != nil {
		return 0, p
	}
	m, p := s.extract(r.Header, payload)
	if p != nil {
		return 0, p
	}
	return s.store(r.Context(), m)
}

func (s *Source) checkHead(r *http.Request) (encoding string, p *problem) {
	if r.Method != http.MethodPost {
		return "", methodNotAllowed()
	}
	if verifiesHeadersOnly(s.verifier) {
		if p := s.verify(r, nil); p != nil {
			return "", p
		}
	}
	if p := checkType(r.Header, s.rules.needsBody); p != nil {
		return "", p
	}
	return checkEncoding(r.Header)
}

func methodNotAllowed() *problem {
	return newProblem(http.StatusMethodNotAllowed, "method", "Send the message with POST.").with("Allow", http.MethodPost)
}

func verifiesHeadersOnly(v Verifier) bool {
	b, ok := v.(builtin)
	return ok && b.headersOnly()
}

func (s *Source) verify(r *http.Request, body []byte) *problem {
	err := s.verifier.Verify(r.Header, body, s.now())
	if err == nil {
		return nil
	}
	if class, wait := event.Classify(err); class == event.Unavailable || class == event.BackPressure {
		s.config.Logger.WarnContext(r.Context(), "request cannot be verified now", "source", s.config.Name, "error", err)
		return newProblem(http.StatusServiceUnavailable, "verify", "The request cannot be verified now: send it again later.").
			later(max(wait, s.config.RetryAfter))
	}
	detail := "The request could not be verified."
	var known *VerificationError
	if errors.As(err, &known) {
		detail = "The request could not be verified: " + known.Reason + "."
	}
	p := newProblem(http.StatusUnauthorized, "unverified", "%s", detail)
	if b, ok := s.verifier.(builtin); ok {
		p.with("WWW-Authenticate", b.challenge())
	}
	return p
}

// extract builds the message to store.
func (s *Source) extract(h http.Header, payload []byte) (inbox.Incoming, *problem) {
	m := inbox.Incoming{Payload: payload, Headers: messageHeaders(h, s.config.KeepHeaders)}
	look := extract.Message{Header: func(name string) ([]string, error) { return headerValues(h, name) }}
	var p *problem
	if s.rules.needsBody {
		if look.Body, p = parseBody(payload); p != nil {
			return m, p
		}
	}
	key, err := extract.FirstJoined(s.rules.key, look)
	if m.IdempotencyKey, p = checkKey("idempotency key", key, err); p != nil {
		return m, p
	}
	kind, err := extract.First(s.rules.kind, look)
	if m.EventType, p = checkKey("event type", kind, err); p != nil {
		return m, p
	}
	if m.AggregateID, p = s.aggregate(look); p != nil {
		return m, p
	}
	m.Version, p = version(h)
	return m, p
}

func (s *Source) aggregate(look extract.Message) (string, *problem) {
	id, err := extract.First(s.rules.aggregate, look)
	var none *extract.NoValueError
	if s.rules.optional && errors.As(err, &none) {
		return "", nil
	}
	return checkKey("aggregate id", id, err)
}

// checkKey turns what was found into a value that can be stored, or says why
// not. Values are never quoted.
func checkKey(what, value string, err error) (string, *problem) {
	if err == nil {
		err = event.CheckKey(value)
	}
	if err != nil {
		return "", newProblem(http.StatusUnprocessableEntity, "extract", "No usable %s: %v.", what, err)
	}
	return value, nil
}

// version reads the aggregate's version as a Destination sends it.
func version(h http.Header) (int64, *problem) {
	const name = ceHeader + "aggregateversion"
	values := h.Values(name)
	if len(values) == 0 {
		return 0, nil
	}
	n, err := strconv.ParseInt(values[0], 10, 64)
	if err != nil || n <= 0 || len(values) > 1 {
		return 0, newProblem(http.StatusBadRequest, "version", "Header %s is not one positive number.", name)
	}
	return n, nil
}

// store hands the message to the receiver. Only after it has committed does the
// sender hear of success. When the sender hangs up meanwhile, the message is
// stored or not; it will be sent again and then found.
func (s *Source) store(ctx context.Context, m inbox.Incoming) (inbox.Disposition, *problem) {
	ctx, cancel := context.WithTimeout(ctx, s.config.StoreTimeout)
	defer cancel()
	dispositions, err := s.receiver.Receive(ctx, m)
	if err == nil && len(dispositions) != 1 {
		err = fmt.Errorf("the receiver returned %d dispositions for 1 message", len(dispositions))
	}
	if err != nil {
		return 0, s.storeProblem(ctx, err)
	}
	if dispositions[0] == inbox.Conflict {
		return 0, newProblem(http.StatusUnprocessableEntity, "conflict",
			"Another body was received under the same idempotency key: use a new key for a new message.")
	}
	return dispositions[0], nil
}

func (s *Source) storeProblem(ctx context.Context, err error) *problem {
	var refused *inbox.RefusedError
	class, wait := event.Classify(err)
	switch {
	case errors.Is(err, inbox.ErrOversize):
		return tooLarge(s.config.MaxBytes)
	case errors.As(err, &refused):
		return newProblem(http.StatusUnprocessableEntity, "refused", "The message is refused: %v.", refused.Err)
	case class == event.Permanent:
		return newProblem(http.StatusUnprocessableEntity, "refused", "The message is refused.")
	}
	level := slog.LevelWarn
	if errors.Is(ctx.Err(), context.Canceled) {
		level = slog.LevelDebug // the sender hung up
	}
	s.config.Logger.Log(ctx, level, "message not stored", "source", s.config.Name, "error", err)
	return newProblem(http.StatusServiceUnavailable, "unavailable", "The message could not be stored now: send it again later.").
		later(max(wait, s.config.RetryAfter))
}
