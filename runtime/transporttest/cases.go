package transporttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/outbox"
)

var errInjected = errors.New("injected failure")

// newMessage returns a message as a poller hands it to a destination.
func newMessage(key string, sequence int64) event.Message {
	return event.Message{
		ID: event.NewUUID(), Sequence: sequence, Topic: "thing.happened.v1", Key: key,
		Payload:   fmt.Appendf(nil, `{"key":%q,"n":%d}`, key, sequence),
		CreatedAt: time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC), Attempt: 1,
	}
}

// send sends m once, without waiting for ever.
func (l *testLink) send(t *testing.T, m event.Message) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return l.Destination.Send(ctx, m)
}

// mustSend sends m as often as needed. Errors must not be permanent.
func (l *testLink) mustSend(t *testing.T, m event.Message) {
	Eventually(t, "a message is sent", func() bool {
		err := l.send(t, m)
		if err != nil && class(err) == event.Permanent {
			t.Errorf("Send: permanent failure of a good message: %v", err)
		}
		return err == nil
	})
}

// mustArrive waits for a message.
func (l *testLink) mustArrive(t *testing.T, m event.Message) {
	t.Helper()
	Eventually(t, "message "+m.ID.String()+" is stored", func() bool { return l.ledger.Has(m.ID) })
}

// mustNotArrive checks that a message was not stored although a later one was.
func (l *testLink) mustNotArrive(t *testing.T, m event.Message) {
	t.Helper()
	later := newMessage("", 1)
	l.mustSend(t, later)
	l.mustArrive(t, later)
	if l.ledger.Has(m.ID) {
		t.Errorf("message %s was stored", m.ID)
	}
}

// hostileMessages are messages that careless encoding would change.
func hostileMessages() []event.Message {
	var out []event.Message
	for _, payload := range []string{
		"", "null", `{"b":1,"a":1.0,"a":2}`, "{\"s\":\"\\\"\\\\\\n\\u0000\"}", "\ufeff{}", " \t{ }\r\n",
		`{"n":18446744073709551615,"m":9007199254740993}`, `"żółć 漢字 😀"`, "\x00\x01\xff\xfe", strings.Repeat("x", 100_000),
	} {
		m := newMessage("k", 1)
		m.Payload = []byte(payload)
		out = append(out, m)
	}
	for _, key := range []string{
		"", "a", "A", "a ", " a", "ä", "a\u0308", "100%", "%41", `"quoted"`, `back\slash`, "null", "日本語", "😀",
		"line\r\nce-id: injected\r\n\r\n", "tab\t", strings.Repeat("k", event.MaxKeyBytes), strings.Repeat("é", event.MaxKeyBytes/2),
	} {
		out = append(out, newMessage(key, 9_007_199_254_740_993))
	}
	m := newMessage("k", 1)
	m.Topic = "größe.geändert.v1"
	m.Version = 9_007_199_254_740_993
	m.Headers = event.Headers{
		event.HeaderTraceParent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", event.HeaderTraceState: "a=1,b=2",
		event.HeaderCorrelationID: "korrelation ü", event.HeaderCausationID: "c%41", event.HeaderAggregateType: "Order",
		event.HeaderContentType: "application/octet-stream",
		"x-tenant":              "acme", "X-Upper": " padded ", "we ird:\r\nname": "v\r\nx-evil: 1", "ünï": "", "id": "mine", "attempt": "7",
		"authorization": "kept, since the producer said so",
	}
	return append(out, m)
}

func roundTripsEnvelope(t *testing.T, l *testLink) {
	for _, m := range hostileMessages() {
		if len(m.Payload) > l.f.MaxBytes {
			continue
		}
		l.mustSend(t, m)
		l.mustArrive(t, m)
		for _, got := range l.ledger.Stored() {
			if got.IdempotencyKey == m.ID.String() {
				compare(t, m, got)
			}
		}
	}
}

func compare(t *testing.T, want event.Message, got inbox.Incoming) {
	t.Helper()
	if got.EventType != want.Topic || got.AggregateID != want.Key || got.Version != want.Version {
		t.Errorf("type, key, version = %q, %q, %d; want %q, %q, %d",
			got.EventType, got.AggregateID, got.Version, want.Topic, want.Key, want.Version)
	}
	if !bytes.Equal(got.Payload, want.Payload) {
		t.Errorf("payload = %.100q, want %.100q", got.Payload, want.Payload)
	}
	for name, value := range want.Headers {
		if kept, ok := got.Headers[name]; !ok || kept != value {
			t.Errorf("header %q = %q, %v; want %q", name, kept, ok, value)
		}
	}
	for name := range got.Headers {
		if strings.Contains(name, "evil") || strings.Contains(name, "injected") {
			t.Errorf("a header was injected: %q", name)
		}
	}
}

