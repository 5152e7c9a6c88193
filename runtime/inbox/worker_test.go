package inbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/memstore"
	"github.com/lanebox/lanebox/runtime/outbox"
)

type handlers = map[string]inbox.Handler[*memstore.Tx]

// captured is the type that the tests handle.
const captured = "payment.captured"

// effect writes something with the handler's transaction.
func effect(ctx context.Context, tx *memstore.Tx, m inbox.Raw) error {
	r := record("order.paid", "", string(m.Payload))
	r.Headers = event.OutgoingHeaders(ctx, nil)
	return tx.Append(ctx, []outbox.Record{r})
}

func TestWorkerHandlesInOrderAndInTheTransaction(t *testing.T) {
	inWorld(t, func(w *world) {
		var got []string
		type payment struct{ N int }
		decode := func(b []byte) (p payment, err error) { return p, json.Unmarshal(b, &p) }
		h := inbox.Decode(decode, func(ctx context.Context, tx *memstore.Tx, m inbox.Message[payment]) error {
			got = append(got, fmt.Sprintf("%s:%d", m.Raw.Topic, m.Event.N))
			return effect(ctx, tx, m.Raw)
		})
		for range 3 {
			w.receive(paymentSource, captured, "A")
		}
		stop := w.run(w.worker(handlers{captured: h}, nil))
		time.Sleep(5 * time.Second)
		stop()
		if want := []string{captured + ":1", captured + ":2", captured + ":3"}; !slices.Equal(got, want) {
			t.Errorf("handled %v, want %v", got, want)
		}
		effects := w.db.Waiting(warehouse)
		if len(effects) != 3 || w.counts(payments).Waiting != 0 {
			t.Fatalf("%d effects, %d messages left", len(effects), w.counts(payments).Waiting)
		}
		for _, m := range effects {
			if m.Headers[event.HeaderCausationID] == "" || m.Headers[event.HeaderCorrelationID] == "" {
				t.Errorf("what a handler publishes does not name its cause: %v", m.Headers)
			}
		}
	})
}

func TestWorkerSortsErrors(t *testing.T) {
	failure := errors.New("out of paper")
	tests := []struct {
		name     string
		err      error
		attempts int  // deliveries until the message is settled; 0: it still waits
		dead     bool // else completed
		reason   string
	}{
		{"duplicate", fmt.Errorf("payment 7: %w", inbox.ErrDuplicate), 1, false, ""},
		{"stale", inbox.ErrStale, 1, false, ""},
		{"conflict", fmt.Errorf("payment 7: %w", inbox.ErrConflict), 1, true, "permanent"},
		{"permanent", event.AsPermanent(failure), 1, true, "permanent"},
		{"anything else", failure, 3, true, "attempts"},
		{"gap", &inbox.GapError{Expected: 2, Got: 4}, 0, false, ""},
		{"back-pressure", event.AsBackPressure(failure, time.Second), 0, false, ""},
		{"unavailable", event.AsUnavailable(failure), 0, false, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				var mu sync.Mutex
				calls, discarded := map[string]int{}, 0
				h := func(ctx context.Context, tx *memstore.Tx, m inbox.Raw) error {
					mu.Lock()
					calls[m.Key]++
					mu.Unlock()
					if m.Key == "healthy" {
						return nil
					}
					return errors.Join(effect(ctx, tx, m), test.err)
				}
				w.receive(paymentSource, captured, "A")
				w.receive(paymentSource, captured, "healthy")
				stop := w.run(w.worker(handlers{captured: h}, func(c *inbox.WorkerConfig[*memstore.Tx]) {
					c.Discarded = func(inbox.Raw, error) { discarded++ }
				}))
				time.Sleep(10 * time.Minute)
				stop()
				if calls["healthy"] != 1 {
					t.Errorf("another aggregate was handled %d times", calls["healthy"])
				}
				if n := len(w.db.Waiting(warehouse)); n != 0 {
					t.Errorf("the refused handler left %d effects", n)
				}
				dead, waiting := w.dead(payments), w.counts(payments).Waiting
				if test.attempts == 0 {
					if waiting != 1 || len(dead) != 0 || calls["A"] <= 3 {
						t.Errorf("after %d calls %d messages wait and %d are dead; want more than 3 calls, and one waiting", calls["A"], waiting, len(dead))
					}
					return
				}
				if waiting != 0 || calls["A"] != test.attempts || len(dead) == 1 != test.dead {
					t.Fatalf("after %d calls %d messages wait and %d are dead", calls["A"], waiting, len(dead))
				}
				if !test.dead {
					if discarded != 1 {
						t.Errorf("%d messages count as discarded, want 1", discarded)
					}
					return
				}
				if !strings.Contains(dead[0].Reason, test.reason) || !strings.Contains(dead[0].Error, test.err.Error()) {
					t.Errorf("dead with reason %q, error %q", dead[0].Reason, dead[0].Error)
				}
			})
		})
	}
}

