package storetest

import (
	"bytes"
	"slices"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/lane"
)

func retryHoldsLaterRows[Tx any](e *env[Tx]) {
	sent := e.publish(orderPlaced, "K", 3)
	other := e.publish(orderPlaced, "L", 1)
	a := e.claimer("a", Warehouse)
	a.settle(lane.Retry, rowsOf(a.fetch(), "K")[0])
	sent = append(sent, e.publish(orderCancelled, "K", 1)...) // it must not pass either
	want(e, "while K waits", payloadList(a.fetch()), other)
	a.expire()
	b := e.claimer("b", Warehouse) // nor with the next owner
	want(e, "while K waits, after a takeover", payloadList(b.fetch()), other)
	e.check(e.MakeDue(e.ctx, b.scope))
	k := rowsOf(b.fetch(), "K")
	want(e, "after the wait", payloadList(k), sent)
	if !k[0].Held || k[0].Attempts != 1 || k[1].Held || k[1].Attempts != 0 {
		e.Errorf("after one failure the head is held %v with %d attempts, the next %v with %d",
			k[0].Held, k[0].Attempts, k[1].Held, k[1].Attempts)
	}
	b.settle(lane.Done, k[0])
	want(e, "after the head was sent", payloadList(rowsOf(b.fetch(), "K")), sent[1:])
}

func retryIsDueByItself[Tx any](e *env[Tx]) {
	sent := e.publish(orderPlaced, "K", 2)
	a := e.claimer("a", Warehouse)
	_, err := a.trySettle(lane.Retry, func(s *lane.Settlement) { s.Delay = 30 * time.Millisecond }, a.fetch()[0])
	e.check(err)
	var rows []lane.Row
	e.eventually("the retry is due", func() bool {
		rows = a.fetch()
		return len(rows) > 0
	})
	want(e, "after the wait", payloadList(rows), sent)
}

func deadRowReleasesKey[Tx any](e *env[Tx]) {
	sent := e.publish(orderPlaced, "K", 3)
	a := e.claimer("a", Warehouse)
	rows := a.fetch()
	a.settle(lane.Dead, rows[0])
	want(e, "behind the dead row", payloadList(a.fetch()), sent[1:])
	a.settle(lane.Retry, rows[1]) // a row that is dead after a retry leaves no hold behind
	e.check(e.MakeDue(e.ctx, a.scope))
	a.settle(lane.Dead, a.fetch()[0])
	want(e, "behind the second dead row", ofKey(a.drain(), "K"), sent[2:])
	dead, err := e.DeadLetters(e.ctx, a.scope)
	e.check(err)
	if len(dead) != 2 {
		e.Fatalf("%d dead letters, want 2", len(dead))
	}
}

func deadLettersKeepTheirReason[Tx any](e *env[Tx]) {
	e.publish(shipmentMoved, "K", 1)
	r := e.record(orderPlaced, "K")
	r.Headers = event.Headers{"traceparent": "00-1-2-03"}
	e.check(e.append(r))
	a := e.claimer("a", Warehouse)
	rows := a.fetch()
	_, err := a.trySettle(lane.Dead, func(s *lane.Settlement) {
		s.Attempts, s.Reason, s.Error = 5, "attempts exhausted", "409 Conflict: żółć"
	}, rows...)
	e.check(err)
	dead, err := e.DeadLetters(e.ctx, a.scope)
	e.check(err)
	if len(dead) != 2 {
		e.Fatalf("%d dead letters, want 2", len(dead))
	}
	slices.SortFunc(dead, func(x, y lane.DeadLetter) int { return int(x.Message.Sequence - y.Message.Sequence) })
	for i, d := range dead {
		was := rows[i].Message
		if d.Attempts != 5 || d.Reason != "attempts exhausted" || d.Error != "409 Conflict: żółć" {
			e.Errorf("dead letter %d has %d attempts, reason %q, error %q", i, d.Attempts, d.Reason, d.Error)
		}
		if d.Message.ID != was.ID || d.Message.Key != was.Key || d.Message.Topic != was.Topic ||
			!bytes.Equal(d.Message.Payload, was.Payload) || d.Message.Version != was.Version ||
			d.Message.Headers["traceparent"] != was.Headers["traceparent"] {
			e.Errorf("dead letter %+v is not the message %+v", d.Message, was)
		}
	}
	if dead[0].Message.Version != 1 {
		e.Errorf("the dense version of a dead letter is %d, want 1", dead[0].Message.Version)
	}
}

