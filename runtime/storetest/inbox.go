package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/outbox"
)

func duplicateReceiptStoresNothing[Tx any](e *env[Tx]) {
	const copies = 30
	m := inbox.Incoming{IdempotencyKey: "once", EventType: orderPlaced, AggregateID: "A", Payload: []byte(`{"n":1}`)}
	dispositions := make([]inbox.Disposition, copies)
	parallel(e, copies, func(i int) error {
		got, err := e.Receive.Receive(e.ctx, e.Source(Orders), []inbox.Incoming{m})
		if err == nil {
			dispositions[i] = got[0]
		}
		return err
	})
	stored := 0
	for _, d := range dispositions {
		switch d {
		case inbox.Stored:
			stored++
		case inbox.Conflict:
			e.Error("an equal message conflicts")
		}
	}
	if stored != 1 {
		e.Errorf("%d of %d equal messages were stored", stored, copies)
	}
	// Within one call, and for another source.
	other := m
	other.IdempotencyKey = "twice"
	got := e.receiveRaw(Orders, m, other, other)
	if want := []inbox.Disposition{inbox.Duplicate, inbox.Stored, inbox.Duplicate}; !slices.Equal(got, want) {
		e.Errorf("one call with duplicates answered %v, want %v", got, want)
	}
	if got := e.receiveRaw(Returns, m); got[0] != inbox.Stored {
		e.Errorf("another source's message with the same key answered %v", got)
	}
	if n := len(e.claimer("a", Push).drain()); n != 3 {
		e.Errorf("%d messages were stored, want 3", n)
	}
}

func sameKeyOtherBodyConflicts[Tx any](e *env[Tx]) {
	first := e.receive(Orders, orderPlaced, "A")
	changed := first
	changed.Payload = append(slices.Clone(first.Payload), ' ')
	next := inbox.Incoming{IdempotencyKey: "next", EventType: orderPlaced, AggregateID: "A", Payload: []byte(`"next"`)}
	got := e.receiveRaw(Orders, changed, first, next)
	if want := []inbox.Disposition{inbox.Conflict, inbox.Duplicate, inbox.Stored}; !slices.Equal(got, want) {
		e.Errorf("dispositions are %v, want %v", got, want)
	}
	want(e, "stored", ofKey(e.claimer("a", Push).drain(), "A"), []string{string(first.Payload), `"next"`})
}

// The retention counts from the purge that finds a message gone, not from its
// receipt: however long a message waited or was dead, a repetition that comes
// soon after it is still one.
func receiptOutlivesItsMessage[Tx any](e *env[Tx]) {
	waits, dies, done := e.receive(Payments, orderCancelled, "A"), e.receive(Payments, orderCancelled, "B"), e.receive(Payments, orderCancelled, "C")
	elsewhere := e.receive(Stock, orderPlaced, "A")
	w := e.claimer("w", Payments)
	rows := w.fetch()
	w.settle(lane.Dead, rowsOf(rows, "B")...)
	e.ageReceipts()
	e.purgeReceipts(100, 0, "all messages wait or are dead")
	w.settle(lane.Done, rowsOf(rows, "C")...)
	e.purgeReceipts(100, 1, "a message is found gone")
	e.wantReceived("a message that was completed long after it came", inbox.Duplicate, Payments, done)
	e.purgeReceipts(100, 0, "the message was found gone just now")
	e.wantReceived("a message that was found gone just now", inbox.Duplicate, Payments, done)
	e.ageReceipts()
	e.purgeReceipts(100, 1, "a message was found gone a retention ago")
	e.wantReceived("a waiting message", inbox.Duplicate, Payments, waits)
	e.wantReceived("a dead message", inbox.Duplicate, Payments, dies)
	e.wantReceived("another source's message", inbox.Duplicate, Stock, elsewhere)
	e.wantReceived("a message that was gone for a retention", inbox.Stored, Payments, done)

	// A replay puts the dead message back into the inbox.
	letters, err := e.DeadLetters(e.ctx, w.scope)
	e.check(err)
	e.check(e.Replay(e.ctx, w.scope, letters[0].Message.ID))
	e.ageReceipts()
	e.purgeReceipts(100, 0, "the dead message was replayed")
	w.settle(lane.Done, w.fetch()...)
	e.purgeReceipts(100, 3, "all messages are gone")
	e.wantReceived("a message that was dead for long", inbox.Duplicate, Payments, dies)
}

