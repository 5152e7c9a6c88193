package outbox

import (
	"cmp"
	"context"
	"fmt"
	"unicode/utf8"

	"github.com/lanebox/lanebox/runtime/event"
)

// A Record is one message on its way into the outbox table.
type Record struct {
	ID      event.UUID
	Topic   string
	Key     string // empty: unordered
	Payload []byte
	Headers event.Headers
	Version int64 // 0: none, or numbered by the database
}

// An Appender stores records inside the caller's transaction in one round trip.
// Records of one key keep their order. It returns *event.ConfigurationError
// when the database refuses a record (no route, missing key) and
// *event.RetryableError for deadlocks, serialisation failures and lock timeouts.
type Appender interface {
	Append(ctx context.Context, records []Record) error
}

// A Definition ties an event's Go type to its topic and its key. Generated code
// holds one per event.
type Definition[K event.Key, E any] struct {
	// Topic is the event type.
	Topic string
	// Aggregate is the aggregate type that the key declares; may be empty.
	Aggregate string
	// Key extracts the ordering key; nil for events that declare none.
	Key func(*E) K
	// KeyName is the key's name in the schema, for messages.
	KeyName string
	// KeyFields are the members of E that Key reads, for messages; empty when there
	// are none.
	KeyFields string
	// Validate checks the event; nil means that every value is valid.
	Validate func(*E) error
	// Encode renders the payload.
	Encode func(*E) ([]byte, error)
	// Version extracts the aggregate's version; nil means none.
	Version func(*E) int64
	// Binary says that the payload need not be UTF-8 text.
	Binary bool
}

// options are what a caller may add to one publish.
type options struct {
	key     string
	keyed   bool
	weak    bool // key gives way to a draft's explicit key
	id      event.UUID
	headers event.Headers
}

// An Option changes one publish of an event whose key type is K.
type Option[K event.Key] func(*options)

// WithKey orders the event by k instead of by its own key.
func WithKey[K event.Key](k K) Option[K] {
	return func(o *options) { o.key, o.keyed = k.OrderingKey(), true }
}

// WithID gives the message an ID of the caller's choice instead of a random one.
func WithID[K event.Key](id event.UUID) Option[K] {
	return func(o *options) { o.id = id }
}

// WithHeaders adds headers to the message.
func WithHeaders[K event.Key](h event.Headers) Option[K] {
	return func(o *options) { o.headers = h }
}

// Publish validates e and stores it through a. It stores nothing when it
// returns a *event.ConfigurationError or *event.ValidationError.
func Publish[K event.Key, E any](ctx context.Context, a Appender, d *Definition[K, E], e E, opts ...Option[K]) error {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	r, err := d.record(ctx, e, o)
	if err != nil {
		return err
	}
	return a.Append(ctx, []Record{r})
}

// A Draft is an event that is ready to be published, whatever its type. The
// generated package makes drafts; a service passes them on.
type Draft struct {
	make func(ctx context.Context, o options) (Record, error)
}

// NewDraft returns a draft of e.
func NewDraft[K event.Key, E any](d *Definition[K, E], e E) Draft {
	return Draft{make: func(ctx context.Context, o options) (Record, error) { return d.record(ctx, e, o) }}
}

// PublishAll stores drafts in order in one round trip, each with its own key or
// none. Nothing is stored when one of them is refused. The locks of all keys
// are taken in one fixed order, so two PublishAll calls never deadlock.
func PublishAll(ctx context.Context, a Appender, drafts ...Draft) error {
	return publishAll(ctx, a, options{}, drafts)
}

// PublishAllWithKey is PublishAll with one explicit key for every event.
func PublishAllWithKey[K event.Key](ctx context.Context, a Appender, key K, drafts ...Draft) error {
	return publishAll(ctx, a, options{key: key.OrderingKey(), keyed: true}, drafts)
}

func publishAll(ctx context.Context, a Appender, o options, drafts []Draft) error {
	if len(drafts) == 0 {
		return nil
	}
	records, err := makeRecords(ctx, o, drafts)
	if err != nil {
		return err
	}
	return a.Append(ctx, records)
}

// record validates e, computes its key and encodes it.
func (d *Definition[K, E]) record(ctx context.Context, e E, o options) (Record, error) {
	refuse := func(format string, args ...any) (Record, error) {
		return Record{}, &event.ConfigurationError{Topic: d.Topic, Reason: fmt.Sprintf(format, args...)}
	}
	if d.Validate != nil {
		if err := d.Validate(&e); err != nil {
			return Record{}, &event.ValidationError{Topic: d.Topic, Err: err}
		}
	}
	r := Record{ID: o.id, Topic: d.Topic}
	switch {
	case o.keyed:
		r.Key = o.key
		if r.Key == "" {
			return refuse("the explicit key is empty")
		}
	case d.Key != nil:
		r.Key = d.Key(&e).OrderingKey()
		if r.Key == "" {
			return refuse("key is empty: event declares key %s; set %s or publish with an explicit key", d.KeyName, cmp.Or(d.KeyFields, "its field"))
		}
	}
	if r.Key != "" {
		if err := event.CheckKey(r.Key); err != nil {
			return refuse("%v", err)
		}
	}
	if d.Version != nil {
		if r.Version = d.Version(&e); r.Version <= 0 {
			return refuse("version is %d; versions start at 1", r.Version)
		}
	}
	var err error
	if r.Payload, err = d.Encode(&e); err != nil {
		return Record{}, &event.ValidationError{Topic: d.Topic, Err: err}
	}
	if !d.Binary && !utf8.Valid(r.Payload) {
		return Record{}, &event.ValidationError{Topic: d.Topic, Err: fmt.Errorf("payload is not valid UTF-8")}
	}
	if r.ID.IsZero() {
		r.ID = event.NewUUID()
	}
	r.Headers = event.OutgoingHeaders(ctx, o.headers)
	if d.Aggregate != "" {
		if r.Headers == nil {
			r.Headers = event.Headers{}
		}
		r.Headers[event.HeaderAggregateType] = d.Aggregate
	}
	return r, nil
}