func keepsOrderPerKey(t *testing.T, l *testLink) {
	const keys, each = 8, 20
	l.ledger.Before(func(_ context.Context, try int, _ inbox.Incoming) error {
		if try%7 == 0 {
			return errInjected
		}
		return nil
	})
	var all sync.WaitGroup
	for k := range keys {
		all.Go(func() {
			for n := range each {
				l.mustSend(t, newMessage(fmt.Sprintf("key-%d", k), int64(n)))
			}
		})
	}
	all.Wait()
	Eventually(t, "all messages are stored", func() bool { return len(l.ledger.Stored()) == keys*each })
	next := map[string]int64{}
	for _, m := range l.ledger.Stored() {
		want := newMessage(m.AggregateID, next[m.AggregateID])
		if !bytes.Equal(m.Payload, want.Payload) {
			t.Fatalf("key %s: got %s, want %s", m.AggregateID, m.Payload, want.Payload)
		}
		next[m.AggregateID]++
	}
}

func concurrentSendsAreSafe(t *testing.T, l *testLink) {
	const count = 100
	var all sync.WaitGroup
	for n := range count {
		all.Go(func() { l.mustSend(t, newMessage("", int64(n))) })
	}
	all.Wait()
	Eventually(t, "all messages are stored", func() bool { return len(l.ledger.Stored()) == count })
}

func leavesTheMessageAlone(t *testing.T, l *testLink) {
	m := newMessage("k", 1)
	m.Headers = event.Headers{"correlationid": "c"}
	payload, headers := bytes.Clone(m.Payload), maps.Clone(m.Headers)
	l.mustSend(t, m)
	l.mustSend(t, m) // as a retry would
	if !bytes.Equal(m.Payload, payload) || !maps.Equal(m.Headers, headers) {
		t.Errorf("Send changed the message: %q, %v", m.Payload, m.Headers)
	}
}

// nilMeansSafe lets storing fail again and again: whatever Send answered with
// nil must be stored in the end.
func nilMeansSafe(t *testing.T, l *testLink) {
	l.ledger.Before(func(_ context.Context, try int, _ inbox.Incoming) error {
		if try%3 != 0 {
			return errInjected
		}
		return nil
	})
	for n := range 30 {
		m := newMessage("k", int64(n))
		err := l.send(t, m)
		if l.Restart != nil && n%10 == 9 {
			l.Restart()
		}
		switch {
		case err == nil && l.f.Answers && !l.ledger.Has(m.ID):
			t.Fatal("Send returned nil before the message was stored")
		case err == nil:
			l.mustArrive(t, m)
		case class(err) == event.Permanent:
			t.Fatalf("a failure to store is permanent: %v", err)
		}
	}
}

// lostAnswerMayDuplicate stores the message and loses the answer: the sender
// hears of a failure, sends again, and the inbox has it once.
func lostAnswerMayDuplicate(t *testing.T, l *testLink) {
	l.ledger.After(func(_ context.Context, try int, _ inbox.Incoming) error {
		if try == 1 {
			return errInjected
		}
		return nil
	})
	m := newMessage("k", 1)
	if err := l.send(t, m); err == nil || class(err) == event.Permanent || class(err) == event.Unavailable {
		t.Fatalf("Send with a lost answer = %v (%v); want transient or back-pressure", err, class(err))
	}
	l.mustSend(t, m)
	if got := len(l.ledger.Stored()); got != 1 {
		t.Errorf("stored %d times", got)
	}
	if l.ledger.Tries() < 2 {
		t.Error("the second delivery did not reach the store")
	}
}

func redeliversWhatIsNotAcked(t *testing.T, l *testLink) {
	l.ledger.Before(func(_ context.Context, try int, _ inbox.Incoming) error {
		if try <= 3 {
			return errInjected
		}
		return nil
	})
	m := newMessage("k", 1)
	l.mustSend(t, m)
	l.mustArrive(t, m)
	if got := l.ledger.Tries(); got < 4 {
		t.Errorf("stored after %d tries", got)
	}
}

