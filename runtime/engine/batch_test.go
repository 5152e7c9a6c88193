package engine_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
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

// A batcher takes several runs in one call.
type batcher struct {
	w       *world
	mu      sync.Mutex
	sizes   []int
	verdict func(run lane.Run) lane.Verdict
	short   bool // leaves out the last verdict of every larger batch
}

func (b *batcher) Deliver(ctx context.Context, owner string, run lane.Run) lane.Verdict {
	return b.DeliverBatch(ctx, owner, []lane.Run{run})[0]
}

func (b *batcher) DeliverBatch(_ context.Context, _ string, runs []lane.Run) []lane.Verdict {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sizes = append(b.sizes, len(runs))
	var verdicts []lane.Verdict
	for i, run := range runs {
		if b.short && i > 0 && i == len(runs)-1 {
			break
		}
		messages := make([]event.Message, len(run.Rows))
		for j := range run.Rows {
			messages[j] = run.Rows[j].Message
		}
		v := lane.Verdict{Accepted: len(run.Rows)}
		if b.verdict != nil {
			v = b.verdict(run)
		}
		b.w.check.Begin("batch", messages...)(v.Accepted)
		verdicts = append(verdicts, v)
	}
	return verdicts
}

func (w *world) batch(b *batcher, policy schedule.Policy) *replica {
	b.w = w
	r := w.prepare("batch", engine.ProcessConfig{})
	r.loops = append(r.loops, engine.NewLoop(engine.Config{Name: "shop", Scope: shop, Store: w.db.Outbox(shop), Deliverer: b, Policy: policy}))
	r.start()
	return r
}

// TestBatchesTakeManyRuns: lanes that start together go in one call.
func TestBatchesTakeManyRuns(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.publish(keys(30, 6)...)
		policy := quick
		policy.MaxRun = 4
		b := &batcher{}
		r := w.batch(b, policy)
		w.drained(3 * time.Second)
		w.close(r)
		most := 0
		for _, n := range b.sizes {
			most = max(most, n)
		}
		if w.judge(); most != 16 || len(b.sizes) > 20 {
			t.Errorf("%d calls of up to %d runs", len(b.sizes), most)
		}
	})
}

// TestAPanicInABatchBlamesOneMessage: the others are tried by themselves.
func TestAPanicInABatchBlamesOneMessage(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		ids := w.publish(keys(10, 2)...)
		policy := quick
		policy.MaxAttempts = 1
		r := w.batch(&batcher{verdict: func(run lane.Run) lane.Verdict {
			if run.Rows[0].Message.ID == ids[3] {
				panic("poison")
			}
			if run.Rows[0].Message.Attempt != 1 {
				t.Errorf("an innocent message was charged")
			}
			return lane.Verdict{Accepted: len(run.Rows)}
		}}, policy)
		w.drained(5 * time.Second)
		w.close(r)
		dead, _ := w.db.DeadLetters(t.Context(), shop)
		if len(dead) != 1 || dead[0].Message.ID != ids[3] {
			t.Errorf("dead letters: %+v", dead)
		}
	})
}

// TestAMissingVerdictIsAFailure.
func TestAMissingVerdictIsAFailure(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.publish(keys(5, 2)...)
		r := w.batch(&batcher{short: true}, quick)
		w.drained(10 * time.Second)
		w.close(r)
		if w.judge(); len(seen[schedule.Retried](w)) == 0 {
			t.Error("nothing was reported")
		}
	})
}

