package envelope

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/topology"
	"github.com/lanebox/lanebox/runtime/transport/internal/extract"
)

// A Received is a message as a broker delivered it.
type Received struct {
	// Fields are its headers and attributes, without prefix and encoding. The names
	// of attributes are in lower case. The content type is a Plain field of the name
	// event.HeaderContentType, whatever the protocol keeps it in.
	Fields []Field
	Body   []byte
	// MessageID identifies the message where nothing else does: the broker's message
	// id, or the position in a log. "", and one that cannot be stored, mean that a digest
	// has to do, which takes two equal messages for one.
	MessageID string
	// Key is the aggregate id where nothing else names one: the record key. One that
	// is no text, or too long, is encoded so that equal keys stay equal.
	Key string
	// Redelivered says that the broker delivered the message before; DeliveryCount
	// is how often, or 0 when it does not tell.
	Redelivered   bool
	DeliveryCount int64
}

// A Decoder turns what a broker delivers into what the inbox stores. It is safe
// for concurrent use.
type Decoder struct {
	key             [][]extract.Rule
	kind, aggregate []extract.Rule
	needsBody       bool
	required        bool // an aggregate id
}

// NewDecoder returns a decoder with the rules of a source, or an error when a
// rule cannot be read.
func NewDecoder(e topology.Extract) (*Decoder, error) {
	d := &Decoder{required: e.AggregateIDMissing == "reject" || e.AggregateIDMissing == "" && len(e.AggregateID) > 0}
	for _, texts := range e.IdempotencyKey {
		rules, err := d.parse(texts)
		if err == nil && len(rules) == 0 {
			err = errors.New("an idempotency key alternative is empty")
		}
		if err != nil {
			return nil, err
		}
		d.key = append(d.key, rules)
	}
	var err error
	if d.kind, err = d.parse(e.EventType); err != nil {
		return nil, err
	}
	if d.aggregate, err = d.parse(e.AggregateID); err != nil {
		return nil, err
	}
	switch e.AggregateIDMissing {
	case "", "reject", "unordered":
	default:
		return nil, fmt.Errorf("AggregateIDMissing is %q; write \"reject\" or \"unordered\"", e.AggregateIDMissing)
	}
	d.addDefaults()
	return d, nil
}

func (d *Decoder) parse(texts []string) ([]extract.Rule, error) {
	var rules []extract.Rule
	for _, text := range texts {
		r, err := extract.ParseRule(text)
		if err != nil {
			return nil, err
		}
		d.needsBody = d.needsBody || r.NeedsBody()
		rules = append(rules, r)
	}
	return rules, nil
}

// addDefaults adds what is looked at where the rules find nothing.
func (d *Decoder) addDefaults() {
	for _, name := range []string{"ce-id", "x-idempotency-key"} {
		d.key = append(d.key, []extract.Rule{extract.Header(name)})
	}
	d.kind = append(d.kind, extract.Header("ce-type"), extract.Header("x-event-type"))
	d.aggregate = append(d.aggregate, extract.Header("ce-partitionkey"), extract.Header("x-aggregate-id"))
}

// Incoming returns r as the inbox stores it. One that can never be handled has
// Dead set: its body cannot be read though rules look into it, a value is there
// but cannot be taken without guessing, or a needed one is missing. Payload is
// r.Body itself.
func (d *Decoder) Incoming(r Received) inbox.Incoming {
	m := inbox.Incoming{Payload: r.Body, Headers: Headers(r.Fields)}
	markDelivery(&m, r)
	look := extract.Message{Header: func(name string) ([]string, error) { return lookup(r.Fields, name) }}
	if d.needsBody {
		var err error
		if look.Body, err = extract.ParseDocument(r.Body); err != nil {
			// No rule is looked at: a fallback would store what the rules may refuse.
			m.IdempotencyKey = lastResort(m, r)
			m.Dead = fmt.Sprintf("the body cannot be read: %v", err)
			return m
		}
	}
	var reasons []string
	add := func(err error, what string) {
		if err != nil {
			reasons = append(reasons, fmt.Sprintf("no usable %s: %v", what, err))
		}
	}
	var err error
	m.EventType, err = extract.First(d.kind, look)
	add(err, "event type")
	m.AggregateID, err = d.aggregateID(look, r.Key)
	add(err, "aggregate id")
	m.Version, err = version(look)
	add(err, "aggregate version")
	m.IdempotencyKey, err = d.idempotencyKey(look, m, r)
	add(err, "idempotency key")
	m.Dead = strings.Join(reasons, "; ")
	return m
}

