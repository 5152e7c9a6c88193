package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/outbox"
)

// env is one test with its database. Its helpers end the test on any error; they
// must be called from the test's goroutine unless they say otherwise.
type env[Tx any] struct {
	*testing.T
	*DB[Tx]
	features Features
	ctx      context.Context
	sent     atomic.Int64
}

func newEnv[Tx any](t *testing.T, h Harness[Tx]) *env[Tx] {
	if h.Features.Patience <= 0 {
		h.Features.Patience = 30 * time.Second
	}
	db := h.Open(t)
	ctx, cancel := context.WithTimeout(context.Background(), 4*h.Features.Patience)
	t.Cleanup(cancel)
	return &env[Tx]{T: t, DB: db, features: h.Features, ctx: ctx}
}

// check ends the test on an error.
func (e *env[Tx]) check(err error) {
	e.Helper()
	if err != nil {
		e.Fatal(err)
	}
}

// eventually waits until done says so.
func (e *env[Tx]) eventually(what string, done func() bool) {
	e.Helper()
	deadline := time.Now().Add(e.features.Patience)
	for pause := time.Millisecond; !done(); pause = min(2*pause, 50*time.Millisecond) {
		if time.Now().After(deadline) {
			e.Fatalf("waited %v in vain: %s", e.features.Patience, what)
		}
		time.Sleep(pause)
	}
}

// record makes a message; its payload is unique within the test.
func (e *env[Tx]) record(topic, key string) outbox.Record {
	return outbox.Record{
		ID: event.NewUUID(), Topic: topic, Key: key,
		Payload: fmt.Appendf(nil, `{"n":%d}`, e.sent.Add(1)),
	}
}

// transact runs fn in a transaction and commits it. Any goroutine may call it.
func (e *env[Tx]) transact(fn func(tx Tx) error) error {
	tx, err := e.Begin(e.ctx)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	if err := fn(tx); err != nil {
		return errors.Join(err, e.Rollback(e.ctx, tx))
	}
	return e.Commit(e.ctx, tx)
}

// begin opens a transaction that the test ends itself. When the test fails first,
// it is rolled back before the database is closed: an open transaction would
// keep the database, and with it the verdict, waiting.
func (e *env[Tx]) begin() Tx {
	e.Helper()
	tx, err := e.Begin(e.ctx)
	e.check(err)
	e.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(e.ctx), e.features.Patience)
		defer cancel()
		_ = e.Rollback(ctx, tx) // an error says that it ended before
	})
	return tx
}

// append publishes records in one transaction. Any goroutine may call it.
func (e *env[Tx]) append(records ...outbox.Record) error {
	return e.transact(func(tx Tx) error { return e.Appender(tx).Append(e.ctx, records) })
}

// publish publishes n messages of a key in one transaction each and returns
// their payloads.
func (e *env[Tx]) publish(topic, key string, n int) []string {
	e.Helper()
	var payloads []string
	for range n {
		r := e.record(topic, key)
		e.check(e.append(r))
		payloads = append(payloads, string(r.Payload))
	}
	return payloads
}

// receive receives one message with an idempotency key of its own.
func (e *env[Tx]) receive(source, eventType, aggregate string) inbox.Incoming {
	e.Helper()
	n := e.sent.Add(1)
	m := inbox.Incoming{
		IdempotencyKey: fmt.Sprintf("id-%d", n), EventType: eventType, AggregateID: aggregate,
		Payload: fmt.Appendf(nil, `{"n":%d}`, n),
	}
	if got := e.receiveRaw(source, m); got[0] != inbox.Stored {
		e.Fatalf("a new message was not stored but %d", got[0])
	}
	return m
}

func (e *env[Tx]) receiveRaw(source string, messages ...inbox.Incoming) []inbox.Disposition {
	e.Helper()
	got, err := e.Receive.Receive(e.ctx, e.Source(source), messages)
	e.check(err)
	if len(got) != len(messages) {
		e.Fatalf("received %d messages and got %d dispositions", len(messages), len(got))
	}
	return got
}

// fingerprint returns the state of the database.
func (e *env[Tx]) fingerprint() string {
	e.Helper()
	f, err := e.Fingerprint(e.ctx)
	e.check(err)
	return f
}

// An owner is a process that claims one scope, without any policy. Its methods
// that return errors may be called from any goroutine.
type owner[Tx any] struct {
	e      *env[Tx]
	name   string
	scope  lane.Scope
	store  lane.Store
	leases []lane.Lease
	params lane.FetchParams
}

// long is a lease that no test outlives.
const long = time.Hour

