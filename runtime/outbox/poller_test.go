package outbox_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lanebox/lanebox/runtime/engine"
	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/memstore"
	"github.com/lanebox/lanebox/runtime/ordertest"
	"github.com/lanebox/lanebox/runtime/outbox"
	"github.com/lanebox/lanebox/runtime/schedule"
)

// A recorder is a destination that notes what it was handed.
type recorder struct {
	mu    sync.Mutex
	runs  [][]event.Message
	limit int
	fail  func(run []event.Message) (int, error)
}

func (r *recorder) Send(ctx context.Context, m event.Message) error {
	_, err := r.SendRun(ctx, []event.Message{m})
	return err
}

func (r *recorder) SendRun(_ context.Context, run []event.Message) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.runs = append(r.runs, run)
	if r.fail != nil {
		return r.fail(run)
	}
	return len(run), nil
}

func (r *recorder) MaxRun() int { return r.limit }

// single hides SendRun.
type single struct{ r *recorder }

func (s single) Send(ctx context.Context, m event.Message) error { return s.r.Send(ctx, m) }

// deliver publishes n messages of one key and delivers all of them.
func deliver(t *testing.T, n int, d outbox.Destination, p schedule.Policy) []lane.DeadLetter {
	t.Helper()
	const scope lane.Scope = 5
	db, err := memstore.New(memstore.Config{
		Scopes: []memstore.Scope{{Number: scope, Name: "d"}},
		Routes: []memstore.Route{{Globs: []string{"*"}, To: []lane.Scope{scope}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	tx := db.Begin()
	for range n {
		if err := tx.Append(t.Context(), []outbox.Record{{ID: event.NewUUID(), Topic: "t", Key: "k", Payload: []byte("{}")}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	poller := outbox.NewPoller(outbox.PollerConfig{Name: "d", Scope: scope, Store: db.Outbox(scope), Destination: d, Policy: p})
	process, err := engine.NewProcess(engine.ProcessConfig{Keeper: db, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}, poller)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- process.Run(ctx) }()
	for range 100 {
		time.Sleep(100 * time.Millisecond)
		if len(db.Waiting(scope)) == 0 {
			break
		}
	}
	if left := len(db.Waiting(scope)); left > 0 {
		t.Errorf("%d messages still wait", left)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	dead, err := db.DeadLetters(t.Context(), scope)
	if err != nil {
		t.Fatal(err)
	}
	return dead
}

// lengths checks that the runs hold the messages in order and returns how long
// the longest was.
func (r *recorder) longest(t *testing.T) int {
	t.Helper()
	most, last := 0, int64(0)
	for _, run := range r.runs {
		most = max(most, len(run))
		for _, m := range run {
			if m.Sequence <= last {
				t.Errorf("sequence %d after %d", m.Sequence, last)
			}
			last = m.Sequence
		}
	}
	return most
}

func TestRunDestinationGetsRuns(t *testing.T) {
	for _, c := range []struct {
		name                string
		limit, policy, want int
	}{{"its own limit", 5, 0, 5}, {"a lower one", 5, 3, 3}, {"never more than its limit", 5, 50, 5}, {"a limit that makes no sense", 0, 7, 1}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &recorder{limit: c.limit}
				deliver(t, 40, r, schedule.Policy{MaxRun: c.policy})
				if got := r.longest(t); got != c.want {
					t.Errorf("runs of up to %d, want %d", got, c.want)
				}
			})
		})
	}
}

func TestPlainDestinationGetsOneMessageAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{limit: 5}
		deliver(t, 40, single{r}, schedule.Policy{MaxRun: 10})
		if got := r.longest(t); got != 1 || len(r.runs) != 40 {
			t.Errorf("%d runs of up to %d", len(r.runs), got)
		}
	})
}

// TestARunFailsAtItsFirstFailure: what was accepted is not sent again, what is
// behind the failure waits, and the message to blame is charged.
func TestARunFailsAtItsFirstFailure(t *testing.T) {
	for name, answer := range map[string]error{"with a reason": errors.New("no"), "without": nil} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				check := ordertest.New()
				var third event.UUID
				r := &recorder{limit: 5}
				r.fail = func(run []event.Message) (int, error) {
					end := check.Begin("p", run...)
					for i, m := range run {
						if len(r.runs) == 1 && i == 2 {
							third = m.ID
						}
						if m.ID == third {
							end(i)
							return i, answer
						}
					}
					end(len(run))
					return len(run), nil
				}
				dead := deliver(t, 12, r, schedule.Policy{MaxAttempts: 2, RetryBase: 10 * time.Millisecond})
				if len(dead) != 1 || dead[0].Message.ID != third || dead[0].Attempts != 2 {
					t.Fatalf("dead letters %+v", dead)
				}
				check.Died(third)
				report := check.Report()
				if report.Delivered != 11 || report.Repeats != 0 || len(report.Inversions)+len(report.Overlaps) != 0 {
					t.Errorf("%+v", report)
				}
			})
		})
	}
}

func TestAPollerNeedsADestination(t *testing.T) {
	poller := outbox.NewPoller(outbox.PollerConfig{Name: "d", Scope: 5, Store: mustDB(t).Outbox(5)})
	if _, err := engine.NewProcess(engine.ProcessConfig{Keeper: mustDB(t)}, poller); err == nil {
		t.Error("a poller without destination was accepted")
	}
}

func mustDB(t *testing.T) *memstore.DB {
	t.Helper()
	db, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return db
}