func (d *Decoder) idempotencyKey(look extract.Message, m inbox.Incoming, r Received) (string, error) {
	key, err := extract.FirstJoined(d.key, look)
	if err == nil {
		return key, nil
	}
	var none *extract.NoValueError
	if errors.As(err, &none) {
		err = nil
	}
	return lastResort(m, r), err
}

// lastResort returns the idempotency key of a message that names none.
func lastResort(m inbox.Incoming, r Received) string {
	if event.CheckKey(r.MessageID) == nil {
		return r.MessageID
	}
	sum := sha256.New()
	for _, part := range []string{m.EventType, m.AggregateID, string(r.Body)} {
		fmt.Fprintf(sum, "%d:%s", len(part), part)
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil))
}

func (d *Decoder) aggregateID(look extract.Message, key string) (string, error) {
	id, err := extract.First(d.aggregate, look)
	var none *extract.NoValueError
	switch {
	case !errors.As(err, &none):
		return id, err
	case key != "":
		return keyText(key), nil
	case d.required:
		return "", err
	}
	return "", nil
}

// keyText returns key as an aggregate id: itself if it can be one, otherwise in
// base64, or as a digest when that is too long.
func keyText(key string) string {
	if event.CheckKey(key) == nil {
		return key
	}
	if text := "base64:" + base64.RawStdEncoding.EncodeToString([]byte(key)); len(text) <= event.MaxKeyBytes {
		return text
	}
	sum := sha256.Sum256([]byte(key))
	return "sha256:" + hex.EncodeToString(sum[:])
}

func version(look extract.Message) (int64, error) {
	text, err := extract.First([]extract.Rule{extract.Header("ce-aggregateversion")}, look)
	var none *extract.NoValueError
	switch {
	case errors.As(err, &none):
		return 0, nil
	case err != nil:
		return 0, err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n <= 0 {
		return 0, errors.New("it is not a positive number")
	}
	return n, nil
}

func markDelivery(m *inbox.Incoming, r Received) {
	if !r.Redelivered && r.DeliveryCount == 0 {
		return
	}
	if m.Headers == nil {
		m.Headers = event.Headers{}
	}
	if r.Redelivered {
		m.Headers[event.HeaderRedelivered] = "true"
	}
	if r.DeliveryCount != 0 {
		m.Headers[event.HeaderDeliveryCount] = strconv.FormatInt(r.DeliveryCount, 10)
	}
}

// attributePrefixes are how a rule names a CloudEvents attribute.
var attributePrefixes = []string{"ce-", "ce_", "cloudevents_", "cloudevents-"}

// lookup returns the values of the header that a rule names, in lower case: an
// attribute where it has an attribute's prefix, otherwise what the publisher set
// under that name, however it travelled.
func lookup(fields []Field, name string) ([]string, error) {
	for _, prefix := range attributePrefixes {
		if attribute, ok := strings.CutPrefix(name, prefix); ok {
			return valuesOf(fields, Attribute, attribute)
		}
	}
	if !taken[name] {
		if values, err := valuesOf(fields, Attribute, name); len(values) > 0 || err != nil {
			return values, err
		}
	}
	if values, err := valuesOf(fields, Own, name); len(values) > 0 || err != nil {
		return values, err
	}
	return valuesOf(fields, Plain, name)
}

func valuesOf(fields []Field, kind Kind, name string) ([]string, error) {
	var values []string
	for _, f := range fields {
		switch {
		case f.Kind != kind || !strings.EqualFold(f.Name, name):
		case f.Flaw != "":
			return nil, errors.New(f.Flaw)
		default:
			values = append(values, f.Value)
		}
	}
	return values, nil
}