// owner returns a process without leases.
func (e *env[Tx]) owner(name, scope string) *owner[Tx] {
	o := &owner[Tx]{e: e, name: name, scope: e.Scope(scope)}
	if slices.Contains([]string{Payments, Stock, Push}, scope) {
		o.store = e.Inbox(o.scope)
	} else {
		o.store = e.Outbox(o.scope)
	}
	o.params = lane.FetchParams{Owner: name, MaxLanes: 64, MaxRun: 16, MaxRows: 500, ScanLanes: 512}
	return o
}

// claimer returns a process that leased every bucket.
func (e *env[Tx]) claimer(name, scope string) *owner[Tx] {
	e.Helper()
	o := e.owner(name, scope)
	if got := o.acquire(e.features.Buckets, long); got != e.features.Buckets {
		e.Fatalf("%s leased %d buckets of %s, want all %d", name, got, scope, e.features.Buckets)
	}
	return o
}

// acquire adds leases and returns how many came.
func (o *owner[Tx]) acquire(maxFree int, ttl time.Duration) int {
	o.e.Helper()
	leases, err := o.store.Acquire(o.e.ctx, lane.AcquireParams{Owner: o.name, MaxFree: maxFree, TTL: ttl})
	o.e.check(err)
	o.leases = append(o.leases, leases...)
	return len(leases)
}

// expire ends the owner's leases.
func (o *owner[Tx]) expire() {
	o.e.Helper()
	o.e.check(o.e.ExpireLeases(o.e.ctx, o.scope, o.name))
}

// start returns cursors at the beginning of every leased bucket.
func (o *owner[Tx]) start() []lane.Cursor {
	var cursors []lane.Cursor
	for _, l := range o.leases {
		cursors = append(cursors, lane.Cursor{Lease: l, Lane: l.Lo})
	}
	return cursors
}

// pass fetches until every bucket was seen to its end and returns all rows that
// were listed, each once, those that wait included. A long unordered lane makes
// keyed lanes come by several times. busy lanes are stepped over.
func (o *owner[Tx]) pass(busy ...int64) []lane.Row {
	o.e.Helper()
	rows, err := o.tryPass(busy...)
	o.e.check(err)
	return rows
}

