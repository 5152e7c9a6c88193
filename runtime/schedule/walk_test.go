package schedule_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/memstore"
	"github.com/lanebox/lanebox/runtime/ordertest"
	"github.com/lanebox/lanebox/runtime/outbox"
	"github.com/lanebox/lanebox/runtime/schedule"
)

const scope lane.Scope = 3

// TestRandomWalk lets machines loose on the memory store. Calls and deliveries
// take random times and come back in any order; they fail, their answers get
// lost, machines die and new ones come. After every step the bounds of the
// policy must hold, and in the end every message was delivered in order. It runs
// in one goroutine, so that a seed always gives the same walk.
func TestRandomWalk(t *testing.T) {
	seeds := uint64(60)
	if testing.Short() {
		seeds = 10
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { newWalk(t, seed).run() })
	}
}

// A walk is a world with one clock and a list of things to happen.
type walk struct {
	t       *testing.T
	random  *rand.Rand
	clock   *memstore.Clock
	db      *memstore.DB
	check   *ordertest.Checker
	policy  schedule.Policy
	faulty  bool
	later   []later
	workers []*worker
	names   int
}

type later struct {
	at time.Time
	do func()
}

// A worker is one machine and what it has under way.
type worker struct {
	name string
	m    *schedule.Machine
	// dead is a process that was killed, draining one that was told to stop.
	dead, draining, drained bool
	runs                    map[uint64]*flying
}

type flying struct {
	run      lane.Run
	end      func(int)
	canceled bool
}