// TestALockedKeyDelaysNobodyAndCostsNothing: its run is tried again, after a few
// times in a call of its own, and nothing is written about it.
func TestALockedKeyDelaysNobodyAndCostsNothing(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.publish(keys(20, 5)...)
		locked, tries := true, 0
		var others atomic.Int64
		b := &batcher{verdict: func(run lane.Run) lane.Verdict {
			if run.Rows[0].Message.Key != "key-7" {
				others.Add(int64(len(run.Rows)))
				return lane.Verdict{Accepted: len(run.Rows)}
			}
			if run.Rows[0].Held || run.Rows[0].Attempts > 0 {
				t.Error("the locked key was written about")
			}
			if tries++; locked {
				return lane.Verdict{Err: lane.ErrBusy}
			}
			return lane.Verdict{Accepted: len(run.Rows)}
		}}
		r := w.batch(b, quick)
		w.await(2*time.Second, "the others", func() bool { return others.Load() == 95 })
		time.Sleep(time.Minute)
		b.mu.Lock()
		locked = false
		if tries < 60 || tries > 150 {
			t.Errorf("%d tries in a minute", tries)
		}
		if n := b.sizes[len(b.sizes)-1]; n != 1 {
			t.Errorf("the locked key came with %d others", n-1)
		}
		b.mu.Unlock()
		w.drained(5 * time.Second)
		w.close(r)
		w.judge()
	})
}

// TestCompletedNeedsNoSettlement.
func TestCompletedNeedsNoSettlement(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.publish(keys(5, 5)...)
		started := make(chan struct{}) // owner is known
		var owner string
		r := w.batch(&batcher{verdict: func(run lane.Run) lane.Verdict {
			<-started
			// The handler's transaction removes the rows, with a fence of its own.
			var rows []lane.Settlement
			for _, x := range run.Rows {
				rows = append(rows, lane.Settlement{Bucket: x.Bucket, Lane: x.Lane, Sequence: x.Message.Sequence})
			}
			if _, err := w.db.Outbox(shop).Settle(context.Background(), owner, []lane.Lease{run.Lease}, rows); err != nil {
				return lane.Verdict{Err: err}
			}
			return lane.Verdict{Accepted: len(run.Rows), Completed: true}
		}}, quick)
		owner = r.process.Owner()
		close(started)
		w.drained(3 * time.Second)
		time.Sleep(time.Second)
		s := r.process.Stats()["shop"]
		w.close(r)
		if w.judge(); s.Settles != 0 || s.Delivered != 25 || s.Gone != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// TestLogsNameTheMessage: the fixed fields of an operator's search.
func TestLogsNameTheMessage(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		id := w.publish("order-17")[0]
		var log lockedBuffer
		r := w.prepare("a", engine.ProcessConfig{Logger: slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelInfo}))})
		r.add("shop", shop, quick, func(context.Context, event.Message) error { return event.AsPermanent(errors.New("gone for good")) })
		r.start()
		w.drained(3 * time.Second)
		w.close(r)
		var entry map[string]any
		for line := range strings.Lines(log.String()) {
			if strings.Contains(line, "is dead") {
				if err := json.Unmarshal([]byte(line), &entry); err != nil {
					t.Fatal(err)
				}
			}
		}
		want := map[string]any{"level": "WARN", "message_id": id.String(), "type": "shop.sold", "key": "order-17", "attempt": 1.0, "outcome": "dead",
			"reason": "permanent", "error": "gone for good", "scope": "shop", "worker": r.process.Owner()}
		for name, v := range want {
			if entry[name] != v {
				t.Errorf("%s is %v, want %v", name, entry[name], v)
			}
		}
	})
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// A brokenWaker hears nothing, and its connection breaks every second.
type brokenWaker struct{ listens atomic.Int64 }

