package inbox_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lanebox/lanebox/runtime/engine"
	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/memstore"
	"github.com/lanebox/lanebox/runtime/outbox"
)

func TestRelayMovesInOrderOverAllSources(t *testing.T) {
	inWorld(t, func(w *world) {
		sent := map[string][]string{}
		for i := range 60 {
			key := []string{"A", "B", "C", ""}[i%4]
			source := []inbox.SourceRef{orderSource, returnSource}[i/4%2]
			sent[key] = append(sent[key], w.receive(source, "order.placed", key))
		}
		stop := w.run(w.relay(nil))
		time.Sleep(5 * time.Second)
		stop()
		if n := w.counts(push).Waiting; n != 0 {
			t.Errorf("%d messages were not moved", n)
		}
		for _, key := range []string{"A", "B", "C"} {
			if got := w.waiting(warehouse, key); !slices.Equal(got, sent[key]) {
				t.Errorf("aggregate %s arrived as %v, want %v", key, got, sent[key])
			}
		}
		if got := w.waiting(warehouse, ""); len(got) != len(sent[""]) {
			t.Errorf("%d messages without aggregate arrived, want %d", len(got), len(sent[""]))
		}
	})
}

// What was moved is sent on at once, not at the poller's next look.
func TestRelayWakesThePollers(t *testing.T) {
	inWorld(t, func(w *world) {
		sent := make(chan time.Time, 1)
		poller := outbox.NewPoller(outbox.PollerConfig{
			Name: "warehouse", Scope: warehouse, Store: w.db.Outbox(warehouse),
			Destination: sends(func() { sent <- time.Now() }),
		})
		p, err := engine.NewProcess(engine.ProcessConfig{Keeper: w.db, Logger: quiet, PollInterval: time.Hour}, w.relay(nil), poller)
		w.check(err)
		ctx, cancel := context.WithCancel(w.ctx)
		ended := make(chan error, 1)
		go func() { ended <- p.Run(ctx) }()
		time.Sleep(30 * time.Second) // everything is leased, nothing waits
		w.receive(orderSource, "order.placed", "A")
		start := time.Now()
		p.Nudge()
		if took := (<-sent).Sub(start); took >= time.Second {
			t.Errorf("sent %v after the nudge", took)
		}
		cancel()
		w.check(<-ended)
	})
}

// sends is a destination that calls itself for every message.
type sends func()

func (s sends) Send(context.Context, event.Message) error { s(); return nil }

func TestRelayBuriesWhatCanNeverBeMoved(t *testing.T) {
	for _, known := range []bool{true, false} { // does the relay know the routes, or only the database?
		inWorld(t, func(w *world) {
			bad := map[string][2]string{ // aggregate: type and body
				"no UTF-8":  {"order.placed", "\xff\xfe"},
				"zero byte": {"order.placed", "\x00"},
				"no route":  {"mail.sent", "{}"},
			}
			behind := map[string]string{}
			for aggregate, m := range bad {
				w.receive(orderSource, "order.placed", aggregate)
				w.receive(orderSource, m[0], aggregate, m[1])
				behind[aggregate] = w.receive(orderSource, "order.placed", aggregate)
			}
			w.receive(orderSource, "order.placed", "healthy")
			stop := w.run(w.relay(func(c *inbox.RelayConfig[*memstore.Tx]) {
				if !known {
					c.Routed, c.Binary = nil, true
				}
			}))
			time.Sleep(10 * time.Second)
			stop()
			if n := w.counts(push).Waiting; n != 0 {
				t.Errorf("%d messages wait", n)
			}
			for aggregate, last := range behind {
				if got := w.waiting(warehouse, aggregate); len(got) != 2 || got[1] != last {
					t.Errorf("of aggregate %q arrived %v, want the first and %s", aggregate, got, last)
				}
			}
			dead := w.dead(push)
			if len(dead) != len(bad) {
				t.Fatalf("%d dead letters, want %d", len(dead), len(bad))
			}
			for _, d := range dead {
				mention := map[string]string{"no UTF-8": "UTF-8", "zero byte": "", "no route": "mail.sent"}[d.Message.Key]
				if d.Attempts != 1 || d.Reason != "permanent" || !strings.Contains(d.Error, mention) {
					t.Errorf("%s is dead after %d attempts with reason %q, error %q", d.Message.Key, d.Attempts, d.Reason, d.Error)
				}
			}
		})
	}
}

