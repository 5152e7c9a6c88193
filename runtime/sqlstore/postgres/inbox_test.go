package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/outbox"
)

// Fifty equal messages at once: one row, and everybody else learns that it is a
// duplicate.
func TestEqualMessagesAreStoredOnce(t *testing.T) {
	b := newBox(t, &fixtures[0], manyConnections)
	var wg sync.WaitGroup
	var mu sync.Mutex
	got := map[inbox.Disposition]int{}
	start := make(chan struct{})
	for i := range 50 {
		wg.Go(func() {
			<-start
			body := "x"
			if i%10 == 0 {
				body = "y"
			}
			ds, err := b.store.Receive(t.Context(), orders, []inbox.Incoming{incoming("same", "order.placed.v1", fmt.Sprintf("a%d", i), body)})
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			got[ds[0]]++
		})
	}
	close(start)
	wg.Wait()
	n := one[int](b, `SELECT count(*) FROM inbox`)
	conflicts := 5 // those with the other body than the stored one
	if one[string](b, `SELECT convert_from(payload, 'UTF8') FROM inbox`) == "y" {
		conflicts = 45
	}
	if n != 1 || got[inbox.Stored] != 1 || got[inbox.Conflict] != conflicts || got[inbox.Duplicate] != 49-conflicts {
		t.Errorf("%d rows, %v", n, got)
	}
}

// The same key of another source is another message.
func TestReceiveKeepsSourcesApart(t *testing.T) {
	forEach(t, func(t *testing.T, b *box) {
		for _, s := range []inbox.SourceRef{orders, shipments, paymentSource, refundSource} {
			if got := b.receive(s, incoming("k", "t", "a", s.Name)); got[0] != inbox.Stored {
				t.Errorf("%s: %v", s.Name, got)
			}
		}
		if got := payloads(b.own(payments, "me").all()); !slices.Equal(got, []string{"payments"}) {
			t.Errorf("payments: %v", got)
		}
		rows := b.own(push, "me").all()
		if got := payloads(rows); !slices.Equal(got, []string{"orders", "shipments"}) || rows[0].Lane != rows[1].Lane {
			t.Errorf("push: %v", got)
		}
		if rows[1].Message.Source != "shipments" || rows[1].Message.Key != "a" || rows[1].Message.Topic != "t" {
			t.Errorf("row %+v", rows[1].Message)
		}
	})
}

func TestReceiveKeepsBytesAndOrder(t *testing.T) {
	forEach(t, func(t *testing.T, b *box) {
		bodies := append(slices.Clone(jsonBodies), "\x00\xff", "")
		var messages []inbox.Incoming
		for i, body := range bodies {
			m := incoming(fmt.Sprint(i), "t", "a", body)
			m.Headers, m.Version = event.Headers{"h": "v"}, int64(i+1)
			messages = append(messages, m)
		}
		b.receive(paymentSource, messages...)
		rows := b.own(payments, "me").all()
		if got := payloads(rows); !slices.Equal(got, bodies) {
			t.Errorf("got  %q\nwant %q", got, bodies)
		}
		if m := rows[2].Message; m.Headers["h"] != "v" || m.Version != 3 || m.IdempotencyKey != "2" {
			t.Errorf("got %+v", m)
		}
		var refused *event.ConfigurationError
		long := make([]byte, 256)
		if _, err := b.store.Receive(t.Context(), paymentSource, []inbox.Incoming{incoming("new", "t", string(append(long[:0], fmt.Sprintf("%0256d", 1)...)), "x")}); !errors.As(err, &refused) {
			t.Errorf("a long aggregate id: %v", err)
		}
		if _, err := b.store.Receive(t.Context(), inbox.SourceRef{Number: 999, Scope: 999}, []inbox.Incoming{incoming("new", "t", "a", "x")}); !errors.As(err, &refused) {
			t.Errorf("an unknown source: %v", err)
		}
	})
}

