package engine_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lanebox/lanebox/runtime/engine"
	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/memstore"
	"github.com/lanebox/lanebox/runtime/schedule"
)

// TestReplicasShareFairly: buckets spread over one to five replicas and back, and
// at no time is a key in flight twice or out of order.
func TestReplicasShareFairly(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		stop := make(chan struct{})
		done := make(chan struct{})
		go func() { // a steady stream
			defer close(done)
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				case <-time.After(5 * time.Millisecond):
					w.publish(fmt.Sprint(i%40), "")
				}
			}
		}()
		send := func(context.Context, event.Message) error {
			time.Sleep(time.Duration(rand.N(30)) * time.Millisecond)
			return nil
		}
		var replicas []*replica
		share := func(want ...int) {
			t.Helper()
			w.await(40*time.Second, fmt.Sprintf("shares of %v", want), func() bool { return fmt.Sprint(sorted(w.held())) == fmt.Sprint(want) })
		}
		for i := range 5 {
			replicas = append(replicas, w.replica(fmt.Sprint(i), quick, send))
			switch i {
			case 0:
				share(128)
			case 1:
				share(64, 64)
			}
		}
		time.Sleep(20 * time.Second)
		if shares := sorted(w.held()); len(shares) != 5 || shares[4] > 26 || shares[0] < 24 {
			t.Errorf("shares are %v", shares)
		}
		for _, r := range replicas[1:] {
			w.close(r)
			time.Sleep(3 * time.Second)
		}
		share(128)
		close(stop)
		<-done
		w.drained(20 * time.Second)
		w.close(replicas[0])
		if report := w.judge(); report.Repeats != 0 || len(seen[schedule.LeaseLost](w)) != 0 {
			t.Errorf("%d repeats, %d leases lost, without any fault", report.Repeats, len(seen[schedule.LeaseLost](w)))
		}
	})
}

// TestAKilledReplicaIsReplacedAfterItsLease: with order kept, nothing lost and
// only what was in flight repeated.
func TestAKilledReplicaIsReplacedAfterItsLease(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.publish(keys(60, 30)...)
		send := func(context.Context, event.Message) error { time.Sleep(200 * time.Millisecond); return nil }
		a, b := w.replica("a", quick, send), w.replica("b", quick, send)
		time.Sleep(5 * time.Second)
		killed := time.Now()
		a.kill()
		w.await(20*time.Second, "takeover", func() bool { return w.held()[b.process.Owner()] == 128 })
		if took := time.Since(killed); took > 17*time.Second {
			t.Errorf("takeover took %v", took)
		}
		w.drained(60 * time.Second)
		w.await(5*time.Second, "probation to end", func() bool {
			return len(seen[schedule.ProbationEnded](w)) == len(seen[schedule.ProbationStarted](w))
		})
		w.close(b)
		<-a.ended
		if report := w.judge(); report.Repeats > 256 {
			t.Errorf("%d repeats", report.Repeats)
		}
		if n := len(seen[schedule.ProbationStarted](w)); n != 64 {
			t.Errorf("%d buckets were on probation", n)
		}
	})
}

// TestAPoisonMessageThatKillsItsProcessDies, and nothing else does, and nothing
// else is charged. Wherever it stands in its lane, at most one crash for each
// attempt and one more go by.
func TestAPoisonMessageThatKillsItsProcessDies(t *testing.T) {
	for _, poisonKey := range []string{"key-250", ""} {
		t.Run("key="+poisonKey, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.publish(keys(500, 1)...)
				poison := w.publish(poisonKey)[0] // behind another message of its key
				w.publish(keys(500, 1)...)
				w.publish("", "", "")
				policy := quick
				policy.MaxAttempts = 3
				var crashes atomic.Int64
				var current *replica
				deadly := make(chan struct{}, 100)
				send := func(ctx context.Context, m event.Message) error {
					if m.ID == poison {
						crashes.Add(1)
						current.kill()
						deadly <- struct{}{}
						<-ctx.Done()
						return ctx.Err()
					}
					if m.Attempt > 1 && !strings.HasPrefix(m.Key, "key") {
						t.Errorf("%q is at attempt %d", m.Key, m.Attempt)
					}
					time.Sleep(time.Millisecond)
					return nil
				}
				for n := 0; ; n++ {
					current = w.prepare(fmt.Sprint(n), engine.ProcessConfig{})
					current.add("shop", shop, policy, send)
					current.start()
					w.await(2*time.Minute, "the end of the process or of the work", func() bool {
						return len(deadly) > 0 || len(w.db.Waiting(shop)) == 0
					})
					if len(deadly) == 0 {
						break
					}
					<-deadly
				}
				w.close(current)
				w.judge()
				dead, _ := w.db.DeadLetters(t.Context(), shop)
				if len(dead) != 1 || dead[0].Message.ID != poison || dead[0].Attempts != 3 || crashes.Load() != 4 {
					t.Errorf("%d crashes, dead letters %+v", crashes.Load(), dead)
				}
			})
		})
	}
}

