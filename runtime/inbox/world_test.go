package inbox_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lanebox/lanebox/runtime/engine"
	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/memstore"
	"github.com/lanebox/lanebox/runtime/outbox"
	"github.com/lanebox/lanebox/runtime/schedule"
)

const (
	warehouse lane.Scope = 101
	payments  lane.Scope = 201
	push      lane.Scope = 1
)

var (
	orderSource   = inbox.SourceRef{Name: "orders", Number: 301, Scope: push}
	returnSource  = inbox.SourceRef{Name: "returns", Number: 302, Scope: push}
	paymentSource = inbox.SourceRef{Name: "payments", Number: 201, Scope: payments}
)

// A world is a database and the loops that run on it. It lives in a synctest
// bubble, so that its sleeps take no time and end exactly when they should.
type world struct {
	*testing.T
	db  *memstore.DB
	ctx context.Context
	n   int
}

func inWorld(t *testing.T, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		db, err := memstore.New(memstore.Config{
			Scopes: []memstore.Scope{
				{Number: warehouse, Name: "warehouse", Buckets: 4},
				{Number: payments, Name: "payments", Buckets: 4, Inbox: true},
				{Number: push, Name: "push", Buckets: 4, Inbox: true},
			},
			Routes: []memstore.Route{{Globs: []string{"order.*", "return.*"}, To: []lane.Scope{warehouse}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		w := &world{T: t, db: db, ctx: ctx}
		defer cancel()
		test(w)
	})
}

func (w *world) check(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// run starts a process; it is stopped, and must drain, at the end of the test.
func (w *world) run(loops ...*engine.Loop) (stop func()) {
	w.Helper()
	p, err := engine.NewProcess(engine.ProcessConfig{Keeper: w.db, Waker: w.db, Logger: quiet}, loops...)
	w.check(err)
	ctx, cancel := context.WithCancel(w.ctx)
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	return func() {
		w.Helper()
		cancel()
		w.check(<-ended)
	}
}

func (w *world) relay(change func(*inbox.RelayConfig[*memstore.Tx])) *engine.Loop {
	c := inbox.RelayConfig[*memstore.Tx]{
		Scope: push, Store: w.db.Inbox(push), Push: w.db.Push(push), Logger: quiet,
		Routed: func(topic string) bool { return event.MatchAnyTopic(topic, "order.*", "return.*") },
		Policy: schedule.Policy{MaxAttempts: 3, RetryBase: time.Second, RetryCap: time.Second},
	}
	if change != nil {
		change(&c)
	}
	return inbox.NewRelay(c)
}

func (w *world) worker(handlers map[string]inbox.Handler[*memstore.Tx], change func(*inbox.WorkerConfig[*memstore.Tx])) *engine.Loop {
	c := inbox.WorkerConfig[*memstore.Tx]{
		Name: "payments", Scope: payments, Store: w.db.Inbox(payments), Pull: w.db.Pull(payments),
		Handlers: handlers, Logger: quiet,
		Policy: schedule.Policy{MaxAttempts: 3, RetryBase: time.Second, RetryCap: time.Second},
	}
	if change != nil {
		change(&c)
	}
	return inbox.NewWorker(c)
}

// receive stores one message and returns its payload.
func (w *world) receive(source inbox.SourceRef, eventType, aggregate string, payload ...string) string {
	w.Helper()
	w.n++
	m := inbox.Incoming{
		IdempotencyKey: fmt.Sprint(w.n), EventType: eventType, AggregateID: aggregate,
		Payload: fmt.Appendf(nil, `{"n":%d}`, w.n),
	}
	if payload != nil {
		m.Payload = []byte(payload[0])
	}
	got, err := w.db.Receive(w.ctx, source, []inbox.Incoming{m})
	w.check(err)
	if got[0] != inbox.Stored {
		w.Fatalf("message %d was received as %v", w.n, got[0])
	}
	return string(m.Payload)
}

// waiting returns the payloads of one key's waiting messages.
func (w *world) waiting(scope lane.Scope, key string) []string {
	var list []string
	for _, m := range w.db.Waiting(scope) {
		if m.Key == key {
			list = append(list, string(m.Payload))
		}
	}
	return list
}

// dead returns the dead letters of a scope.
func (w *world) dead(scope lane.Scope) []lane.DeadLetter {
	w.Helper()
	letters, err := w.db.DeadLetters(w.ctx, scope)
	w.check(err)
	return letters
}

// counts counts what is in a scope.
func (w *world) counts(scope lane.Scope) memstore.Counts {
	w.Helper()
	c, err := w.db.Counts(w.ctx, scope)
	w.check(err)
	return c
}

func record(topic, key, payload string) outbox.Record {
	return outbox.Record{ID: event.NewUUID(), Topic: topic, Key: key, Payload: []byte(payload)}
}

// refuses returns why a process does not start with the loop.
func (w *world) refuses(l *engine.Loop) error {
	w.Helper()
	_, err := engine.NewProcess(engine.ProcessConfig{Keeper: w.db}, l)
	if err == nil {
		w.Fatal("the process accepted a loop that lacks a part")
	}
	return err
}
