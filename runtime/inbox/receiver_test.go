package inbox_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/memstore"
)

func (w *world) receiver(change func(*inbox.ReceiverConfig)) *inbox.Receiver {
	c := inbox.ReceiverConfig{
		Source: orderSource, Store: w.db, Logger: quiet,
		Accept: func(eventType string) bool { return event.MatchTopic("order.*", eventType) },
	}
	if change != nil {
		change(&c)
	}
	return inbox.NewReceiver(c)
}

func TestReceiverRefuses(t *testing.T) {
	good := inbox.Incoming{IdempotencyKey: "id", EventType: "order.placed", AggregateID: "A", Payload: []byte("{}")}
	long := strings.Repeat("x", 256)
	tests := []struct {
		name    string
		change  func(*inbox.Incoming)
		reason  error
		mention string
	}{
		{"unrouted type", func(m *inbox.Incoming) { m.EventType = "mail.sent" }, inbox.ErrUnroutable, "mail.sent"},
		{"no type", func(m *inbox.Incoming) { m.EventType = "" }, inbox.ErrBadKey, "event type"},
		{"no idempotency key", func(m *inbox.Incoming) { m.IdempotencyKey = "" }, inbox.ErrBadKey, "idempotency"},
		{"long idempotency key", func(m *inbox.Incoming) { m.IdempotencyKey = long }, inbox.ErrBadKey, "256"},
		{"missing aggregate", func(m *inbox.Incoming) { m.AggregateID = "" }, inbox.ErrAggregateMissing, "aggregate"},
		{"long aggregate", func(m *inbox.Incoming) { m.AggregateID = long }, inbox.ErrBadKey, "255"},
		{"aggregate with a zero byte", func(m *inbox.Incoming) { m.AggregateID = "a\x00" }, inbox.ErrBadKey, "U+0000"},
		{"aggregate that is no UTF-8", func(m *inbox.Incoming) { m.AggregateID = "\xff" }, inbox.ErrBadKey, "UTF-8"},
		{"body too large", func(m *inbox.Incoming) { m.Payload = make([]byte, 65) }, inbox.ErrOversize, "65 bytes; the limit is 64"},
		{"header that is no UTF-8", func(m *inbox.Incoming) { m.Headers = event.Headers{"x": "\xff"} }, inbox.ErrBadHeader, `"x"`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				r := w.receiver(func(c *inbox.ReceiverConfig) { c.RequireAggregate, c.MaxBytes = true, 64 })
				bad := good
				test.change(&bad)
				_, err := r.Receive(w.ctx, good, bad)
				var refused *inbox.RefusedError
				if !errors.As(err, &refused) || !errors.Is(err, test.reason) {
					t.Fatalf("got %v, want a RefusedError with %v", err, test.reason)
				}
				if refused.Index != 1 || refused.Source != "orders" || !strings.Contains(err.Error(), test.mention) {
					t.Errorf("the error %q with index %d does not mention %q", err, refused.Index, test.mention)
				}
				if n := w.counts(push).Waiting; n != 0 {
					t.Errorf("%d messages of the refused call were stored", n)
				}
				if _, err := r.Receive(w.ctx, good); err != nil {
					t.Errorf("the good message alone was refused: %v", err)
				}
			})
		})
	}
}

func TestReceiverTakesMessagesWithoutAggregate(t *testing.T) {
	inWorld(t, func(w *world) {
		got, err := w.receiver(nil).Receive(w.ctx, inbox.Incoming{IdempotencyKey: "id", EventType: "order.placed"})
		if err != nil || got[0] != inbox.Stored {
			t.Fatalf("got %v, %v", got, err)
		}
	})
}