func onDeadPark[Tx any](e *env[Tx]) {
	sent := e.publish(orderPlaced, "K", 2)
	e.publish(returned, "", 2)
	a := e.claimer("a", Warehouse)
	rows := a.fetch()
	keyless := rowsOf(rows, "")
	result := a.settle(lane.Park, rowsOf(rows, "K")[0], keyless[0])
	if slices.Contains(result.Parked, keyless[0].Lane) {
		e.Error("one parked keyless message parks the whole unordered lane")
	}
	e.check(e.MakeDue(e.ctx, a.scope)) // time alone frees nothing
	want(e, "beside what is parked", payloadList(a.fetch()), []string{string(keyless[1].Message.Payload)})
	dead, err := e.DeadLetters(e.ctx, a.scope)
	e.check(err)
	if len(dead) != 0 {
		e.Errorf("%d parked messages are among the dead letters", len(dead))
	}
	e.check(e.Unpark(e.ctx, a.scope, "K"))
	want(e, "after the release", payloadList(rowsOf(a.fetch(), "K")), sent)
	a.settle(lane.Done, rowsOf(a.fetch(), "K")...)
}

func parkSurvivesFailure[Tx any](e *env[Tx]) {
	sent := e.publish(orderPlaced, "K", 2)
	a := e.claimer("a", Warehouse)
	head := a.fetch()[0] // in flight while the operator parks its lane
	e.check(e.Park(e.ctx, a.scope, "K"))
	a.settle(lane.Retry, head)
	e.check(e.MakeDue(e.ctx, a.scope))
	if rows := a.fetch(); len(rows) > 0 {
		e.Fatalf("the failure undid the park: %s", payloads(rows))
	}
	e.check(e.Unpark(e.ctx, a.scope, "K"))
	e.check(e.MakeDue(e.ctx, a.scope))
	rows := a.fetch()
	want(e, "after the release", payloadList(rows), sent)
	if rows[0].Attempts != 1 {
		e.Errorf("the park undid the failure: %d attempts are recorded, want 1", rows[0].Attempts)
	}
	e.check(e.Park(e.ctx, a.scope, "K")) // nor does success undo it
	a.settle(lane.Done, rows[0])
	if rows := a.fetch(); len(rows) > 0 {
		e.Fatalf("the success undid the park: %s", payloads(rows))
	}
}

func parkReachesALiveOwner[Tx any](e *env[Tx]) {
	e.publish(orderPlaced, "K", 2)
	e.publish(orderPlaced, "L", 1)
	a := e.claimer("a", Warehouse)
	rows := a.fetch()
	k := rowsOf(rows, "K")
	if parked := a.settle(lane.Done, rowsOf(rows, "L")...).Parked; len(parked) > 0 {
		e.Errorf("before the park, settling answered parked lanes %v", parked)
	}
	e.check(e.Park(e.ctx, a.scope, "K"))
	if parked := a.keep(long).Parked; !slices.Equal(parked, []int64{k[0].Lane}) {
		e.Errorf("renewing answered parked lanes %v, want %d", parked, k[0].Lane)
	}
	if parked := a.settle(lane.Done, k[0]).Parked; !slices.Equal(parked, []int64{k[0].Lane}) {
		e.Errorf("settling answered parked lanes %v, want %d", parked, k[0].Lane)
	}
	e.check(e.Unpark(e.ctx, a.scope, "K"))
	if parked := a.keep(long).Parked; len(parked) > 0 {
		e.Errorf("after the release, renewing answered parked lanes %v", parked)
	}
}