func TestWorkerHandsOtherTypesToOther(t *testing.T) {
	inWorld(t, func(w *world) {
		var got []string
		note := func(name string) inbox.Handler[*memstore.Tx] {
			return func(_ context.Context, _ *memstore.Tx, m inbox.Raw) error {
				got = append(got, name+" "+m.Topic)
				return nil
			}
		}
		w.receive(paymentSource, "payment.unknown", "A")
		w.receive(paymentSource, captured, "A")
		stop := w.run(w.worker(handlers{captured: note("own"), inbox.OtherTypes: note("other")}, nil))
		time.Sleep(5 * time.Second)
		stop()
		if want := []string{"other payment.unknown", "own " + captured}; !slices.Equal(got, want) {
			t.Errorf("handled %v, want %v", got, want)
		}
	})
}

func TestWorkerEndsAGapInTime(t *testing.T) {
	inWorld(t, func(w *world) {
		w.receive(paymentSource, captured, "A")
		h := func(context.Context, *memstore.Tx, inbox.Raw) error { return &inbox.GapError{Expected: 1, Got: 3} }
		stop := w.run(w.worker(handlers{captured: h}, func(c *inbox.WorkerConfig[*memstore.Tx]) { c.GapTimeout = time.Minute }))
		time.Sleep(50 * time.Second)
		if n := len(w.dead(payments)); n != 0 {
			t.Fatal("a gap died before its time")
		}
		time.Sleep(30 * time.Second)
		stop()
		if dead := w.dead(payments); len(dead) != 1 || !strings.Contains(dead[0].Error, "expected version 1, got 3") {
			t.Errorf("after the gap's time: %+v", dead)
		}
	})
}

func TestWorkerSurvivesPanics(t *testing.T) {
	inWorld(t, func(w *world) {
		w.receive(paymentSource, captured, "A")
		calls := 0
		h := func(ctx context.Context, tx *memstore.Tx, m inbox.Raw) error {
			if calls++; calls == 1 {
				w.check(effect(ctx, tx, m))
				panic("no paper")
			}
			return nil
		}
		stop := w.run(w.worker(handlers{captured: h}, nil))
		time.Sleep(10 * time.Second)
		stop()
		if calls != 2 || w.counts(payments).Waiting != 0 || len(w.dead(payments)) != 0 || len(w.db.Waiting(warehouse)) != 0 {
			t.Errorf("%d calls, %+v, %d effects", calls, w.counts(payments), len(w.db.Waiting(warehouse)))
		}
	})
}

func TestWorkerBuriesWhatItCannotRead(t *testing.T) {
	inWorld(t, func(w *world) {
		decode := func(b []byte) (n int, err error) { return n, json.Unmarshal(b, &n) }
		h := inbox.Decode(decode, func(context.Context, *memstore.Tx, inbox.Message[int]) error { return nil })
		w.receive(paymentSource, captured, "A", "not a number")
		w.receive(paymentSource, "payment.unknown", "A")
		w.receive(paymentSource, captured, "A", "7")
		stop := w.run(w.worker(handlers{captured: h}, nil))
		time.Sleep(10 * time.Second)
		stop()
		dead := w.dead(payments)
		if len(dead) != 2 || w.counts(payments).Waiting != 0 {
			t.Fatalf("%d dead letters, %d waiting", len(dead), w.counts(payments).Waiting)
		}
		for i, mention := range []string{"decode payment.captured", `no handler for "payment.unknown"`} {
			if dead[i].Attempts != 1 || !strings.Contains(dead[i].Error, mention) {
				t.Errorf("dead after %d attempts with %q, want %q", dead[i].Attempts, dead[i].Error, mention)
			}
		}
	})
}

