package storetest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/outbox"
)

func everyBucketHasOneOwner[Tx any](e *env[Tx]) {
	const owners = 8
	var mu sync.Mutex
	holders := map[lane.Bucket]string{}
	parallel(e, owners, func(i int) error {
		name := fmt.Sprintf("owner-%d", i)
		share := (e.features.Buckets + owners - 1) / owners
		leases, err := e.Outbox(e.Scope(Warehouse)).Acquire(e.ctx, lane.AcquireParams{Owner: name, MaxFree: share, TTL: long})
		if err != nil {
			return err
		}
		if len(leases) > share {
			return fmt.Errorf("%s asked for %d free buckets and got %d", name, share, len(leases))
		}
		mu.Lock()
		defer mu.Unlock()
		for _, l := range leases {
			if other := holders[l.Bucket]; other != "" {
				return fmt.Errorf("bucket %d was leased to %s and to %s", l.Bucket, other, name)
			}
			if l.Lo > l.Hi || l.Token < 1 || l.Crashed {
				return fmt.Errorf("a fresh bucket was leased as %+v", l)
			}
			holders[l.Bucket] = name
		}
		return nil
	})
}

func liveLeaseIsNotAcquired[Tx any](e *env[Tx]) {
	a, b := e.claimer("a", Warehouse), e.owner("b", Warehouse)
	if n := b.acquire(e.features.Buckets, long); n != 0 {
		e.Fatalf("b leased %d buckets that a holds", n)
	}
	if n := a.acquire(e.features.Buckets, long); n != 0 {
		e.Fatalf("a leased %d of its own buckets again", n)
	}
	tokens := map[lane.Bucket]int64{}
	for _, l := range a.leases {
		tokens[l.Bucket] = l.Token
	}
	a.expire()
	if n := b.acquire(e.features.Buckets, long); n != e.features.Buckets {
		e.Fatalf("b leased %d expired buckets, want %d", n, e.features.Buckets)
	}
	for _, l := range b.leases {
		if l.Token != tokens[l.Bucket]+1 || !l.Crashed {
			e.Errorf("bucket %d was taken over as %+v; the former token is %d", l.Bucket, l, tokens[l.Bucket])
		}
	}
}

func busyLanesAreSteppedOver[Tx any](e *env[Tx]) {
	e.publish(orderPlaced, "busy", 3)
	free := e.publish(orderPlaced, "free", 2)
	a := e.claimer("a", Warehouse)
	busy := rowsOf(a.fetch(), "busy")[0].Lane
	want(e, "fetched beside a busy lane", payloadList(a.fetch(busy)), free)
}

func pushOneInFlightOverAllSources[Tx any](e *env[Tx]) {
	first := e.receive(Orders, orderPlaced, "A")
	second := e.receive(Returns, returned, "A")
	third := e.receive(Orders, orderCancelled, "A")
	a := e.claimer("a", Push)
	rows := a.fetch()
	want(e, "the aggregate's run", payloadList(rows), []string{string(first.Payload), string(second.Payload), string(third.Payload)})
	if rows[0].Lane != rows[1].Lane || rows[1].Lane != rows[2].Lane {
		e.Errorf("one aggregate has lanes %d, %d and %d", rows[0].Lane, rows[1].Lane, rows[2].Lane)
	}
	if rows[0].Message.Source != Orders || rows[1].Message.Source != Returns {
		e.Errorf("the sources are %s and %s", rows[0].Message.Source, rows[1].Message.Source)
	}
	if rows := a.fetch(rows[0].Lane); len(rows) > 0 {
		e.Errorf("beside the busy aggregate came %s", payloads(rows))
	}
}

