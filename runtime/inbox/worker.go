package inbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/lanebox/lanebox/runtime/engine"
	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/internal/pause"
	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/schedule"
)

// A Handler handles one message inside a transaction. When it returns nil, its
// effect and the completion of the message are committed together; with any
// error the transaction is rolled back. ErrDuplicate and ErrStale complete the
// message, ErrGap makes its lane wait, ErrConflict and event.AsPermanent send it
// to the dead letters, event.AsBackPressure and event.AsUnavailable try again
// without spending an attempt, and anything else spends one.
//
// Messages published with ctx inherit the message's correlation id and trace
// context. ctx ends when trust in the lease ends.
type Handler[Tx any] func(ctx context.Context, tx Tx, m Raw) error

// OtherTypes stands for every event type that has no handler of its own.
const OtherTypes = "*"

// Decode returns a handler that hands h the decoded payload. A payload that
// cannot be decoded is a permanent failure.
func Decode[E any, Tx any](decode func([]byte) (E, error), h func(context.Context, Tx, Message[E]) error) Handler[Tx] {
	return func(ctx context.Context, tx Tx, m Raw) error {
		e, err := decode(m.Payload)
		if err != nil {
			return event.AsPermanent(fmt.Errorf("decode %s: %w", m.Topic, err))
		}
		return h(ctx, tx, Message[E]{Event: e, Raw: m})
	}
}

// A WorkerConfig describes the worker of one pull source.
type WorkerConfig[Tx any] struct {
	// Name is the source's name; it stands in logs and events.
	Name  string
	Scope lane.Scope
	Store lane.Store
	Pull  PullStore[Tx]
	// Handlers by event type; the one under OtherTypes takes every other type.
	// Without it, a message of another type goes to the dead letters.
	Handlers map[string]Handler[Tx]
	// GapTimeout is how long a message may report a gap, counted in this process
	// from its first report, before it goes to the dead letters; 0 means for ever.
	GapTimeout time.Duration
	// Discarded is called for every message that a handler called a duplicate or
	// stale, after its transaction was rolled back; nil means nobody counts.
	Discarded func(m Raw, reason error)
	// Logger receives the stacks of panics; nil means slog.Default().
	Logger *slog.Logger
	Policy schedule.Policy
}

// NewWorker returns the loop that handles a pull source's messages, one at a
// time per aggregate. It runs as part of an engine.Process.
func NewWorker[Tx any](c WorkerConfig[Tx]) *engine.Loop {
	c.Policy.MaxRun = 1 // each message has a transaction, and an outcome, of its own
	config := engine.Config{Name: c.Name, Scope: c.Scope, Store: c.Store, Policy: c.Policy}
	if c.Pull != nil { // otherwise the process refuses to start
		config.Deliverer = newWorker(c)
	}
	return engine.NewLoop(config)
}

// worker is the Deliverer of a pull source: it runs handlers in transactions.
type worker[Tx any] struct {
	c WorkerConfig[Tx]

	mu   sync.Mutex
	gaps map[event.UUID]time.Time // when a message first reported a gap
}

func newWorker[Tx any](c WorkerConfig[Tx]) *worker[Tx] {
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return &worker[Tx]{c: c, gaps: map[event.UUID]time.Time{}}
}

// Deliver implements lane.Deliverer: it handles the messages of a run one after
// the other, each in a transaction of its own.
func (w *worker[Tx]) Deliver(ctx context.Context, owner string, run lane.Run) lane.Verdict {
	for i, row := range run.Rows {
		if err := w.handle(ctx, owner, row, run.Lease); err != nil {
			return lane.Verdict{Accepted: i, Completed: true, Err: err}
		}
	}
	return lane.Verdict{Accepted: len(run.Rows), Completed: true}
}

// handle completes one message or returns a classified error.
func (w *worker[Tx]) handle(ctx context.Context, owner string, row lane.Row, l lane.Lease) error {
	h := w.c.Handlers[row.Message.Topic]
	if h == nil {
		h = w.c.Handlers[OtherTypes]
	}
	if h == nil {
		return event.AsPermanent(fmt.Errorf("source %s has no handler for %q", w.c.Name, row.Message.Topic))
	}
	err := w.transact(ctx, owner, row, l, h)
	if errors.Is(err, ErrDuplicate) || errors.Is(err, ErrStale) {
		if w.c.Discarded != nil {
			w.c.Discarded(row.Message, err)
		}
		// What the handler wrote is undone; the message alone is completed.
		err = w.transact(ctx, owner, row, l, func(context.Context, Tx, Raw) error { return nil })
	}
	return w.classify(row.Message, err)
}

// handleTries is how often a transaction is run that the database gives up.
const handleTries = 3

// transact runs h and the completion in one transaction, again if the database
// gives it up for another one.
func (w *worker[Tx]) transact(ctx context.Context, owner string, row lane.Row, l lane.Lease, h Handler[Tx]) error {
	for try := 1; ; try++ {
		reached := false
		err := w.c.Pull.Handle(ctx, owner, row, l, func(ctx context.Context, tx Tx) error {
			reached = true
			return w.call(event.WithHandled(ctx, row.Message), tx, row.Message, h)
		})
		var again *event.RetryableError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &again) && try < handleTries && pause.For(ctx, retryPause(try)):
			continue
		case !reached && !errors.Is(err, lane.ErrLeaseLost):
			return event.AsUnavailable(err) // nothing ran: no attempt is spent
		}
		return err
	}
}

// call runs h and turns a panic into an error, so that its transaction is
// rolled back like that of any failure.
func (w *worker[Tx]) call(ctx context.Context, tx Tx, m Raw, h Handler[Tx]) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = panicked(ctx, w.c.Logger, "handler panicked", m, p)
		}
	}()
	return h(ctx, tx, m)
}

// panicked logs a panic with its stack and returns it as an error.
func panicked(ctx context.Context, logger *slog.Logger, what string, m Raw, value any) error {
	err := &engine.PanicError{Value: value, Stack: debug.Stack()}
	logger.ErrorContext(ctx, what, "source", m.Source, "type", m.Topic, "message_id", m.ID.String(),
		"sequence", m.Sequence, "panic", fmt.Sprint(value), "stack", string(err.Stack))
	return err
}

// errGapTimeout is why a message that reported a gap for too long is dead.
var errGapTimeout = errors.New("the gap was not filled in time")

// classify gives the errors of this package their class.
func (w *worker[Tx]) classify(m Raw, err error) error {
	if !errors.Is(err, ErrGap) {
		w.forget(m.ID)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrGap):
		if w.gapTimedOut(m.ID) {
			return event.AsPermanent(fmt.Errorf("%w: %w", errGapTimeout, err))
		}
		return event.AsBackPressure(err, 0)
	case errors.Is(err, ErrConflict):
		return event.AsPermanent(err)
	case errors.Is(err, ErrGone):
		return event.AsUnavailable(err) // settling it finds out and drops it
	}
	return err
}

// maxGaps bounds the memory of messages that reported a gap.
const maxGaps = 10_000

// gapTimedOut reports whether a message has reported a gap for too long.
func (w *worker[Tx]) gapTimedOut(id event.UUID) bool {
	if w.c.GapTimeout <= 0 {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	first, ok := w.gaps[id]
	if !ok {
		if len(w.gaps) >= maxGaps {
			clear(w.gaps) // messages that another process took over never come back
		}
		w.gaps[id] = time.Now()
		return false
	}
	if time.Since(first) < w.c.GapTimeout {
		return false
	}
	delete(w.gaps, id)
	return true
}

func (w *worker[Tx]) forget(id event.UUID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.gaps, id)
}