func TestWorkerRunsAnAbandonedTransactionAgain(t *testing.T) {
	inWorld(t, func(w *world) {
		w.receive(paymentSource, captured, "A")
		calls := 0
		h := func(ctx context.Context, tx *memstore.Tx, m inbox.Raw) error {
			if calls++; calls < 3 {
				return &event.RetryableError{Op: "update", Err: errors.New("serialisation failure")}
			}
			if m.Attempt > 1 {
				t.Errorf("the database's failures spent %d attempts", m.Attempt-1)
			}
			return nil
		}
		stop := w.run(w.worker(handlers{captured: h}, nil))
		time.Sleep(10 * time.Second)
		stop()
		if calls != 3 || w.counts(payments).Waiting != 0 {
			t.Errorf("%d calls, %d messages left", calls, w.counts(payments).Waiting)
		}
	})
}

func TestWorkerSpendsNoAttemptOnTheDatabase(t *testing.T) {
	inWorld(t, func(w *world) {
		w.receive(paymentSource, captured, "A")
		calls := 0
		h := func(_ context.Context, _ *memstore.Tx, m inbox.Raw) error {
			calls++
			return nil
		}
		w.db.FailNext(memstore.OpHandle, 10, errors.New("no connection"))
		stop := w.run(w.worker(handlers{captured: h}, nil))
		time.Sleep(10 * time.Minute)
		stop()
		if calls != 1 || w.counts(payments).Waiting != 0 || len(w.dead(payments)) != 0 {
			t.Errorf("%d calls, %+v", calls, w.counts(payments))
		}
	})
}

// A commit whose answer is lost took effect once, whatever the worker believes.
func TestWorkerSurvivesALostAnswer(t *testing.T) {
	inWorld(t, func(w *world) {
		w.receive(paymentSource, captured, "A")
		later := w.receive(paymentSource, captured, "A")
		var handled []string
		h := func(ctx context.Context, tx *memstore.Tx, m inbox.Raw) error {
			handled = append(handled, string(m.Payload))
			return effect(ctx, tx, m)
		}
		w.db.LoseNextAnswer(memstore.OpHandle, errors.New("connection reset"))
		stop := w.run(w.worker(handlers{captured: h}, nil))
		time.Sleep(time.Minute)
		stop()
		if len(handled) != 2 || handled[1] != later || len(w.db.Waiting(warehouse)) != 2 || len(w.dead(payments)) != 0 {
			t.Errorf("handled %v with %d effects and %d dead", handled, len(w.db.Waiting(warehouse)), len(w.dead(payments)))
		}
	})
}

func TestWorkerDropsWhatAnOperatorRemoved(t *testing.T) {
	inWorld(t, func(w *world) {
		w.receive(paymentSource, captured, "A")
		later := w.receive(paymentSource, captured, "A")
		entered, leave := make(chan struct{}), make(chan struct{})
		calls := 0
		h := func(ctx context.Context, tx *memstore.Tx, m inbox.Raw) error {
			if calls++; calls == 1 {
				close(entered)
				<-leave
			} else if string(m.Payload) != later {
				t.Errorf("handled %s again", m.Payload)
			}
			return effect(ctx, tx, m)
		}
		stop := w.run(w.worker(handlers{captured: h}, nil))
		<-entered
		w.check(w.db.Remove(w.ctx, payments, w.db.Waiting(payments)[0].ID))
		close(leave)
		time.Sleep(time.Minute)
		stop()
		if n := len(w.db.Waiting(warehouse)); calls != 2 || n != 1 {
			t.Errorf("%d calls left %d effects, want 2 calls and the effect of the second", calls, n)
		}
	})
}

func TestLoopsNeedTheirParts(t *testing.T) {
	inWorld(t, func(w *world) {
		worker := inbox.NewWorker(inbox.WorkerConfig[*memstore.Tx]{Name: "payments", Scope: payments, Store: w.db.Inbox(payments)})
		relay := inbox.NewRelay(inbox.RelayConfig[*memstore.Tx]{Scope: push, Store: w.db.Inbox(push)})
		if err := w.refuses(worker); !strings.Contains(err.Error(), "payments") {
			t.Errorf("a worker without transactions: %v", err)
		}
		if err := w.refuses(relay); !strings.Contains(err.Error(), "relay") {
			t.Errorf("a relay without transactions: %v", err)
		}
		synctest.Wait()
	})
}