func cursorVisitsEveryLane[Tx any](e *env[Tx]) {
	const lanes = 150
	expected := map[string]bool{}
	var records []outbox.Record
	for i := range lanes {
		key := fmt.Sprintf("k%d", i)
		first := e.record(orderPlaced, key)
		records = append(records, first, e.record(orderPlaced, key))
		expected[string(first.Payload)] = true
		if i%3 == 0 {
			task := e.record(returned, "")
			records = append(records, task)
			expected[string(task.Payload)] = true
		}
	}
	e.check(e.append(records...))
	a := e.claimer("a", Warehouse)
	var busy []int64
	var held []lane.Row
	for i, r := range a.fetch() {
		switch {
		case r.Message.Key == "" || !expected[string(r.Message.Payload)]:
		case i%5 == 0:
			busy = append(busy, r.Lane)
			delete(expected, string(r.Message.Payload))
		case i%5 == 1:
			held = append(held, r)
			delete(expected, string(r.Message.Payload))
		}
	}
	a.settle(lane.Retry, held...)
	for _, limits := range [][4]int{{1, 1, 1, 1}, {3, 1, 5, 4}, {64, 1, 7, 2}, {2, 1, 500, 100}} {
		a.params.MaxLanes, a.params.MaxRun, a.params.MaxRows, a.params.ScanLanes = limits[0], limits[1], limits[2], limits[3]
		seen := map[string]int{}
		for _, r := range a.fetch(busy...) {
			seen[string(r.Message.Payload)]++
		}
		for payload := range expected {
			if seen[payload] != 1 {
				e.Errorf("limits %v: a pass listed %s %d times, want once", limits, payload, seen[payload])
			}
		}
		if len(seen) != len(expected) {
			e.Errorf("limits %v: a pass listed %d messages, want %d", limits, len(seen), len(expected))
		}
	}
}

func hotUnorderedLaneDelaysNoKeyedLane[Tx any](e *env[Tx]) {
	keyed := e.publish(orderPlaced, "K", 1)
	a := e.claimer("a", Warehouse)
	l := a.lease(a.one())
	var records []outbox.Record
	for range 8 * min(e.features.Buckets, 64) {
		records = append(records, e.record(returned, ""))
	}
	e.check(e.append(records...))
	// The bucket alone, in pages that the unordered lane can fill.
	a.leases, a.params.MaxRows = []lane.Lease{l}, 2
	cursor := lane.Cursor{Lease: l, Lane: l.Lo}
	for range 3 {
		a.params.Cursors = []lane.Cursor{cursor}
		page, err := a.store.Fetch(e.ctx, a.params)
		e.check(err)
		if rows := rowsOf(page.Rows, "K"); len(rows) > 0 {
			want(e, "the keyed lane", payloadList(rows), keyed)
			return
		}
		if len(page.Next) != 1 {
			e.Fatalf("a fetch of one bucket answered %d cursors", len(page.Next))
		}
		cursor = page.Next[0]
	}
	e.Fatal("three full pages of keyless messages came before the keyed lane")
}

func heldLaneHoldsOneDestinationOnly[Tx any](e *env[Tx]) {
	sent := e.publish(orderPlaced, "K", 2)
	w, l := e.claimer("w", Warehouse), e.claimer("l", Ledger)
	w.settle(lane.Retry, w.fetch()[0])
	if rows := w.fetch(); len(rows) > 0 {
		e.Errorf("the held lane gave %s", payloads(rows))
	}
	want(e, "the other destination", ofKey(l.drain(), "K"), sent)
}

func pullClaimNeverCrossesSources[Tx any](e *env[Tx]) {
	payment, stock := e.receive(Payments, orderCancelled, "A"), e.receive(Stock, orderPlaced, "A")
	e.receive(Orders, orderPlaced, "A")
	for source, m := range map[string]string{Payments: string(payment.Payload), Stock: string(stock.Payload)} {
		got := e.claimer("w-"+source, source).one()
		if string(got.Message.Payload) != m || got.Message.Source != source {
			e.Errorf("source %s gave %s of %s", source, got.Message.Payload, got.Message.Source)
		}
	}
}