func replayRunsBehindThoseThatPassed[Tx any](e *env[Tx]) {
	sent := e.publish(orderPlaced, "K", 3)
	a := e.claimer("a", Warehouse)
	rows := a.fetch()
	a.settle(lane.Dead, rows[0])
	a.settle(lane.Done, rows[1])
	e.check(e.Replay(e.ctx, a.scope, rows[0].Message.ID))
	replayed := a.fetch()
	want(e, "after the replay", payloadList(replayed), []string{sent[2], sent[0]})
	last := replayed[1]
	if last.Message.ID != rows[0].Message.ID || last.Message.Topic != orderPlaced || last.Lane != rows[0].Lane {
		e.Errorf("replayed %+v of %+v", last, rows[0])
	}
	if last.Message.Sequence <= replayed[0].Message.Sequence || last.Attempts != 0 || last.Held {
		e.Errorf("the replayed message has sequence %d behind %d, %d attempts, held %v",
			last.Message.Sequence, replayed[0].Message.Sequence, last.Attempts, last.Held)
	}
	dead, err := e.DeadLetters(e.ctx, a.scope)
	e.check(err)
	if len(dead) != 0 {
		e.Errorf("%d dead letters are left after the replay", len(dead))
	}
	want(e, "delivered", ofKey(a.drain(), "K"), []string{sent[2], sent[0]})
}

func replayKeepsTheOrderOfTheDead[Tx any](e *env[Tx]) {
	sent := append(e.publish(orderPlaced, "K", 3), e.publish(orderPlaced, "L", 2)...)
	tasks := e.publish(returned, "", 2)
	a := e.claimer("a", Warehouse)
	rows := a.fetch()
	a.settle(lane.Dead, rows...)
	var ids []event.UUID
	for _, r := range slices.Backward(rows) { // the caller's order means nothing
		ids = append(ids, r.Message.ID)
	}
	e.check(e.Replay(e.ctx, a.scope, ids...))
	delivered := a.drain()
	want(e, "replayed of K", ofKey(delivered, "K"), sent[:3])
	want(e, "replayed of L", ofKey(delivered, "L"), sent[3:])
	if n := len(ofKey(delivered, "")); n != len(tasks) {
		e.Errorf("replayed %d keyless messages, want %d", n, len(tasks))
	}
}

func tokenSetBackByOne[Tx any](e *env[Tx]) {
	e.publish(orderPlaced, "K", 1)
	a := e.claimer("a", Warehouse)
	row := a.one()
	a.expire()
	b := e.claimer("b", Warehouse)
	// As after a failover that lost the takeover's number, but not its owner.
	e.check(e.AddToTokens(e.ctx, a.scope, -1))
	for _, o := range []*owner[Tx]{a, b} {
		result, err := o.trySettle(lane.Done, nil, row)
		e.check(err)
		if !slices.Equal(result.Fenced, []lane.Bucket{row.Bucket}) {
			e.Errorf("%s settled with a token that is not its own: %+v", o.name, result)
		}
		if k := o.keep(long); len(k.Renewed) > 0 {
			e.Errorf("%s renewed %d buckets with a token that is not its own", o.name, len(k.Renewed))
		}
		if rows := o.pass(); len(rows) > 0 {
			e.Errorf("%s fetched with a token that is not its own", o.name)
		}
		e.check(o.store.Release(e.ctx, o.name, o.leases))
	}
	e.check(e.AddToTokens(e.ctx, a.scope, 1))
	b.settle(lane.Done, b.one()) // b still holds what it was given
}

