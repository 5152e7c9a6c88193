package storetest

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/outbox"
)

// A journal notes what writers stored, per key, in the order in which they held
// the key's lock; that is the order in which they commit.
type journal struct {
	mu      sync.Mutex
	entries map[string][]string
}

func (j *journal) add(records ...outbox.Record) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.entries == nil {
		j.entries = map[string][]string{}
	}
	for _, r := range records {
		j.entries[r.Key] = append(j.entries[r.Key], string(r.Payload))
	}
}

// judge compares what a destination got with what was written.
func judge[Tx any](e *env[Tx], j *journal, delivered []event.Message) {
	e.Helper()
	total := 0
	for _, key := range slices.Sorted(maps.Keys(j.entries)) {
		want(e, "order of key "+key, ofKey(delivered, key), j.entries[key])
		total += len(j.entries[key])
	}
	if total != len(delivered) {
		e.Fatalf("delivered %d messages, wrote %d", len(delivered), total)
	}
}

// parallel runs fn in n goroutines that start together, and ends the test on
// the first error.
func parallel[Tx any](e *env[Tx], n int, fn func(i int) error) {
	e.Helper()
	start, errs := make(chan struct{}), make(chan error, n)
	for i := range n {
		go func() {
			<-start
			errs <- fn(i)
		}()
	}
	close(start)
	var failed []error
	for range n {
		failed = append(failed, <-errs)
	}
	e.check(errors.Join(failed...))
}

func rowsOfOneTransactionKeepTheirOrder[Tx any](e *env[Tx]) {
	var j journal
	records := []outbox.Record{
		e.record(orderPlaced, "order-42"), e.record(orderPlaced, "order-7"),
		e.record(orderCancelled, "order-42"), e.record(orderPlaced, "order-42"),
	}
	e.check(e.transact(func(tx Tx) error {
		key := "order-42"
		plain := []outbox.Record{e.record(returned, key), e.record(returned, key), e.record(returned, key)}
		err := e.Appender(tx).Append(e.ctx, records[:3])
		j.add(records[:3]...)
		for _, r := range plain {
			err = errors.Join(err, e.Insert(e.ctx, tx, r.Topic, &key, string(r.Payload)))
			j.add(r)
		}
		j.add(records[3])
		return errors.Join(err, e.Appender(tx).Append(e.ctx, records[3:]))
	}))
	judge(e, &j, e.claimer("a", Warehouse).drain())
}

func lateCommitIsNotOvertaken[Tx any](e *env[Tx]) {
	first, second := e.record(orderPlaced, "K"), e.record(orderPlaced, "K")
	tx := e.begin()
	e.check(e.Appender(tx).Append(e.ctx, []outbox.Record{first}))

	overtaken := make(chan error, 1)
	go func() { overtaken <- e.patiently(second) }()
	var claimer *owner[Tx]
	if e.features.ConcurrentWriters {
		e.eventually("the second writer waits", func() bool {
			select {
			case err := <-overtaken:
				e.Fatalf("the second writer of the key committed first (error %v)", err)
			default:
			}
			if e.LockWaiters == nil {
				return true
			}
			n, err := e.LockWaiters(e.ctx)
			e.check(err)
			return n > 0
		})
		claimer = e.claimer("a", Warehouse)
		if rows := claimer.fetch(); len(rows) > 0 {
			e.Fatalf("fetched before any commit: %s", payloads(rows))
		}
	}
	e.check(e.Commit(e.ctx, tx))
	e.check(<-overtaken)
	if claimer == nil {
		claimer = e.claimer("a", Warehouse)
	}
	want(e, "delivered", ofKey(claimer.drain(), "K"), []string{string(first.Payload), string(second.Payload)})
}

// patiently appends again while a lock is not to be had in time.
func (e *env[Tx]) patiently(r outbox.Record) error {
	for {
		err := e.append(r)
		var again *event.RetryableError
		if !errors.As(err, &again) || e.ctx.Err() != nil {
			return err
		}
	}
}

func firstInsertOfNewKeyFrom50Writers[Tx any](e *env[Tx]) {
	const writers = 50
	rounds := 5
	if e.features.Short {
		rounds = 1
	}
	claimer := e.claimer("a", Warehouse)
	for round := range rounds {
		var j journal
		key := fmt.Sprintf("brand-new-%d", round)
		parallel(e, writers, func(i int) error {
			r := e.record(orderPlaced, key)
			return e.transact(func(tx Tx) error {
				var err error
				if i%2 == 0 {
					err = e.Appender(tx).Append(e.ctx, []outbox.Record{r})
				} else {
					err = e.Insert(e.ctx, tx, r.Topic, &key, string(r.Payload))
				}
				j.add(r)
				return err
			})
		})
		judge(e, &j, claimer.drain())
	}
}