func sameAggregateRunsOnTwoSources[Tx any](e *env[Tx]) {
	e.receive(Payments, orderCancelled, "A")
	e.receive(Stock, orderPlaced, "A")
	e.receive(Orders, orderPlaced, "A")
	payments, stock, push := e.claimer("w", Payments), e.claimer("w", Stock), e.claimer("r", Push)
	payment := payments.one() // in flight from here on
	if got := stock.one(); got.Message.Key != "A" {
		e.Errorf("stock gave key %q", got.Message.Key)
	}
	payments.settle(lane.Retry, payment)
	stock.settle(lane.Done, stock.one())
	push.settle(lane.Done, push.one())
}

func keylessRowsRunInParallel[Tx any](e *env[Tx]) {
	const n = 30
	e.publish(mailRequested, "", n/2)
	for i := range n / 2 { // plain SQL, with NULL and with an empty key
		empty := ""
		key := []*string{nil, &empty}[i%2]
		e.check(e.transact(func(tx Tx) error { return e.Insert(e.ctx, tx, mailRequested, key, "{}") }))
	}
	a := e.claimer("a", Mail)
	rows := a.fetch()
	if len(rows) != n {
		e.Fatalf("%d keyless messages may run at once, want all %d", len(rows), n)
	}
	a.settle(lane.Retry, rows[0])
	a.settle(lane.Park, rows[1])
	if left := a.fetch(); len(left) != n-2 {
		e.Fatalf("while two wait, %d may run, want %d", len(left), n-2)
	}
	a.settle(lane.Done, rows[2:]...)
	if rows := a.pass(); len(rows) != 2 {
		e.Fatalf("%d messages are left, want the 2 that wait", len(rows))
	}
}

func heldUnorderedRowsArePassed[Tx any](e *env[Tx]) {
	const n = 40
	e.publish(mailRequested, "", n)
	a := e.claimer("a", Mail)
	rows := a.fetch()
	a.settle(lane.Retry, rows[:n/2]...)
	a.settle(lane.Park, rows[n/2:]...)
	healthy := e.publish(mailRequested, "", 1)
	a.params.MaxRows = 2
	all := a.pass()
	want(e, "behind those that wait", payloadList(due(all)), healthy)
	for _, r := range all {
		if r.DueIn > 0 && (len(r.Message.Payload) > 0 || !r.Held) {
			e.Errorf("a message that waits is listed with payload %q, held %v", r.Message.Payload, r.Held)
		}
	}
	e.check(e.MakeDue(e.ctx, a.scope))
	if again := a.fetch(); len(again) != n/2+1 {
		e.Errorf("%d messages are due after the wait, want %d", len(again), n/2+1)
	}
}

func settledIsNeverFetchedAgain[Tx any](e *env[Tx]) {
	e.publish(orderPlaced, "K", 3)
	e.publish(orderPlaced, "L", 2)
	e.publish(returned, "", 4)
	a := e.claimer("a", Warehouse)
	rows := a.fetch()
	a.settle(lane.Done, rows...)
	if rows := a.pass(); len(rows) > 0 {
		e.Fatalf("settled and fetched again: %s", payloads(rows))
	}
	a.expire()
	if rows := e.claimer("b", Warehouse).pass(); len(rows) > 0 {
		e.Fatalf("settled and fetched again by the next owner: %s", payloads(rows))
	}
}

func unsettledIsRepeatedWithTheSameID[Tx any](e *env[Tx]) {
	e.publish(orderPlaced, "K", 3)
	a := e.claimer("a", Warehouse)
	before := a.fetch()
	a.settle(lane.Done, before[0])
	a.expire()
	after := e.claimer("b", Warehouse).fetch()
	if len(after) != 2 {
		e.Fatalf("the next owner sees %d messages, want 2", len(after))
	}
	for i, r := range after {
		if was := before[i+1].Message; r.Message.ID != was.ID || r.Message.Sequence != was.Sequence {
			e.Errorf("message %d is repeated as %v/%d, was %v/%d", i, r.Message.ID, r.Message.Sequence, was.ID, was.Sequence)
		}
	}
}

