package inbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/internal/pause"
)

// A ReceiverConfig describes one source.
type ReceiverConfig struct {
	Source SourceRef
	Store  ReceiveStore
	// Accept reports whether an event type may be received: it has a route (push)
	// or the source declares it (pull). nil accepts every type.
	Accept func(eventType string) bool
	// RequireAggregate refuses messages without an aggregate id; otherwise they
	// are unordered.
	RequireAggregate bool
	// MaxBytes is the largest body; 0 means 1 MiB. A larger one is refused.
	MaxBytes int
	// Timeout bounds one call to the store; 0 means 10 s.
	Timeout time.Duration
	// Retention is how long a receipt outlives its message; 0 means 7 days. It
	// counts from the purge that finds the message gone, which is not before the
	// receipt itself is that old: a receipt may stay for twice as long.
	Retention time.Duration
	// PurgeEvery is how often old receipts are forgotten; 0 means every 10
	// minutes. PurgeBatch bounds one statement; 0 means 1000 receipts.
	PurgeEvery time.Duration
	PurgeBatch int
	// Logger receives what goes wrong in the background; nil means
	// slog.Default().
	Logger *slog.Logger
}

// A Receiver takes the messages of one source into the inbox, each once. It is
// safe for concurrent use.
type Receiver struct {
	c      ReceiverConfig
	stored atomic.Pointer[func()]
}