func newWalk(t *testing.T, seed uint64) *walk {
	random := rand.New(rand.NewPCG(seed, 7))
	w := &walk{t: t, random: random, clock: memstore.NewClock(time.Unix(5000, 0)), check: ordertest.New()}
	w.policy = schedule.Policy{
		Concurrency: 1 + random.IntN(8), MaxUnsettled: 1 + random.IntN(20), MaxRun: 1 + random.IntN(3), SettleEach: random.IntN(3) == 0,
		Lease: 3 * time.Second, RetryBase: 50 * time.Millisecond, RetryCap: time.Second, MaxAttempts: 1000,
	}
	db, err := memstore.New(memstore.Config{
		Now:    w.clock.Now,
		Scopes: []memstore.Scope{{Number: scope, Name: "d", Buckets: 1 << random.IntN(4)}},
		Routes: []memstore.Route{{Globs: []string{"*"}, To: []lane.Scope{scope}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.db = db
	return w
}

func (w *walk) after(d time.Duration, do func()) {
	w.later = append(w.later, later{w.clock.Now().Add(d), do})
}

// soon returns a random time, now and then a long one.
func (w *walk) soon(most time.Duration) time.Duration {
	if w.faulty && w.random.IntN(30) == 0 {
		most *= 20
	}
	return time.Duration(w.random.Int64N(int64(most)))
}

func (w *walk) run() {
	w.faulty = true
	w.start()
	for range 25 {
		w.happen()
		w.pass(time.Duration(w.random.Int64N(int64(700 * time.Millisecond))))
	}
	w.faulty = false
	w.start()
	for range 400 {
		w.pass(500 * time.Millisecond)
		if len(w.db.Waiting(scope)) == 0 {
			break
		}
	}
	for _, x := range w.workers {
		if x.draining && !x.drained && !x.dead {
			w.t.Errorf("%s never ended its drain: %+v", x.name, x.m.Stats())
		}
	}
	if err := w.check.Report().Err(); err != nil {
		w.t.Errorf("policy %+v: %v", w.policy, err)
	}
}

// happen does one thing at random.
func (w *walk) happen() {
	for range w.random.IntN(25) {
		w.publish()
	}
	switch n := w.random.IntN(12); {
	case n == 0 && len(w.workers) < 8:
		w.start()
	case n == 1:
		x := w.workers[w.random.IntN(len(w.workers))]
		x.dead = true
		w.check.Killed(x.name)
	case n == 2:
		x := w.workers[w.random.IntN(len(w.workers))]
		x.draining = true
		w.step(x, schedule.Drain{})
		w.after(3*time.Second, func() { w.step(x, schedule.GiveUp{}) })
	}
}

func (w *walk) publish() {
	key := ""
	if k := w.random.IntN(9); k > 0 {
		key = fmt.Sprint("k", k)
	}
	id := event.UUID{15: 1}
	for i := range 8 {
		id[i] = byte(w.random.Uint32())
	}
	tx := w.db.Begin()
	err := tx.Append(context.Background(), []outbox.Record{{ID: id, Topic: "t", Key: key, Payload: []byte("{}")}})
	if err == nil {
		err = tx.Commit(context.Background())
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.check.Published(key, id)
}

func (w *walk) start() {
	w.names++
	x := &worker{name: fmt.Sprint("w", w.names), runs: map[uint64]*flying{}}
	x.m = schedule.New(schedule.Config{Owner: x.name, Policy: w.policy, Rand: rand.New(rand.NewPCG(uint64(w.names), 9))})
	w.workers = append(w.workers, x)
	w.keep(x)
}

// pass lets time pass, event by event.
func (w *walk) pass(d time.Duration) {
	end := w.clock.Now().Add(d)
	for {
		at, do := end, func() {}
		next := -1
		for i, l := range w.later {
			if l.at.Before(at) {
				at, next, do = l.at, i, l.do
			}
		}
		for _, x := range w.workers {
			if n := x.m.Next(); !x.dead && !x.drained && !n.IsZero() && n.Before(at) {
				at, next, do = n, -2, func() { w.step(x, schedule.Tick{}) }
			}
		}
		if wait := at.Sub(w.clock.Now()); wait > 0 {
			w.clock.Advance(wait)
		}
		if next == -1 {
			return
		}
		if next >= 0 {
			w.later = slices.Delete(w.later, next, next+1)
		}
		do()
	}
}

// keep is the keeper of one worker.
func (w *walk) keep(x *worker) {
	if x.dead || x.drained {
		return
	}
	leases := x.m.Leases()
	slices.SortFunc(leases, func(a, b lane.Lease) int { return cmp.Compare(a.Bucket, b.Bucket) })
	asked := w.clock.Now()
	w.after(700*time.Millisecond, func() { w.keep(x) })
	w.call(func() schedule.Input {
		kept, err := w.db.Keep(context.Background(), lane.KeepParams{Owner: x.name, TTL: w.policy.Lease, Scopes: []lane.ScopeLeases{{Scope: scope, Leases: leases}}})
		if err != nil {
			w.t.Fatal(err)
		}
		return schedule.Kept{Asked: asked, TTL: w.policy.Lease, Sent: leases, Answer: kept[0]}
	}, func(error) schedule.Input { return nil }, x)
}

var errWalk = errors.New("the database is away")

// call makes a database call: it arrives after a while and is answered after
// another one; one of the two may fail.
func (w *walk) call(do func() schedule.Input, failed func(error) schedule.Input, x *worker) {
	fate := 0
	if w.faulty {
		fate = w.random.IntN(12)
	}
	answer := func(in schedule.Input) {
		w.after(w.soon(20*time.Millisecond), func() {
			if in != nil {
				w.step(x, in)
			}
		})
	}
	w.after(w.soon(20*time.Millisecond), func() {
		if x.dead {
			return
		}
		if fate == 1 {
			answer(failed(errWalk))
			return
		}
		in := do()
		if fate == 2 { // done, but the answer is lost
			in = failed(errWalk)
		}
		answer(in)
	})
}

// step feeds one input and checks what comes of it.
func (w *walk) step(x *worker, in schedule.Input) {
	if x.dead || x.drained {
		return
	}
	now := w.clock.Now()
	effects := slices.Clone(x.m.Step(now, in))
	for _, e := range effects {
		w.perform(x, e)
	}
	if n := x.m.Next(); !n.IsZero() && !n.After(now) {
		w.t.Fatalf("Next does not lie ahead after %T", in)
	}
	s := x.m.Stats()
	if s.LanesInFlight > w.policy.Concurrency || s.MessagesInFlight+s.Unsettled > w.policy.MaxUnsettled {
		w.t.Fatalf("bounds are broken: %+v, policy %+v", s, w.policy)
	}
	if s.MessagesInFlight < 0 || s.Unsettled < 0 || s.Buffered < 0 || s.LanesInFlight < 0 {
		w.t.Fatalf("a counter is below zero: %+v", s)
	}
	live := 0
	for _, f := range x.runs {
		if !f.canceled {
			live++
		}
	}
	if live != s.LanesInFlight {
		w.t.Fatalf("%d deliveries are under way, the machine says %d", live, s.LanesInFlight)
	}
}

func (w *walk) perform(x *worker, e schedule.Effect) {
	ctx, store, asked := context.Background(), w.db.Outbox(scope), w.clock.Now()
	switch e := e.(type) {
	case schedule.Acquire:
		w.call(func() schedule.Input {
			leases, err := store.Acquire(ctx, e.Params)
			return schedule.Acquired{Asked: asked, Leases: leases, Err: err}
		}, func(err error) schedule.Input { return schedule.Acquired{Asked: asked, Err: err} }, x)
	case schedule.Release:
		for _, f := range x.runs {
			if slices.ContainsFunc(e.Leases, func(l lane.Lease) bool {
				return l == f.run.Lease || l.Bucket == f.run.Lease.Bucket && l.Token == f.run.Lease.Token
			}) {
				w.t.Fatalf("bucket %d is given back with a delivery under way", f.run.Lease.Bucket)
			}
		}
		w.call(func() schedule.Input { return schedule.Released{Err: store.Release(ctx, x.name, e.Leases)} },
			func(err error) schedule.Input { return schedule.Released{Err: err} }, x)
	case schedule.Fetch:
		w.call(func() schedule.Input {
			page, err := store.Fetch(ctx, e.Params)
			return schedule.Fetched{Page: page, Err: err}
		}, func(err error) schedule.Input { return schedule.Fetched{Err: err} }, x)
	case schedule.Settle:
		w.call(func() schedule.Input {
			result, err := store.Settle(ctx, x.name, e.Leases, e.Settlements)
			return schedule.Settled{Asked: asked, Result: result, Err: err}
		}, func(err error) schedule.Input { return schedule.Settled{Asked: asked, Err: err} }, x)
	case schedule.Deliver:
		w.deliver(x, e)
	case schedule.Cancel:
		for _, id := range e.Flights {
			f := x.runs[id]
			f.canceled = true
			w.after(w.soon(5*time.Millisecond), func() { w.land(x, id, f, lane.Verdict{Err: context.Canceled}) })
		}
	case schedule.AskGate:
		w.after(0, func() { w.step(x, schedule.GateOpened{}) })
	case schedule.Drained:
		x.drained = true
	}
}

// deliver checks that the lease is good in the database's eyes, and answers
// later.
func (w *walk) deliver(x *worker, e schedule.Deliver) {
	for _, l := range w.db.Leases(scope) {
		if l.Bucket == e.Run.Lease.Bucket && (l.Owner != x.name || l.Token != e.Run.Lease.Token || !l.Until.After(w.clock.Now())) {
			w.t.Fatalf("%s delivers from bucket %d, which %s has until %v", x.name, l.Bucket, l.Owner, l.Until)
		}
	}
	messages := make([]event.Message, len(e.Run.Rows))
	for i, r := range e.Run.Rows {
		messages[i] = r.Message
	}
	f := &flying{run: e.Run, end: w.check.Begin(x.name, messages...)}
	x.runs[e.Flight] = f
	v := lane.Verdict{Accepted: len(messages)}
	if w.faulty {
		switch w.random.IntN(12) {
		case 0:
			v = lane.Verdict{Accepted: w.random.IntN(len(messages)), Err: errWalk}
		case 1:
			v = lane.Verdict{Err: event.AsUnavailable(errWalk)}
		case 2:
			v = lane.Verdict{Err: lane.ErrBusy}
		}
	}
	w.after(w.soon(100*time.Millisecond), func() { w.land(x, e.Flight, f, v) })
}

// land ends a delivery, once.
func (w *walk) land(x *worker, id uint64, f *flying, v lane.Verdict) {
	if x.dead || x.runs[id] != f {
		return
	}
	f.end(v.Accepted)
	delete(x.runs, id)
	w.step(x, schedule.Answered{{Flight: id, Verdict: v}})
}
