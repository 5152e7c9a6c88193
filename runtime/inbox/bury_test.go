package inbox_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/transporttest"
)

// newAbsorber returns a receiver of pull type "known" on a ledger.
func newAbsorber(ledger *transporttest.Ledger) *inbox.Receiver {
	return inbox.NewReceiver(inbox.ReceiverConfig{
		Source: inbox.SourceRef{Name: "payments", Number: 9, Scope: 9}, Store: ledger, MaxBytes: 10,
		Accept: func(eventType string) bool { return eventType == "known" },
	})
}

func TestReceiveAllBuriesWhatCannotBeReceived(t *testing.T) {
	var ledger transporttest.Ledger
	r := newAbsorber(&ledger)
	long := strings.Repeat("ä", event.MaxKeyBytes)
	messages := []inbox.Incoming{
		{IdempotencyKey: "1", EventType: "known", Payload: []byte("one")},
		{IdempotencyKey: "2", EventType: "unknown", Payload: []byte("two")},
		{IdempotencyKey: "", EventType: "known", Payload: []byte("three")},
		{IdempotencyKey: long, EventType: long, AggregateID: long + "\x00\xff", Payload: []byte("four")},
		{IdempotencyKey: "5", EventType: "known", Payload: []byte("too long a body")},
		{IdempotencyKey: "6", EventType: "known", Headers: event.Headers{"a\x00": "\xff"}},
		{IdempotencyKey: "7", EventType: "known", Payload: []byte("{"), Dead: "no JSON"},
		{IdempotencyKey: "1", EventType: "known", Payload: []byte("other")},
		{IdempotencyKey: "8", EventType: "known", Payload: []byte("last")},
	}
	want := slices.Repeat([]inbox.Disposition{inbox.Buried}, len(messages))
	want[0], want[8] = inbox.Stored, inbox.Stored
	got, err := r.ReceiveAll(t.Context(), messages...)
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("%v, %v; want %v", got, err, want)
	}
	if stored := ledger.Stored(); len(stored) != 2 || string(stored[1].Payload) != "last" {
		t.Errorf("stored %v", stored)
	}
	for _, m := range ledger.Dead() {
		if m.Dead == "" || event.CheckKey(m.IdempotencyKey) != nil || len(m.EventType) > event.MaxKeyBytes || len(m.AggregateID) > event.MaxKeyBytes ||
			!utf8.ValidString(m.AggregateID+m.EventType) || strings.Contains(m.AggregateID, "\x00") {
			t.Errorf("a dead letter that cannot be stored: %+v", m)
		}
		for name, value := range m.Headers {
			if !utf8.ValidString(name+value) || strings.Contains(name+value, "\x00") {
				t.Errorf("header %q: %q", name, value)
			}
		}
	}
	// Everything again, as after a lost acknowledgement: nothing is new.
	again, err := r.ReceiveAll(t.Context(), messages...)
	for i, d := range again {
		if d != inbox.Duplicate {
			t.Errorf("message %d was %v the second time", i, d)
		}
	}
	if err != nil || len(ledger.Stored()) != 2 || len(ledger.Dead()) != 7 {
		t.Errorf("%d stored, %d dead, %v", len(ledger.Stored()), len(ledger.Dead()), err)
	}
}

// What is buried is told once, with its reason.
func TestBuriedMessagesAreTold(t *testing.T) {
	var out strings.Builder
	r := inbox.NewReceiver(inbox.ReceiverConfig{
		Source: inbox.SourceRef{Name: "payments", Number: 9, Scope: 9}, Store: &transporttest.Ledger{},
		Accept: func(eventType string) bool { return eventType == "known" }, Logger: slog.New(slog.NewTextHandler(&out, nil)),
	})
	for range 2 {
		if _, err := r.ReceiveAll(t.Context(), inbox.Incoming{IdempotencyKey: "1", EventType: "unknown", Payload: []byte("secret")}, inbox.Incoming{IdempotencyKey: "2", EventType: "known"}); err != nil {
			t.Fatal(err)
		}
	}
	text := out.String()
	if strings.Count(text, "\n") != 1 || !strings.Contains(text, "source=payments") || !strings.Contains(text, "type=unknown") || !strings.Contains(text, "not accepted") || strings.Contains(text, "secret") {
		t.Errorf("logged %q", text)
	}
}