func TestRelayMapsInTheTransaction(t *testing.T) {
	inWorld(t, func(w *world) {
		refused, panics := 0, 0 // each is counted in one lane alone
		remap := func(ctx context.Context, tx *memstore.Tx, m inbox.Raw) ([]outbox.Record, error) {
			switch m.Key {
			case "retried":
				if refused++; refused == 1 {
					return nil, errors.New("not yet")
				}
			case "panics":
				if panics++; panics == 1 {
					panic("no paper")
				}
			case "refused":
				return nil, event.AsPermanent(errors.New("never"))
			case "unroutable":
				return []outbox.Record{record("mail.sent", "", "{}")}, nil
			case "nothing":
				return nil, nil
			}
			r := record("return.accepted", "", string(m.Payload))
			r.Headers = event.OutgoingHeaders(ctx, nil)
			return []outbox.Record{r, record("order.refunded", "own-key", "{}")}, nil
		}
		sent := map[string][]string{}
		for range 2 {
			for _, key := range []string{"retried", "panics", "refused", "unroutable", "nothing", "plain"} {
				sent[key] = append(sent[key], w.receive(returnSource, "anything", key))
			}
		}
		untouched := w.receive(orderSource, "order.placed", "other source")
		stop := w.run(w.relay(func(c *inbox.RelayConfig[*memstore.Tx]) {
			c.Remap = map[string]inbox.Remap[*memstore.Tx]{"returns": remap}
		}))
		time.Sleep(time.Minute)
		stop()
		for _, key := range []string{"retried", "panics", "plain"} {
			if got := w.waiting(warehouse, key); !slices.Equal(got, sent[key]) {
				t.Errorf("aggregate %s arrived as %v, want %v", key, got, sent[key])
			}
		}
		if got := w.waiting(warehouse, "own-key"); len(got) != 6 {
			t.Errorf("%d messages with a key of their own, want 6", len(got))
		}
		if got := w.waiting(warehouse, "other source"); !slices.Equal(got, []string{untouched}) {
			t.Errorf("a source without hook arrived as %v", got)
		}
		if n := len(w.db.Waiting(warehouse)); n != 13 {
			t.Errorf("%d messages arrived, want 13", n)
		}
		for _, m := range w.db.Waiting(warehouse) {
			if m.Topic == "return.accepted" && m.Headers[event.HeaderCausationID] == "" {
				t.Error("a mapped message does not name its cause")
			}
		}
		dead := map[string]int{}
		for _, d := range w.dead(push) {
			dead[d.Message.Key]++
		}
		if len(dead) != 2 || dead["refused"] != 2 || dead["unroutable"] != 2 || w.counts(push).Waiting != 0 {
			t.Errorf("dead are %v, %d wait", dead, w.counts(push).Waiting)
		}
	})
}

// strictPush is a store that refuses a whole call for one bad message, as a
// database does whose transaction is aborted by it.
type strictPush struct{ inbox.PushStore[*memstore.Tx] }

func (s strictPush) Move(ctx context.Context, owner string, runs []lane.Run, remap inbox.Remap[*memstore.Tx]) ([]lane.Verdict, error) {
	for _, run := range runs {
		for _, r := range run.Rows {
			if r.Message.Topic == "mail.sent" {
				return nil, &event.ConfigurationError{Topic: "mail.sent", Reason: "no route matches the topic"}
			}
		}
	}
	return s.PushStore.Move(ctx, owner, runs, remap)
}