func expiredLeaseNobodyTookMaySettle[Tx any](e *env[Tx]) {
	e.publish(orderPlaced, "K", 2)
	e.receive(Payments, orderCancelled, "A")
	a, w := e.claimer("a", Warehouse), e.claimer("w", Payments)
	rows, row := a.fetch(), w.one()
	a.expire()
	w.expire()
	if rows := a.pass(); len(rows) > 0 {
		e.Fatalf("an expired lease still fetches: %s", payloads(rows))
	}
	a.settle(lane.Done, rows...)
	e.check(e.Pull(w.scope).Handle(e.ctx, w.name, row, w.lease(row), func(context.Context, Tx) error { return nil }))
	for _, o := range []*owner[Tx]{e.claimer("b", Warehouse), e.claimer("b", Payments)} {
		if rows := o.pass(); len(rows) > 0 {
			e.Errorf("settled too late: %s", payloads(rows))
		}
	}
}

func leaseEndsByTheDatabaseClock[Tx any](e *env[Tx]) {
	e.publish(orderPlaced, "K", 1)
	a, b := e.owner("a", Warehouse), e.owner("b", Warehouse)
	a.acquire(e.features.Buckets, 50*time.Millisecond)
	e.eventually("the lease ends by itself", func() bool {
		b.acquire(0, long)
		return len(b.leases) == e.features.Buckets
	})
	if rows := a.pass(); len(rows) > 0 {
		e.Errorf("the former owner fetched %s", payloads(rows))
	}
	b.settle(lane.Done, b.one())
}

// keep renews the owner's leases and returns the answer for its scope.
func (o *owner[Tx]) keep(ttl time.Duration) lane.Kept {
	o.e.Helper()
	kept, err := o.e.Keeper.Keep(o.e.ctx, lane.KeepParams{
		Owner: o.name, TTL: ttl, Scopes: []lane.ScopeLeases{{Scope: o.scope, Leases: o.leases}},
	})
	o.e.check(err)
	if len(kept) != 1 || kept[0].Scope != o.scope {
		o.e.Fatalf("keeping scope %d answered %+v", o.scope, kept)
	}
	return kept[0]
}

func renewalKeepsALease[Tx any](e *env[Tx]) {
	a, b := e.owner("a", Warehouse), e.owner("b", Warehouse)
	a.acquire(e.features.Buckets, long)
	a.expire()
	if k := a.keep(long); len(k.Renewed) != e.features.Buckets || k.Expired != 0 || k.Free != 0 {
		e.Fatalf("renewing what nobody took answered %+v", k)
	}
	if n := b.acquire(e.features.Buckets, long); n != 0 {
		e.Fatalf("b took %d renewed buckets", n)
	}
	e.publish(orderPlaced, "K", 1)
	a.settle(lane.Done, a.one())
}

func heartbeatsCountLiveOwners[Tx any](e *env[Tx]) {
	a, b := e.owner("a", Warehouse), e.owner("b", Warehouse)
	k := a.keep(long)
	if k.Owners != 1 || k.Buckets != e.features.Buckets || k.Free != k.Buckets || k.Expired != 0 || k.Waiting {
		e.Fatalf("alone, keeping answered %+v", k)
	}
	e.publish(orderPlaced, "K", 1)
	a.acquire(e.features.Buckets, long)
	if k = b.keep(long); k.Owners != 2 || k.Free != 0 || k.Expired != 0 || !k.Waiting {
		e.Fatalf("beside a, keeping answered %+v", k)
	}
	if k = e.owner("c", Mail).keep(long); k.Owners != 1 || k.Waiting {
		e.Fatalf("in another scope, keeping answered %+v", k)
	}
	a.expire()
	if k = b.keep(long); k.Expired != e.features.Buckets || k.Free != 0 {
		e.Fatalf("after a's leases ended, keeping answered %+v", k)
	}
	e.check(e.Keeper.Leave(e.ctx, "a"))
	if k = b.keep(long); k.Owners != 1 {
		e.Fatalf("after a left, %d owners are live", k.Owners)
	}
	a.keep(time.Millisecond)
	e.eventually("a heartbeat ages", func() bool { return b.keep(time.Millisecond).Owners == 1 })
}

