package transporttest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
)

// The cases of this file are about transports with a broker between destination
// and source: the answer to a Send is the broker's, and the source has a
// connection of its own that can fail.

func broker(f Features) bool        { return f.Broker }
func brokerNetwork(f Features) bool { return f.Broker && f.Network }

// warm sends a message, so that the destination has a connection.
func (l *testLink) warm(t *testing.T) {
	t.Helper()
	m := newMessage("", 1)
	l.mustSend(t, m)
	l.mustArrive(t, m)
}

// countOf returns how often a message is stored.
func (l *testLink) countOf(id event.UUID) (n int) {
	for _, m := range l.ledger.Stored() {
		if m.IdempotencyKey == id.String() {
			n++
		}
	}
	return n
}

func cutConfirmIsNotUnavailable(t *testing.T, l *testLink) {
	l.warm(t)
	l.Proxy.Set(t, CutAnswers)
	m := newMessage("k", 1)
	if err := l.send(t, m); err == nil || class(err) != event.Transient {
		t.Errorf("Send with a cut confirm = %v (%v), want transient", err, class(err))
	}
	l.mustArrive(t, m)
	l.Proxy.Set(t, Pass)
	l.mustSend(t, m)
	if n := l.countOf(m.ID); n != 1 {
		t.Errorf("stored %d times", n)
	}
}

func stalledConfirmEndsWithTheContext(t *testing.T, l *testLink) {
	l.warm(t)
	l.Proxy.Set(t, Stall)
	first, second := newMessage("k", 1), newMessage("k", 2)
	err := l.cancelled(t, first, func() { l.mustArrive(t, first) })
	if err == nil || class(err) != event.Transient {
		t.Errorf("Send with a stalled confirm = %v (%v), want transient", err, class(err))
	}
	// The confirm of the first message comes now. It must not be taken for that of
	// the second.
	l.Proxy.Set(t, Pass)
	l.mustSend(t, second)
	l.mustArrive(t, second)
}

// sourceReconnectsAndContinues breaks the source's connection in every way. Each
// message must arrive, in the order of its key.
func sourceReconnectsAndContinues(t *testing.T, l *testLink) {
	const keys = 4
	next := map[string]int64{}
	sendAll := func() {
		for k := range keys {
			key := fmt.Sprintf("key-%d", k)
			l.mustSend(t, newMessage(key, next[key]))
			next[key]++
		}
	}
	total := func() int { return keys * int(next["key-0"]) }
	for _, mode := range []Mode{Refuse, CutAnswers, CutRequests, BlackHole, Stall, Refuse} {
		sendAll()
		Eventually(t, "the messages before are stored", func() bool { return len(l.ledger.Stored()) >= total() })
		l.SourceProxy.Set(t, mode)
		for range 5 {
			sendAll()
		}
		l.SourceProxy.Set(t, Pass)
		sendAll()
		Eventually(t, fmt.Sprintf("all messages are stored after mode %d", mode), func() bool { return len(l.ledger.Stored()) >= total() })
	}
	l.checkOrder(t, next)
}

// checkOrder checks that each key's messages are stored once, and in order where
// the transport keeps it.
func (l *testLink) checkOrder(t *testing.T, sent map[string]int64) {
	t.Helper()
	next := map[string]int64{}
	for _, m := range l.ledger.Stored() {
		if want := newMessage(m.AggregateID, next[m.AggregateID]); l.f.OrderedPerKey && string(m.Payload) != string(want.Payload) {
			t.Fatalf("key %s: got %s, want %s", m.AggregateID, m.Payload, want.Payload)
		}
		next[m.AggregateID]++
	}
	for key, n := range sent {
		if next[key] != n {
			t.Errorf("key %s: %d messages are stored, %d were sent", key, next[key], n)
		}
	}
}

// acknowledgesNothingInHand cuts the source's connection while storing fails: what
// it had in hand must come again.
func acknowledgesNothingInHand(t *testing.T, l *testLink) {
	failed := make(chan struct{}, 1000)
	l.ledger.Before(func(context.Context, int, inbox.Incoming) error {
		failed <- struct{}{}
		return errInjected
	})
	next := map[string]int64{}
	for n := range 5 {
		l.mustSend(t, newMessage("k", int64(n)))
		next["k"]++
	}
	select {
	case <-failed:
	case <-t.Context().Done():
		t.Fatal("nothing reached the store")
	}
	l.SourceProxy.Set(t, Refuse)
	l.ledger.Before(nil)
	l.SourceProxy.Set(t, Pass)
	Eventually(t, "all messages are stored", func() bool { return len(l.ledger.Stored()) == 5 })
	l.checkOrder(t, next)
}

// RunEndings tests that a source ends while its broker does not answer, idle or with
// a transaction in hand: a service can stop without its broker. The sources of h have
// timeouts, heartbeats and the like that are longer than a test waits, so that none
// of them ends the waiting instead.
func RunEndings(t *testing.T, h Harness) {
	for _, e := range []struct {
		name string
		mode Mode
	}{{"WithoutConnection", Refuse}, {"WithoutAnswers", Stall}, {"InABlackHole", BlackHole}} {
		t.Run(e.name, func(t *testing.T) { t.Parallel(); endIdle(t, h, e.mode) })
		t.Run("Storing"+e.name, func(t *testing.T) { t.Parallel(); endStoring(t, h, e.mode) })
	}
}

func endIdle(t *testing.T, h Harness, mode Mode) {
	l := connect(t, h)
	l.warm(t)
	l.SourceProxy.Set(t, mode)
	mustEnd(t, l.stopping())
}

func endStoring(t *testing.T, h Harness, mode Mode) {
	l := connect(t, h)
	l.warm(t)
	storing, goOn := make(chan struct{}, 100), make(chan struct{})
	l.ledger.Before(func(context.Context, int, inbox.Incoming) error {
		storing <- struct{}{}
		<-goOn
		return nil
	})
	m := newMessage("k", 2)
	l.mustSend(t, m)
	<-storing
	l.SourceProxy.Set(t, mode)
	ended := l.stopping()
	close(goOn)
	mustEnd(t, ended)
	if n := l.countOf(m.ID); n != 1 {
		t.Errorf("what was in hand is stored %d times", n)
	}
}

// stopping has the source end; the channel is closed when it has.
func (l *testLink) stopping() (ended <-chan struct{}) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.StopSource()
	}()
	return done
}

func mustEnd(t *testing.T, ended <-chan struct{}) {
	t.Helper()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatalf("the source has not ended within %v", patience)
	}
}