func TestReceiveAtMovesThePosition(t *testing.T) {
	var ledger transporttest.Ledger
	r := newAbsorber(&ledger)
	if _, ok, err := r.Position(t.Context(), "log"); ok || err != nil {
		t.Fatalf("a new log has a position: %v, %v", ok, err)
	}
	m := inbox.Incoming{IdempotencyKey: "1", EventType: "known"}
	for _, offset := range []int64{3, 2} {
		if _, err := r.ReceiveAt(t.Context(), inbox.Position{Log: "log", Offset: offset}, m); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.ReceiveAt(t.Context(), inbox.Position{Log: "empty"}); err != nil {
		t.Fatal(err)
	}
	if offset, ok, err := r.Position(t.Context(), "log"); offset != 3 || !ok || err != nil {
		t.Errorf("%d, %v, %v", offset, ok, err)
	}
	if offset, ok, err := r.Position(t.Context(), "empty"); offset != 0 || !ok || err != nil {
		t.Errorf("%d, %v, %v", offset, ok, err)
	}
}

// A message in conflict is buried before the position passes it: the process may
// end between the two transactions.
func TestReceiveAtBuriesBeforeThePositionMoves(t *testing.T) {
	var ledger transporttest.Ledger
	r := newAbsorber(&ledger)
	gone := errors.New("the process ends here")
	ledger.Before(func(_ context.Context, _ int, m inbox.Incoming) error {
		if m.Dead != "" {
			return gone
		}
		return nil
	})
	messages := []inbox.Incoming{
		{IdempotencyKey: "1", EventType: "known", Payload: []byte("one")},
		{IdempotencyKey: "1", EventType: "known", Payload: []byte("other")},
	}
	at := inbox.Position{Log: "log", Offset: 2}
	if _, err := r.ReceiveAt(t.Context(), at, messages...); !errors.Is(err, gone) {
		t.Fatalf("got %v", err)
	}
	if offset, ok, _ := r.Position(t.Context(), "log"); ok {
		t.Errorf("the position is %d, and a message before it has no fate", offset)
	}
	ledger.Before(nil)
	got, err := r.ReceiveAt(t.Context(), at, messages...)
	if err != nil || !slices.Equal(got, []inbox.Disposition{inbox.Duplicate, inbox.Buried}) {
		t.Errorf("again: %v, %v", got, err)
	}
	if offset, _, _ := r.Position(t.Context(), "log"); offset != 2 || len(ledger.Dead()) != 1 {
		t.Errorf("the position is %d; dead are %v", offset, ledger.Dead())
	}
}

// Somebody who knows a message can choose the key that its dead letter would get.
// The message is buried all the same.
func TestTheKeyOfADeadLetterIsTaken(t *testing.T) {
	var ledger transporttest.Ledger
	r := newAbsorber(&ledger)
	first := inbox.Incoming{IdempotencyKey: "1", EventType: "known", Payload: []byte("one")}
	other := first
	other.Payload = []byte("other")
	if _, err := r.ReceiveAll(t.Context(), first, other); err != nil {
		t.Fatal(err)
	}
	key := ledger.Dead()[0].IdempotencyKey
	var hostile transporttest.Ledger
	r = newAbsorber(&hostile)
	taken := inbox.Incoming{IdempotencyKey: key, EventType: "known", Payload: []byte("taken")}
	got, err := r.ReceiveAll(t.Context(), taken, first, other)
	if err != nil || !slices.Equal(got, []inbox.Disposition{inbox.Stored, inbox.Stored, inbox.Buried}) {
		t.Errorf("%v, %v", got, err)
	}
}

// plainStore hides that a ledger is a LogStore.
type plainStore struct{ inbox.ReceiveStore }

func TestPositionsNeedALogStore(t *testing.T) {
	r := inbox.NewReceiver(inbox.ReceiverConfig{Source: inbox.SourceRef{Name: "s"}, Store: plainStore{&transporttest.Ledger{}}})
	if _, err := r.ReceiveAt(t.Context(), inbox.Position{Log: "log"}); err == nil {
		t.Error("ReceiveAt works without a LogStore")
	}
	if _, _, err := r.Position(t.Context(), "log"); err == nil {
		t.Error("Position works without a LogStore")
	}
}

func TestReceiveAllPassesOnFailures(t *testing.T) {
	var ledger transporttest.Ledger
	failure := errors.New("the disk is full")
	ledger.Before(func(context.Context, int, inbox.Incoming) error { return failure })
	r := newAbsorber(&ledger)
	if _, err := r.ReceiveAll(t.Context(), inbox.Incoming{IdempotencyKey: "1", EventType: "known"}); !errors.Is(err, failure) {
		t.Errorf("got %v", err)
	}
}