// TestSuspectsGoOneAtATimeInTheWholeProcess.
func TestSuspectsGoOneAtATimeInTheWholeProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, memstore.Scope{Number: shop, Name: "shop"}, memstore.Scope{Number: 8, Name: "mail"})
		hang := func(ctx context.Context, m event.Message) error { <-ctx.Done(); return ctx.Err() }
		for i := range 30 {
			w.publishTopic("shop.sold", fmt.Sprint("s", i))
			w.publishTopic("mail.sent", fmt.Sprint("m", i))
		}
		a := w.prepare("a", engine.ProcessConfig{})
		a.add("shop", shop, quick, hang)
		a.add("mail", 8, quick, hang)
		a.start()
		time.Sleep(2 * time.Second)
		a.kill()
		<-a.ended
		var now, most atomic.Int64
		send := func(context.Context, event.Message) error {
			most.Store(max(most.Load(), now.Add(1)))
			time.Sleep(5 * time.Millisecond)
			now.Add(-1)
			return nil
		}
		b := w.prepare("b", engine.ProcessConfig{})
		b.add("shop", shop, quick, send)
		b.add("mail", 8, quick, send)
		b.start()
		w.await(40*time.Second, "all", func() bool { return len(w.db.Waiting(shop))+len(w.db.Waiting(8)) == 0 })
		w.close(b)
		if w.judge(); most.Load() != 1 {
			t.Errorf("%d suspects at a time", most.Load())
		}
	})
}

// TestAStaleOwnerChangesNothing: a replica that is cut off past its lease stops
// by itself, and what it would still record is refused.
func TestAStaleOwnerChangesNothing(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.publish("k", "k")
		policy := quick
		policy.Timeout = time.Hour
		var canceled atomic.Bool
		a := w.prepare("a", engine.ProcessConfig{})
		a.add("shop", shop, policy, func(ctx context.Context, m event.Message) error {
			<-ctx.Done()
			canceled.Store(true)
			return nil // it was accepted in the last moment
		})
		a.start()
		time.Sleep(2 * time.Second)
		owner := a.process.Owner()
		w.onCall(func(c memstore.Call) memstore.Fault {
			if c.Owner == owner {
				return memstore.Fault{Err: errPulled}
			}
			return memstore.Fault{}
		})
		start := time.Now()
		w.await(20*time.Second, "the delivery canceled", canceled.Load)
		var until time.Time
		for _, l := range w.db.Leases(shop) {
			until = l.Until
		}
		if now := time.Now(); !now.Before(until) || now.Sub(start) < 5*time.Second {
			t.Errorf("canceled after %v, %v before the lease ended", now.Sub(start), until.Sub(now))
		}
		b := w.replica("b", policy, nil)
		w.drained(30 * time.Second)
		w.onCall(nil)
		time.Sleep(30 * time.Second)
		w.close(a, b)
		// The first was accepted twice: its outcome was not recorded.
		if report := w.judge(); report.Repeats != 1 || len(seen[schedule.LeaseLost](w)) < 128 {
			t.Errorf("%d repeats, %d leases lost", report.Repeats, len(seen[schedule.LeaseLost](w)))
		}
	})
}

