package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lanebox/lanebox/runtime/engine"
	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/memstore"
	"github.com/lanebox/lanebox/runtime/schedule"
)

var errRefused = errors.New("refused")

// quick is a policy whose waits are short.
var quick = schedule.Policy{RetryBase: 100 * time.Millisecond, RetryCap: time.Second}

// in runs f in a bubble with a fresh world.
func in(t *testing.T, f func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) { f(t, newWorld(t)) })
}

// close shuts replicas down and expects a clean end.
func (w *world) close(replicas ...*replica) {
	w.t.Helper()
	for _, r := range replicas {
		if err := r.shutdown(); err != nil {
			w.t.Errorf("%s: %v", r.name, err)
		}
	}
}

// TestARetryHoldsBackItsLane: message 1 of a key fails three times; the others
// of its key wait, those of other keys do not.
func TestARetryHoldsBackItsLane(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		ids := w.publish("k", "k", "k", "other")
		fails := 0
		r := w.replica("a", quick, func(_ context.Context, m event.Message) error {
			if m.ID == ids[0] && fails < 3 {
				fails++
				if m.Attempt != fails {
					t.Errorf("attempt %d arrived as %d", fails, m.Attempt)
				}
				return errRefused
			}
			return nil
		})
		w.drained(5 * time.Second)
		w.close(r)
		if w.judge(); fails != 3 || len(seen[schedule.Retried](w)) != 3 {
			t.Errorf("%d failures, %d retries reported", fails, len(seen[schedule.Retried](w)))
		}
	})
}

// TestAPoisonMessageDiesInExactlyMaxAttempts, and what is behind it follows.
func TestAPoisonMessageDiesInExactlyMaxAttempts(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		ids := w.publish("k", "k", "k")
		tries := 0
		policy := quick
		policy.MaxAttempts = 5
		r := w.replica("a", policy, func(_ context.Context, m event.Message) error {
			if m.ID == ids[0] {
				tries++
				return errRefused
			}
			return nil
		})
		w.drained(20 * time.Second)
		w.close(r)
		w.judge()
		dead, _ := w.db.DeadLetters(t.Context(), shop)
		if tries != 5 || len(dead) != 1 || dead[0].Attempts != 5 || dead[0].Message.ID != ids[0] || dead[0].Reason != "attempts exhausted" {
			t.Errorf("%d tries, dead letters %+v", tries, dead)
		}
	})
}

// TestParkDeadKeepsTheLane: with on_dead: park nothing passes the message.
func TestParkDeadKeepsTheLane(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		ids := w.publish("k", "k", "other")
		policy := quick
		policy.ParkDead = true
		r := w.replica("a", policy, func(_ context.Context, m event.Message) error {
			if m.ID == ids[0] {
				return event.AsPermanent(errRefused)
			}
			return nil
		})
		w.await(2*time.Second, "the other key", func() bool { return w.check.Delivered() == 1 })
		time.Sleep(time.Minute)
		w.close(r)
		if dead, _ := w.db.DeadLetters(t.Context(), shop); len(dead) != 0 || len(w.db.Waiting(shop)) != 2 || len(seen[schedule.Parked](w)) != 1 {
			t.Errorf("dead %v, waiting %v", dead, w.db.Waiting(shop))
		}
	})
}

// TestAPermanentFailureDiesAtOnce.
func TestAPermanentFailureDiesAtOnce(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.publish("k", "k", "")
		r := w.replica("a", quick, func(context.Context, event.Message) error { return event.AsPermanent(errRefused) })
		if took := w.drained(2 * time.Second); took > time.Second {
			t.Errorf("took %v", took)
		}
		w.close(r)
		if dead, _ := w.db.DeadLetters(t.Context(), shop); len(dead) != 3 || dead[0].Attempts != 1 || dead[0].Reason != "permanent" {
			t.Errorf("%+v", dead)
		}
	})
}

// TestNothingDiesInAnOutage: the destination is unavailable, or answers "later",
// for much longer than the attempts would last.
func TestNothingDiesInAnOutage(t *testing.T) {
	for name, class := range map[string]func(error) error{
		"unavailable":   event.AsUnavailable,
		"back-pressure": func(err error) error { return event.AsBackPressure(err, 0) },
		"transient":     func(err error) error { return err },
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.publish(keys(40, 2)...)
				w.publish("", "")
				policy := quick
				policy.MaxAttempts = 3
				var down atomic.Bool
				var sent atomic.Int64
				down.Store(true)
				r := w.replica("a", policy, func(_ context.Context, m event.Message) error {
					sent.Add(1)
					if down.Load() {
						return class(errRefused)
					}
					if name != "transient" && m.Attempt != 1 {
						t.Errorf("the outage cost an attempt: %d", m.Attempt)
					}
					return nil
				})
				time.Sleep(10 * time.Minute)
				// Once it is open only probes go out, at most one a second here.
				if n := sent.Load(); n > 16+10*60*2+10 {
					t.Errorf("%d deliveries during the outage: the circuit did not hold them back", n)
				}
				down.Store(false)
				w.drained(10 * time.Second)
				w.close(r)
				w.judge()
				if dead, _ := w.db.DeadLetters(t.Context(), shop); len(dead) != 0 {
					t.Errorf("%d messages died", len(dead))
				}
				if len(seen[schedule.CircuitOpened](w)) == 0 || len(seen[schedule.CircuitClosed](w)) == 0 {
					t.Error("the circuit was not reported")
				}
			})
		})
	}
}