// A receiver that began first and commits last comes last: its message has not
// been there before.
func TestReceiversOfOneAggregateWait(t *testing.T) {
	b := newPlain(t)
	tx := b.begin()
	if _, err := tx.Exec(t.Context(), `INSERT INTO inbox (source, event_type, aggregate_id, payload) VALUES (201, 't', 'a', 'first')`); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := b.store.Receive(t.Context(), paymentSource, []inbox.Incoming{incoming("2", "t", "a", "second"), incoming("3", "t", "b", "other")})
		done <- err
	}()
	waitUntil(t, "the receiver waits", func() bool { return b.waiters() == 1 })
	b.receive(refundSource, incoming("2", "t", "a", "elsewhere")) // the same aggregate of another scope
	if err := errors.Join(tx.Commit(t.Context()), <-done); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range b.own(payments, "me").all() {
		if r.Message.Key == "a" {
			got = append(got, string(r.Message.Payload))
		}
	}
	if !slices.Equal(got, []string{"first", "second"}) {
		t.Errorf("got %v", got)
	}
}

func TestConcurrentBatchesNeverDeadlock(t *testing.T) {
	b := newBox(t, &fixtures[0], manyConnections)
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			for n := range 8 {
				var batch []inbox.Incoming
				for i := range 10 {
					k := (w*7 + n*3 + i*5) % 40
					batch = append(batch, incoming(fmt.Sprint(k), "t", fmt.Sprintf("a%d", k*13%11), "x"))
				}
				if _, err := b.store.Receive(t.Context(), orders, batch); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := one[int](b, `SELECT count(*) - count(DISTINCT idempotency_key) FROM inbox`); n != 0 {
		t.Errorf("%d duplicates", n)
	}
}

// A receipt outlives its message in the inbox and among the dead letters.
func TestReceiptsOutliveMessages(t *testing.T) {
	b := newPlain(t)
	ctx := t.Context()
	purge := func() int {
		t.Helper()
		n, err := b.store.PurgeReceipts(ctx, paymentSource, time.Hour, 100)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	b.receive(paymentSource, incoming("waiting", "t", "a", "x"), incoming("dead", "t", "b", "x"), incoming("done", "t", "c", "x"))
	c := b.own(payments, "me")
	for _, r := range c.all() {
		switch r.Message.IdempotencyKey {
		case "dead":
			c.settle(outcome(r, lane.Dead))
		case "done":
			c.settle(outcome(r, lane.Done))
		}
	}
	if n := purge(); n != 0 {
		t.Errorf("purged %d young receipts", n)
	}
	b.exec(`UPDATE inbox_receipt SET received_at = now() - interval '2 hours'`)
	if n := purge(); n != 1 {
		t.Errorf("marked %d, want the one whose message is gone", n)
	}
	if got := b.receive(paymentSource, incoming("done", "t", "c", "x")); got[0] != inbox.Duplicate {
		t.Errorf("the retention counts from the receipt: %v", got)
	}
	b.exec(`UPDATE inbox_receipt SET gone_at = now() - interval '2 hours' WHERE gone_at > now() - interval '1 minute'`)
	if n := purge(); n != 1 {
		t.Errorf("purged %d, want the one that was marked", n)
	}
	if n := one[int](b, `SELECT count(*) FROM inbox_receipt`); n != 2 {
		t.Errorf("%d receipts are left, want those of the waiting and the dead message", n)
	}
	letters, err := b.store.DeadLetters(ctx, payments)
	if err != nil || letters[0].Message.IdempotencyKey != "dead" || letters[0].Message.Source != "payments" {
		t.Fatal(letters, err)
	}
	if _, err := b.store.Replay(ctx, payments, letters[0].Message.ID); err != nil {
		t.Fatal(err)
	}
	if n := purge(); n != 0 {
		t.Errorf("purged %d after the replay", n)
	}
	if got := b.receive(paymentSource, incoming("dead", "t", "b", "x")); got[0] != inbox.Duplicate {
		t.Errorf("received again: %v", got)
	}
}

// A handler's effect and the completion of its message are one transaction.
func TestHandle(t *testing.T) {
	forEach(t, func(t *testing.T, b *box) {
		ctx := t.Context()
		b.exec(`CREATE TABLE public.effect (n integer)`)
		b.receive(paymentSource, incoming("1", "t", "a", "1"), incoming("2", "t", "a", "2"))
		c := b.own(payments, "me")
		store := b.store.Inbox(payments)
		effects := func() int { return one[int](b, `SELECT count(*) FROM public.effect`) }
		effect := func(ctx context.Context, tx pgx.Tx) error {
			var level string
			if err := tx.QueryRow(ctx, `SELECT current_setting('transaction_isolation')`).Scan(&level); err != nil || level != "read committed" {
				t.Errorf("isolation %s, %v", level, err)
			}
			_, err := tx.Exec(ctx, `INSERT INTO public.effect VALUES (1)`)
			return err
		}
		row := c.all()[0]
		c.settle(outcome(row, lane.Start))
		broken := errors.New("broken")
		err := store.Handle(ctx, "me", row, c.lease(row), func(ctx context.Context, tx pgx.Tx) error {
			return errors.Join(effect(ctx, tx), broken)
		})
		if !errors.Is(err, broken) || effects() != 0 || len(c.all()) != 2 {
			t.Errorf("a handler that fails: %v, %d effects", err, effects())
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic was swallowed")
				}
			}()
			store.Handle(ctx, "me", row, c.lease(row), func(ctx context.Context, tx pgx.Tx) error {
				effect(ctx, tx)
				panic("boom")
			})
		}()
		if effects() != 0 || b.pool.Stat().AcquiredConns() != 0 {
			t.Errorf("after a panic: %d effects, %d connections", effects(), b.pool.Stat().AcquiredConns())
		}
		if err := store.Handle(ctx, "me", row, c.lease(row), effect); err != nil {
			t.Error(err)
		}
		if got := payloads(c.all()); effects() != 1 || !slices.Equal(got, []string{"2"}) {
			t.Errorf("%d effects, left %v", effects(), got)
		}
		if n := one[int](b, `SELECT count(*) FROM `+b.table("lane_hold")); n != 0 {
			t.Errorf("%d holds left", n)
		}
		if err := store.Handle(ctx, "me", row, c.lease(row), effect); err == nil || errors.Is(err, lane.ErrLeaseLost) || effects() != 1 {
			t.Errorf("a message that is gone: %v, %d effects", err, effects())
		}
	})
}

