//go:build !race

package main

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/lanebox/lanebox/examples/fulfilment/orders"
	"github.com/lanebox/lanebox/runtime/engine"
	"github.com/lanebox/lanebox/runtime/schedule"
)

// The broker is dead for a while. Orders are taken all the same; what is tried in
// the meantime spends no attempt, and when the broker is back everything arrives,
// in order and without a restart of either service.
func TestAnOutageOfTheBrokerSpendsNoAttempt(t *testing.T) {
	for i, broker := range killables {
		t.Run(broker.name, func(t *testing.T) {
			t.Parallel() // most of it is waiting for the broker
			b := broker.start(t)
			w := newWorld(t, b.carrier, broker.database(t), 0, 1, uint64(i+1))
			w.startReceiver(0)
			tries := &tries{}
			sender := w.startObserved(tries)
			defer sender.stop()
			place := func(from, to int) {
				t.Helper()
				for k := from; k < to; k++ {
					for n := range int64(3) {
						if err := w.commit(t.Context(), k, n+1); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			w.each = 3
			handled := func(n int) {
				t.Helper()
				eventually(t, fmt.Sprint(n, " handled messages"), func() bool { return count(t, w.stock, `SELECT count(*) FROM journal`) >= n })
			}
			place(0, 10)
			handled(30)

			b.kill()
			place(10, 11) // finds out that the broker is dead; its first try may have left
			eventually(t, "a try that spends nothing", func() bool { return tries.free(orderID(10)) > 0 })
			place(11, 40)
			before := tries.total()
			eventually(t, "tries during the outage", func() bool { return tries.total() >= before+10 })
			for k := 11; k < 40; k++ {
				if n := tries.spent(orderID(k)); n > 0 {
					t.Errorf("%d attempts of %s were spent: %v", n, orderID(k), tries.reason(orderID(k)))
				}
			}

			b.start(t)
			handled(120)
			if err := sender.stop(); err != nil {
				t.Error(err)
			}
			if err := w.receivers[0].stop(); err != nil {
				t.Error(err)
			}
			w.keys = 40
			w.judge(0)
		})
	}
}

// startObserved runs the order service in this process.
func (w *world) startObserved(tries *tries) *task {
	w.t.Helper()
	to, err := w.carrier.Carrier().Destination(quiet())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { to.Close() })
	s, err := orders.New(w.t.Context(), w.orders, orders.Config{Warehouse: to, Logger: quiet(), Observer: tries.observe, PollInterval: 100 * time.Millisecond})
	if err != nil {
		w.t.Fatal(err)
	}
	return start(w.t.Context(), s.Run)
}

// tries are the failed deliveries of a service.
type tries struct {
	mu   sync.Mutex
	list []schedule.Retried
}

func (t *tries) observe(e engine.Event) {
	if r, ok := e.Detail.(schedule.Retried); ok {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.list = append(t.list, r)
	}
}

func (t *tries) total() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.list)
}

// free and spent count the tries of a key.

func (t *tries) free(key string) int { return t.count(key, false) }

func (t *tries) spent(key string) int { return t.count(key, true) }

func (t *tries) count(key string, spent bool) (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.list {
		if r.Message.Key == key && r.Spent == spent {
			n++
		}
	}
	return n
}

// reason returns why an attempt of a key was spent.
func (t *tries) reason(key string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.list {
		if r.Message.Key == key && r.Spent {
			return r.Err
		}
	}
	return nil
}