func (b *brokenWaker) Listen(ctx context.Context, wake func()) error {
	b.listens.Add(1)
	select {
	case <-time.After(time.Second):
		return errPulled
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b *brokenWaker) Announce(context.Context) error { return errPulled }

// TestPollingIsTheFloor: without a working waker messages come within an
// interval, and listening is tried again.
func TestPollingIsTheFloor(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		waker := &brokenWaker{}
		var out lockedBuffer
		r := w.prepare("a", engine.ProcessConfig{Waker: waker, Logger: slog.New(slog.NewTextHandler(&out, nil))})
		r.add("shop", shop, quick, nil)
		r.start()
		time.Sleep(3 * time.Second)
		for range 10 {
			w.publish("k")
			if took := w.drained(5 * time.Second); took > 1100*time.Millisecond {
				t.Errorf("delivered after %v", took)
			}
		}
		time.Sleep(time.Minute)
		w.close(r)
		if n := waker.listens.Load(); n < 6 {
			t.Errorf("listened %d times", n)
		}
		if n := strings.Count(out.String(), "listening for wake-ups failed"); n != 1 {
			t.Errorf("said %d times that listening fails, want once", n)
		}
	})
}

// TestLoopsWithDifferentLeasesKeepTheirOwn.
func TestLoopsWithDifferentLeasesKeepTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, memstore.Scope{Number: shop, Name: "shop"}, memstore.Scope{Number: 8, Name: "mail"})
		short, long := quick, quick
		short.Lease, long.Lease = 3*time.Second, 60*time.Second
		r := w.prepare("a", engine.ProcessConfig{})
		r.add("shop", shop, short, nil)
		r.add("mail", 8, long, nil)
		r.start()
		time.Sleep(2 * time.Minute)
		now := time.Now()
		for scope, ttl := range map[lane.Scope]time.Duration{shop: short.Lease, 8: long.Lease} {
			for _, l := range w.db.Leases(scope) {
				if left := l.Until.Sub(now); left > ttl || left < ttl/2 {
					t.Fatalf("a lease of %v has %v left", ttl, left)
				}
			}
		}
		w.close(r)
		if n := len(seen[schedule.LeaseLost](w)); n != 0 {
			t.Errorf("%d leases were lost", n)
		}
	})
}

// TestOwnerIsRandom: two processes, and two lives of one, never share an id.
func TestOwnerIsRandom(t *testing.T) {
	w := newWorld(t)
	owners := map[string]bool{}
	for range 100 {
		p, err := engine.NewProcess(engine.ProcessConfig{Keeper: w.db})
		if err != nil {
			t.Fatal(err)
		}
		owners[p.Owner()] = true
	}
	if len(owners) != 100 {
		t.Errorf("%d owners of 100 processes", len(owners))
	}
}

// TestAProcessRunsOnce.
func TestAProcessRunsOnce(t *testing.T) {
	w := newWorld(t)
	p, err := engine.NewProcess(engine.ProcessConfig{Keeper: w.db})
	if err != nil {
		t.Fatal(err)
	}
	p.Nudge() // harmless at any time
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := p.Run(ctx); err != nil {
		t.Error(err)
	}
	if err := p.Run(ctx); err == nil || fmt.Sprint(err) == "" {
		t.Error("the second start was accepted")
	}
	p.Nudge()
}

// A countingKeeper counts the calls that renew something.
type countingKeeper struct {
	lane.Keeper
	calls, renewals atomic.Int64
}

func (k *countingKeeper) Keep(ctx context.Context, p lane.KeepParams) ([]lane.Kept, error) {
	k.calls.Add(1)
	if len(p.Scopes[0].Leases) > 0 {
		k.renewals.Add(1)
	}
	return k.Keeper.Keep(ctx, p)
}

// TestLooksDoNotRenew: leases are written every third of their length, however
// often the keeper looks for messages.
func TestLooksDoNotRenew(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		k := &countingKeeper{Keeper: w.db}
		r := w.prepare("a", engine.ProcessConfig{Keeper: k, PollInterval: 100 * time.Millisecond})
		r.add("shop", shop, quick, nil)
		r.start()
		time.Sleep(5 * time.Minute)
		w.close(r)
		if calls, renewals := k.calls.Load(), k.renewals.Load(); calls < 3000 || renewals < 60 || renewals > 70 {
			t.Errorf("%d calls, %d of them renewed", calls, renewals)
		}
	})
}
