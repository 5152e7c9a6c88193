package main

import (
	"net/http"
	"strings"
	"sync"
	"time"
)

// steps are the topics of one order in the order in which they are committed.
var steps = []string{"order.placed.v1", "order.paid.v1", "order.packed.v1", "order.shipped.v1", "order.delivered.v1"}

// A Warehouse is the destination: an HTTP service that keeps a ledger of its
// own. It refuses one order for a while, and judges at the end.
type Warehouse struct {
	refuse   string        // the order that is refused
	patience time.Duration // for how long, counted from its first message

	mu       sync.Mutex
	since    time.Time           // when the refused order was first seen
	accepted map[string][]string // topics of each order, first deliveries only, as they came
	seen     map[string]bool     // message ids
	inFlight map[string]int
	overlaps int
	refused  int
	repeated int
	total    int
}

// NewWarehouse returns a warehouse that refuses an order for a while.
func NewWarehouse(refuse string, patience time.Duration) *Warehouse {
	return &Warehouse{refuse: refuse, patience: patience,
		accepted: map[string][]string{}, seen: map[string]bool{}, inFlight: map[string]int{}}
}

// ServeHTTP takes one message in CloudEvents binary mode.
func (w *Warehouse) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("ce-partitionkey")
	if !w.begin(key) {
		w.end(key)
		http.Error(rw, "stock locked", http.StatusConflict)
		return
	}
	time.Sleep(5 * time.Millisecond) // the work
	w.accept(key, r.Header.Get("ce-type"), r.Header.Get("ce-id"))
	w.end(key)
	rw.WriteHeader(http.StatusNoContent)
}

// begin notes that a message of key is in flight and reports whether it is taken.
func (w *Warehouse) begin(key string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inFlight[key]++
	if w.inFlight[key] > 1 {
		w.overlaps++
	}
	if key != w.refuse {
		return true
	}
	if w.since.IsZero() {
		w.since = time.Now()
	}
	if time.Since(w.since) < w.patience {
		w.refused++
		return false
	}
	return true
}

func (w *Warehouse) accept(key, topic, id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.seen[id] {
		w.repeated++
		return
	}
	w.seen[id] = true
	w.total++
	w.accepted[key] = append(w.accepted[key], topic)
}

func (w *Warehouse) end(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inFlight[key]--
}

// A Count is what the warehouse knows.
type Count struct {
	Delivered, Lanes, Refused, Repeated, OutOfOrder, Overlaps, InFlight int
	Held                                                                string // topics of the refused order that came through
}

// Count judges the ledger: each order's first deliveries must be its steps, in
// their order.
func (w *Warehouse) Count() Count {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := Count{Delivered: w.total, Lanes: len(w.accepted), Refused: w.refused, Repeated: w.repeated, Overlaps: w.overlaps}
	for _, topics := range w.accepted {
		for i, topic := range topics {
			if i >= len(steps) || topic != steps[i] {
				c.OutOfOrder++
			}
		}
	}
	for _, n := range w.inFlight {
		c.InFlight += n
	}
	c.Held = strings.Join(w.accepted[w.refuse], " ")
	return c
}