func TestMoveKeepsOrderAndFansOut(t *testing.T) {
	forEach(t, func(t *testing.T, b *box) {
		var messages []inbox.Incoming
		for i := range 12 {
			m := incoming(fmt.Sprint(i), "order.placed.v1", fmt.Sprintf("a%d", i%2), fmt.Sprint(i))
			m.Headers = event.Headers{"i": fmt.Sprint(i)}
			messages = append(messages, m)
		}
		b.receive(orders, messages...)
		c := b.own(push, "me")
		rows := c.all()
		verdicts, err := b.store.Inbox(push).Move(t.Context(), "me", c.runs(rows), nil)
		if err != nil || len(verdicts) != 2 {
			t.Fatal(verdicts, err)
		}
		for _, v := range verdicts {
			if v.Accepted != 6 || !v.Completed || v.Err != nil {
				t.Errorf("verdict %+v", v)
			}
		}
		if len(c.all()) != 0 {
			t.Error("messages are left in the inbox")
		}
		for _, scope := range []lane.Scope{warehouse, ledger} {
			got := map[string][]string{}
			for _, r := range b.own(scope, "me").all() {
				got[r.Message.Key] = append(got[r.Message.Key], string(r.Message.Payload)+r.Message.Headers["i"])
			}
			if !slices.Equal(got["a0"], []string{"00", "22", "44", "66", "88", "1010"}) || len(got["a1"]) != 6 {
				t.Errorf("scope %d: %v", scope, got)
			}
		}
		if n := one[int](b, `SELECT count(DISTINCT id) FROM `+b.table("outbox")); n != 12 {
			t.Errorf("%d ids", n)
		}
	})
}