func refusalIsAnError(t *testing.T, l *testLink) {
	m := newMessage("k", 1)
	m.Topic = Unroutable
	if err := l.send(t, m); class(err) != event.Permanent {
		t.Errorf("Send of an unroutable message = %v, want a permanent failure", err)
	}
	first := newMessage("k", 2)
	l.mustSend(t, first)
	conflict := first
	conflict.Payload = []byte(`{"other":"body"}`)
	if err := l.send(t, conflict); class(err) != event.Permanent {
		t.Errorf("Send of another body under the same id = %v, want a permanent failure", err)
	}
	l.mustNotArrive(t, m)
}

func backPressureIsPassedOn(t *testing.T, l *testLink) {
	l.ledger.Before(func(_ context.Context, try int, _ inbox.Incoming) error {
		if try == 1 {
			return event.AsBackPressure(errInjected, 3*time.Second)
		}
		return nil
	})
	m := newMessage("k", 1)
	err := l.send(t, m)
	if c, wait := event.Classify(err); c != event.BackPressure || wait != 3*time.Second {
		t.Errorf("Send = %v: %v, wait %v; want back-pressure of 3s", err, c, wait)
	}
	l.mustSend(t, m)
}

func oversizeIsPermanent(t *testing.T, l *testLink) {
	large := newMessage("k", 1)
	large.Payload = bytes.Repeat([]byte{'x'}, l.f.MaxBytes+1)
	if err := l.send(t, large); class(err) != event.Permanent {
		t.Errorf("Send of %d bytes = %v, want a permanent failure", len(large.Payload), err)
	}
	fits := newMessage("k", 2)
	fits.Payload = bytes.Repeat([]byte{'x'}, l.f.MaxBytes)
	l.mustSend(t, fits)
	l.mustArrive(t, fits)
	l.mustNotArrive(t, large)
}

// cancelled starts a Send, waits until it is under way, cancels it, and returns
// what it answered. A Send that does not return fails the test.
func (l *testLink) cancelled(t *testing.T, m event.Message, underWay func()) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- l.Destination.Send(ctx, m) }()
	underWay()
	cancel()
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		t.Fatal("Send did not return after its context ended")
		return nil
	}
}