// Marking and forgetting are bounded alike, and a loop of purges ends.
func receiptsArePurgedInBatches[Tx any](e *env[Tx]) {
	for i := range 5 {
		e.receive(Payments, orderCancelled, fmt.Sprint("many-", i))
	}
	e.claimer("w", Payments).drain()
	e.purgeReceipts(2, 0, "the receipts are young")
	for _, step := range []string{"marked", "forgotten"} {
		e.ageReceipts()
		for _, n := range []int{2, 2, 1, 0} {
			e.purgeReceipts(2, n, "five receipts are "+step+" by twos")
		}
	}
}

// What a source cannot refuse is a dead letter at once, with its receipt, and
// concerns no lane.
func refusedMessageIsBuried[Tx any](e *env[Tx]) {
	source := e.Source(Payments)
	first := inbox.Incoming{IdempotencyKey: "good", EventType: orderCancelled, AggregateID: "A", Payload: []byte(`{"n":1}`)}
	bad := inbox.Incoming{IdempotencyKey: "bad", AggregateID: "A", Payload: []byte("\xff{"), Headers: event.Headers{"h": "v"}, Version: 7, Dead: "no JSON"}
	last := inbox.Incoming{IdempotencyKey: "last", EventType: orderCancelled, AggregateID: "A", Payload: []byte(`{"n":2}`)}
	loose := inbox.Incoming{IdempotencyKey: "loose", EventType: "unknown.v1", Payload: []byte("{}"), Dead: "no handler"}
	got, err := e.Receive.Receive(e.ctx, source, []inbox.Incoming{first, bad, last, loose, bad})
	e.check(err)
	if want := []inbox.Disposition{inbox.Stored, inbox.Buried, inbox.Stored, inbox.Buried, inbox.Duplicate}; !slices.Equal(got, want) {
		e.Fatalf("dispositions are %v, want %v", got, want)
	}
	e.wantReceived("a dead letter", inbox.Duplicate, Payments, bad)
	w := e.claimer("w", Payments)
	want(e, "stored", ofKey(w.drain(), "A"), []string{`{"n":1}`, `{"n":2}`})
	letters, err := e.DeadLetters(e.ctx, w.scope)
	e.check(err)
	if len(letters) != 2 {
		e.Fatalf("there are %d dead letters, want 2", len(letters))
	}
	l := letters[0]
	m := l.Message
	if l.Reason != inbox.ReasonRefused || l.Error != bad.Dead || l.Attempts != 0 || m.IdempotencyKey != bad.IdempotencyKey || m.Topic != "" ||
		m.Key != "A" || string(m.Payload) != string(bad.Payload) || m.Headers["h"] != "v" || m.Version != 7 || m.Source == "" || m.ID.IsZero() {
		e.Errorf("the dead letter is %+v", l)
	}
	if m := letters[1].Message; m.Key != "" || m.Topic != "unknown.v1" {
		e.Errorf("the dead letter without aggregate is %+v", letters[1])
	}
	e.ageReceipts()
	e.purgeReceipts(100, 2, "two messages are handled and two are dead")
	e.check(e.Replay(e.ctx, w.scope, m.ID))
	want(e, "replayed", ofKey(w.drain(), "A"), []string{string(bad.Payload)})
}

