// Package handler is the in-process transport: a destination that calls Go
// functions and a source that Go code pushes into. It serves tests and services
// whose producer and consumer share one binary; with nothing in between, an
// error of the function is the answer to the delivery.
package handler

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
)

// ErrClosed is returned after Close. Nothing was handed over.
var ErrClosed = errors.New("the handler is closed")

// ErrConflict is returned by Push when another body was stored under the same
// idempotency key.
var ErrConflict = errors.New("another body was received under the same idempotency key")

// A Func handles one message. It is called from many goroutines, never twice at
// the same time for one ordering key of a destination. It returns nil only when
// the message is safe, classifies its errors with event.AsPermanent and its
// like, and returns soon after ctx ends.
type Func func(ctx context.Context, m event.Message) error

// On returns a Func that decodes the payload and calls h. A payload that cannot
// be decoded is a permanent failure.
func On[E any](decode func([]byte) (E, error), h func(ctx context.Context, e E, m event.Message) error) Func {
	return func(ctx context.Context, m event.Message) error {
		e, err := decode(m.Payload)
		if err != nil {
			return event.AsPermanent(fmt.Errorf("decode %s: %w", m.Topic, err))
		}
		return h(ctx, e, m)
	}
}

// Topics returns a Func that calls the function of the message's topic. A topic
// without one is a permanent failure that names it.
func Topics(byTopic map[string]Func) Func {
	return func(ctx context.Context, m event.Message) error {
		f := byTopic[m.Topic]
		if f == nil {
			return event.AsPermanent(fmt.Errorf("topic %s has no handler", m.Topic))
		}
		return f(ctx, m)
	}
}

// A Destination hands messages to a function in this process. It is safe for
// concurrent use.
type Destination struct {
	f      Func
	closed atomic.Bool
}

// NewDestination returns a destination that calls f, which must not be nil.
func NewDestination(f Func) *Destination {
	if f == nil {
		panic("handler: NewDestination needs a function")
	}
	return &Destination{f: f}
}

// Send calls the function in the caller's goroutine and returns its answer.
func (d *Destination) Send(ctx context.Context, m event.Message) error {
	if err := ready(ctx, &d.closed); err != nil {
		return err
	}
	return d.f(ctx, m)
}

// Close makes later calls of Send fail with ErrClosed. Calls under way go on.
func (d *Destination) Close() error {
	d.closed.Store(true)
	return nil
}

// ready reports why nothing can be handed over.
func ready(ctx context.Context, closed *atomic.Bool) error {
	if closed.Load() {
		return event.AsUnavailable(ErrClosed)
	}
	if err := ctx.Err(); err != nil {
		return event.AsUnavailable(err)
	}
	return nil
}

// A RunFunc handles an unbroken run of consecutive messages of one lane, whole
// or up to a first failure with nothing behind it. It returns how many messages,
// from the first on, are safe; when that is less than len(run), err says why.
type RunFunc func(ctx context.Context, run []event.Message) (accepted int, err error)

// A RunDestination hands whole runs to a function, for consumers that store
// several messages at once. It is safe for concurrent use.
type RunDestination struct {
	f      RunFunc
	max    int
	closed atomic.Bool
}

// NewRunDestination returns a destination that calls f, which must not be nil,
// with at most max messages; max must be at least 1.
func NewRunDestination(max int, f RunFunc) *RunDestination {
	if f == nil || max < 1 {
		panic("handler: NewRunDestination needs a function and a positive maximum")
	}
	return &RunDestination{f: f, max: max}
}

// Send hands one message over.
func (d *RunDestination) Send(ctx context.Context, m event.Message) error {
	_, err := d.SendRun(ctx, []event.Message{m})
	return err
}

// SendRun calls the function in the caller's goroutine. An answer that
// contradicts itself counts as a failure of the first message it leaves open.
func (d *RunDestination) SendRun(ctx context.Context, run []event.Message) (int, error) {
	if err := ready(ctx, &d.closed); err != nil {
		return 0, err
	}
	accepted, err := d.f(ctx, run)
	switch {
	case accepted < 0 || accepted > len(run):
		return 0, fmt.Errorf("the handler accepted %d of %d messages", accepted, len(run))
	case accepted == len(run):
		return accepted, nil
	case err == nil:
		return accepted, fmt.Errorf("the handler accepted %d of %d messages and gave no reason", accepted, len(run))
	}
	return accepted, err
}

// MaxRun returns the longest run that SendRun takes.
func (d *RunDestination) MaxRun() int { return d.max }

// Close makes later calls fail with ErrClosed. Calls under way go on.
func (d *RunDestination) Close() error {
	d.closed.Store(true)
	return nil
}

// A Receiver stores messages; *inbox.Receiver is one.
type Receiver interface {
	Receive(ctx context.Context, messages ...inbox.Incoming) ([]inbox.Disposition, error)
}

// A Source lets code of this process push messages into an inbox. It is safe
// for concurrent use.
type Source struct {
	receiver Receiver
	closed   atomic.Bool
}

// NewSource returns a source that pushes into r, which must not be nil.
func NewSource(r Receiver) *Source {
	if r == nil {
		panic("handler: NewSource needs a receiver")
	}
	return &Source{receiver: r}
}

// Push stores m and returns after the commit. Without an error, m is safe: it
// was stored now, or the same message was stored before. ErrConflict is
// permanent; other errors are those of the receiver.
func (s *Source) Push(ctx context.Context, m inbox.Incoming) (inbox.Disposition, error) {
	if err := ready(ctx, &s.closed); err != nil {
		return 0, err
	}
	dispositions, err := s.receiver.Receive(ctx, m)
	if err != nil {
		return 0, classified(err)
	}
	if len(dispositions) != 1 {
		return 0, fmt.Errorf("the receiver returned %d dispositions for 1 message", len(dispositions))
	}
	if dispositions[0] == inbox.Conflict {
		return inbox.Conflict, event.AsPermanent(ErrConflict)
	}
	return dispositions[0], nil
}

// classified makes a refusal permanent.
func classified(err error) error {
	var refused *inbox.RefusedError
	if errors.As(err, &refused) {
		return event.AsPermanent(err)
	}
	return err
}

// Close makes later pushes fail with ErrClosed. Pushes under way go on.
func (s *Source) Close() error {
	s.closed.Store(true)
	return nil
}

// Forward returns a Func that pushes each message into s under its own id,
// topic, key, body and headers: one outbox feeds an inbox of the same process.
func Forward(s *Source) Func {
	return func(ctx context.Context, m event.Message) error {
		_, err := s.Push(ctx, inbox.Incoming{
			IdempotencyKey: m.ID.String(), EventType: m.Topic, AggregateID: m.Key,
			Payload: m.Payload, Headers: m.Headers, Version: m.Version,
		})
		return err
	}
}
