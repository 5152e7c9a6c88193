package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/outbox"
)

func incoming(idempotencyKey, eventType, aggregateID, payload string) inbox.Incoming {
	return inbox.Incoming{IdempotencyKey: idempotencyKey, EventType: eventType, AggregateID: aggregateID, Payload: []byte(payload)}
}

func noHandler(context.Context, pgx.Tx) error { return nil }

func TestEverything(t *testing.T) { forEach(t, everything) }

// everything sends every query once.
func everything(t *testing.T, b *box) {
	ctx := t.Context()
	if err := b.store.Check(ctx); err != nil {
		t.Fatal(err)
	}
	b.publish(record("order.placed.v1", "k", "1"), record("order.placed.v1", "k", "2"), record("order.placed.v1", "l", "3"))
	b.publish(record("order.placed.v1", "k", "4"))
	c := b.own(warehouse, "me")
	rows := c.all()
	if len(rows) != 4 {
		t.Fatalf("%d rows", len(rows))
	}
	kept, err := b.store.Keep(ctx, lane.KeepParams{Owner: "me", TTL: ttl, Scopes: []lane.ScopeLeases{{Scope: warehouse, Leases: c.leases}}})
	if err != nil || len(kept) != 1 || len(kept[0].Renewed) != 128 || !kept[0].Waiting || kept[0].Owners != 1 {
		t.Fatalf("kept %+v, %v", kept, err)
	}
	var settlements []lane.Settlement
	for i, r := range rows {
		settlements = append(settlements, outcome(r, []lane.Outcome{lane.Done, lane.Dead, lane.Park, lane.Retry}[i]))
	}
	if got := c.settle(settlements[0]); len(got.Fenced)+len(got.Gone) != 0 {
		t.Errorf("settled %+v", got)
	}
	if got := c.settle(settlements[1:]...); len(got.Fenced)+len(got.Gone) != 0 {
		t.Errorf("settled %+v", got)
	}
	letters, err := b.store.DeadLetters(ctx, warehouse)
	if err != nil || len(letters) != 1 || letters[0].Reason != "test" {
		t.Fatalf("dead letters %+v, %v", letters, err)
	}
	if n, err := b.store.Replay(ctx, warehouse, letters[0].Message.ID); n != 1 || err != nil {
		t.Errorf("replayed %d, %v", n, err)
	}
	if err := b.store.ParkKey(ctx, warehouse, "k", "look"); err != nil {
		t.Error(err)
	}
	if err := b.store.ReleaseKey(ctx, warehouse, "k", "fine"); err != nil {
		t.Error(err)
	}
	if _, err := b.store.Counts(ctx); err != nil {
		t.Error(err)
	}
	if err := c.lanes.Release(ctx, "me", c.leases); err != nil {
		t.Error(err)
	}
	if err := b.store.Leave(ctx, "me"); err != nil {
		t.Error(err)
	}
	everythingInbox(t, b)
}

func everythingInbox(t *testing.T, b *box) {
	ctx := t.Context()
	got := b.receive(orders, incoming("1", "order.placed.v1", "k", "x"), incoming("1", "order.placed.v1", "k", "x"),
		incoming("1", "order.placed.v1", "k", "other"), incoming("2", "order.placed.v1", "k", "y"))
	if !slices.Equal(got, []inbox.Disposition{inbox.Stored, inbox.Duplicate, inbox.Conflict, inbox.Stored}) {
		t.Errorf("received %v", got)
	}
	c := b.own(push, "me")
	rows := c.all()
	if len(rows) != 2 || rows[0].Message.Source != "orders" || rows[0].Message.IdempotencyKey != "1" {
		t.Fatalf("rows %+v", rows)
	}
	verdicts, err := b.store.Inbox(push).Move(ctx, "me", c.runs(rows), nil)
	if err != nil || verdicts[0].Accepted != 2 || !verdicts[0].Completed || verdicts[0].Err != nil {
		t.Errorf("moved %+v, %v", verdicts, err)
	}
	b.receive(paymentSource, incoming("1", "paid", "k", "x"))
	p := b.own(payments, "me")
	row := p.all()[0]
	if err := b.store.Inbox(payments).Handle(ctx, "me", row, p.lease(row), noHandler); err != nil {
		t.Error(err)
	}
	if n, err := b.store.PurgeReceipts(ctx, orders, 0, 10); n != 2 || err != nil {
		t.Errorf("purged %d, %v", n, err)
	}
}