// A position moves with the messages before it, in one transaction, and never
// back.
func positionMovesWithTheMessages[Tx any](e *env[Tx]) {
	source, other := e.Source(Payments), e.Source(Stock)
	position := func(of inbox.SourceRef, log string) int64 {
		e.Helper()
		offset, ok, err := e.Receive.Position(e.ctx, of, log)
		e.check(err)
		if !ok {
			return -1
		}
		return offset
	}
	if p := position(source, "log"); p != -1 {
		e.Fatalf("a new log is at %d", p)
	}
	at := func(of inbox.SourceRef, log string, offset int64, messages ...inbox.Incoming) []inbox.Disposition {
		e.Helper()
		got, err := e.Receive.ReceiveAt(e.ctx, of, messages, inbox.Position{Log: log, Offset: offset})
		e.check(err)
		return got
	}
	m := inbox.Incoming{IdempotencyKey: "one", EventType: orderCancelled, AggregateID: "A", Payload: []byte("1")}
	bad := inbox.Incoming{IdempotencyKey: "bad", EventType: orderCancelled, Payload: []byte("2"), Dead: "bad"}
	if got := at(source, "log", 5, m, bad); !slices.Equal(got, []inbox.Disposition{inbox.Stored, inbox.Buried}) {
		e.Errorf("dispositions are %v", got)
	}
	at(source, "log", 0)
	at(source, "log", 4, m)
	at(source, "Log", 1<<40)
	at(source, "log ", 0)
	at(other, "log", 9)
	for _, w := range []struct {
		of     inbox.SourceRef
		log    string
		offset int64
	}{{source, "log", 5}, {source, "Log", 1 << 40}, {source, "log ", 0}, {other, "log", 9}, {other, "Log", -1}} {
		if p := position(w.of, w.log); p != w.offset {
			e.Errorf("%s of %s is at %d, want %d", w.log, w.of.Name, p, w.offset)
		}
	}
	// -1 is before the first message, and is a position nevertheless.
	at(source, "begun", -1)
	if offset, ok, err := e.Receive.Position(e.ctx, source, "begun"); err != nil || !ok || offset != -1 {
		e.Errorf("a log that was begun is at %d, %t, %v", offset, ok, err)
	}
	at(source, "begun", 0)
	at(source, "begun", -1)
	if p := position(source, "begun"); p != 0 {
		e.Errorf("the position went back to %d", p)
	}
	// Nobody knows yet what becomes of a message in conflict: the position waits.
	conflicting, fresh := m, m
	conflicting.Payload, fresh.IdempotencyKey, fresh.Payload = []byte("other"), "fresh", []byte("4")
	if got := at(source, "log", 7, fresh, conflicting); !slices.Equal(got, []inbox.Disposition{inbox.Stored, inbox.Conflict}) {
		e.Errorf("dispositions are %v", got)
	}
	if p := position(source, "log"); p != 5 {
		e.Errorf("a message in conflict moved the position to %d", p)
	}
	ctx, cancel := context.WithCancel(e.ctx)
	cancel()
	next := inbox.Incoming{IdempotencyKey: "two", EventType: orderCancelled, AggregateID: "A", Payload: []byte("3")}
	if _, err := e.Receive.ReceiveAt(ctx, source, []inbox.Incoming{next}, inbox.Position{Log: "log", Offset: 6}); err == nil {
		e.Error("a cancelled call succeeded")
	}
	want(e, "stored", ofKey(e.claimer("w", Payments).drain(), "A"), []string{"1", "4"})
	if p := position(source, "log"); p != 5 {
		e.Errorf("a cancelled call moved the position to %d", p)
	}
}

// receiptRetention is longer than any test takes.
const receiptRetention = time.Hour

// ageReceipts has more than a retention pass for every receipt there is.
func (e *env[Tx]) ageReceipts() {
	e.Helper()
	e.check(e.AgeReceipts(e.ctx, 2*receiptRetention))
}

// purgeReceipts purges once, at most most receipts of Payments, and insists on
// the number that were marked or forgotten.
func (e *env[Tx]) purgeReceipts(most, wanted int, when string) {
	e.Helper()
	n, err := e.Receive.PurgeReceipts(e.ctx, e.Source(Payments), receiptRetention, most)
	e.check(err)
	if n != wanted {
		e.Fatalf("when %s, a purge of at most %d receipts answered %d, want %d", when, most, n, wanted)
	}
}

// wantReceived receives m and insists on its disposition.
func (e *env[Tx]) wantReceived(what string, wanted inbox.Disposition, source string, m inbox.Incoming) {
	e.Helper()
	if got := e.receiveRaw(source, m)[0]; got != wanted {
		e.Fatalf("%s was received as %v, want %v", what, got, wanted)
	}
}

// run returns a run of rows that are one lane's.
func (o *owner[Tx]) run(rows ...lane.Row) lane.Run {
	return lane.Run{Lease: o.lease(rows[0]), Lane: rows[0].Lane, Rows: rows}
}

func relayMovesOnce[Tx any](e *env[Tx]) {
	var sent []string
	for range 3 {
		sent = append(sent, string(e.receive(Orders, orderPlaced, "A").Payload))
	}
	e.receive(Returns, returned, "")
	r := e.claimer("r", Push)
	rows := r.fetch()
	a, task := rowsOf(rows, "A"), rowsOf(rows, "")
	before := e.publish(orderPlaced, "A", 1) // it committed before the move
	runs := []lane.Run{r.run(a...), r.run(task...)}
	for again := range 2 {
		verdicts, err := e.Push().Move(e.ctx, r.name, runs, nil)
		e.check(err)
		for i, v := range verdicts {
			if v.Err != nil || !v.Completed || v.Accepted != len(runs[i].Rows) {
				e.Fatalf("move %d of run %d answered %+v", again, i, v)
			}
		}
	}
	if rows := r.pass(); len(rows) > 0 {
		e.Errorf("moved and still in the inbox: %s", payloads(rows))
	}
	w, l := e.claimer("w", Warehouse).drain(), e.claimer("l", Ledger).drain()
	want(e, "moved to the warehouse", ofKey(w, "A"), append(before, sent...))
	want(e, "moved to the ledger", ofKey(l, "A"), append(before, sent...))
	if tasks := ofKey(w, ""); len(tasks) != 1 {
		e.Errorf("%d keyless messages were moved, want 1", len(tasks))
	}
	for _, m := range w {
		if m.Key == "A" && string(m.Payload) == sent[0] && (m.ID != a[0].Message.ID || m.Topic != orderPlaced) {
			e.Errorf("moved %+v as %+v", a[0].Message, m)
		}
	}
}