// A key that a writer holds delays no other one; nothing is waited for while
// buckets are locked.
func TestMoveOnlyTriesLocks(t *testing.T) {
	forEach(t, func(t *testing.T, b *box) {
		ctx := t.Context()
		b.receive(orders, incoming("1", "order.shipped.v1", "held", "1"), incoming("2", "order.shipped.v1", "free", "2"))
		c := b.own(push, "me")
		runs := c.runs(c.all())
		tx := b.begin()
		if err := b.appender(tx).Append(ctx, []outbox.Record{record("order.shipped.v1", "held", "0")}); err != nil {
			t.Fatal(err)
		}
		store := b.store.Inbox(push)
		verdicts, err := store.Move(ctx, "me", runs, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i, v := range verdicts {
			held := runs[i].Rows[0].Message.Key == "held"
			if held != errors.Is(v.Err, lane.ErrBusy) || !held != (v.Accepted == 1 && v.Completed) {
				t.Errorf("%s: %+v", runs[i].Rows[0].Message.Key, v)
			}
			if !held {
				continue
			}
			if v, err := store.MoveWaiting(ctx, "me", runs[i], nil, time.Millisecond); err != nil || !errors.Is(v.Err, lane.ErrBusy) {
				t.Errorf("after a short wait: %+v, %v", v, err)
			}
			moved := make(chan lane.Verdict, 1)
			go func() {
				v, err := store.MoveWaiting(ctx, "me", runs[i], nil, time.Minute)
				v.Err = errors.Join(v.Err, err)
				moved <- v
			}()
			waitUntil(t, "the relay waits", func() bool { return b.waiters() == 1 })
			if kept, err := b.store.Keep(ctx, lane.KeepParams{Owner: "me", TTL: ttl, Scopes: []lane.ScopeLeases{{Scope: push, Leases: c.leases}}}); err != nil || len(kept[0].Renewed) != 128 {
				t.Errorf("leases cannot be renewed while the relay waits: %v, %v", kept, err)
			}
			if err := tx.Commit(ctx); err != nil {
				t.Fatal(err)
			}
			if v := <-moved; v.Err != nil || v.Accepted != 1 {
				t.Errorf("moved %+v", v)
			}
		}
		var got []string
		for _, r := range b.own(warehouse, "me").all() {
			if r.Message.Key == "held" {
				got = append(got, string(r.Message.Payload))
			}
		}
		if !slices.Equal(got, []string{"0", "1"}) {
			t.Errorf("got %v", got)
		}
	})
}

// What the outbox refuses stays behind with its reason; everything else of the
// call is moved, up to it in its own lane.
func TestMoveIsolatesRefusedMessages(t *testing.T) {
	b := newPlain(t)
	b.receive(orders,
		incoming("1", "order.shipped.v1", "good", "1"), incoming("2", "order.shipped.v1", "bad", "2"), incoming("3", "nowhere.v1", "bad", "3"),
		incoming("4", "order.shipped.v1", "bad", "4"), incoming("5", "order.shipped.v1", "binary", "\xff"), incoming("6", "order.shipped.v1", "", "6"))
	c := b.own(push, "me")
	runs := c.runs(c.all())
	verdicts, err := b.store.Inbox(push).Move(t.Context(), "me", runs, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range verdicts {
		want, class := map[string]int{"good": 1, "bad": 1, "binary": 0, "": 0}[runs[i].Rows[0].Message.Key], event.Permanent
		got, _ := event.Classify(v.Err)
		if runs[i].Rows[0].Message.Key == "good" {
			if v.Err != nil || v.Accepted != 1 {
				t.Errorf("good: %+v", v)
			}
		} else if v.Accepted != want || v.Err == nil || got != class || v.Accepted > 0 && !v.Completed {
			t.Errorf("%q: %+v", runs[i].Rows[0].Message.Key, v)
		}
	}
	if got := payloads(b.own(warehouse, "me").all()); len(got) != 2 {
		t.Errorf("moved %v", got)
	}
	if n := len(c.all()); n != 4 {
		t.Errorf("%d messages are left, want 3, 4, 5 and 6", n)
	}
}

// Mapping hooks run in the transaction; what a failed or busy run did is undone.
func TestMoveMaps(t *testing.T) {
	forEach(t, func(t *testing.T, b *box) {
		ctx := t.Context()
		b.exec(`CREATE TABLE public.effect (key text)`)
		b.receive(orders,
			incoming("1", "x", "two", "1"), incoming("2", "x", "none", "2"), incoming("3", "x", "fails", "3"), incoming("4", "x", "fails", "4"),
			incoming("5", "x", "busy", "5"))
		c := b.own(push, "me")
		tx := b.begin()
		if err := b.appender(tx).Append(ctx, []outbox.Record{record("order.shipped.v1", "busy", "0")}); err != nil {
			t.Fatal(err)
		}
		broken := errors.New("broken")
		remap := func(ctx context.Context, tx pgx.Tx, m inbox.Raw) ([]outbox.Record, error) {
			if _, err := tx.Exec(ctx, `INSERT INTO public.effect VALUES ($1)`, m.Key+string(m.Payload)); err != nil {
				return nil, err
			}
			switch {
			case m.Key == "none":
				return nil, nil
			case m.Key == "fails" && string(m.Payload) == "4":
				tx.Exec(ctx, `this is no SQL`)
				return nil, broken
			case m.Key == "two":
				return []outbox.Record{record("order.shipped.v1", "", "own key"), record("order.shipped.v1", "other", "other key")}, nil
			}
			return []outbox.Record{record("order.shipped.v1", "", "mapped")}, nil
		}
		runs := c.runs(c.all())
		verdicts, err := b.store.Inbox(push).Move(ctx, "me", runs, remap)
		if err != nil {
			t.Fatal(err)
		}
		for i, v := range verdicts {
			key := runs[i].Rows[0].Message.Key
			ok := v.Completed && v.Accepted == 1 && v.Err == nil
			switch key {
			case "fails":
				ok = v.Completed && v.Accepted == 1 && errors.Is(v.Err, broken)
			case "busy":
				ok = v.Accepted == 0 && errors.Is(v.Err, lane.ErrBusy)
			}
			if !ok {
				t.Errorf("%s: %+v", key, v)
			}
		}
		if err := tx.Rollback(ctx); err != nil {
			t.Fatal(err)
		}
		if got := one[string](b, `SELECT string_agg(key, ' ' ORDER BY key) FROM public.effect`); got != "fails3 none2 two1" {
			t.Errorf("effects %s", got)
		}
		got := map[string]int{}
		for _, r := range b.own(warehouse, "me").all() {
			got[r.Message.Key+" "+string(r.Message.Payload)]++
		}
		if len(got) != 3 || got["two own key"] != 1 || got["other other key"] != 1 || got["fails mapped"] != 1 {
			t.Errorf("outbox %v", got)
		}
		if left := payloads(c.all()); len(left) != 2 {
			t.Errorf("left %v", left)
		}
	})
}

// A bucket that is lost while hooks have run undoes everything; nothing is
// moved twice and nothing is lost.
func TestMoveAfterLosingBuckets(t *testing.T) {
	b := newPlain(t)
	ctx := t.Context()
	b.receive(orders, incoming("1", "order.shipped.v1", "a", "1"), incoming("2", "order.shipped.v1", "b", "2"))
	c := b.own(push, "me")
	rows := c.all()
	runs := c.runs(rows)
	b.exec(`UPDATE lane_bucket SET token = token + 1, owner = 'other' WHERE scope = 1 AND bucket = $1`, int16(rows[0].Bucket))
	remap := func(_ context.Context, _ pgx.Tx, m inbox.Raw) ([]outbox.Record, error) {
		return []outbox.Record{record("order.shipped.v1", "", string(m.Payload))}, nil
	}
	verdicts, err := b.store.Inbox(push).Move(ctx, "me", runs, remap)
	if err != nil || !errors.Is(verdicts[0].Err, lane.ErrLeaseLost) || !errors.Is(verdicts[1].Err, lane.ErrBusy) {
		t.Errorf("with hooks: %+v, %v", verdicts, err)
	}
	if n := one[int](b, `SELECT count(*) FROM outbox`); n != 0 {
		t.Errorf("%d rows", n)
	}
	verdicts, err = b.store.Inbox(push).Move(ctx, "me", runs, nil)
	if err != nil || !errors.Is(verdicts[0].Err, lane.ErrLeaseLost) || verdicts[1].Accepted != 1 {
		t.Errorf("without: %+v, %v", verdicts, err)
	}
	again, err := b.store.Inbox(push).Move(ctx, "me", runs[1:], nil)
	if err != nil || again[0].Accepted != 1 || one[int](b, `SELECT count(*) FROM outbox`) != 1 {
		t.Errorf("moved again: %+v, %v", again, err)
	}
}

// A receiver may store inside a transaction that does more.
func TestReceiveInATransaction(t *testing.T) {
	forEach(t, func(t *testing.T, b *box) {
		tx := b.begin()
		message := []inbox.Incoming{incoming("1", "t", "a", "x")}
		for i, want := range []inbox.Disposition{inbox.Stored, inbox.Duplicate} {
			if got, err := b.store.ReceiveIn(t.Context(), tx, paymentSource, message); err != nil || got[0] != want {
				t.Errorf("%d: %v, %v", i, got, err)
			}
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := b.receive(paymentSource, message...); got[0] != inbox.Stored {
			t.Errorf("after the rollback: %v", got)
		}
	})
}
