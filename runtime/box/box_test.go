package box_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lanebox/lanebox/runtime/box"
	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/outbox"
)

// A process counts nudges and runs until its context ends.
type process struct {
	nudges int
	err    error
}

func (p *process) Run(ctx context.Context) error { <-ctx.Done(); return p.err }
func (p *process) Nudge()                        { p.nudges++ }

// A purger counts purges; everything else of a store is missing.
type purger struct {
	inbox.ReceiveStore
	purges int
}

func (p *purger) PurgeReceipts(context.Context, inbox.SourceRef, time.Duration, int) (int, error) {
	p.purges++
	return 0, nil
}

type appender struct{ err error }

func (a appender) Append(context.Context, []outbox.Record) error { return a.err }

func TestRunPurgesAndDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &purger{}
		p := &process{}
		var running box.Running
		b := box.New(box.Config{Process: p, Running: &running, Receivers: []*inbox.Receiver{inbox.NewReceiver(inbox.ReceiverConfig{Store: store})}})
		running.Nudge()
		if p.nudges != 0 {
			t.Error("a box that does not run was nudged")
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- b.Run(ctx) }()
		time.Sleep(time.Hour) // the bubble's clock
		synctest.Wait()
		running.Nudge()
		b.Nudge()
		if p.nudges != 2 || store.purges == 0 {
			t.Errorf("%d nudges, %d purges", p.nudges, store.purges)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		running.Nudge()
		if p.nudges != 2 {
			t.Error("a box that has ended was nudged")
		}
	})
}

// receiving stores everything but what it is told to call a duplicate.
type receiving struct {
	inbox.ReceiveStore
	answer inbox.Disposition
}

func (r receiving) Receive(context.Context, inbox.SourceRef, []inbox.Incoming) ([]inbox.Disposition, error) {
	return []inbox.Disposition{r.answer}, nil
}

// What was received is taken on at once, not at the next look.
func TestReceivingNudges(t *testing.T) {
	for answer, want := range map[inbox.Disposition]int{inbox.Stored: 1, inbox.Duplicate: 0} {
		p := &process{}
		r := inbox.NewReceiver(inbox.ReceiverConfig{Store: receiving{answer: answer}})
		box.New(box.Config{Process: p, Running: &box.Running{}, Receivers: []*inbox.Receiver{r}})
		if _, err := r.Receive(t.Context(), inbox.Incoming{IdempotencyKey: "1", EventType: "t"}); err != nil {
			t.Fatal(err)
		}
		if p.nudges != want {
			t.Errorf("disposition %d: %d nudges, want %d", answer, p.nudges, want)
		}
	}
}

func TestRunReturnsErrors(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	bad := errors.New("bad")
	var running box.Running
	if err := box.New(box.Config{Process: &process{err: bad}, Running: &running}).Run(ctx); !errors.Is(err, bad) {
		t.Errorf("error of the process: %v", err)
	}
	start := func(context.Context) error { return bad }
	p := &process{err: errors.New("the process ran")}
	if err := box.New(box.Config{Process: p, Running: &running, Start: start}).Run(ctx); !errors.Is(err, bad) || errors.Is(err, p.err) {
		t.Errorf("error of the start: %v", err)
	}
}

// A box that is stopped while it starts has drained well: there was nothing.
func TestStopDuringStart(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	p := &process{err: errors.New("the process ran")}
	var running box.Running
	err := box.New(box.Config{Process: p, Running: &running, Start: func(ctx context.Context) error {
		cancel()
		return fmt.Errorf("ask the database: %w", ctx.Err())
	}}).Run(ctx)
	if err != nil {
		t.Errorf("Run: %v", err)
	}
}

func TestNudgingFollowsSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &process{}
		var running box.Running
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- box.New(box.Config{Process: p, Running: &running}).Run(ctx) }()
		synctest.Wait()
		bad := errors.New("bad")
		if err := running.Nudging(appender{bad}).Append(ctx, nil); err != bad || p.nudges != 0 {
			t.Errorf("a failed append: %v, %d nudges", err, p.nudges)
		}
		if err := running.Nudging(appender{}).Append(ctx, nil); err != nil || p.nudges != 1 {
			t.Errorf("an append: %v, %d nudges", err, p.nudges)
		}
		cancel()
		<-done
	})
}

func TestReceiverWithoutSources(t *testing.T) {
	w := httptest.NewRecorder()
	box.New(box.Config{}).Receiver().ServeHTTP(w, httptest.NewRequest("POST", "/x", nil))
	if w.Code != 404 {
		t.Errorf("status %d", w.Code)
	}
}

type destination struct{ address string }

func (*destination) Send(context.Context, event.Message) error { return nil }
func (d *destination) Address() string                         { return d.address }

func TestRequired(t *testing.T) {
	for _, missing := range []any{nil, (*destination)(nil), (func())(nil), map[string]int(nil)} {
		if err := box.Required("Warehouse", missing); err == nil || err.Error() != "Config.Warehouse is nil" {
			t.Errorf("%T: %v", missing, err)
		}
	}
	for _, given := range []any{&destination{}, func() {}, struct{}{}, 0} {
		if err := box.Required("Warehouse", given); err != nil {
			t.Errorf("%T: %v", given, err)
		}
	}
}

func TestDistinct(t *testing.T) {
	at := func(name, address string, keyed bool) box.Endpoint {
		return box.Endpoint{Name: name, Destination: &destination{address}, Keyed: keyed}
	}
	err := box.Distinct(at("a", "x", true), at("b", "y", true), at("c", "x", true), at("d", "x", true))
	if err == nil || strings.Count(err.Error(), "both send to x") != 2 || !strings.Contains(err.Error(), "destinations a and c both") {
		t.Errorf("error %v", err)
	}
	if err := box.Distinct(at("a", "x", true), at("b", "x", false), at("c", "", true), at("d", "", true), box.Endpoint{Keyed: true},
		box.Endpoint{Destination: (*destination)(nil), Keyed: true}); err != nil {
		t.Errorf("error %v", err)
	}
}