// runs cuts rows into runs, one per lane.
func (c *client) runs(rows []lane.Row) []lane.Run {
	var runs []lane.Run
	for _, r := range rows {
		if n := len(runs); n > 0 && runs[n-1].Lane == r.Lane && r.Lane&1 == 1 {
			runs[n-1].Rows = append(runs[n-1].Rows, r)
			continue
		}
		runs = append(runs, lane.Run{Lease: c.lease(r), Lane: r.Lane, Rows: []lane.Row{r}})
	}
	return runs
}

// expire ends every lease of a scope as if its owner had stalled.
func (b *box) expire(scope lane.Scope) {
	b.exec(`UPDATE `+b.table("lane_bucket")+` SET lease_until = now() - interval '1 second' WHERE scope = $1 AND owner IS NOT NULL`, int32(scope))
}

func TestAcquireAndRelease(t *testing.T) {
	b := newPlain(t)
	ctx := t.Context()
	lanes := b.scope(warehouse)
	acquire := func(owner string, free int) []lane.Lease {
		t.Helper()
		leases, err := lanes.Acquire(ctx, lane.AcquireParams{Owner: owner, MaxFree: free, TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		return leases
	}
	first := acquire("a", 100)
	if len(first) != 100 || first[0].Crashed || first[0].Token != 1 || first[0].Lo&1 != 0 {
		t.Fatalf("a got %d: %+v", len(first), first[0])
	}
	if rest := acquire("b", 100); len(rest) != 28 {
		t.Fatalf("b got %d", len(rest))
	}
	if none := acquire("c", 100); len(none) != 0 {
		t.Fatalf("c got %d", len(none))
	}
	// Given back: free for others. Given back on probation: still a crash.
	back := slices.Clone(first[:10])
	back[0].Crashed = true
	if err := lanes.Release(ctx, "a", back); err != nil {
		t.Fatal(err)
	}
	again := acquire("c", 3)
	crashed := 0
	for _, l := range again {
		if l.Token != 2 {
			t.Errorf("token %d", l.Token)
		}
		if l.Crashed {
			crashed++
		}
	}
	if len(again) != 4 || crashed != 1 {
		t.Errorf("c got %d, %d crashed; want 3 free and 1 crashed", len(again), crashed)
	}
	// Expired without being given back: all are taken, whatever MaxFree is.
	b.expire(warehouse)
	if all := acquire("d", 0); len(all) != 122 || !all[0].Crashed {
		t.Errorf("d got %d", len(all))
	}
	// The former owners cannot give back what is no longer theirs.
	if err := lanes.Release(ctx, "a", first); err != nil {
		t.Fatal(err)
	}
	if n := one[int](b, `SELECT count(*) FROM lane_bucket WHERE scope = 101 AND owner = 'd'`); n != 122 {
		t.Errorf("d keeps %d", n)
	}
}

func TestAcquireWaitsForNobody(t *testing.T) {
	b := newPlain(t)
	tx := b.begin()
	if _, err := tx.Exec(t.Context(), `SELECT 1 FROM lane_bucket WHERE scope = 101 AND bucket < 0 FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	if got := len(b.own(warehouse, "a").leases); got != 64 {
		t.Errorf("%d buckets, want the 64 that nobody locks", got)
	}
}

// An owner that was taken over, one that has the right token but another name
// (as after a failover), and one with an old token change and see nothing.
func TestStaleOwnersAreFenced(t *testing.T) {
	forEach(t, func(t *testing.T, b *box) {
		ctx := t.Context()
		b.publish(record("order.shipped.v1", "k", "1"))
		b.receive(paymentSource, incoming("1", "paid", "k", "x"))
		b.receive(orders, incoming("1", "order.shipped.v1", "k", "x"))
		for _, scope := range []lane.Scope{warehouse, payments, push} {
			old := b.own(scope, "old")
			rows := old.all()
			b.expire(scope)
			now := b.own(scope, "new")
			if got := payloads(now.all()); len(got) != 1 {
				t.Fatalf("the new owner sees %v", got)
			}
			forged := &client{box: b, owner: "forged", lanes: now.lanes, leases: now.leases}
			for _, stale := range []*client{old, forged} {
				b.checkFenced(ctx, t, scope, stale, rows)
			}
			if got := now.settle(outcome(rows[0], lane.Done)); len(got.Fenced)+len(got.Gone) != 0 {
				t.Errorf("the new owner settled %+v", got)
			}
		}
	})
}

func (b *box) checkFenced(ctx context.Context, t *testing.T, scope lane.Scope, stale *client, rows []lane.Row) {
	t.Helper()
	before := b.dump()
	if got := stale.all(); len(got) != 0 {
		t.Errorf("%s fetched %v", stale.owner, payloads(got))
	}
	for _, o := range []lane.Outcome{lane.Done, lane.Retry, lane.Dead, lane.Park, lane.Start} {
		if got := stale.settle(outcome(rows[0], o)); !slices.Equal(got.Fenced, []lane.Bucket{rows[0].Bucket}) || len(got.Gone) != 0 {
			t.Errorf("%s settled %d: %+v", stale.owner, o, got)
		}
	}
	kept, err := b.store.Keep(ctx, lane.KeepParams{Owner: stale.owner, TTL: ttl, Scopes: []lane.ScopeLeases{{Scope: scope, Leases: stale.leases}}})
	if err != nil || len(kept) != 1 || len(kept[0].Renewed) != 0 {
		t.Errorf("%s renewed %+v, %v", stale.owner, kept, err)
	}
	if err := stale.lanes.Release(ctx, stale.owner, stale.leases); err != nil {
		t.Error(err)
	}
	if scope == payments {
		ran := false
		err := b.store.Inbox(scope).Handle(ctx, stale.owner, rows[0], stale.lease(rows[0]), func(context.Context, pgx.Tx) error { ran = true; return nil })
		if !errors.Is(err, lane.ErrLeaseLost) || !ran {
			t.Errorf("%s handled: %v", stale.owner, err)
		}
	}
	if scope == push {
		v, err := b.store.Inbox(scope).Move(ctx, stale.owner, stale.runs(rows), nil)
		if err != nil || !errors.Is(v[0].Err, lane.ErrLeaseLost) || v[0].Accepted != 0 {
			t.Errorf("%s moved %+v, %v", stale.owner, v, err)
		}
	}
	if after := b.dump(); before != after {
		t.Errorf("%s changed\n%s\ninto\n%s", stale.owner, before, after)
	}
}

// dump returns what the tables hold, except for heartbeats.
func (b *box) dump() string {
	var text strings.Builder
	for _, name := range []string{"outbox", "outbox_dead", "inbox", "inbox_dead", "lane_hold", "lane_bucket"} {
		rows, err := b.pool.Query(b.t.Context(), `SELECT x::text FROM `+b.table(name)+` AS x ORDER BY 1`)
		if err != nil {
			b.t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			b.t.Fatal(err)
		}
		fmt.Fprintln(&text, name, lines)
	}
	return text.String()
}

func TestOutcomesOfKeyedMessages(t *testing.T) {
	forEach(t, func(t *testing.T, b *box) {
		b.publish(record("order.shipped.v1", "k", "1"), record("order.shipped.v1", "k", "2"), record("order.shipped.v1", "other", "x"))
		c := b.own(warehouse, "me")
		head := func() lane.Row {
			t.Helper()
			for _, r := range c.all() {
				if r.Message.Key == "k" {
					return r
				}
			}
			return lane.Row{}
		}
		retry := outcome(head(), lane.Retry)
		retry.Delay = time.Hour
		c.settle(retry)
		if got := payloads(c.all()); !slices.Equal(got, []string{"x"}) {
			t.Errorf("while the lane waits: %v", got)
		}
		b.exec(`UPDATE ` + b.table("lane_hold") + ` SET due_at = now() - interval '1 second'`)
		if r := head(); r.Attempts != 1 || !r.Held || string(r.Message.Payload) != "1" {
			t.Errorf("due again: %+v", r)
		}
		c.settle(outcome(head(), lane.Start))
		if r := head(); r.Attempts != 2 || !r.Held || string(r.Message.Payload) != "1" {
			t.Errorf("started: %+v", r)
		}
		c.settle(outcome(head(), lane.Park))
		if r := head(); r.Message.Key != "" {
			t.Errorf("parked: %+v", r)
		}
		if err := b.store.ReleaseKey(t.Context(), warehouse, "k", ""); err != nil {
			t.Fatal(err)
		}
		if r := head(); r.Attempts != 0 || r.Held {
			t.Errorf("released: %+v", r)
		}
		c.settle(outcome(head(), lane.Start))
		c.settle(outcome(head(), lane.Dead))
		if r := head(); string(r.Message.Payload) != "2" || r.Held {
			t.Errorf("behind the dead one: %+v", r)
		}
		if n := one[int](b, `SELECT count(*) FROM `+b.table("lane_hold")); n != 0 {
			t.Errorf("%d holds left", n)
		}
		letters, err := b.store.DeadLetters(t.Context(), warehouse)
		if err != nil || len(letters) != 1 {
			t.Fatal(letters, err)
		}
		if l := letters[0]; string(l.Message.Payload) != "1" || l.Attempts != 2 || l.Reason != "test" || l.Error != "boom" || l.DiedAt.IsZero() {
			t.Errorf("dead letter %+v", l)
		}
	})
}

// In the unordered lane a failure concerns its message alone.
func TestOutcomesOfUnorderedMessages(t *testing.T) {
	forEach(t, func(t *testing.T, b *box) {
		for i := range 300 {
			b.publish(record("task.due.v1", "", fmt.Sprint(i)))
		}
		c := b.own(audit, "me")
		rows := c.all()
		if len(rows) != 300 || !rows[0].Unordered(c.lease(rows[0])) {
			t.Fatalf("%d rows", len(rows))
		}
		retry, park := outcome(rows[0], lane.Retry), outcome(rows[1], lane.Park)
		retry.Delay = time.Hour
		c.settle(retry, park)
		waiting, ready := 0, 0
		for _, r := range c.all() {
			switch {
			case r.DueIn == 0 && len(r.Message.Payload) > 0:
				ready++
			case r.DueIn > 0 && r.Message.Payload != nil && len(r.Message.Payload) == 0 && r.Attempts == 1 && r.Held:
				waiting++
			default:
				t.Errorf("row %+v", r)
			}
		}
		if ready != 298 || waiting != 2 {
			t.Errorf("%d ready, %d waiting", ready, waiting)
		}
		b.exec(`UPDATE ` + b.table("lane_hold") + ` SET due_at = now() WHERE NOT parked`)
		for _, r := range c.all() {
			if r.Message.Sequence == retry.Sequence && (r.DueIn != 0 || r.Attempts != 1 || len(r.Message.Payload) == 0) {
				t.Errorf("due again: %+v", r)
			}
		}
	})
}

func TestGoneAndParkedAreReported(t *testing.T) {
	forEach(t, func(t *testing.T, b *box) {
		b.publish(record("order.shipped.v1", "k", "1"), record("order.shipped.v1", "l", "2"))
		c := b.own(warehouse, "me")
		rows := c.all()
		b.exec(`DELETE FROM `+b.table("outbox")+` WHERE sequence = $1`, rows[0].Message.Sequence)
		want := []lane.Ref{{Lane: rows[0].Lane, Sequence: rows[0].Message.Sequence}}
		for _, o := range []lane.Outcome{lane.Retry, lane.Dead, lane.Start, lane.Park, lane.Done} {
			if got := c.settle(outcome(rows[0], o)); !slices.Equal(got.Gone, want) || len(got.Fenced) != 0 {
				t.Errorf("outcome %d: %+v", o, got)
			}
		}
		if n := one[int](b, `SELECT count(*) FROM `+b.table("lane_hold")); n != 0 {
			t.Errorf("%d holds of a message that is gone", n)
		}
		if err := b.store.ParkKey(t.Context(), warehouse, rows[1].Message.Key, "look"); err != nil {
			t.Fatal(err)
		}
		retry := outcome(rows[1], lane.Retry)
		if got := c.settle(retry); !slices.Equal(got.Parked, []int64{rows[1].Lane}) {
			t.Errorf("parked %+v", got)
		}
		kept, err := b.store.Keep(t.Context(), lane.KeepParams{Owner: "me", TTL: ttl, Scopes: []lane.ScopeLeases{{Scope: warehouse, Leases: c.leases}}})
		if err != nil || !slices.Equal(kept[0].Parked, []int64{rows[1].Lane}) {
			t.Errorf("kept %+v, %v", kept, err)
		}
		if got := c.all(); len(got) != 0 {
			t.Errorf("a parked lane gives %v", payloads(got))
		}
		// The retry did not end the park, and ending the park does not end the retry.
		b.exec(`UPDATE ` + b.table("lane_hold") + ` SET due_at = now() - interval '1 second'`)
		if err := b.store.ReleaseKey(t.Context(), warehouse, rows[1].Message.Key, ""); err != nil {
			t.Fatal(err)
		}
		if got := c.all(); len(got) != 1 || got[0].Attempts != 1 {
			t.Errorf("after the release: %+v", got)
		}
	})
}

func TestKeepCountsTheScope(t *testing.T) {
	forEach(t, func(t *testing.T, b *box) {
		ctx := t.Context()
		lanes := b.scope(warehouse)
		leases, err := lanes.Acquire(ctx, lane.AcquireParams{Owner: "a", MaxFree: 10, TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		keep := func(owner string, leases []lane.Lease) map[lane.Scope]lane.Kept {
			t.Helper()
			kept, err := b.store.Keep(ctx, lane.KeepParams{Owner: owner, TTL: ttl, Scopes: []lane.ScopeLeases{{Scope: warehouse, Leases: leases}, {Scope: payments}}})
			if err != nil || len(kept) != 2 {
				t.Fatal(kept, err)
			}
			return map[lane.Scope]lane.Kept{kept[0].Scope: kept[0], kept[1].Scope: kept[1]}
		}
		if k := keep("a", leases)[warehouse]; k.Owners != 1 || k.Buckets != 128 || k.Free != 118 || k.Expired != 0 || len(k.Renewed) != 10 || k.Waiting {
			t.Errorf("first %+v", k)
		}
		b.publish(record("order.shipped.v1", "k", "1"))
		b.expire(warehouse)
		b.exec(`INSERT INTO `+b.table("lane_owner")+` VALUES (101, 'gone', now() - interval '3 hours'), (101, 'stale', now() - $1::interval)`, ttl-time.Minute)
		kept := keep("b", nil)
		if k := kept[warehouse]; k.Owners != 3 || k.Expired != 10 || !k.Waiting {
			t.Errorf("second %+v", k)
		}
		if k := kept[payments]; k.Owners != 2 || k.Free != 128 || k.Waiting {
			t.Errorf("payments %+v", k)
		}
		if n := one[int](b, `SELECT count(*) FROM `+b.table("lane_owner")+` WHERE owner = 'gone'`); n != 0 {
			t.Error("an owner that was not seen for hours is still there")
		}
		if k := keep("a", leases)[warehouse]; len(k.Renewed) != 10 || k.Expired != 0 {
			t.Errorf("an expired lease that nobody took can be renewed: %+v", k)
		}
		if err := b.store.Leave(ctx, "a"); err != nil {
			t.Fatal(err)
		}
		b.exec(`UPDATE ` + b.table("lane_owner") + ` SET seen_at = seen_at - interval '30 minutes' WHERE owner = 'stale'`)
		if k := keep("b", nil)[warehouse]; k.Owners != 1 {
			t.Errorf("after a left: %+v", k)
		}
	})
}

// The cursor reaches every message, in the order of its key, whatever the sizes
// of page, run and walk are.
func TestCursorsReachEverything(t *testing.T) {
	b := newPlain(t)
	for _, p := range []lane.FetchParams{
		{MaxLanes: 1, MaxRun: 100, MaxRows: 1000, ScanLanes: 1}, {MaxLanes: 2, MaxRun: 1, MaxRows: 10, ScanLanes: 3},
		{MaxLanes: 64, MaxRun: 2, MaxRows: 3, ScanLanes: 512}, {MaxLanes: 3, MaxRun: 100, MaxRows: 7, ScanLanes: 2},
	} {
		var records []outbox.Record
		for i := range 300 {
			r := record("order.shipped.v1", fmt.Sprintf("k%d", i%75), fmt.Sprintf("%03d", i))
			if i%3 == 0 {
				r = record("task.due.v1", "", fmt.Sprintf("%03d", i))
			}
			records = append(records, r)
		}
		b.publish(records...)
		for scope, want := range map[lane.Scope]int{warehouse: 200, audit: 100} {
			c := b.own(scope, "me")
			if got := c.drain(p); got != want {
				t.Errorf("%+v: %d of %d", p, got, want)
			}
			if err := c.lanes.Release(t.Context(), "me", c.leases); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// drain delivers until a whole pass finds nothing and returns how much it was.
func (c *client) drain(p lane.FetchParams) int {
	c.t.Helper()
	p.Owner, p.Cursors = c.owner, c.start().Cursors
	drained := 0
	last := map[string]string{}
	// A bucket is empty when two walks came to its end without a message between:
	// the first may have begun in the middle.
	once, twice := map[lane.Bucket]bool{}, map[lane.Bucket]bool{}
	for len(twice) < len(c.leases) {
		page := c.fetch(p)
		if len(page.Rows) > p.MaxRows {
			c.t.Fatalf("%d rows in a page of %d", len(page.Rows), p.MaxRows)
		}
		for _, b := range page.Wrapped {
			twice[b] = once[b]
			if !once[b] {
				delete(twice, b)
			}
			once[b] = true
		}
		for _, r := range page.Rows {
			if key := r.Message.Key; key != "" && last[key] >= string(r.Message.Payload) {
				c.t.Fatalf("key %s: %s after %s", key, r.Message.Payload, last[key])
			}
			last[r.Message.Key] = string(r.Message.Payload)
			clear(once)
			clear(twice)
		}
		drained += len(page.Rows)
		c.settle(outcomes(page.Rows, lane.Done)...)
		p.Cursors = follow(p.Cursors, page.Next)
	}
	return drained
}

// follow replaces the cursors that moved and puts those that were not reached
// first.
func follow(cursors, next []lane.Cursor) []lane.Cursor {
	var rest, moved []lane.Cursor
	for _, c := range cursors {
		if i := slices.IndexFunc(next, func(n lane.Cursor) bool { return n.Lease.Bucket == c.Lease.Bucket }); i >= 0 {
			moved = append(moved, next[i])
		} else {
			rest = append(rest, c)
		}
	}
	return append(rest, moved...)
}

func TestBusyLanesAreSteppedOver(t *testing.T) {
	b := newPlain(t)
	b.publish(record("order.shipped.v1", "a", "1"), record("order.shipped.v1", "b", "2"))
	c := b.own(warehouse, "me")
	rows := c.all()
	p := c.start()
	p.Busy = []int64{rows[0].Lane}
	if got := c.fetch(p).Rows; len(got) != 1 || got[0].Lane != rows[1].Lane {
		t.Errorf("got %v", payloads(got))
	}
	b.expire(warehouse)
	if got := c.fetch(c.start()); len(got.Rows) != 0 || len(got.Next) != 0 {
		t.Errorf("expired leases give %+v", got)
	}
}

// Replay puts dead letters behind what is there, in their old order.
func TestReplay(t *testing.T) {
	forEach(t, func(t *testing.T, b *box) {
		ctx := t.Context()
		b.publish(record("order.shipped.v1", "k", "1"), record("order.shipped.v1", "k", "2"), record("order.shipped.v1", "k", "3"))
		c := b.own(warehouse, "me")
		rows := c.all()
		c.settle(outcome(rows[1], lane.Dead), outcome(rows[0], lane.Dead))
		id1, id2 := rows[0].Message.ID, rows[1].Message.ID
		if n, err := b.store.Replay(ctx, ledger, id1); n != 0 || err != nil {
			t.Errorf("another scope replayed %d, %v", n, err)
		}
		if n, err := b.store.Replay(ctx, warehouse, id2, id1, id1); n != 2 || err != nil {
			t.Errorf("replayed %d, %v", n, err)
		}
		if n, err := b.store.Replay(ctx, warehouse, id2, id1); n != 0 || err != nil {
			t.Errorf("replayed twice: %d, %v", n, err)
		}
		after := c.all()
		if got := payloads(after); !slices.Equal(got, []string{"3", "1", "2"}) {
			t.Errorf("got %v", got)
		}
		if after[1].Message.ID != id1 || after[2].Message.ID != id2 || after[1].Attempts != 0 {
			t.Errorf("ids %v", after)
		}
	})
}

// Replay waits for a writer of the key, like a publish.
func TestReplayTakesTheLock(t *testing.T) {
	b := newPlain(t)
	b.publish(record("order.shipped.v1", "k", "1"))
	c := b.own(warehouse, "me")
	row := c.all()[0]
	c.settle(outcome(row, lane.Dead))
	tx := b.begin()
	if err := b.appender(tx).Append(t.Context(), []outbox.Record{record("order.shipped.v1", "k", "2")}); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := b.store.Replay(t.Context(), warehouse, row.Message.ID)
		done <- err
	}()
	waitUntil(t, "the replay waits", func() bool { return b.waiters() == 1 })
	if err := errors.Join(tx.Commit(t.Context()), <-done); err != nil {
		t.Fatal(err)
	}
	if got := payloads(c.all()); !slices.Equal(got, []string{"2", "1"}) {
		t.Errorf("got %v", got)
	}
}

func TestErrorTextsAreStorable(t *testing.T) {
	b := newPlain(t)
	b.publish(record("order.shipped.v1", "k", "1"))
	c := b.own(warehouse, "me")
	s := outcome(c.all()[0], lane.Dead)
	s.Error = "bad \x00 byte \xff " + strings.Repeat("é", 5000)
	c.settle(s)
	letters, err := b.store.DeadLetters(t.Context(), warehouse)
	if err != nil || !strings.HasPrefix(letters[0].Error, "bad \uFFFD byte \uFFFD é") || len(letters[0].Error) > 2010 {
		t.Errorf("got %v, %v", letters, err)
	}
}

func TestStateView(t *testing.T) {
	forEach(t, func(t *testing.T, b *box) {
		for _, key := range []string{"pending", "retrying", "parked", "dead", "operator"} {
			b.publish(record("order.shipped.v1", key, "1"))
		}
		c := b.own(warehouse, "me")
		for _, r := range c.all() {
			if o, ok := map[string]lane.Outcome{"retrying": lane.Retry, "parked": lane.Park, "dead": lane.Dead}[r.Message.Key]; ok {
				c.settle(outcome(r, o))
			}
		}
		if err := b.store.ParkKey(t.Context(), warehouse, "operator", "look"); err != nil {
			t.Fatal(err)
		}
		rows, err := b.pool.Query(t.Context(), `SELECT key || ' ' || state || ' ' || destination_name FROM `+b.table("outbox_state")+` ORDER BY 1`)
		if err != nil {
			t.Fatal(err)
		}
		got, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if want := []string{"dead dead warehouse", "operator parked warehouse", "parked parked warehouse", "pending pending warehouse", "retrying retrying warehouse"}; err != nil || !slices.Equal(got, want) {
			t.Errorf("got %v, %v", got, err)
		}
		counts, err := b.store.Counts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range counts {
			if n.Scope == warehouse && (n.Waiting != 4 || n.Dead != 1 || n.Retrying != 1 || n.Parked != 2 || n.Name != "warehouse" || n.Kind != "destination") {
				t.Errorf("counts %+v", n)
			}
		}
	})
}

// A page of large messages ends when it has enough bytes, however many messages
// were asked for, and what it left out comes next.
func TestAPageOfLargeMessagesIsBounded(t *testing.T) {
	forEach(t, func(t *testing.T, b *box) {
		const size, limit = 3 << 20, 16 << 20
		var want []string
		for i := range 12 {
			want = append(want, fmt.Sprint(i))
			b.publish(record("order.shipped.v1", fmt.Sprint(i%4), strings.Repeat("x", size)+fmt.Sprint(i)))
		}
		want = append(want, "-")
		b.publish(record("order.shipped.v1", "larger than a page", strings.Repeat("y", limit+size)+"-"))
		c := b.own(warehouse, "a")
		var got []string
		for {
			page := c.fetch(c.start())
			if len(page.Rows) == 0 {
				break
			}
			bytes, last := 0, 0
			var done []lane.Settlement
			for _, r := range page.Rows {
				last = len(r.Message.Payload)
				bytes += last
				got = append(got, strings.TrimLeft(string(r.Message.Payload), "xy"))
				done = append(done, outcome(r, lane.Done))
			}
			if before := bytes - last; before >= limit {
				t.Errorf("a page has %d bytes before its last message", before)
			}
			if !page.Full && len(got) < len(want) {
				t.Errorf("a page that leaves out %d messages is not full", len(want)-len(got))
			}
			c.settle(done...)
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("got %q", got)
		}
	})
}
