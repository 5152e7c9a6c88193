package box_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lanebox/lanebox/runtime/box"
	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
)

// A journal is what happened, in order.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) add(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, fmt.Sprintf(format, args...))
}

// expect compares the journal with lines.
func (j *journal) expect(t *testing.T, lines ...string) {
	t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	if !slices.Equal(j.lines, lines) {
		t.Errorf("happened\n%q\nwant\n%q", j.lines, lines)
	}
}

// A slowStore takes a second for each transaction and says what it stored.
type slowStore struct {
	inbox.ReceiveStore
	j *journal
}

func (s slowStore) Receive(ctx context.Context, _ inbox.SourceRef, list []inbox.Incoming) ([]inbox.Disposition, error) {
	select {
	case <-time.After(time.Second):
	case <-ctx.Done():
		s.j.add("rolled back")
		return nil, ctx.Err()
	}
	s.j.add("stored %s", list[0].IdempotencyKey)
	return []inbox.Disposition{inbox.Stored}, nil
}

// A broker delivers messages 1, 2, 3 … and acknowledges what was stored. As every
// source has to, it finishes the transaction in hand when its context ends.
type broker struct{ j *journal }

func (b broker) Run(ctx context.Context, r *inbox.Receiver) error {
	for n := 1; ctx.Err() == nil; n++ {
		m := inbox.Incoming{IdempotencyKey: fmt.Sprint(n), EventType: "t"}
		if _, err := r.ReceiveAll(context.WithoutCancel(ctx), m); err == nil {
			b.j.add("acknowledged %d", n)
		}
	}
	b.j.add("source ended")
	return nil
}

// A drain is a process that says when it drains.
type drain struct{ j *journal }

func (d drain) Run(ctx context.Context) error {
	<-ctx.Done()
	d.j.add("process drains")
	return nil
}
func (drain) Nudge() {}

// runFunc is a source.
type runFunc func(ctx context.Context) error

func (f runFunc) Run(ctx context.Context, _ *inbox.Receiver) error { return f(ctx) }

// until runs until its context ends.
func until(ctx context.Context) error { <-ctx.Done(); return nil }

func receiver(j *journal) *inbox.Receiver {
	return inbox.NewReceiver(inbox.ReceiverConfig{Store: slowStore{j: j}, PurgeEvery: 1000 * time.Hour})
}

// A shutdown in the middle of a transaction: it is finished and acknowledged,
// nothing else is, and only then the process drains.
func TestFeedsFinishBeforeTheProcessDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journal{}
		r := receiver(j)
		b := box.New(box.Config{Process: drain{j}, Running: &box.Running{}, Receivers: []*inbox.Receiver{r},
			Feeds: []box.Feed{{Name: "orders", Source: broker{j}, Receiver: r}}})
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		if err := b.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
		j.expect(t, "stored 1", "acknowledged 1", "stored 2", "acknowledged 2", "source ended", "process drains")
	})
}

// A source that cannot run, for example on a wrong topology, ends the box with
// its error, in the same order.
func TestFailedFeedEndsTheBox(t *testing.T) {
	for name, c := range map[string]struct {
		run  runFunc
		want string
	}{
		"error": {func(context.Context) error {
			return &event.ConfigurationError{Reason: "queue orders has no single active consumer"}
		}, "source bad: "},
		"nil": {func(context.Context) error { return nil }, "source bad: ended by itself"},
	} {
		synctest.Test(t, func(t *testing.T) {
			j := &journal{}
			r := receiver(j)
			late := func(ctx context.Context) error {
				time.Sleep(time.Minute) // the bubble's clock
				return c.run(ctx)
			}
			b := box.New(box.Config{Process: drain{j}, Running: &box.Running{}, Feeds: []box.Feed{
				{Name: "good", Source: broker{j}, Receiver: r}, {Name: "bad", Source: runFunc(late), Receiver: r}}})
			err := b.Run(t.Context())
			var wrong *event.ConfigurationError
			if err == nil || len(err.Error()) < len(c.want) || err.Error()[:len(c.want)] != c.want || errors.As(err, &wrong) != (name == "error") {
				t.Errorf("%s: %v", name, err)
			}
			if last := j.lines[len(j.lines)-2:]; !slices.Equal(last, []string{"source ended", "process drains"}) {
				t.Errorf("%s: the end was %q", name, last)
			}
		})
	}
}