// TestOnePoisonKeyNeverOpensTheCircuit.
func TestOnePoisonKeyNeverOpensTheCircuit(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.publish("poison")
		policy := quick
		policy.MaxAttempts = 8
		r := w.replica("a", policy, func(_ context.Context, m event.Message) error {
			if m.Key == "poison" {
				return errRefused
			}
			return nil
		})
		w.drained(time.Minute)
		w.close(r)
		if n := len(seen[schedule.CircuitOpened](w)); n != 0 {
			t.Errorf("the circuit opened %d times", n)
		}
	})
}

// TestRetryAfterIsHonouredAndCapped.
func TestRetryAfterIsHonouredAndCapped(t *testing.T) {
	for asked, want := range map[time.Duration]time.Duration{700 * time.Millisecond: 700 * time.Millisecond, time.Hour: time.Second} {
		in(t, func(t *testing.T, w *world) {
			w.publish("k")
			var at []time.Time
			r := w.replica("a", quick, func(_ context.Context, m event.Message) error {
				at = append(at, time.Now())
				if len(at) == 1 {
					return event.AsBackPressure(errRefused, asked)
				}
				return nil
			})
			w.drained(time.Minute)
			w.close(r)
			if wait := at[1].Sub(at[0]); wait < want || wait > want+200*time.Millisecond {
				t.Errorf("asked for %v, waited %v", asked, wait)
			}
		})
	}
}

// TestOtherLanesFlow: slow, failing and hanging lanes delay nobody else for
// long, even when there are more of them than a page holds and their rows are
// the oldest.
func TestOtherLanesFlow(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		for i := range 300 {
			w.publish(fmt.Sprintf("bad-%d", i), fmt.Sprintf("bad-%d", i))
		}
		w.publish("hang")
		w.publishMany(1000, func(int) string { return "slow" })
		policy := quick
		policy.RetryCap = time.Minute
		var healthy atomic.Int64
		w.replica("a", policy, func(ctx context.Context, m event.Message) error {
			switch {
			case m.Key == "healthy":
				healthy.Add(1)
			case m.Key == "slow":
				time.Sleep(100 * time.Millisecond)
			case m.Key == "hang":
				<-ctx.Done()
				return ctx.Err()
			case strings.HasPrefix(m.Key, "bad"):
				return errRefused
			}
			return nil
		})
		for i := range 30 {
			limit := 3 * time.Second
			if i < 10 {
				limit = 30 * time.Second // until every lane in trouble is known
			}
			w.publish("healthy")
			w.await(limit, "the healthy key", func() bool { return healthy.Load() == int64(i)+1 })
		}
		w.end()
	})
}

// TestSlowKeylessMessageDelaysNoOther, nor is it delivered twice at a time.
func TestSlowKeylessMessageDelaysNoOther(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		slow := w.publish("")[0]
		policy := quick
		policy.Timeout = time.Minute
		r := w.replica("a", policy, func(_ context.Context, m event.Message) error {
			if m.ID == slow {
				time.Sleep(20 * time.Second)
			}
			return nil
		})
		time.Sleep(3 * time.Second)
		for range 10 {
			w.publish(slices.Repeat([]string{""}, 100)...)
			w.await(2*time.Second, "the others", func() bool { return len(w.db.Waiting(shop)) == 1 })
		}
		w.drained(30 * time.Second)
		w.close(r)
		if report := w.judge(); report.Repeats != 0 {
			t.Errorf("%d repeats", report.Repeats)
		}
	})
}

// TestAFailedKeylessMessageWaitsAlone.
func TestAFailedKeylessMessageWaitsAlone(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		ids := w.publish(slices.Repeat([]string{""}, 400)...)
		bad := ids[0]
		var tries []time.Time
		policy := quick
		policy.RetryBase, policy.RetryCap = 30*time.Second, 30*time.Second
		r := w.replica("a", policy, func(_ context.Context, m event.Message) error {
			if m.ID == bad && len(tries) < 1 {
				tries = append(tries, time.Now())
				return event.AsBackPressure(errRefused, 20*time.Second)
			}
			return nil
		})
		w.await(3*time.Second, "the others", func() bool { return len(w.db.Waiting(shop)) == 1 })
		took := w.drained(time.Minute)
		w.close(r)
		if w.judge(); took < 15*time.Second || took > 22*time.Second {
			t.Errorf("the failed one came after %v", took)
		}
	})
}