func plainAndGeneratedWritersMixed[Tx any](e *env[Tx]) {
	rounds := 25
	if e.features.Short {
		rounds = 5
	}
	var j journal
	keys := []string{"hot", "warm", "cold"}
	parallel(e, 8, func(i int) error {
		random := rand.New(rand.NewPCG(uint64(i), 1))
		for range rounds {
			key := keys[min(random.IntN(5), 2)]
			records := []outbox.Record{e.record(orderPlaced, key), e.record(returned, key)}
			err := e.transact(func(tx Tx) error {
				if random.IntN(2) == 0 {
					err := e.Appender(tx).Append(e.ctx, records)
					j.add(records...)
					return err
				}
				for _, r := range records {
					if err := e.Insert(e.ctx, tx, r.Topic, &r.Key, string(r.Payload)); err != nil {
						return err
					}
					j.add(r)
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	judge(e, &j, e.claimer("a", Warehouse).drain())
}

func fannedOutKeepsOrder[Tx any](e *env[Tx]) {
	var j journal
	parallel(e, 4, func(i int) error {
		for n := range 10 {
			r := e.record([]string{orderPlaced, orderCancelled}[n%2], "order-1")
			err := e.transact(func(tx Tx) error {
				var err error
				if i%2 == 0 {
					err = e.Appender(tx).Append(e.ctx, []outbox.Record{r})
				} else {
					err = e.Insert(e.ctx, tx, r.Topic, &r.Key, string(r.Payload))
				}
				j.add(r)
				return err
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	warehouse, ledger := e.claimer("w", Warehouse).drain(), e.claimer("l", Ledger).drain()
	judge(e, &j, warehouse)
	judge(e, &j, ledger)
	for i := range warehouse {
		if warehouse[i].ID != ledger[i].ID || warehouse[i].ID.IsZero() {
			e.Fatalf("copy %d of a message has id %v at one destination and %v at the other", i, warehouse[i].ID, ledger[i].ID)
		}
	}
}

func denseVersionsHaveNoGap[Tx any](e *env[Tx]) {
	rollback := errors.New("rolled back on purpose")
	parallel(e, 6, func(i int) error {
		for n := range 8 {
			r := e.record(shipmentMoved, "17")
			err := e.transact(func(tx Tx) error {
				if i%2 == 0 {
					if err := e.Appender(tx).Append(e.ctx, []outbox.Record{r, e.record(shipmentMoved, "18")}); err != nil {
						return err
					}
				} else if err := e.Insert(e.ctx, tx, r.Topic, &r.Key, string(r.Payload)); err != nil {
					return err
				}
				if n%4 == 3 {
					return rollback
				}
				return nil
			})
			if err != nil && !errors.Is(err, rollback) {
				return err
			}
		}
		return nil
	})
	for _, destination := range []string{Warehouse, Ledger} {
		last := map[string]int64{}
		for _, m := range e.claimer(destination, destination).drain() {
			if last[m.Key]++; m.Version != last[m.Key] {
				e.Fatalf("%s: key %s has version %d after %d", destination, m.Key, m.Version, last[m.Key]-1)
			}
		}
		if last["17"] != 36 || last["18"] != 18 {
			e.Fatalf("%s: versions end at %v, want 36 and 18", destination, last)
		}
	}
}

func receiverThatCommitsLastIsRelayedLast[Tx any](e *env[Tx]) {
	message := func(id string) inbox.Incoming {
		return inbox.Incoming{IdempotencyKey: id, EventType: orderPlaced, AggregateID: "A", Payload: []byte(`"` + id + `"`)}
	}
	slow := e.begin()
	e.check(e.transact(func(tx Tx) error { return e.ReceiveIn(e.ctx, tx, e.Source(Returns), message("quick")) }))
	e.check(e.ReceiveIn(e.ctx, slow, e.Source(Orders), message("slow")))

	// From here the slow one holds the aggregate: a third waits for its commit.
	third := make(chan error, 1)
	go func() {
		_, err := e.Receive.Receive(e.ctx, e.Source(Orders), []inbox.Incoming{message("third")})
		third <- err
	}()
	if e.LockWaiters != nil {
		e.eventually("the third receiver waits", func() bool {
			n, err := e.LockWaiters(e.ctx)
			e.check(err)
			return n > 0
		})
	}
	e.check(e.Commit(e.ctx, slow))
	e.check(<-third)
	want(e, "relayed", ofKey(e.claimer("a", Push).drain(), "A"), []string{`"quick"`, `"slow"`, `"third"`})
}

func oppositeKeyOrderIsTypedOrSucceeds[Tx any](e *env[Tx]) {
	for range 3 {
		var first sync.WaitGroup
		if e.features.ConcurrentWriters {
			first.Add(2)
		}
		write := func(keys ...string) error {
			meet := sync.OnceFunc(func() { // both hold one key before they ask for the other
				if e.features.ConcurrentWriters {
					first.Done()
					first.Wait()
				}
			})
			for {
				err := e.transact(func(tx Tx) error {
					for _, key := range keys {
						if err := e.Appender(tx).Append(e.ctx, []outbox.Record{e.record(orderPlaced, key)}); err != nil {
							return err
						}
						meet()
					}
					return nil
				})
				var again *event.RetryableError
				if !errors.As(err, &again) {
					return err
				}
			}
		}
		parallel(e, 2, func(i int) error {
			return write([][]string{{"X", "Y"}, {"Y", "X"}}[i]...)
		})
	}
	delivered := e.claimer("a", Warehouse).drain()
	if x, y := len(ofKey(delivered, "X")), len(ofKey(delivered, "Y")); x != 6 || y != 6 {
		e.Fatalf("delivered %d messages of X and %d of Y, want 6 of each", x, y)
	}
}

func publishAllNeverDeadlocks[Tx any](e *env[Tx]) {
	rounds := 25
	if e.features.Short {
		rounds = 5
	}
	var j journal
	parallel(e, 8, func(i int) error {
		random := rand.New(rand.NewPCG(uint64(i), 2))
		for range rounds {
			var records []outbox.Record
			for _, n := range random.Perm(6)[:5] {
				topic := []string{orderPlaced, shipmentMoved}[random.IntN(2)]
				records = append(records, e.record(topic, fmt.Sprintf("k%d", n)))
			}
			if err := e.transact(func(tx Tx) error {
				err := e.Appender(tx).Append(e.ctx, records)
				j.add(records...)
				return err
			}); err != nil {
				return err
			}
		}
		return nil
	})
	judge(e, &j, e.claimer("a", Warehouse).drain())
}

// distinctKeys look alike to everything but a byte comparison.
var distinctKeys = []string{
	"a", "A", "a ", " a", "a\t", "\u00e4", "a\u0308", "\u212b", "\u00c5", "ß", "ss", "🚚", "\U0001F69A\uFE0F",
	"null", "0", "00", "0.0", "%", "_", "'", `\`, "|", "漢字", "\uFEFFa", strings.Repeat("é", 127) + "x",
}

func keysAreBytes[Tx any](e *env[Tx]) {
	first, second := map[string]string{}, map[string]string{}
	for _, key := range distinctKeys {
		first[key] = e.publish(orderPlaced, key, 1)[0]
		r := e.record(orderPlaced, key)
		e.check(e.transact(func(tx Tx) error { return e.Insert(e.ctx, tx, r.Topic, &key, string(r.Payload)) }))
		second[key] = string(r.Payload)
	}
	rows := e.claimer("a", Warehouse).fetch()
	lanes := map[int64]string{}
	for _, key := range distinctKeys {
		of := rowsOf(rows, key)
		want(e, fmt.Sprintf("messages of key %q", key), payloadList(of), []string{first[key], second[key]})
		if of[0].Lane != of[1].Lane {
			e.Errorf("key %q has two lanes", key)
		}
		if other, taken := lanes[of[0].Lane]; taken {
			e.Errorf("keys %q and %q share a lane", key, other)
		}
		lanes[of[0].Lane] = key
	}
	for i, id := range distinctKeys { // idempotency keys are bytes as well
		m := inbox.Incoming{IdempotencyKey: id, EventType: orderPlaced, AggregateID: id, Payload: fmt.Appendf(nil, "%d", i)}
		if got := e.receiveRaw(Orders, m); got[0] != inbox.Stored {
			e.Errorf("idempotency key %q was taken for another one", id)
		}
	}
	received := e.claimer("r", Push).drain()
	for i, id := range distinctKeys {
		want(e, fmt.Sprintf("messages of aggregate %q", id), ofKey(received, id), []string{fmt.Sprint(i)})
	}
}

// refused insists that both writers answer with a ConfigurationError, and that
// nothing is stored.
func refused[Tx any](e *env[Tx], topic, key string, mentions ...string) {
	e.Helper()
	e.check1(topic, key, mentions, e.append(e.record(topic, key)))
	e.check1(topic, key, mentions, e.transact(func(tx Tx) error { return e.Insert(e.ctx, tx, topic, &key, "{}") }))
	if key == "" {
		e.check1(topic, key, mentions, e.transact(func(tx Tx) error { return e.Insert(e.ctx, tx, topic, nil, "{}") }))
	}
}

func (e *env[Tx]) check1(topic, key string, mentions []string, err error) {
	e.Helper()
	var refused *event.ConfigurationError
	if !errors.As(err, &refused) {
		e.Fatalf("%s with key %.20q: got %v, want a ConfigurationError", topic, key, err)
	}
	for _, word := range mentions {
		if !strings.Contains(err.Error(), word) {
			e.Errorf("the error %q does not name %q", err, word)
		}
	}
}

func (e *env[Tx]) nothingWaits(scopes ...string) {
	e.Helper()
	for _, s := range scopes {
		if rows := e.claimer("nothing-"+s, s).pass(); len(rows) > 0 {
			e.Errorf("%s holds %s", s, payloads(rows))
		}
	}
}

func oversizeKeyIsRefused[Tx any](e *env[Tx]) {
	refused(e, orderPlaced, strings.Repeat("k", 256), "256", "255")
	refused(e, returned, strings.Repeat("é", 128), "256", "255")
	refused(e, returned, strings.Repeat("k", 10_000), "10000", "255")
	e.nothingWaits(Warehouse, Ledger)
}

func emptyKeyOnKeyedTopicIsRefused[Tx any](e *env[Tx]) {
	refused(e, orderPlaced, "", orderPlaced, "key")
	refused(e, shipmentMoved, "", shipmentMoved, "key")
	e.nothingWaits(Warehouse, Ledger)
}

func topicWithoutRouteIsRefused[Tx any](e *env[Tx]) {
	refused(e, unrouted, "k", unrouted, "route")
	refused(e, "returnXaccepted", "k", "returnXaccepted", "route")
	refused(e, "Return.accepted", "k", "Return.accepted", "route")
	refused(e, "mail.requested.v1.x", "k", "mail.requested.v1.x", "route")
	e.nothingWaits(Warehouse, Ledger, Mail)
}

func timesUseTheDatabaseClock[Tx any](e *env[Tx]) {
	before, err := e.Now(e.ctx)
	e.check(err)
	early, late := e.record(orderPlaced, "K"), e.record(orderPlaced, "K")
	if e.features.ConcurrentWriters {
		// The transaction that began first stores last: the time follows.
		slow := e.begin()
		_, err = e.Now(e.ctx)
		e.check(err)
		e.check(e.append(early))
		e.check(e.Appender(slow).Append(e.ctx, []outbox.Record{late}))
		e.check(e.Commit(e.ctx, slow))
	} else {
		e.check(e.append(early))
		e.check(e.append(late))
	}
	after, err := e.Now(e.ctx)
	e.check(err)
	delivered := e.claimer("a", Warehouse).drain()
	want(e, "delivered", ofKey(delivered, "K"), []string{string(early.Payload), string(late.Payload)})
	// Databases keep times to different precisions.
	const precision = time.Millisecond
	for i, m := range delivered {
		if m.CreatedAt.Before(before.Add(-precision)) || m.CreatedAt.After(after.Add(precision)) {
			e.Errorf("message %d is of %v; the database's clock went from %v to %v", i, m.CreatedAt, before, after)
		}
	}
	if delivered[1].CreatedAt.Before(delivered[0].CreatedAt) {
		e.Errorf("times fall within a lane: %v, then %v", delivered[0].CreatedAt, delivered[1].CreatedAt)
	}
}

func keyLockedElsewhereDelaysNoOtherKey[Tx any](e *env[Tx]) {
	earlier := e.publish(orderPlaced, "locked", 1)
	other := e.publish(orderPlaced, "free", 1)
	claimer := e.claimer("a", Warehouse)
	if e.features.ConcurrentWriters {
		tx := e.begin()
		e.check(e.Appender(tx).Append(e.ctx, []outbox.Record{e.record(orderPlaced, "locked"), e.record(returned, "")}))
	}
	// None of this waits for the lock; the context would end the test.
	other = append(other, e.publish(orderPlaced, "free", 1)...)
	e.receive(Orders, orderPlaced, "locked")
	delivered := claimer.drain()
	want(e, "delivered of the other key", ofKey(delivered, "free"), other)
	want(e, "delivered of the locked key", ofKey(delivered, "locked"), earlier)
	if n := len(e.claimer("p", Push).drain()); n != 1 {
		e.Errorf("received %d messages, want 1", n)
	}
}

func rolledBackIsNeverSeen[Tx any](e *env[Tx]) {
	claimer := e.claimer("a", Warehouse)
	before := e.publish(orderPlaced, "K", 1)
	tx := e.begin()
	e.check(e.Appender(tx).Append(e.ctx, []outbox.Record{e.record(orderPlaced, "K"), e.record(returned, "")}))
	if e.features.ConcurrentWriters {
		want(e, "seen while the transaction is open", payloadList(claimer.fetch()), before)
	}
	e.check(e.Rollback(e.ctx, tx))
	after := e.publish(orderPlaced, "K", 1)
	want(e, "delivered", ofKey(claimer.drain(), "K"), append(before, after...))
}

// texts are payloads that a careless store changes.
var texts = []string{
	`{"quote":"\"","slash":"\\","tab":"\t","line":"\n","zero":"\u0000","lone":"\ud800"}`,
	`{"b":1,"a":1.0,"a":2}`, "{ \"spaced\" :\r\n\t[ 1 , 2 ] }  ", "\uFEFF{\"bom\":true}",
	`{"big":9007199254740993,"bigger":18446744073709551615,"e":1E400}`,
	`{"text":"żółć 漢字 😀 e\u0301 ` + "e\u0301" + `","sql":"it''s 'quoted' -- ; $1 ? :x @y %s"}`,
	`"just text"`, `null`, ``, ` `, `{"backslash":"C:\\new\\table","octal":"\\101"}`,
}

func payloadBytesUnchanged[Tx any](e *env[Tx]) {
	var generated, plain []string
	for _, text := range texts {
		r := e.record(returned, "generated")
		r.Payload = []byte(text)
		e.check(e.append(r))
		generated = append(generated, text)
		key := "plain"
		e.check(e.transact(func(tx Tx) error { return e.Insert(e.ctx, tx, returned, &key, text) }))
		plain = append(plain, text)
	}
	delivered := e.claimer("a", Warehouse).drain()
	want(e, "payloads of the generated writer", ofKey(delivered, "generated"), generated)
	want(e, "payloads of the plain writer", ofKey(delivered, "plain"), plain)

	bodies := append(slices.Clone(texts), "\xff\xfe\x00\x01", "\x00", string([]byte{0xed, 0xa0, 0x80}), strings.Repeat("x", 1<<20))
	for i, body := range bodies {
		m := inbox.Incoming{IdempotencyKey: fmt.Sprint(i), EventType: orderPlaced, AggregateID: "A", Payload: []byte(body)}
		if got := e.receiveRaw(Payments, m); got[0] != inbox.Stored {
			e.Fatalf("body %d was not stored", i)
		}
	}
	var got []string
	for _, m := range e.claimer("p", Payments).drain() {
		got = append(got, string(m.Payload))
	}
	want(e, "bodies of the inbox", got, bodies)
}

func headersRoundTrip[Tx any](e *env[Tx]) {
	headers := event.Headers{"traceparent": "00-ab-cd-01", "X-Mixed-Case": `"quoted" \ żółć 😀`, "empty": "", "a": "1", "A": "2"}
	with, without := e.record(orderPlaced, "K"), e.record(orderPlaced, "K")
	with.Headers = headers
	e.check(e.append(with, without))
	delivered := e.claimer("a", Ledger).drain()
	if !maps.Equal(delivered[0].Headers, headers) || delivered[0].ID != with.ID || delivered[0].Topic != orderPlaced {
		e.Errorf("got %+v of %+v", delivered[0], with)
	}
	if len(delivered[1].Headers) != 0 {
		e.Errorf("headers appeared: %v", delivered[1].Headers)
	}
	m := inbox.Incoming{IdempotencyKey: "id 1", EventType: orderCancelled, AggregateID: "A", Payload: []byte("{}"), Headers: headers, Version: 7}
	e.receiveRaw(Payments, m)
	got := e.claimer("p", Payments).drain()[0]
	if !maps.Equal(got.Headers, headers) || got.Source != Payments || got.IdempotencyKey != "id 1" ||
		got.Topic != orderCancelled || got.Key != "A" || got.Version != 7 || got.ID.IsZero() {
		e.Errorf("got %+v of %+v", got, m)
	}
}