func remapRunsInTheTransaction[Tx any](e *env[Tx]) {
	for range 3 {
		e.receive(Returns, returned, "A")
	}
	none := e.receive(Returns, returned, "B")
	r := e.claimer("r", Push)
	rows := r.fetch()
	a, b := rowsOf(rows, "A"), rowsOf(rows, "B")
	refusal, calls := errors.New("not yet"), 0
	var made []string
	remap := func(ctx context.Context, tx Tx, m inbox.Raw) ([]outbox.Record, error) {
		if string(m.Payload) == string(none.Payload) {
			return nil, nil // becomes nothing
		}
		if calls++; calls == 2 {
			return nil, errors.Join(e.Appender(tx).Append(ctx, []outbox.Record{e.record(returned, "undone")}), refusal)
		}
		one, two := e.record(orderPlaced, ""), e.record(returned, "other")
		made = append(made, string(one.Payload), string(two.Payload))
		return []outbox.Record{one, two}, nil
	}
	verdicts, err := e.Push().Move(e.ctx, r.name, []lane.Run{r.run(a...), r.run(b...)}, remap)
	e.check(err)
	if v := verdicts[0]; v.Accepted != 1 || !v.Completed || !errors.Is(v.Err, refusal) {
		e.Errorf("a run that was refused at its second message answered %+v", v)
	}
	if v := verdicts[1]; v.Accepted != 1 || !v.Completed || v.Err != nil {
		e.Errorf("a message that became nothing answered %+v", v)
	}
	want(e, "left in the inbox", payloadList(r.pass()), payloadList(a[1:]))
	delivered := e.claimer("w", Warehouse).drain()
	want(e, "mapped with the aggregate's key", ofKey(delivered, "A"), made[:1])
	want(e, "mapped with a key of its own", ofKey(delivered, "other"), made[1:])
	if len(delivered) != 2 {
		e.Errorf("%d messages were stored, want 2: a refused message left something behind", len(delivered))
	}
}

func relayNeverWaitsForALockedKey[Tx any](e *env[Tx]) {
	locked, free := e.receive(Orders, orderPlaced, "locked"), e.receive(Orders, orderPlaced, "free")
	r := e.claimer("r", Push)
	rows := r.fetch()
	tx := e.begin()
	e.check(e.Appender(tx).Append(e.ctx, []outbox.Record{e.record(orderPlaced, "locked")}))

	// The transaction stays open over all of this: waiting would end the test.
	runs := []lane.Run{r.run(rowsOf(rows, "locked")...), r.run(rowsOf(rows, "free")...)}
	verdicts, err := e.Push().Move(e.ctx, r.name, runs, nil)
	e.check(err)
	if v := verdicts[0]; v.Accepted != 0 || !errors.Is(v.Err, lane.ErrBusy) {
		e.Errorf("the locked key answered %+v, want ErrBusy", v)
	}
	if v := verdicts[1]; v.Accepted != 1 || v.Err != nil {
		e.Errorf("the free key answered %+v", v)
	}
	want(e, "left in the inbox", payloadList(r.pass()), []string{string(locked.Payload)})
	if k := r.keep(long); len(k.Renewed) != e.features.Buckets {
		e.Errorf("%d of %d buckets could be renewed", len(k.Renewed), e.features.Buckets)
	}
	if patient, ok := e.Push().(inbox.PatientPushStore[Tx]); ok {
		v, err := patient.MoveWaiting(e.ctx, r.name, runs[0], nil, 10*time.Millisecond)
		e.check(err)
		if !errors.Is(v.Err, lane.ErrBusy) {
			e.Errorf("waiting in vain answered %+v, want ErrBusy", v)
		}
	}
	e.check(e.Rollback(e.ctx, tx))
	verdicts, err = e.Push().Move(e.ctx, r.name, runs[:1], nil)
	e.check(err)
	if v := verdicts[0]; v.Accepted != 1 || v.Err != nil {
		e.Errorf("once its key is free the run answered %+v", v)
	}
	delivered := e.claimer("w", Warehouse).drain()
	want(e, "moved", ofKey(delivered, "free"), []string{string(free.Payload)})
	want(e, "moved", ofKey(delivered, "locked"), []string{string(locked.Payload)})
}

