package transporttest

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
)

// A Ledger is the far end of a link: a store in memory that deduplicates as an
// inbox does and can be told to fail.
type Ledger struct {
	mu     sync.Mutex
	stored []inbox.Incoming  // in commit order
	dead   []inbox.Incoming  // in commit order
	known  map[string][]byte // payloads by idempotency key
	logs   map[string]int64  // positions by the name of the log
	tries  int               // calls of Receive
	before func(ctx context.Context, try int, m inbox.Incoming) error
	after  func(ctx context.Context, try int, m inbox.Incoming) error
}

// Receive implements inbox.ReceiveStore.
func (l *Ledger) Receive(ctx context.Context, _ inbox.SourceRef, messages []inbox.Incoming) ([]inbox.Disposition, error) {
	return l.receive(ctx, messages, nil)
}

// ReceiveAt implements inbox.LogStore.
func (l *Ledger) ReceiveAt(ctx context.Context, _ inbox.SourceRef, messages []inbox.Incoming, at inbox.Position) ([]inbox.Disposition, error) {
	return l.receive(ctx, messages, &at)
}

// Position implements inbox.LogStore.
func (l *Ledger) Position(_ context.Context, _ inbox.SourceRef, log string) (int64, bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	offset, ok := l.logs[log]
	return offset, ok, nil
}

func (l *Ledger) receive(ctx context.Context, messages []inbox.Incoming, at *inbox.Position) ([]inbox.Disposition, error) {
	l.mu.Lock()
	l.tries++
	try, before, after := l.tries, l.before, l.after
	l.mu.Unlock()
	for _, m := range messages {
		if err := call(ctx, before, try, m); err != nil {
			return nil, err
		}
	}
	dispositions := l.commit(messages, at)
	for _, m := range messages {
		if err := call(ctx, after, try, m); err != nil {
			return nil, err
		}
	}
	return dispositions, nil
}

func call(ctx context.Context, hook func(context.Context, int, inbox.Incoming) error, try int, m inbox.Incoming) error {
	if hook == nil {
		return nil
	}
	return hook(ctx, try, m)
}

func (l *Ledger) commit(messages []inbox.Incoming, at *inbox.Position) []inbox.Disposition {
	l.mu.Lock()
	defer l.mu.Unlock()
	dispositions := make([]inbox.Disposition, len(messages))
	for i, m := range messages {
		m.Payload = bytes.Clone(m.Payload)
		dispositions[i] = l.store(m)
	}
	if at != nil && !slices.Contains(dispositions, inbox.Conflict) {
		if l.logs == nil {
			l.logs = map[string]int64{}
		}
		if offset, ok := l.logs[at.Log]; !ok || offset < at.Offset {
			l.logs[at.Log] = at.Offset
		}
	}
	return dispositions
}

// store adds m unless its idempotency key is known.
func (l *Ledger) store(m inbox.Incoming) inbox.Disposition {
	payload, known := l.known[m.IdempotencyKey]
	switch {
	case known && bytes.Equal(payload, m.Payload):
		return inbox.Duplicate
	case known:
		return inbox.Conflict
	case l.known == nil:
		l.known = map[string][]byte{}
	}
	l.known[m.IdempotencyKey] = m.Payload
	if m.Dead != "" {
		l.dead = append(l.dead, m)
		return inbox.Buried
	}
	l.stored = append(l.stored, m)
	return inbox.Stored
}

// PurgeReceipts implements inbox.ReceiveStore. A ledger forgets nothing.
func (l *Ledger) PurgeReceipts(context.Context, inbox.SourceRef, time.Duration, int) (int, error) {
	return 0, nil
}

// Stored returns what was stored, in commit order, each message once.
func (l *Ledger) Stored() []inbox.Incoming {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]inbox.Incoming(nil), l.stored...)
}

// Count returns how many messages were stored.
func (l *Ledger) Count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.stored)
}

// Dead returns what was stored among the dead letters, in commit order.
func (l *Ledger) Dead() []inbox.Incoming {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]inbox.Incoming(nil), l.dead...)
}

// Tries returns how often storing was tried.
func (l *Ledger) Tries() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tries
}

// Has reports whether a message was stored.
func (l *Ledger) Has(id event.UUID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range l.stored {
		if m.IdempotencyKey == id.String() {
			return true
		}
	}
	return false
}

// Before sets a hook that runs before a message is stored; its error prevents
// that. try counts calls from 1. nil removes the hook.
func (l *Ledger) Before(hook func(ctx context.Context, try int, m inbox.Incoming) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.before = hook
}

// After sets a hook that runs after the commit; with its error the answer is
// lost.
func (l *Ledger) After(hook func(ctx context.Context, try int, m inbox.Incoming) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.after = hook
}

// Unroutable is an event type that the receiver of NewReceiver refuses.
const Unroutable = "unroutable.v1"

// Source is the source that the receiver of NewReceiver serves.
var Source = inbox.SourceRef{Name: "link", Number: 7, Scope: 7}

// NewReceiver returns a receiver that stores into l. It takes every type but
// Unroutable and bodies of at most maxBytes; 0 means 1 MiB.
func NewReceiver(l *Ledger, maxBytes int) *inbox.Receiver {
	return inbox.NewReceiver(inbox.ReceiverConfig{
		Source: Source, Store: l, MaxBytes: maxBytes,
		Accept: func(eventType string) bool { return eventType != Unroutable },
	})
}

// patience is how long a condition may take to become true: long enough for a
// machine that does much else, since only a failing test waits for its end.
var patience = time.Minute

// Eventually waits until condition is true and fails the test when that takes
// too long.
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.After(patience)
	for !condition() {
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}