func TestReceiverRunsAnAbandonedTransactionAgain(t *testing.T) {
	inWorld(t, func(w *world) {
		m := inbox.Incoming{IdempotencyKey: "id", EventType: "order.placed", Payload: []byte("{}")}
		deadlock := &event.RetryableError{Op: "receive", Err: errors.New("deadlock")}
		w.db.FailNext(memstore.OpReceive, 3, deadlock)
		if got, err := w.receiver(nil).Receive(w.ctx, m); err != nil || got[0] != inbox.Stored {
			t.Fatalf("after three deadlocks: %v, %v", got, err)
		}
		w.db.FailNext(memstore.OpReceive, 100, deadlock)
		if _, err := w.receiver(nil).Receive(w.ctx, m); !errors.Is(err, deadlock) {
			t.Errorf("after deadlocks without end: %v", err)
		}
	})
}

func TestReceiverAnswersALostAnswerWithDuplicate(t *testing.T) {
	inWorld(t, func(w *world) {
		m := inbox.Incoming{IdempotencyKey: "id", EventType: "order.placed", Payload: []byte("{}")}
		w.db.LoseNextAnswer(memstore.OpReceive, errors.New("connection reset"))
		_, err := w.receiver(nil).Receive(w.ctx, m)
		var refused *inbox.RefusedError
		if err == nil || errors.As(err, &refused) {
			t.Fatalf("a lost answer gave %v", err)
		}
		if got, err := w.receiver(nil).Receive(w.ctx, m); err != nil || got[0] != inbox.Duplicate {
			t.Errorf("the same message again gave %v, %v", got, err)
		}
	})
}

func TestReceiverBoundsTheStore(t *testing.T) {
	inWorld(t, func(w *world) {
		w.db.StallNext(memstore.OpReceive)
		r := w.receiver(func(c *inbox.ReceiverConfig) { c.Timeout = 3 * time.Second })
		began := time.Now()
		_, err := r.Receive(w.ctx, inbox.Incoming{IdempotencyKey: "id", EventType: "order.placed"})
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 3*time.Second {
			t.Errorf("a stalled store gave %v after %v", err, time.Since(began))
		}
	})
}

func TestReceiverForgetsOldReceipts(t *testing.T) {
	inWorld(t, func(w *world) {
		r := w.receiver(func(c *inbox.ReceiverConfig) {
			c.Source, c.Accept = paymentSource, nil
			c.Retention, c.PurgeEvery, c.PurgeBatch = time.Hour, 10*time.Minute, 2
		})
		var messages []inbox.Incoming
		for _, id := range []string{"a", "b", "c", "d", "e"} {
			messages = append(messages, inbox.Incoming{IdempotencyKey: id, EventType: "x", Payload: []byte(id)})
		}
		_, err := r.Receive(w.ctx, messages...)
		w.check(err)
		ctx, cancel := context.WithCancel(w.ctx)
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		received := func(wanted inbox.Disposition) {
			t.Helper()
			got, err := r.Receive(w.ctx, messages...)
			w.check(err)
			for i, d := range got {
				if d != wanted {
					t.Errorf("message %d was received as %v, want %v", i, d, wanted)
				}
			}
		}
		// The first purge fails; the background goes on.
		w.db.FailNext(memstore.OpPurge, 1, errors.New("no connection"))
		time.Sleep(2 * time.Hour)
		received(inbox.Duplicate) // their messages wait

		handle := func(context.Context, *memstore.Tx, inbox.Raw) error { return nil }
		stop := w.run(w.worker(map[string]inbox.Handler[*memstore.Tx]{"x": handle}, nil))
		time.Sleep(5 * time.Second)
		if n := w.counts(payments).Waiting; n != 0 {
			t.Fatalf("%d messages were not handled", n)
		}
		stop()
		time.Sleep(45 * time.Minute)
		received(inbox.Duplicate) // they were older than the retention when their messages went
		time.Sleep(time.Hour)
		received(inbox.Stored) // the receipts are forgotten, all five in one go
		cancel()
		synctest.Wait()
		if err := <-ended; err != nil {
			t.Errorf("the background ended with %v", err)
		}
	})
}