func expiredBucketsAreTakenAboveTheShare[Tx any](e *env[Tx]) {
	a, b := e.claimer("a", Warehouse), e.owner("b", Warehouse)
	if n := b.acquire(0, long); n != 0 {
		e.Fatalf("b leased %d live buckets", n)
	}
	a.expire()
	if n := b.acquire(0, long); n != e.features.Buckets {
		e.Fatalf("b took over %d expired buckets with a share of 0, want all %d", n, e.features.Buckets)
	}
}

func releaseIsImmediate[Tx any](e *env[Tx]) {
	a, b := e.claimer("a", Warehouse), e.owner("b", Warehouse)
	e.publish(orderPlaced, "K", 1)
	e.check(a.store.Release(e.ctx, a.name, a.leases))
	if rows := a.pass(); len(rows) > 0 {
		e.Errorf("after the release a fetched %s", payloads(rows))
	}
	if n := b.acquire(0, long); n != 0 {
		e.Fatalf("b took %d released buckets above its share", n)
	}
	if n := b.acquire(1, long); n != 1 {
		e.Fatalf("b asked for 1 free bucket and got %d", n)
	}
	b.acquire(e.features.Buckets, long)
	if len(b.leases) != e.features.Buckets {
		e.Fatalf("b has %d buckets, want all %d at once", len(b.leases), e.features.Buckets)
	}
	for _, l := range b.leases {
		if l.Crashed {
			e.Errorf("released bucket %d counts as crashed", l.Bucket)
		}
	}
	b.settle(lane.Done, b.one())
}

func crashedIsReportedUntilReleasedClean[Tx any](e *env[Tx]) {
	crashed := func(o *owner[Tx], wanted bool) {
		e.Helper()
		if len(o.leases) != e.features.Buckets {
			e.Fatalf("%s has %d buckets, want %d", o.name, len(o.leases), e.features.Buckets)
		}
		for _, l := range o.leases {
			if l.Crashed != wanted {
				e.Fatalf("bucket %d came to %s with crashed %v, want %v", l.Bucket, o.name, l.Crashed, wanted)
			}
		}
	}
	a := e.claimer("a", Warehouse)
	crashed(a, false)
	a.expire()
	b := e.owner("b", Warehouse)
	b.acquire(0, long)
	crashed(b, true)
	e.check(b.store.Release(e.ctx, b.name, b.leases)) // still on probation
	if k := b.keep(long); len(k.Renewed) != 0 || k.Expired != e.features.Buckets {
		e.Fatalf("renewing what was given back answered %+v: nobody could take it", k)
	}
	c := e.owner("c", Warehouse)
	c.acquire(0, long)
	crashed(c, true)
	for i := range c.leases {
		c.leases[i].Crashed = false // the probation is over
	}
	e.check(c.store.Release(e.ctx, c.name, c.leases))
	d := e.owner("d", Warehouse)
	d.acquire(e.features.Buckets, long)
	crashed(d, false)
}

func fetchCostsNothing[Tx any](e *env[Tx]) {
	e.publish(orderPlaced, "K", 3)
	e.publish(returned, "", 3)
	a := e.claimer("a", Warehouse)
	a.settle(lane.Retry, rowsOf(a.fetch(), "K")[0])
	before := e.fingerprint()
	for range 3 {
		a.pass()
	}
	if after := e.fingerprint(); after != before {
		e.Fatalf("fetching changed the database:\n%s\n---\n%s", before, after)
	}
	e.publish(returned, "", 1)
	if e.fingerprint() == before {
		e.Fatal("the fingerprint does not change when a message is stored")
	}
}