// A source that does not end keeps the process from draining for half the grace
// time, no longer.
func TestStuckFeedDoesNotBlockTheDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journal{}
		stuck, free := context.WithCancel(context.Background())
		defer free()
		b := box.New(box.Config{Process: drain{j}, Running: &box.Running{}, Grace: 8 * time.Second, Feeds: []box.Feed{
			{Name: "orders", Source: runFunc(until)},
			{Name: "payments", Source: runFunc(func(context.Context) error { return until(stuck) })}}})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		start := time.Now()
		err := b.Run(ctx)
		if err == nil || err.Error() != "not ended within 4s: source payments" || time.Since(start) != 4*time.Second {
			t.Errorf("after %s: %v", time.Since(start), err)
		}
		j.expect(t, "process drains")
	})
}

// A source may also say that its context ended.
func TestFeedMayReturnTheErrorOfItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := runFunc(func(ctx context.Context) error { <-ctx.Done(); return fmt.Errorf("consume: %w", ctx.Err()) })
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		b := box.New(box.Config{Process: drain{&journal{}}, Running: &box.Running{}, Feeds: []box.Feed{{Name: "orders", Source: ended}}})
		if err := b.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// A panic of a source ends the box as an error does: the process drains.
func TestPanicOfAFeedEndsTheBox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journal{}
		bad := runFunc(func(context.Context) error { panic("no such message") })
		b := box.New(box.Config{Process: drain{j}, Running: &box.Running{}, Feeds: []box.Feed{
			{Name: "bad", Source: bad}, {Name: "good", Source: runFunc(until)}}})
		err := b.Run(t.Context())
		if err == nil || !strings.HasPrefix(err.Error(), "source bad: panic: no such message") || !strings.Contains(err.Error(), "feed_test.go") {
			t.Errorf("Run: %v", err)
		}
		j.expect(t, "process drains")
	})
}

// A box runs once: a second run would run its sources a second time.
func TestBoxRunsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runs := 0
		counting := runFunc(func(ctx context.Context) error { runs++; <-ctx.Done(); return nil })
		var failing error = errors.New("the database is away")
		p := &process{}
		var running box.Running
		b := box.New(box.Config{Process: p, Running: &running, Start: func(context.Context) error { return failing },
			Feeds: []box.Feed{{Name: "orders", Source: counting}}})
		if err := b.Run(t.Context()); !errors.Is(err, failing) {
			t.Errorf("Run: %v", err)
		}
		failing = nil // a check that failed may be made again
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- b.Run(ctx) }()
		synctest.Wait()
		if err := b.Run(t.Context()); err == nil || err.Error() != "the box was run before" {
			t.Errorf("the second Run: %v", err)
		}
		if running.Nudge(); p.nudges != 1 {
			t.Error("the second Run took the process off the list")
		}
		cancel()
		if err := <-ended; err != nil || runs != 1 {
			t.Errorf("Run: %v; the source ran %d times", err, runs)
		}
	})
}

// broken is a process that cannot run.
type broken struct{ process }

func (*broken) Run(context.Context) error { return errors.New("started before") }

// Without a process that takes messages on, nothing is received either.
func TestBrokenProcessEndsTheFeeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := box.New(box.Config{Process: &broken{}, Running: &box.Running{}, Feeds: []box.Feed{{Name: "orders", Source: runFunc(until)}}})
		if err := b.Run(t.Context()); err == nil || err.Error() != "started before" {
			t.Errorf("Run: %v", err)
		}
	})
}
