package rabbitmq

import (
	"cmp"
	"container/list"
	"log/slog"
	"slices"
	"strconv"
	"sync"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/transport/internal/tally"
)

// tracked is how many aggregates a source remembers; older ones are forgotten.
const tracked = 10_000

// A tracker watches the order of aggregates: it puts right what a redelivery
// brought out of order, as far as it can, and counts what it cannot. It is safe for
// concurrent use.
type tracker struct {
	stats *tally.Tally
	log   *slog.Logger

	mu     sync.Mutex
	byID   map[string]*list.Element
	recent list.List // of *aggregate, the latest first
}

// An aggregate is what is remembered of one.
type aggregate struct {
	id, queue string
	at        place
	wandered  bool
}

func newTracker(stats *tally.Tally, log *slog.Logger) *tracker {
	return &tracker{stats: stats, log: log, byID: map[string]*list.Element{}}
}

// A place is where a message stands among those of its aggregate. Places compare
// when their scales are equal.
type place struct {
	// scale is "version", or the publisher whose sequence it is; "" means that the
	// message does not tell.
	scale string
	n     int64
}

// placeOf returns the place that a message claims: its aggregate's version, or the
// sequence that its publisher gave it.
func placeOf(m inbox.Incoming) place {
	if m.Version > 0 {
		return place{scale: "version", n: m.Version}
	}
	n, err := strconv.ParseInt(m.Headers["ce-sequence"], 10, 64)
	if err != nil {
		return place{}
	}
	return place{scale: "sequence of " + m.Headers["ce-source"], n: n}
}

func isRedelivered(m inbox.Incoming) bool { return m.Headers[event.HeaderRedelivered] != "" }

// putRight sorts, among the messages of one aggregate and within the places that
// they have in the batch, those that a redelivery mixed up. Aggregates without a
// redelivered message are left alone: their order is the publisher's.
func (t *tracker) putRight(batch []inbox.Incoming) {
	if !slices.ContainsFunc(batch, isRedelivered) {
		return
	}
	indexes := map[string][]int{}
	for i, m := range batch {
		if m.AggregateID != "" && m.Dead == "" {
			indexes[m.AggregateID] = append(indexes[m.AggregateID], i)
		}
	}
	for _, at := range indexes {
		t.stats.Reordered.Add(int64(sortAt(batch, at)))
	}
}

// sortAt sorts the messages at some indexes by their places, when all of these
// compare. It returns how many messages changed their index.
func sortAt(batch []inbox.Incoming, at []int) int {
	group := make([]inbox.Incoming, len(at))
	redelivered, comparable := false, true
	for i, index := range at {
		group[i] = batch[index]
		redelivered = redelivered || isRedelivered(group[i])
		comparable = comparable && placeOf(group[i]).scale != "" && placeOf(group[i]).scale == placeOf(group[0]).scale
	}
	if !redelivered || !comparable {
		return 0
	}
	slices.SortStableFunc(group, func(a, b inbox.Incoming) int { return cmp.Compare(placeOf(a).n, placeOf(b).n) })
	moved := 0
	for i, index := range at {
		if batch[index].IdempotencyKey != group[i].IdempotencyKey {
			moved++
		}
		batch[index] = group[i]
	}
	return moved
}

// note remembers what was stored, and counts messages that came too late and
// aggregates that came from another queue.
func (t *tracker) note(queue string, batch []inbox.Incoming, dispositions []inbox.Disposition) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, m := range batch {
		if m.AggregateID != "" && dispositions[i] == inbox.Stored {
			t.noteOne(queue, m)
		}
	}
}

func (t *tracker) noteOne(queue string, m inbox.Incoming) {
	at := placeOf(m)
	e, known := t.byID[m.AggregateID]
	if !known {
		t.remember(&aggregate{id: m.AggregateID, queue: queue, at: at})
		return
	}
	t.recent.MoveToFront(e)
	a := e.Value.(*aggregate)
	if a.queue != queue && !a.wandered {
		a.wandered = true
		t.stats.Wandered.Add(1)
		t.log.Warn("an aggregate comes from two queues: its order is not kept", "key", a.id, "queue", queue, "before", a.queue)
	}
	switch {
	case at.scale == "":
	case at.scale != a.at.scale || at.n > a.at.n:
		a.at = at
	case at.n < a.at.n:
		t.stats.Disordered.Add(1)
		t.log.Warn("a message of an aggregate came behind a later one", "key", a.id, "queue", queue, at.scale, at.n, "stored", a.at.n)
	}
}

func (t *tracker) remember(a *aggregate) {
	t.byID[a.id] = t.recent.PushFront(a)
	if t.recent.Len() > tracked {
		oldest := t.recent.Remove(t.recent.Back()).(*aggregate)
		delete(t.byID, oldest.id)
	}
}