func (o *owner[Tx]) tryPass(busy ...int64) ([]lane.Row, error) {
	var rows []lane.Row
	listed := map[lane.Ref]bool{}
	open := o.start()
	p := o.params
	p.Busy = busy
	for pages := 0; len(open) > 0; pages++ {
		if pages > 20_000 {
			return nil, errors.New("the cursors never come to the end of their buckets")
		}
		p.Cursors = open
		page, err := o.store.Fetch(o.e.ctx, p)
		if err != nil {
			return nil, fmt.Errorf("fetch: %w", err)
		}
		if len(page.Rows) > p.MaxRows {
			return nil, fmt.Errorf("a page has %d rows; the limit is %d", len(page.Rows), p.MaxRows)
		}
		for _, r := range page.Rows {
			if ref := (lane.Ref{Lane: r.Lane, Sequence: r.Message.Sequence}); !listed[ref] {
				listed[ref] = true
				rows = append(rows, r)
			}
		}
		if open, err = advance(open, page); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// advance returns the cursors that are left. A bucket that is missing in a page
// that is not full is lost.
func advance(open []lane.Cursor, page lane.Page) ([]lane.Cursor, error) {
	next := map[lane.Bucket]lane.Cursor{}
	for _, c := range page.Next {
		next[c.Lease.Bucket] = c
	}
	var left, moved []lane.Cursor
	for _, c := range open {
		n, served := next[c.Lease.Bucket]
		switch {
		case !served && page.Full:
			left = append(left, c)
		case !served:
		case slices.Contains(page.Wrapped, c.Lease.Bucket):
			if n.Lane != c.Lease.Lo {
				return nil, fmt.Errorf("bucket %d wrapped, but its cursor is at %d", c.Lease.Bucket, n.Lane)
			}
		case n.Lane == c.Lane && n.After == c.After:
			return nil, fmt.Errorf("the cursor of bucket %d stays at lane %d", c.Lease.Bucket, c.Lane)
		default:
			moved = append(moved, n)
		}
	}
	return append(left, moved...), nil // those that were cut off come first
}

// due returns the rows that may be delivered.
func due(rows []lane.Row) []lane.Row {
	return slices.DeleteFunc(slices.Clone(rows), func(r lane.Row) bool { return r.DueIn > 0 })
}

// fetch returns what may be delivered now.
func (o *owner[Tx]) fetch(busy ...int64) []lane.Row {
	o.e.Helper()
	return due(o.pass(busy...))
}

// one fetches and returns the only row there is.
func (o *owner[Tx]) one() lane.Row {
	o.e.Helper()
	rows := o.fetch()
	if len(rows) != 1 {
		o.e.Fatalf("fetched %d rows, want 1: %s", len(rows), payloads(rows))
	}
	return rows[0]
}

// lease returns the lease of a row's bucket.
func (o *owner[Tx]) lease(r lane.Row) lane.Lease {
	for _, l := range o.leases {
		if l.Bucket == r.Bucket {
			return l
		}
	}
	o.e.Fatalf("a row came from bucket %d, which %s did not lease", r.Bucket, o.name)
	return lane.Lease{}
}

// leasesOf returns the leases of the rows' buckets, each once.
func (o *owner[Tx]) leasesOf(rows []lane.Row) []lane.Lease {
	var leases []lane.Lease
	for _, l := range o.leases {
		if slices.ContainsFunc(rows, func(r lane.Row) bool { return r.Bucket == l.Bucket }) {
			leases = append(leases, l)
		}
	}
	return leases
}

// trySettle records one outcome for all rows. change may add to a settlement.
func (o *owner[Tx]) trySettle(outcome lane.Outcome, change func(*lane.Settlement), rows ...lane.Row) (lane.SettleResult, error) {
	var settlements []lane.Settlement
	for _, r := range rows {
		s := lane.Settlement{
			Bucket: r.Bucket, Lane: r.Lane, Sequence: r.Message.Sequence,
			Outcome: outcome, Attempts: r.Attempts, Held: r.Held,
		}
		if outcome != lane.Done {
			s.Attempts++
			s.Reason, s.Error = "transient", "refused"
		}
		if outcome == lane.Retry {
			s.Delay = long
		}
		if change != nil {
			change(&s)
		}
		settlements = append(settlements, s)
	}
	return o.store.Settle(o.e.ctx, o.name, o.leasesOf(rows), settlements)
}

// settle records one outcome for all rows and insists that it took effect. A
// retry waits for longer than the test.
func (o *owner[Tx]) settle(outcome lane.Outcome, rows ...lane.Row) lane.SettleResult {
	o.e.Helper()
	result, err := o.trySettle(outcome, nil, rows...)
	o.e.check(err)
	if len(result.Fenced) > 0 || len(result.Gone) > 0 {
		o.e.Fatalf("settling answered fenced %v, gone %v; want neither", result.Fenced, result.Gone)
	}
	return result
}

// drain delivers everything that may be delivered, one run after the other, and
// returns the messages in that order.
func (o *owner[Tx]) drain() []event.Message {
	o.e.Helper()
	var delivered []event.Message
	for {
		rows := o.fetch()
		if len(rows) == 0 {
			return delivered
		}
		for _, r := range rows {
			delivered = append(delivered, r.Message)
		}
		o.settle(lane.Done, rows...)
	}
}

// ofKey returns the payloads of one key's messages, in their order.
func ofKey(messages []event.Message, key string) []string {
	var found []string
	for _, m := range messages {
		if m.Key == key {
			found = append(found, string(m.Payload))
		}
	}
	return found
}

// rowsOf returns one key's rows, in their order.
func rowsOf(rows []lane.Row, key string) []lane.Row {
	return slices.DeleteFunc(slices.Clone(rows), func(r lane.Row) bool { return r.Message.Key != key })
}

// payloads names rows in failures.
func payloads(rows []lane.Row) string {
	var b strings.Builder
	for _, r := range rows {
		fmt.Fprintf(&b, "%s/%s ", r.Message.Key, r.Message.Payload)
	}
	return b.String()
}

func payloadList(rows []lane.Row) []string {
	var list []string
	for _, r := range rows {
		list = append(list, string(r.Message.Payload))
	}
	return list
}

// want compares two lists.
func want[Tx any](e *env[Tx], what string, got, wanted []string) {
	e.Helper()
	if !slices.Equal(got, wanted) {
		e.Fatalf("%s: got %v, want %v", what, got, wanted)
	}
}

// scopeName returns the name the owner's scope has in the reference schema.
func (o *owner[Tx]) scopeName() string {
	for _, name := range []string{Warehouse, Ledger, Mail, Payments, Stock, Push} {
		if o.e.Scope(name) == o.scope {
			return name
		}
	}
	o.e.Fatalf("scope %d has no name", o.scope)
	return ""
}

// buckets returns the sorted buckets of leases.
func buckets(leases []lane.Lease) []lane.Bucket {
	var list []lane.Bucket
	for _, l := range leases {
		list = append(list, l.Bucket)
	}
	slices.Sort(list)
	return list
}

func (e *env[Tx]) wantLeaseLost(what string, err error) {
	e.Helper()
	if !errors.Is(err, lane.ErrLeaseLost) {
		e.Errorf("%s by a stale owner answered %v, want ErrLeaseLost", what, err)
	}
}