// TestAFencedSettlementIsTypedAndNotRepeated: leases are taken over while a
// delivery runs, although the owner still trusts them.
func TestAFencedSettlementIsTypedAndNotRepeated(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.publish("k")
		policy := quick
		release := make(chan struct{})
		a := w.replica("a", policy, func(ctx context.Context, m event.Message) error { <-release; return nil })
		time.Sleep(1500 * time.Millisecond)
		w.db.ExpireLeases(shop, "")
		if _, err := w.db.Outbox(shop).Acquire(t.Context(), acquireAll("thief")); err != nil {
			t.Fatal(err)
		}
		close(release)
		time.Sleep(500 * time.Millisecond)
		if n := len(seen[schedule.Fenced](w)); n != 1 {
			t.Errorf("%d fenced events", n)
		}
		if len(w.db.Waiting(shop)) != 1 {
			t.Error("the stale owner removed the message")
		}
		if s := a.loops[0].Stats(); s.Fenced != 1 || s.LostLeases == 0 {
			t.Errorf("%+v", s)
		}
		w.drained(40 * time.Second) // the thief's leases end
		w.close(a)
	})
}

// TestDatabaseFaults: every call may fail, stall or lose its answer; order is
// kept, nothing is lost, and repeats are no more than the lost answers explain.
func TestDatabaseFaults(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.publish(keys(50, 40)...)
		w.onCall(func(c memstore.Call) memstore.Fault {
			switch rand.N(12) {
			case 0:
				return memstore.Fault{Err: errPulled}
			case 1:
				return memstore.Fault{Lost: errPulled}
			case 2:
				return memstore.Fault{Stall: after(rand.N(8 * time.Second))}
			}
			return memstore.Fault{}
		})
		send := func(context.Context, event.Message) error { time.Sleep(5 * time.Millisecond); return nil }
		a, b := w.replica("a", quick, send), w.replica("b", quick, send)
		time.Sleep(30 * time.Second)
		w.onCall(nil)
		w.drained(60 * time.Second)
		w.close(a, b)
		w.judge()
		if len(seen[schedule.DatabaseFailed](w)) == 0 {
			t.Error("no failure was reported")
		}
	})
}

func after(d time.Duration) <-chan struct{} {
	done := make(chan struct{})
	time.AfterFunc(d, func() { close(done) })
	return done
}

// TestALostSettlementAnswerCountsAsGone, and repeats nothing.
func TestALostSettlementAnswerCountsAsGone(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		r := w.replica("a", quick, nil)
		time.Sleep(2 * time.Second)
		w.db.LoseNextAnswer(memstore.OpSettle, errPulled)
		w.publish("k", "")
		w.drained(3 * time.Second)
		time.Sleep(2 * time.Second)
		w.close(r)
		if report := w.judge(); report.Repeats != 0 || r.loops[0].Stats().Gone == 0 {
			t.Errorf("%d repeats, %+v", report.Repeats, r.loops[0].Stats())
		}
	})
}

// TestShutdownFinishesWhatIsInFlight.
func TestShutdownFinishesWhatIsInFlight(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.publish(keys(40, 5)...)
		var begun, ended atomic.Int64
		r := w.replica("a", quick, func(context.Context, event.Message) error {
			begun.Add(1)
			time.Sleep(5 * time.Second)
			ended.Add(1)
			return nil
		})
		time.Sleep(2 * time.Second)
		start := time.Now()
		w.close(r)
		if took := time.Since(start); begun.Load() != 16 || ended.Load() != 16 || took > 6*time.Second {
			t.Errorf("%d begun, %d ended, %v", begun.Load(), ended.Load(), took)
		}
		if n := len(w.db.Waiting(shop)); n != 200-16 {
			t.Errorf("%d wait: what was delivered was not settled", n)
		}
		for _, l := range w.db.Leases(shop) {
			if l.Owner != "" {
				t.Fatalf("bucket %d was not given back", l.Bucket)
			}
		}
		b := w.replica("b", quick, nil)
		w.drained(3 * time.Second) // no lease has to expire
		w.close(b)
		w.judge()
	})
}