// closing returns a function that waits until c is closed.
func closing(t *testing.T, what string, c <-chan struct{}) func() {
	return func() {
		t.Helper()
		select {
		case <-c:
		case <-time.After(patience):
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

func cancelReturnsPromptly(t *testing.T, l *testLink) {
	started := make(chan struct{})
	l.ledger.Before(func(ctx context.Context, _ int, _ inbox.Incoming) error {
		close(started)
		<-ctx.Done()
		return ctx.Err()
	})
	m := newMessage("k", 1)
	err := l.cancelled(t, m, closing(t, "the message reaches the store", started))
	if err == nil || class(err) == event.Permanent {
		t.Errorf("a cancelled Send = %v", err)
	}
	l.ledger.Before(nil)
	l.mustNotArrive(t, m)
	l.mustSend(t, m)
	l.mustArrive(t, m)
}

func endedContextSendsNothing(t *testing.T, l *testLink) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m := newMessage("k", 1)
	if err := l.Destination.Send(ctx, m); class(err) != event.Unavailable {
		t.Errorf("Send with an ended context = %v (%v), want unavailable", err, class(err))
	}
	l.mustNotArrive(t, m)
}

func closedSaysClosed(t *testing.T, l *testLink) {
	first, second := newMessage("k", 1), newMessage("k", 2)
	l.mustSend(t, first)
	l.mustArrive(t, first)
	for range 2 {
		if err := l.Close(); err != nil {
			t.Fatalf("Close: %v", err)
		}
	}
	err := l.send(t, second)
	if class(err) != event.Unavailable || !strings.Contains(err.Error(), "closed") {
		t.Errorf("Send after Close = %v, want unavailable and the word closed", err)
	}
	if l.ledger.Has(second.ID) {
		t.Error("a closed destination sent a message")
	}
}

// partialRunLeavesNothingBehind breaks a run in its middle.
func partialRunLeavesNothingBehind(t *testing.T, l *testLink) {
	d := l.Destination.(outbox.RunDestination)
	if d.MaxRun() < 5 {
		t.Fatalf("MaxRun = %d; the suite needs 5", d.MaxRun())
	}
	var run []event.Message
	for n := range 5 {
		run = append(run, newMessage("k", int64(n)))
	}
	broken := run[2].ID.String()
	l.ledger.Before(func(_ context.Context, _ int, m inbox.Incoming) error {
		if m.IdempotencyKey == broken {
			return errInjected
		}
		return nil
	})
	accepted, err := d.SendRun(t.Context(), run)
	if accepted != 2 || err == nil || class(err) == event.Permanent {
		t.Fatalf("SendRun = %d, %v; want 2 and a failure", accepted, err)
	}
	if got := len(l.ledger.Stored()); got != 2 {
		t.Fatalf("%d messages are stored; want the 2 before the failure", got)
	}
	l.ledger.Before(nil)
	if accepted, err = d.SendRun(t.Context(), run[accepted:]); accepted != 3 || err != nil {
		t.Fatalf("SendRun of the rest = %d, %v", accepted, err)
	}
	for n, m := range l.ledger.Stored() {
		if m.IdempotencyKey != run[n].ID.String() {
			t.Errorf("message %d is out of order", n)
		}
	}
}

func refusedConnectionIsUnavailable(t *testing.T, l *testLink) {
	l.Proxy.Set(t, Refuse)
	m := newMessage("k", 1)
	if err := l.send(t, m); class(err) != event.Unavailable {
		t.Errorf("Send without a connection = %v (%v), want unavailable", err, class(err))
	}
	l.Proxy.Set(t, Pass)
	l.mustNotArrive(t, m)
}

func reconnectsAndContinues(t *testing.T, l *testLink) {
	for round, mode := range []Mode{Refuse, CutRequests, CutAnswers, Refuse} {
		before, during := newMessage("k", int64(2*round)), newMessage("k", int64(2*round+1))
		l.mustSend(t, before)
		l.Proxy.Set(t, mode)
		if err := l.send(t, during); err == nil || class(err) == event.Permanent {
			t.Errorf("Send in mode %d = %v", mode, err)
		}
		l.Proxy.Set(t, Pass)
		l.mustSend(t, during)
		l.mustArrive(t, before)
		l.mustArrive(t, during)
	}
}

func cutRequestIsNoLoss(t *testing.T, l *testLink) {
	l.Proxy.Set(t, CutRequests)
	m := newMessage("k", 1)
	if err := l.send(t, m); err == nil || class(err) == event.Permanent {
		t.Errorf("Send over a cut connection = %v", err)
	}
	l.Proxy.Set(t, Pass)
	l.mustSend(t, m)
	l.mustArrive(t, m)
}

func cutAnswerIsNotUnavailable(t *testing.T, l *testLink) {
	l.Proxy.Set(t, CutAnswers)
	m := newMessage("k", 1)
	if err := l.send(t, m); err == nil || class(err) != event.Transient {
		t.Errorf("Send with a cut answer = %v (%v), want transient", err, class(err))
	}
	l.mustArrive(t, m)
	l.Proxy.Set(t, Pass)
	l.mustSend(t, m)
	if got := len(l.ledger.Stored()); got != 1 {
		t.Errorf("stored %d times", got)
	}
}

func stalledAnswerEndsWithTheContext(t *testing.T, l *testLink) {
	stored := make(chan struct{})
	l.ledger.After(func(context.Context, int, inbox.Incoming) error {
		close(stored)
		return nil
	})
	l.Proxy.Set(t, Stall)
	m := newMessage("k", 1)
	if err := l.cancelled(t, m, closing(t, "the message is stored", stored)); err == nil || class(err) != event.Transient {
		t.Errorf("Send with a stalled answer = %v (%v), want transient", err, class(err))
	}
	l.ledger.After(nil)
	l.Proxy.Set(t, Pass)
	l.mustSend(t, m)
}

func blackHoleEndsWithTheContext(t *testing.T, l *testLink) {
	l.Proxy.Set(t, BlackHole)
	m := newMessage("k", 1)
	swallowed := func() { Eventually(t, "the black hole swallows something", l.Proxy.swallows) }
	if err := l.cancelled(t, m, swallowed); err == nil || class(err) == event.Permanent {
		t.Errorf("Send into a black hole = %v", err)
	}
	l.Proxy.Set(t, Pass)
	l.mustNotArrive(t, m)
	l.mustSend(t, m)
	l.mustArrive(t, m)
}
