package storetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/outbox"
)

// A ledger is what the destinations know, kept apart from the store: who holds
// which key, what came first, and how often.
type ledger struct {
	mu      sync.Mutex
	holders map[string]string   // by key
	first   map[string][]string // by key
	times   map[string]int      // by payload
	faults  []error
}

func newLedger() *ledger {
	return &ledger{holders: map[string]string{}, first: map[string][]string{}, times: map[string]int{}}
}

// claim notes that owner has fetched rows: until it lets them go nobody else
// may fetch anything of their keys.
func (l *ledger) claim(owner string, rows []lane.Row) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range rows {
		if other := l.holders[r.Message.Key]; r.Message.Key != "" && other != "" && other != owner {
			l.faults = append(l.faults, fmt.Errorf("%s fetched key %s while %s held it", owner, r.Message.Key, other))
		}
		l.holders[r.Message.Key] = owner
	}
}

func (l *ledger) letGo(rows []lane.Row) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range rows {
		delete(l.holders, r.Message.Key)
	}
}

// deliver notes a delivery that the destination accepted.
func (l *ledger) deliver(m event.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.times[string(m.Payload)]++; l.times[string(m.Payload)] == 1 {
		l.first[m.Key] = append(l.first[m.Key], string(m.Payload))
	}
}

// hammer lets writers and claimers loose on one destination: claimers refuse
// messages, die in the middle of a page, and settle long after they were
// replaced. The ledger judges.
func hammer[Tx any](e *env[Tx]) {
	writers, perWriter, claimers := 4, 60, 3
	if e.features.Short {
		perWriter = 15
	}
	var j journal
	book := newLedger()
	var writing atomic.Int64
	writing.Store(int64(writers))
	var repeats atomic.Int64
	parallel(e, writers+claimers, func(i int) error {
		random := rand.New(rand.NewPCG(uint64(i), 3))
		if i < writers {
			defer writing.Add(-1)
			return e.hammerWriter(&j, random, perWriter)
		}
		for life := 0; ; life++ {
			c := &hammerer[Tx]{owner: e.owner(fmt.Sprintf("c%d-%d", i, life), Warehouse), random: random, book: book, repeats: &repeats}
			done, err := c.live(func() bool { return writing.Load() == 0 })
			if done || err != nil {
				return err
			}
		}
	})
	e.check(errors.Join(book.faults...))
	total, delivered := 0, 0
	for key, sent := range j.entries {
		total += len(sent)
		got := book.first[key]
		if key == "" {
			slices.Sort(got)
			slices.Sort(sent)
		}
		want(e, "first deliveries of key "+key, got, sent)
	}
	for _, n := range book.times {
		delivered += n
	}
	if over := int64(delivered - total); over > repeats.Load() {
		e.Errorf("%d repeats; only %d messages were unsettled when a claimer died", over, repeats.Load())
	}
	if rows := e.claimer("after", Warehouse).pass(); len(rows) > 0 {
		e.Errorf("left over: %s", payloads(rows))
	}
}

// hammerWriter publishes on few keys, by both writers, and rolls back at times.
func (e *env[Tx]) hammerWriter(j *journal, random *rand.Rand, n int) error {
	rollback := errors.New("rolled back on purpose")
	for range n {
		key := []string{"hot", "hot", "a", "b", "c", "d", "e", "f", "g", ""}[random.IntN(10)]
		records := []outbox.Record{e.record(returned, key), e.record(returned, key)}
		plain, undo := random.IntN(3) == 0, random.IntN(8) == 0
		err := e.transact(func(tx Tx) error {
			if !plain {
				if err := e.Appender(tx).Append(e.ctx, records); err != nil {
					return err
				}
			}
			for _, r := range records {
				if plain {
					if err := e.Insert(e.ctx, tx, r.Topic, &r.Key, string(r.Payload)); err != nil {
						return err
					}
				}
				if !undo {
					j.add(r)
				}
			}
			if undo {
				return rollback
			}
			return nil
		})
		if err != nil && !errors.Is(err, rollback) {
			return err
		}
	}
	return nil
}