func announcementsWakeListeners[Tx any](e *env[Tx]) {
	ctx, cancel := context.WithCancel(e.ctx)
	woken, ended := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		ended <- e.Waker.Listen(ctx, func() {
			select {
			case woken <- struct{}{}:
			default:
			}
		})
	}()
	heard := func() bool {
		select {
		case <-woken:
			return true
		default:
			return false
		}
	}
	// Nobody promises when a listener is there, so announce until one answers.
	// Then every announcement must be heard, all of them within the patience: a
	// wake-up that comes by itself now and then cannot stand in for them.
	e.eventually("an announcement reaches a new listener", func() bool {
		e.check(e.Waker.Announce(e.ctx))
		return heard()
	})
	deadline := time.After(e.features.Patience)
	for n := range 20 {
		e.check(e.Waker.Announce(e.ctx))
		select {
		case <-woken:
		case <-deadline:
			e.Fatalf("only %d of 20 announcements were heard within %v", n, e.features.Patience)
		}
	}
	cancel()
	select {
	case <-ended:
	case <-time.After(e.features.Patience):
		e.Fatal("the listener does not end with its context")
	}
}

func staleOwnerChangesNothing[Tx any](e *env[Tx]) {
	e.publish(orderPlaced, "K", 2)
	e.receive(Payments, orderCancelled, "A")
	e.receive(Orders, orderPlaced, "A")
	stale, pull, push := e.claimer("a", Warehouse), e.claimer("a", Payments), e.claimer("a", Push)
	rows, pulled, pushed := stale.fetch(), pull.one(), push.one()
	lease, pushLease := pull.lease(pulled), push.lease(pushed)
	for _, o := range []*owner[Tx]{stale, pull, push} {
		o.expire()
		if n := e.owner("b", o.scopeName()).acquire(0, long); n != e.features.Buckets {
			e.Fatalf("b took over %d buckets, want %d", n, e.features.Buckets)
		}
	}
	before := e.fingerprint()
	unchanged := func(what string) {
		e.Helper()
		if after := e.fingerprint(); after != before {
			e.Fatalf("%s by a stale owner changed the database:\n%s\n---\n%s", what, before, after)
		}
	}
	for name, outcome := range map[string]lane.Outcome{
		"done": lane.Done, "retry": lane.Retry, "dead": lane.Dead, "park": lane.Park, "start": lane.Start,
	} {
		result, err := stale.trySettle(outcome, nil, rows...)
		e.check(err)
		wanted := buckets(stale.leasesOf(rows))
		if slices.Sort(result.Fenced); !slices.Equal(result.Fenced, wanted) || len(result.Gone) > 0 || len(result.Parked) > 0 {
			e.Errorf("settling %s answered %+v, want fenced %v", name, result, wanted)
		}
		unchanged("settling " + name)
	}
	if fetched := stale.pass(); len(fetched) > 0 {
		e.Errorf("a stale owner fetched %s", payloads(fetched))
	}
	unchanged("fetching")
	e.check(stale.store.Release(e.ctx, stale.name, stale.leases))
	unchanged("releasing")
	if k := stale.keep(long); len(k.Renewed) > 0 || len(k.Parked) > 0 {
		e.Errorf("renewing by a stale owner answered %+v", k)
	}
	unchanged("renewing")
	handled := e.Pull(pull.scope).Handle(e.ctx, pull.name, pulled, lease, func(ctx context.Context, tx Tx) error {
		return e.Appender(tx).Append(ctx, []outbox.Record{e.record(mailRequested, "")})
	})
	e.wantLeaseLost("handling", handled)
	unchanged("handling")
	verdicts, err := e.Push().Move(e.ctx, push.name, []lane.Run{{Lease: pushLease, Lane: pushed.Lane, Rows: []lane.Row{pushed}}}, nil)
	e.check(err)
	e.wantLeaseLost("moving", verdicts[0].Err)
	unchanged("moving")
}