func handlerAndCompletionCommitTogether[Tx any](e *env[Tx]) {
	e.receive(Payments, orderCancelled, "A")
	w := e.claimer("w", Payments)
	row := w.one()
	refusal := errors.New("refused")
	publish := func(answer error) error {
		return e.Pull(w.scope).Handle(e.ctx, w.name, row, w.lease(row), func(ctx context.Context, tx Tx) error {
			return errors.Join(e.Appender(tx).Append(ctx, []outbox.Record{e.record(mailRequested, "")}), answer)
		})
	}
	if err := publish(refusal); !errors.Is(err, refusal) {
		e.Fatalf("a refusing handler answered %v", err)
	}
	m := e.claimer("m", Mail)
	if rows := m.pass(); len(rows) > 0 {
		e.Errorf("the refused handler left %s", payloads(rows))
	}
	if rows := w.pass(); len(rows) != 1 {
		e.Fatalf("after the refusal %d messages wait, want 1", len(rows))
	}
	// A message that failed before leaves no hold behind.
	w.settle(lane.Retry, row)
	e.check(e.MakeDue(e.ctx, w.scope))
	row = w.one()
	e.check(publish(nil))
	if n := len(m.drain()); n != 1 {
		e.Errorf("the handler's effect is there %d times", n)
	}
	if rows := w.pass(); len(rows) > 0 {
		e.Errorf("handled and not completed: %s", payloads(rows))
	}
	later := e.receive(Payments, orderCancelled, "A")
	want(e, "behind the handled message", payloadList(w.fetch()), []string{string(later.Payload)})
}

func completionIsFenced[Tx any](e *env[Tx]) {
	e.receive(Payments, orderCancelled, "A")
	a := e.claimer("a", Payments)
	row := a.one()
	handle := func(o *owner[Tx], before func()) error {
		if !e.features.ConcurrentWriters {
			before()
		}
		return e.Pull(o.scope).Handle(e.ctx, o.name, row, o.lease(row), func(ctx context.Context, tx Tx) error {
			if e.features.ConcurrentWriters {
				before()
			}
			return e.Appender(tx).Append(ctx, []outbox.Record{e.record(mailRequested, "")})
		})
	}
	var b *owner[Tx]
	e.wantLeaseLost("completing", handle(a, func() { // it was taken over while the handler ran
		a.expire()
		b = e.claimer("b", Payments)
	}))
	if err := handle(b, func() { // an operator removed it while the handler ran
		e.check(e.Remove(e.ctx, b.scope, row.Lane, row.Message.Sequence))
	}); err == nil {
		e.Error("a message that an operator removed was completed")
	}
	if rows := e.claimer("m", Mail).pass(); len(rows) > 0 {
		e.Errorf("handlers without completion left %s", payloads(rows))
	}
}

// An owner whose token was set back, as after a failover that lost the takeover's
// number, completes nothing.
func completionNeedsTheToken[Tx any](e *env[Tx]) {
	e.receive(Payments, orderCancelled, "A")
	a := e.claimer("a", Payments)
	row := a.one()
	a.expire()
	b := e.claimer("b", Payments)
	handle := func(o *owner[Tx]) error {
		return e.Pull(o.scope).Handle(e.ctx, o.name, row, o.lease(row), func(ctx context.Context, tx Tx) error {
			return e.Appender(tx).Append(ctx, []outbox.Record{e.record(mailRequested, "")})
		})
	}
	e.check(e.AddToTokens(e.ctx, a.scope, -1))
	for _, o := range []*owner[Tx]{a, b} {
		e.wantLeaseLost(o.name+" completing with a token that is not its own", handle(o))
	}
	if rows := e.claimer("m", Mail).pass(); len(rows) > 0 {
		e.Errorf("handlers without completion left %s", payloads(rows))
	}
	e.check(e.AddToTokens(e.ctx, a.scope, 1))
	e.check(handle(b)) // b still holds what it was given
}