// hammerer is one life of a claimer.
type hammerer[Tx any] struct {
	*owner[Tx]
	random  *rand.Rand
	book    *ledger
	repeats *atomic.Int64
}

// live claims and delivers until nothing is left after the last write (true),
// or until it dies (false).
func (h *hammerer[Tx]) live(written func() bool) (bool, error) {
	e := h.e
	h.params.MaxRun, h.params.MaxRows = 1+h.random.IntN(6), 5+h.random.IntN(60)
	for {
		last := written()
		leases, err := h.store.Acquire(e.ctx, lane.AcquireParams{Owner: h.name, MaxFree: 1 + e.features.Buckets/2, TTL: long})
		if err != nil {
			return false, err
		}
		h.leases = append(h.leases, leases...)
		if err := e.MakeDue(e.ctx, h.scope); err != nil {
			return false, err
		}
		rows, err := h.tryPass()
		if err != nil {
			return false, err
		}
		rows = due(rows)
		if last && len(rows) == 0 && len(leases) == 0 {
			return true, h.store.Release(e.ctx, h.name, h.leases)
		}
		h.book.claim(h.name, rows)
		if len(rows) > 0 && h.random.IntN(12) == 0 {
			return false, h.die(rows)
		}
		if err := h.deliver(rows, true); err != nil {
			return false, err
		}
		if h.random.IntN(6) == 0 { // hand everything over
			if err := h.store.Release(e.ctx, h.name, h.leases); err != nil {
				return false, err
			}
			h.leases = nil
		}
	}
}

// deliver hands rows to the ledger and settles them all, or fails to.
func (h *hammerer[Tx]) deliver(rows []lane.Row, settle bool) error {
	refused := map[int64]bool{} // lanes whose head was refused
	var done, retry []lane.Row
	for _, r := range rows {
		if refused[r.Lane] && r.Message.Key != "" {
			continue
		}
		if h.random.IntN(10) > 0 {
			h.book.deliver(r.Message)
			done = append(done, r)
		} else {
			refused[r.Lane] = true
			retry = append(retry, r)
		}
	}
	if !settle {
		h.repeats.Add(int64(len(done)))
		return nil
	}
	defer h.book.letGo(rows)
	for outcome, rows := range map[lane.Outcome][]lane.Row{lane.Done: done, lane.Retry: retry} {
		result, err := h.trySettle(outcome, nil, rows...)
		if err != nil {
			return err
		}
		if len(result.Fenced) > 0 || len(result.Gone) > 0 {
			return fmt.Errorf("a live owner's settlement answered %+v", result)
		}
	}
	return nil
}

// die delivers a part of a page and ends the leases. Sometimes the dead owner
// settles all the same, long after: what was taken over must not change.
func (h *hammerer[Tx]) die(rows []lane.Row) error {
	part := rows[:h.random.IntN(len(rows)+1)]
	if err := h.deliver(part, false); err != nil {
		return err
	}
	h.book.letGo(rows)
	if err := h.e.ExpireLeases(h.e.ctx, h.scope, h.name); err != nil {
		return err
	}
	if h.random.IntN(2) == 0 {
		heir := h.e.owner(h.name+"-heir", Warehouse)
		leases, err := heir.store.Acquire(h.e.ctx, lane.AcquireParams{Owner: heir.name, TTL: long})
		if err != nil {
			return err
		}
		// The heir and the other claimers have all buckets now: the dead owner is
		// fenced everywhere, with every row of the page.
		result, err := h.trySettle(lane.Dead, nil, rows...)
		if err != nil {
			return err
		}
		if len(result.Fenced) != len(h.leasesOf(rows)) {
			return fmt.Errorf("a dead owner settled: fenced %v of %v", result.Fenced, buckets(h.leasesOf(rows)))
		}
		return heir.store.Release(h.e.ctx, heir.name, leases)
	}
	return nil
}