func settleTellsFencedFromGone[Tx any](e *env[Tx]) {
	e.publish(orderPlaced, "K", 2)
	a := e.claimer("a", Warehouse)
	rows := a.fetch()
	gone := lane.Ref{Lane: rows[0].Lane, Sequence: rows[0].Message.Sequence}
	for name, outcome := range map[string]lane.Outcome{
		"done": lane.Done, "retry": lane.Retry, "dead": lane.Dead, "park": lane.Park, "start": lane.Start,
	} {
		e.check(e.Remove(e.ctx, a.scope, gone.Lane, gone.Sequence))
		result, err := a.trySettle(outcome, nil, rows[0])
		e.check(err)
		if len(result.Fenced) > 0 || !slices.Equal(result.Gone, []lane.Ref{gone}) {
			e.Errorf("settling %s a removed row answered %+v, want it gone", name, result)
		}
	}
	result, err := a.trySettle(lane.Done, nil, rows...)
	e.check(err)
	if len(result.Fenced) > 0 || !slices.Equal(result.Gone, []lane.Ref{gone}) {
		e.Errorf("settling a removed row and another answered %+v, want the removed one gone", result)
	}
	if rows := a.pass(); len(rows) > 0 {
		e.Fatalf("left over: %s", payloads(rows))
	}
	dead, err := e.DeadLetters(e.ctx, a.scope)
	e.check(err)
	if len(dead) > 0 {
		e.Errorf("a removed row is among the dead letters")
	}
	a.expire()
	e.claimer("b", Warehouse)
	result, err = a.trySettle(lane.Done, nil, rows...)
	e.check(err)
	if !slices.Equal(result.Fenced, []lane.Bucket{rows[0].Bucket}) || len(result.Gone) > 0 {
		e.Errorf("settling after a takeover answered %+v, want it fenced and nothing gone", result)
	}
}

func attemptsAreThoseRecorded[Tx any](e *env[Tx]) {
	e.publish(orderPlaced, "K", 2)
	e.publish(mailRequested, "", 1)
	k, m := e.claimer("a", Warehouse), e.claimer("a", Mail)
	for attempt := range 4 {
		for _, o := range []*owner[Tx]{k, m} {
			row := o.fetch()[0]
			if row.Attempts != attempt || row.Held != (attempt > 0) {
				e.Fatalf("after %d failures the row has %d attempts, held %v", attempt, row.Attempts, row.Held)
			}
			o.settle(lane.Retry, row)
			e.check(e.MakeDue(e.ctx, o.scope))
		}
	}
	// "Try later" holds the lane and leaves the number as it is.
	row := k.fetch()[0]
	_, err := k.trySettle(lane.Retry, func(s *lane.Settlement) { s.Attempts = row.Attempts }, row)
	e.check(err)
	if rows := k.fetch(); len(rows) > 0 {
		e.Fatalf("the lane does not wait: %s", payloads(rows))
	}
	e.check(e.MakeDue(e.ctx, k.scope))
	rows := k.fetch()
	if rows[0].Attempts != 4 || rows[1].Attempts != 0 {
		e.Errorf("%d and %d attempts are recorded, want 4 and 0", rows[0].Attempts, rows[1].Attempts)
	}
}

func startedIsRecordedBeforeDelivery[Tx any](e *env[Tx]) {
	sent := e.publish(orderPlaced, "K", 2)
	e.publish(returned, "", 1)
	a := e.claimer("a", Warehouse)
	rows := a.fetch()
	k := rowsOf(rows, "K")
	a.settle(lane.Start, k[0], rowsOf(rows, "")[0])
	now := a.fetch()
	want(e, "a started lane is due at once", payloadList(rowsOf(now, "K")), sent)
	if len(rowsOf(now, "")) != 1 {
		e.Error("a started keyless message is not due at once")
	}
	a.expire() // the delivery kills the process
	b := e.claimer("b", Warehouse)
	for _, r := range b.fetch() {
		if started := r.Message.Key == "" || string(r.Message.Payload) == sent[0]; started != (r.Attempts == 1) {
			e.Errorf("%s has %d attempts after the crash; started %v", r.Message.Payload, r.Attempts, started)
		}
	}
	b.drain()
}