// NewReceiver returns a receiver. It panics when the store is missing.
func NewReceiver(c ReceiverConfig) *Receiver {
	if c.Store == nil {
		panic("inbox: NewReceiver needs a store")
	}
	setDefault(&c.MaxBytes, 1<<20)
	setDefault(&c.Timeout, 10*time.Second)
	setDefault(&c.Retention, 7*24*time.Hour)
	setDefault(&c.PurgeEvery, 10*time.Minute)
	setDefault(&c.PurgeBatch, 1000)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return &Receiver{c: c}
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Source returns the source that the receiver serves.
func (r *Receiver) Source() SourceRef { return r.c.Source }

// MaxBytes returns the size of the largest body that is received.
func (r *Receiver) MaxBytes() int { return r.c.MaxBytes }

// OnStored has f called after messages were stored, for example to wake the loop
// that takes them on. f must not block; a later call replaces it.
func (r *Receiver) OnStored(f func()) { r.stored.Store(&f) }

// tell calls what OnStored set if anything was stored.
func (r *Receiver) tell(dispositions []Disposition) {
	if f := r.stored.Load(); f != nil && slices.Contains(dispositions, Stored) {
		(*f)()
	}
}

// receiveTries is how often a transaction is run that the database gives up.
const receiveTries = 4

// Receive stores messages in order, in one transaction, and returns one
// disposition per message once that is committed. A *RefusedError means that a
// message can never be received and that nothing of the call was stored; any
// other error means that the call may be repeated with the same messages,
// stored or not.
func (r *Receiver) Receive(ctx context.Context, messages ...Incoming) ([]Disposition, error) {
	if len(messages) == 0 {
		return nil, nil
	}
	for i := range messages {
		if err := r.check(&messages[i]); err != nil {
			return nil, &RefusedError{Index: i, Source: r.c.Source.Name, EventType: messages[i].EventType, Err: err}
		}
	}
	return r.try(ctx, messages, r.c.Store.Receive)
}

// ReceiveAll is Receive for sources that cannot refuse a message, such as
// brokers. What can never be received is stored among the dead letters with its
// reason, and so is another body under a known idempotency key; both answer
// Buried. An error means that the call may be repeated, stored or not.
func (r *Receiver) ReceiveAll(ctx context.Context, messages ...Incoming) ([]Disposition, error) {
	return r.receiveAll(ctx, messages, r.c.Store.Receive)
}

// ReceiveAt is ReceiveAll that also records a position in the same transaction.
// messages may be empty. The store must be a LogStore.
func (r *Receiver) ReceiveAt(ctx context.Context, at Position, messages ...Incoming) ([]Disposition, error) {
	store, ok := r.c.Store.(LogStore)
	if !ok {
		return nil, errNoLog
	}
	return r.receiveAll(ctx, messages, func(ctx context.Context, source SourceRef, messages []Incoming) ([]Disposition, error) {
		return store.ReceiveAt(ctx, source, messages, at)
	})
}

// Position returns the offset that ReceiveAt recorded last for a log; ok is
// false when there is none. The store must be a LogStore.
func (r *Receiver) Position(ctx context.Context, log string) (offset int64, ok bool, err error) {
	store, is := r.c.Store.(LogStore)
	if !is {
		return 0, false, errNoLog
	}
	ctx, cancel := context.WithTimeout(ctx, r.c.Timeout)
	defer cancel()
	offset, ok, err = store.Position(ctx, r.c.Source, log)
	if err != nil {
		err = fmt.Errorf("position of %s in %s: %w", r.c.Source.Name, log, err)
	}
	return offset, ok, err
}

var errNoLog = errors.New("inbox: the store keeps no positions")

// receive stores messages in one transaction of the database.
type receive func(ctx context.Context, source SourceRef, messages []Incoming) ([]Disposition, error)

// try runs a transaction again when the database gave it up.
func (r *Receiver) try(ctx context.Context, messages []Incoming, store receive) ([]Disposition, error) {
	ctx, cancel := context.WithTimeout(ctx, r.c.Timeout)
	defer cancel()
	for try := 1; ; try++ {
		dispositions, err := store(ctx, r.c.Source, messages)
		if err == nil {
			r.tell(dispositions)
			return dispositions, nil
		}
		var again *event.RetryableError
		if !errors.As(err, &again) || try == receiveTries || !pause.For(ctx, retryPause(try)) {
			return nil, fmt.Errorf("receive from %s: %w", r.c.Source.Name, err)
		}
	}
}

// retryPause is how long to wait, at random, before a transaction is run again.
func retryPause(try int) time.Duration { return rand.N(time.Duration(try) * 20 * time.Millisecond) }

// check reports why m cannot be received.
func (r *Receiver) check(m *Incoming) error {
	if err := event.CheckKey(m.IdempotencyKey); err != nil {
		return fmt.Errorf("%w: idempotency %v", ErrBadKey, err)
	}
	if err := event.CheckKey(m.EventType); err != nil {
		return fmt.Errorf("%w: event type: %v", ErrBadKey, err)
	}
	if m.AggregateID == "" && r.c.RequireAggregate {
		return ErrAggregateMissing
	}
	if m.AggregateID != "" {
		if err := event.CheckKey(m.AggregateID); err != nil {
			return fmt.Errorf("%w: aggregate id: %v", ErrBadKey, err)
		}
	}
	if len(m.Payload) > r.c.MaxBytes {
		return fmt.Errorf("%w: %d bytes; the limit is %d", ErrOversize, len(m.Payload), r.c.MaxBytes)
	}
	for name, value := range m.Headers {
		if !storable(name) || !storable(value) {
			return fmt.Errorf("%w: %q", ErrBadHeader, name)
		}
	}
	if r.c.Accept != nil && !r.c.Accept(m.EventType) {
		return ErrUnroutable
	}
	return nil
}

// storable reports whether every database keeps s as it is.
func storable(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

// Run forgets old receipts from time to time until ctx ends; it returns nil
// then. The receiver works without it, and receipts are then kept for ever.
func (r *Receiver) Run(ctx context.Context) error {
	for {
		// The spread keeps the replicas of a service from purging together.
		timer := time.NewTimer(r.c.PurgeEvery/2 + rand.N(r.c.PurgeEvery))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
		n, err := r.Purge(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			r.c.Logger.WarnContext(ctx, "receipts could not be purged", "source", r.c.Source.Name, "error", err)
		case n > 0:
			r.c.Logger.DebugContext(ctx, "marked or forgot receipts", "source", r.c.Source.Name, "count", n)
		}
	}
}

// Purge marks the receipts older than the retention whose message is gone, and
// forgets those that were marked longer ago than that, in batches. It returns
// how many receipts it marked or forgot.
func (r *Receiver) Purge(ctx context.Context) (int, error) {
	total := 0
	for {
		n, err := r.purgeBatch(ctx)
		total += n
		if err != nil || n < r.c.PurgeBatch {
			return total, err
		}
	}
}

func (r *Receiver) purgeBatch(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, r.c.Timeout)
	defer cancel()
	n, err := r.c.Store.PurgeReceipts(ctx, r.c.Source, r.c.Retention, r.c.PurgeBatch)
	if err != nil {
		return n, fmt.Errorf("purge receipts of %s: %w", r.c.Source.Name, err)
	}
	return n, nil
}

// A Source brings messages from a broker to a receiver.
type Source interface {
	// Run receives until ctx ends and returns nil then. It acknowledges a
	// message only after Receive has returned without error for it.
	Run(ctx context.Context, r *Receiver) error
}