func TestRelayBlamesTheCulpritAlone(t *testing.T) {
	inWorld(t, func(w *world) {
		sent := map[string][]string{}
		for i := range 30 {
			key := []string{"A", "B", "C"}[i%3]
			if key == "B" && i > 10 && i < 20 {
				w.receive(orderSource, "mail.sent", key)
				continue
			}
			sent[key] = append(sent[key], w.receive(orderSource, "order.placed", key))
		}
		stop := w.run(w.relay(func(c *inbox.RelayConfig[*memstore.Tx]) {
			c.Routed, c.Push = nil, strictPush{c.Push}
		}))
		time.Sleep(30 * time.Second)
		stop()
		for key := range sent {
			if got := w.waiting(warehouse, key); !slices.Equal(got, sent[key]) {
				t.Errorf("aggregate %s arrived as %v, want %v", key, got, sent[key])
			}
		}
		for _, d := range w.dead(push) {
			if d.Message.Topic != "mail.sent" || d.Attempts != 1 {
				t.Errorf("%s died after %d attempts", d.Message.Topic, d.Attempts)
			}
		}
		if c := w.counts(push); c.Waiting != 0 || c.Dead != 3 {
			t.Errorf("left are %+v", c)
		}
	})
}

// A key that stays locked delays its own aggregate alone, for as long as the
// lock is held, and costs it nothing.
func TestRelayIsNotDelayedByALockedKey(t *testing.T) {
	inWorld(t, func(w *world) {
		tx := w.db.Begin()
		w.check(tx.Append(w.ctx, []outbox.Record{record("order.placed", "locked", "first")}))
		locked := w.receive(orderSource, "order.placed", "locked")
		w.receive(orderSource, "order.placed", "free")
		stop := w.run(w.relay(nil))
		time.Sleep(2 * time.Second)
		if got := w.waiting(warehouse, "free"); len(got) != 1 {
			t.Fatal("the free aggregate waits for the locked one")
		}
		for range 58 {
			time.Sleep(time.Second)
			late := w.receive(orderSource, "order.placed", "free")
			time.Sleep(time.Second)
			if got := w.waiting(warehouse, "free"); got[len(got)-1] != late {
				t.Fatal("a message of the free aggregate waits for the locked one")
			}
		}
		w.check(tx.Commit(w.ctx))
		time.Sleep(10 * time.Second)
		stop()
		if got := w.waiting(warehouse, "locked"); !slices.Equal(got, []string{"first", locked}) {
			t.Errorf("the locked key has %v", got)
		}
		if n := len(w.dead(push)); n != 0 {
			t.Errorf("%d messages died of a locked key", n)
		}
	})
}

// Publishers who follow each other so closely that the key is always locked do
// not starve the relay: after a few rounds it queues for the lock.
func TestRelayGetsItsTurn(t *testing.T) {
	inWorld(t, func(w *world) {
		ctx, cancel := context.WithCancel(w.ctx)
		done := make(chan struct{})
		publisher := func() {
			for ctx.Err() == nil {
				tx := w.db.Begin()
				w.check(tx.Append(w.ctx, []outbox.Record{record("order.placed", "hot", "{}")}))
				time.Sleep(70 * time.Millisecond)
				w.check(tx.Commit(w.ctx))
			}
			done <- struct{}{}
		}
		go publisher()
		go publisher() // hands the lock over without a gap
		time.Sleep(time.Second)
		moved := w.receive(orderSource, "order.placed", "hot")
		stop := w.run(w.relay(nil))
		time.Sleep(time.Minute)
		if !slices.Contains(w.waiting(warehouse, "hot"), moved) {
			t.Error("the relay never got the lock")
		}
		cancel()
		<-done
		<-done
		stop()
	})
}

func TestRelaySpendsNoAttemptOnTheDatabase(t *testing.T) {
	inWorld(t, func(w *world) {
		sent := []string{w.receive(orderSource, "order.placed", "A"), w.receive(orderSource, "order.placed", "A")}
		w.db.LoseNextAnswer(memstore.OpMove, errors.New("connection reset"))
		w.db.FailNext(memstore.OpMove, 10, &event.RetryableError{Op: "move", Err: errors.New("deadlock")})
		stop := w.run(w.relay(nil))
		time.Sleep(10 * time.Minute)
		stop()
		if got := w.waiting(warehouse, "A"); !slices.Equal(got, sent) {
			t.Errorf("arrived %v, want %v once", got, sent)
		}
		if c := w.counts(push); c.Waiting != 0 || c.Dead != 0 || c.Held != 0 {
			t.Errorf("left are %+v", c)
		}
	})
}