// TestAnAbandonedDeliveryKeepsItsBucket: it is named, its bucket expires by
// itself, and no attempt is spent.
func TestAnAbandonedDeliveryKeepsItsBucket(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		id := w.publish("k", "other")[0]
		policy := quick
		policy.Timeout = time.Hour
		finish := make(chan struct{})
		r := w.prepare("a", engine.ProcessConfig{Grace: 3 * time.Second})
		r.add("shop", shop, policy, func(_ context.Context, m event.Message) error {
			if m.ID == id {
				<-finish // it does not even heed its context
			}
			return nil
		})
		r.start()
		time.Sleep(2 * time.Second)
		err := r.shutdown()
		var abandoned *engine.AbandonedError
		if !errors.As(err, &abandoned) || len(abandoned.Messages) != 1 || abandoned.Messages[0].Message.ID != id || abandoned.Messages[0].Scope != "shop" {
			t.Fatalf("got %v", err)
		}
		held := 0
		for _, l := range w.db.Leases(shop) {
			if l.Owner != "" {
				held++
			}
		}
		if held != 1 {
			t.Errorf("%d buckets were kept, want 1", held)
		}
		close(finish)
		b := w.replica("b", quick, func(_ context.Context, m event.Message) error {
			if m.Attempt != 1 {
				t.Errorf("attempt %d: the shutdown spent one", m.Attempt)
			}
			return nil
		})
		if took := w.drained(30 * time.Second); took < 5*time.Second {
			t.Errorf("a peer started the lane after %v, beside the abandoned request", took)
		}
		w.close(b)
		w.judge()
	})
}

// TestAParkedLaneDropsTheRestOfItsRun, and goes on when it is released.
func TestAParkedLaneDropsTheRestOfItsRun(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.publishMany(100, func(int) string { return "k" })
		var sent atomic.Int64
		r := w.replica("a", quick, func(context.Context, event.Message) error {
			sent.Add(1)
			time.Sleep(time.Second)
			return nil
		})
		time.Sleep(3 * time.Second)
		if err := w.db.ParkKey(t.Context(), shop, "k", "look at it"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second) // a third of the lease
		parked := sent.Load()
		time.Sleep(20 * time.Second)
		if sent.Load() != parked || parked == 0 {
			t.Errorf("%d deliveries when parked, %d later", parked, sent.Load())
		}
		if err := w.db.ReleaseKey(t.Context(), shop, "k", "fine"); err != nil {
			t.Fatal(err)
		}
		w.drained(3 * time.Minute)
		w.close(r)
		w.judge()
	})
}

// TestHammer: replicas come and go and die, the destination is flaky, stalls
// and panics, the database fails; the checker judges.
func TestHammer(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				random := rand.New(rand.NewPCG(seed, 1))
				policy := quick
				policy.Lease, policy.MaxAttempts, policy.MaxUnsettled = 3*time.Second, 1000, 64
				send := func(ctx context.Context, m event.Message) error {
					switch rand.N(30) {
					case 0:
						return errRefused
					case 1:
						return event.AsUnavailable(errRefused)
					case 2:
						panic("flaky")
					case 3:
						time.Sleep(rand.N(2 * time.Second))
					}
					time.Sleep(rand.N(10 * time.Millisecond))
					return nil
				}
				w.onCall(func(c memstore.Call) memstore.Fault {
					switch rand.N(40) {
					case 0:
						return memstore.Fault{Err: errPulled}
					case 1:
						return memstore.Fault{Lost: errPulled}
					case 2:
						return memstore.Fault{Stall: after(rand.N(4 * time.Second))}
					}
					return memstore.Fault{}
				})
				var live []*replica
				for n := range 25 {
					live = append(live, w.replica(fmt.Sprint(n), policy, send))
					w.onAppend(random, 60)
					time.Sleep(time.Duration(random.IntN(1500)) * time.Millisecond)
					if len(live) > 3 {
						i := random.IntN(len(live))
						r := live[i]
						live = append(live[:i], live[i+1:]...)
						if random.IntN(2) == 0 {
							r.kill()
						} else {
							r.stop()
						}
					}
				}
				w.onCall(nil)
				w.drained(5 * time.Minute)
				for _, r := range live {
					r.stop()
				}
				time.Sleep(time.Minute)
				w.judge()
			})
		})
	}
}