// TestConcurrencyAndMaxUnsettledAreBounds.
func TestConcurrencyAndMaxUnsettledAreBounds(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.publish(keys(100, 5)...)
		policy := quick
		policy.Concurrency, policy.MaxUnsettled = 7, 20
		var now, most, answered atomic.Int64
		stall := make(chan struct{})
		w.onCall(func(c memstore.Call) memstore.Fault {
			if c.Op == memstore.OpSettle {
				return memstore.Fault{Stall: stall}
			}
			return memstore.Fault{}
		})
		r := w.replica("a", policy, func(context.Context, event.Message) error {
			most.Store(max(most.Load(), now.Add(1)))
			time.Sleep(time.Millisecond)
			now.Add(-1)
			answered.Add(1)
			return nil
		})
		time.Sleep(4 * time.Second)
		if n := answered.Load(); n != 20 {
			t.Errorf("%d messages were answered while no settlement came through, want 20", n)
		}
		close(stall)
		w.drained(10 * time.Second)
		w.close(r)
		if w.judge(); most.Load() != 7 {
			t.Errorf("up to %d deliveries at a time, want 7", most.Load())
		}
	})
}

// TestSettleEachSettlesBeforeTheNext.
func TestSettleEachSettlesBeforeTheNext(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.publish(keys(3, 20)...)
		policy := quick
		policy.SettleEach = true
		r := w.replica("a", policy, func(_ context.Context, m event.Message) error {
			for _, x := range w.db.Waiting(shop) {
				if x.Key == m.Key && x.Sequence < m.Sequence {
					t.Errorf("%d starts before %d is settled", m.Sequence, x.Sequence)
				}
			}
			return nil
		})
		w.drained(10 * time.Second)
		w.close(r)
		w.judge()
	})
}

// TestABacklogIsNotReadOnePagePerPoll: the loop reads on at once after a page.
func TestABacklogIsNotReadOnePagePerPoll(t *testing.T) {
	for name, key := range map[string]func(int) string{
		"one key": func(int) string { return "k" }, "many keys": func(i int) string { return fmt.Sprint(i) }, "no key": func(int) string { return "" },
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.publishMany(10000, key)
				policy := quick
				policy.Concurrency = 64
				r := w.replica("a", policy, nil)
				if took := w.drained(10 * time.Second); took > 900*time.Millisecond {
					t.Errorf("10000 messages took %v of time that passes only while everybody waits", took)
				}
				w.close(r)
				w.judge()
			})
		})
	}
}

// TestIdleIsOneStatementPerInterval.
func TestIdleIsOneStatementPerInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, memstore.Scope{Number: shop, Name: "shop"}, memstore.Scope{Number: 8, Name: "mail"})
		r := w.prepare("a", engine.ProcessConfig{PollInterval: time.Second})
		r.add("shop", shop, quick, nil)
		r.add("mail", 8, quick, nil)
		r.start()
		time.Sleep(10 * time.Second)
		total := func() (n int) {
			for _, op := range []memstore.Op{memstore.OpAcquire, memstore.OpFetch, memstore.OpSettle, memstore.OpRelease, memstore.OpKeep} {
				n += w.count(op)
			}
			return n
		}
		before, keeps := total(), w.count(memstore.OpKeep)
		time.Sleep(100 * time.Second)
		all, kept := total()-before, w.count(memstore.OpKeep)-keeps
		if all != kept || kept < 100 || kept > 130 {
			t.Errorf("%d statements in 100 idle seconds, %d of them of the keeper", all, kept)
		}
		w.close(r)
		if n := len(seen[schedule.LeaseLost](w)); n != 0 {
			t.Errorf("%d leases were lost", n)
		}
	})
}

// TestNudgeIsFast: a nudge before the commit finds what is committed a little
// later, here and in another process, long before the next poll.
func TestNudgeIsFast(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		config := engine.ProcessConfig{PollInterval: 4 * time.Second, Waker: w.db}
		var replicas []*replica
		for _, name := range []string{"a", "b"} {
			r := w.prepare(name, config)
			r.add("shop", shop, quick, nil)
			r.start()
			replicas = append(replicas, r)
		}
		time.Sleep(30 * time.Second)
		for i := range 20 {
			replicas[0].process.Nudge()
			time.Sleep(time.Duration(i) * 5 * time.Millisecond) // the commit comes later
			w.publish(fmt.Sprint(i))
			if took := w.drained(4 * time.Second); took > 300*time.Millisecond {
				t.Errorf("delivered %v after its commit", took)
			}
			time.Sleep(time.Second)
		}
		before := w.count(memstore.OpAnnounce)
		for range 1000 {
			replicas[0].process.Nudge()
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Second)
		if n := w.count(memstore.OpAnnounce) - before; n > 25 {
			t.Errorf("%d announcements for one second of nudges", n)
		}
		w.close(replicas...)
	})
}

