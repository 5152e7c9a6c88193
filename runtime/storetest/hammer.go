package storetest

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/ordertest"
	"github.com/lanebox/lanebox/runtime/outbox"
)

// hammer lets writers and claimers loose on one destination: claimers refuse
// messages, die in the middle of a page, and settle long after they were
// replaced. Package ordertest judges.
func hammer[Tx any](e *env[Tx]) {
	writers, perWriter, claimers := 4, 60, 3
	if e.features.Short {
		perWriter = 15
	}
	check := ordertest.New()
	var writing, accepted, unsettled atomic.Int64
	writing.Store(int64(writers))
	parallel(e, writers+claimers, func(i int) error {
		random := rand.New(rand.NewPCG(uint64(i), 3))
		if i < writers {
			defer writing.Add(-1)
			return e.hammerWriter(check, random, perWriter)
		}
		for life := 0; ; life++ {
			h := &hammerer[Tx]{
				owner:  e.owner(fmt.Sprintf("c%d-%d", i, life), Warehouse),
				random: random, check: check, accepted: &accepted, unsettled: &unsettled,
			}
			done, err := h.live(func() bool { return writing.Load() == 0 })
			if done || err != nil {
				return err
			}
		}
	})
	report := check.Report()
	e.check(report.Err())
	if repeats := accepted.Load() - int64(report.Delivered); repeats != unsettled.Load() {
		e.Errorf("%d repeats; %d messages were unsettled when their claimer died", repeats, unsettled.Load())
	}
	if rows := e.claimer("after", Warehouse).pass(); len(rows) > 0 {
		e.Errorf("left over: %s", payloads(rows))
	}
}

// ledgerID gives a payload an identity that does not depend on who stored it: a
// plain writer does not choose ids.
func ledgerID(payload []byte) event.UUID {
	sum := sha256.Sum256(payload)
	return event.UUID(sum[:16])
}

// hammerWriter publishes on few keys, by both writers, and rolls back at times.
func (e *env[Tx]) hammerWriter(check *ordertest.Checker, random *rand.Rand, n int) error {
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
				if !undo { // the key is locked until the commit: this is its order
					check.Published(r.Key, ledgerID(r.Payload))
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
	random    *rand.Rand
	check     *ordertest.Checker
	accepted  *atomic.Int64 // deliveries that were accepted
	unsettled *atomic.Int64 // those of them that their claimer did not settle
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
		done, retry, end := h.deliver(rows)
		h.accepted.Add(int64(len(done)))
		if len(rows) > 0 && h.random.IntN(12) == 0 {
			h.unsettled.Add(int64(len(done)))
			end()
			return false, h.die(rows)
		}
		err = h.settleAll(done, retry)
		end()
		if err != nil {
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

// deliver hands rows over, a key's rows as one run, and refuses some. The rows
// are in flight until end is called.
func (h *hammerer[Tx]) deliver(rows []lane.Row) (done, retry []lane.Row, end func()) {
	// A lane that came by twice in one pass has more rows further behind.
	slices.SortStableFunc(rows, func(a, b lane.Row) int { return strings.Compare(a.Message.Key, b.Message.Key) })
	var ends []func()
	for len(rows) > 0 {
		n := 1
		for rows[0].Message.Key != "" && n < len(rows) && rows[n].Message.Key == rows[0].Message.Key {
			n++
		}
		var run []event.Message
		for _, r := range rows[:n] {
			m := r.Message
			m.ID = ledgerID(m.Payload)
			run = append(run, m)
		}
		landed, accepted := h.check.Begin(h.name, run...), 0
		for accepted < n && h.random.IntN(10) > 0 {
			accepted++
		}
		done = append(done, rows[:accepted]...)
		if accepted < n {
			retry = append(retry, rows[accepted])
		}
		ends = append(ends, func() { landed(accepted) })
		rows = rows[n:]
	}
	return done, retry, func() {
		for _, end := range ends {
			end()
		}
	}
}

// settleAll records what was delivered; a live owner is never fenced.
func (h *hammerer[Tx]) settleAll(done, retry []lane.Row) error {
	for outcome, rows := range map[lane.Outcome][]lane.Row{lane.Done: done, lane.Retry: retry} {
		if len(rows) == 0 {
			continue
		}
		result, err := h.trySettle(outcome, nil, rows...)
		if err != nil {
			return err
		}
		if len(result.Fenced) > 0 || len(result.Gone) > 0 {
			return fmt.Errorf("the settlement of a live owner answered %+v", result)
		}
	}
	return nil
}

// die ends the leases in the middle of a page. Sometimes the dead owner settles
// all the same, long after: what was taken over must not change.
func (h *hammerer[Tx]) die(rows []lane.Row) error {
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