// TestPollsSpread: processes that were started together do not call together.
func TestPollsSpread(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		var mu sync.Mutex
		at := map[time.Time]int{}
		w.onCall(func(c memstore.Call) memstore.Fault {
			if c.Op == memstore.OpKeep {
				mu.Lock()
				at[time.Now().Truncate(10*time.Millisecond)]++
				mu.Unlock()
			}
			return memstore.Fault{}
		})
		var replicas []*replica
		for i := range 20 {
			replicas = append(replicas, w.replica(fmt.Sprint(i), quick, nil))
		}
		time.Sleep(20 * time.Second)
		mu.Lock()
		clear(at)
		mu.Unlock()
		time.Sleep(10 * time.Second)
		mu.Lock()
		most := slices.Max(sorted(at))
		mu.Unlock()
		if most > 8 {
			t.Errorf("%d of 20 processes call within 10 ms", most)
		}
		w.close(replicas...)
	})
}

// TestPanicsAreFailures, and one of many deliverers that exits its goroutine.
func TestPanicsAreFailures(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		ids := w.publish("a", "b", "c")
		policy := quick
		policy.MaxAttempts = 2
		r := w.replica("a", policy, func(_ context.Context, m event.Message) error {
			if m.ID == ids[1] {
				panic("no")
			}
			return nil
		})
		w.drained(10 * time.Second)
		w.close(r)
		dead, _ := w.db.DeadLetters(t.Context(), shop)
		if w.judge(); len(dead) != 1 || dead[0].Error != "panic: no" {
			t.Errorf("%+v", dead)
		}
	})
}

// TestATimeoutIsATransientFailure, and no more than that.
func TestATimeoutIsATransientFailure(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.publish("k")
		policy := quick
		policy.Timeout = 3 * time.Second
		tries := 0
		r := w.replica("a", policy, func(ctx context.Context, m event.Message) error {
			if tries++; tries == 1 {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
		if took := w.drained(10 * time.Second); took < 3*time.Second || took > 5*time.Second {
			t.Errorf("took %v", took)
		}
		w.close(r)
		w.judge()
	})
}

// TestALongDeliveryKeepsItsLease: renewals go on beside it, and nobody else gets
// the message.
func TestALongDeliveryKeepsItsLease(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.publish("k")
		policy := quick
		policy.Timeout, policy.Lease = time.Hour, 3*time.Second
		send := func(context.Context, event.Message) error { time.Sleep(time.Minute); return nil }
		a, b := w.replica("a", policy, send), w.replica("b", policy, send)
		w.drained(2 * time.Minute)
		w.close(a, b)
		if report := w.judge(); report.Starts != 1 || len(seen[schedule.LeaseLost](w)) != 0 {
			t.Errorf("%d deliveries", report.Starts)
		}
	})
}

// TestConfigurationIsChecked.
func TestConfigurationIsChecked(t *testing.T) {
	w := newWorld(t)
	good := engine.Config{Name: "a", Scope: 1, Store: w.db.Outbox(1), Deliverer: deliverFunc(nil)}
	for name, loops := range map[string][]engine.Config{
		"a loop has no name":                  {{Scope: 1, Store: good.Store, Deliverer: good.Deliverer}},
		"loop a has no store":                 {{Name: "a", Deliverer: good.Deliverer}},
		"loop a has nothing to deliver to":    {{Name: "a", Store: good.Store}},
		"loops a and b have the same scope 1": {good, {Name: "b", Scope: 1, Store: good.Store, Deliverer: good.Deliverer}},
	} {
		var all []*engine.Loop
		for _, c := range loops {
			all = append(all, engine.NewLoop(c))
		}
		if _, err := engine.NewProcess(engine.ProcessConfig{Keeper: w.db}, all...); err == nil || err.Error() != name {
			t.Errorf("got %v, want %s", err, name)
		}
	}
	if _, err := engine.NewProcess(engine.ProcessConfig{}); err == nil {
		t.Error("a process without keeper was accepted")
	}
}

type deliverFunc func(ctx context.Context, owner string, run lane.Run) lane.Verdict

func (f deliverFunc) Deliver(ctx context.Context, owner string, run lane.Run) lane.Verdict {
	return f(ctx, owner, run)
}
