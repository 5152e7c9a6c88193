package sqlite_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/outbox"
	sqlitestore "github.com/lanebox/lanebox/runtime/sqlstore/sqlite"
	shop "github.com/lanebox/lanebox/runtime/sqlstore/sqlite/internal/shop/sqlite"
)

func TestPlainInsertIsRoutedAndFannedOut(t *testing.T) {
	b := newBox(t)
	b.exec(`INSERT INTO outbox (topic, key, payload) VALUES ('order.created', 'order-42', '{"step":1}')`)
	b.want("destinations", b.text(`SELECT group_concat(destination) FROM (SELECT destination FROM outbox ORDER BY destination)`), "1001,1002")
	b.want("ids", b.text(`SELECT count(DISTINCT id) || '/' || count(DISTINCT lane) || '/' || count(DISTINCT created_at) FROM outbox`), "1/1/1")
	for _, store := range []lane.Store{b.store.WarehouseDestination(), b.store.LedgerDestination()} {
		rows := b.claim("p", store).fetch()
		if len(rows) != 1 {
			t.Fatalf("got %d rows, want 1", len(rows))
		}
		m := rows[0].Message
		b.want("payload", string(m.Payload), `{"step":1}`)
		b.want("key", m.Key, "order-42")
		b.want("topic", m.Topic, "order.created")
		if age := time.Since(m.CreatedAt); age < -time.Second || age > time.Minute {
			t.Errorf("created %v ago", age)
		}
	}
}

func TestRefusalsAreTyped(t *testing.T) {
	b := newBox(t)
	long := strings.Repeat("é", 128) // 256 bytes, 128 characters
	for _, c := range []struct{ name, topic, key, reason string }{
		{"no route", "invoice.sent", "k", "topic has no route"},
		{"glob is no prefix", "orders", "k", "topic has no route"},
		{"topic with quotes", "it's: 'odd", "k", "topic has no route"},
		{"glob letters are literal", "it's oXyz", "k", "topic has no route"},
		{"empty key", "order.placed", "", "the event declares key order_id"},
		{"long key", "order.placed", long, "has 256 bytes; the limit is 255"},
		{"U+0000", "order.placed", "a\x00b", "U+0000"},
		{"lone byte", "order.placed", "a\xff", "not valid UTF-8"},
		{"lone continuation", "order.placed", "\x80a", "not valid UTF-8"},
		{"overlong", "order.placed", "\xe0\x82\x80", "not valid UTF-8"},
		{"surrogate", "order.placed", "\xed\xa0\x80", "not valid UTF-8"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var refused *event.ConfigurationError
			if err := b.append(record(c.topic, c.key, "{}")); !errors.As(err, &refused) || !strings.Contains(refused.Reason, c.reason) {
				t.Fatalf("generated: got %v, want a ConfigurationError with %q", err, c.reason)
			}
			b.want("topic", refused.Topic, c.topic)
			_, err := b.db.ExecContext(b.ctx, `INSERT INTO outbox (topic, key, payload) VALUES (?, ?, '{}')`, c.topic, c.key)
			if err := sqlitestore.Classify("insert", err); !errors.As(err, &refused) || !strings.Contains(refused.Reason, c.reason) {
				t.Fatalf("plain: got %v, want a ConfigurationError with %q", err, c.reason)
			}
		})
	}
	for _, query := range []string{
		`INSERT INTO outbox (topic, payload) VALUES ('order.placed', '{}')`,
		`INSERT INTO outbox (topic, key, payload) VALUES ('order.placed', x'41', '{}')`,
		`INSERT INTO outbox (topic, key, payload, destination) VALUES ('order.placed', 'k', '{}', 1001)`,
		`INSERT INTO outbox (topic, key, payload, id) VALUES ('order.placed', 'k', '{}', 'x')`,
	} {
		var refused *event.ConfigurationError
		if _, err := b.db.ExecContext(b.ctx, query); !errors.As(sqlitestore.Classify("insert", err), &refused) {
			t.Errorf("%s: got %v, want a ConfigurationError", query, err)
		}
	}
	b.want("rows", b.text(`SELECT count(*) FROM outbox`), "0")
}

func TestRefusedBatchStoresNothing(t *testing.T) {
	b := newBox(t)
	err := sqlitestore.Write(b.ctx, b.db, func(tx *sql.Tx) error {
		a := shop.Appender(tx)
		b.check(a.Append(b.ctx, []outbox.Record{record("news", "", "1"), record("news", "", "2")}))
		var refused *event.ConfigurationError
		err := a.Append(b.ctx, []outbox.Record{record("news", "", "3"), record("order.placed", "", "4")})
		if !errors.As(err, &refused) || refused.Topic != "order.placed" {
			t.Errorf("got %v, want a ConfigurationError of order.placed", err)
		}
		return nil // the caller goes on regardless
	})
	b.check(err)
	b.want("stored", payloads(b.claim("p", b.store.WarehouseDestination()).fetch()), "1 2")
}

func TestKeysAreBytes(t *testing.T) {
	b := newBox(t)
	keys := []string{"a", "A", "a ", " a", "ä", "a\u0308", "42", "042", "\U0001F600", strings.Repeat("x", 255), "null", `"`, "a'b"}
	for _, k := range keys {
		b.check(b.append(record("order.placed", k, "1"), record("order.placed", k, "2")))
	}
	lanes := map[int64]string{}
	for _, r := range b.claim("p", b.store.WarehouseDestination()).fetch() {
		if k, ok := lanes[r.Lane]; ok && k != r.Message.Key {
			t.Errorf("keys %q and %q share a lane", k, r.Message.Key)
		}
		lanes[r.Lane] = r.Message.Key
	}
	if len(lanes) != len(keys) {
		t.Errorf("got %d lanes, want %d", len(lanes), len(keys))
	}
	for l, k := range lanes { // the query computes what the trigger computed
		b.check(b.store.ParkKey(b.ctx, warehouse, k, "test"))
		b.want("parked lane of "+k, b.text(`SELECT count(*) FROM lane_hold WHERE lane = ?`, l), "1")
	}
}

func TestIntegerKeysAreText(t *testing.T) {
	b := newBox(t)
	b.exec(`INSERT INTO outbox (topic, key, payload) VALUES ('order.placed', 42, '1'), ('order.placed', '42', '2')`)
	b.want("one lane", b.text(`SELECT count(DISTINCT lane) FROM outbox`), "1")
}

func TestPayloadAndHeadersComeBackUnchanged(t *testing.T) {
	b := newBox(t)
	b.claim("p", b.store.WarehouseDestination())
	payloads := []string{`{"b":1,"a":1.0,"a":2}`, `{"s":"\"\\\n\u0000"}`, "\ufeff{}", " {\t}\r\n", "\U0001F600 żółć", "a\x00b", "",
		`18446744073709551615`, `1e400`, `'; DROP TABLE outbox; --`}
	for i, p := range payloads {
		r := record("order.placed", "k", p)
		r.Headers = event.Headers{"traceparent": "00-x", "żółć\n\"": "\U0001F600\\"}
		r.Version = int64(i)
		b.check(b.append(r))
		_, err := b.store.Receive(b.ctx, paymentsRef, []inbox.Incoming{{
			IdempotencyKey: p, EventType: "e", AggregateID: "k", Payload: []byte(p + "\xff\x00"), Headers: r.Headers, Version: int64(i),
		}})
		b.check(err)
	}
	out := b.claim("q", b.store.LedgerDestination()).fetch()
	in := b.claim("q", b.store.PaymentsSource()).fetch()
	if len(out) != len(payloads) || len(in) != len(payloads) {
		t.Fatalf("got %d and %d rows, want %d", len(out), len(in), len(payloads))
	}
	for i, p := range payloads {
		b.want("outbox", string(out[i].Message.Payload), p)
		b.want("inbox", string(in[i].Message.Payload), p+"\xff\x00")
		for _, m := range []event.Message{out[i].Message, in[i].Message} {
			b.want("header", m.Headers["żółć\n\""], "\U0001F600\\")
			if m.Version != int64(i) || m.Attempt != 1 {
				t.Errorf("version %d, attempt %d", m.Version, m.Attempt)
			}
		}
		b.want("source", in[i].Message.Source, "payments")
		b.want("idempotency key", in[i].Message.IdempotencyKey, p)
	}
}

func TestHeadersOfAnotherProgramStopNothing(t *testing.T) {
	b := newBox(t)
	b.exec(`INSERT INTO outbox (topic, payload, headers) VALUES ('news', '1', 'no json'), ('news', '2', '{"a":1}'), ('news', '3', '{"a":"b"}')`)
	rows := b.claim("p", b.store.WarehouseDestination()).fetch()
	b.want("payloads", payloads(rows), "1 2 3")
	b.want("header", rows[2].Message.Headers["a"], "b")
}

func TestDenseVersionsHaveNoGap(t *testing.T) {
	b := newBox(t)
	for _, p := range []string{"1", "2", "3"} {
		r := record("account.changed", "k", p)
		r.Version = 77 // the database numbers
		b.check(b.append(r))
	}
	b.exec(`INSERT INTO outbox (topic, key, payload) VALUES ('account.changed', 'k', '4'), ('account.changed', 'other', '5')`)
	// A rolled back message leaves no gap.
	err := sqlitestore.Write(b.ctx, b.db, func(tx *sql.Tx) error {
		b.check(shop.Appender(tx).Append(b.ctx, []outbox.Record{record("account.changed", "k", "lost")}))
		return context.Canceled
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	b.check(b.append(record("account.changed", "k", "6"), record("account.changed", "k", "7")))
	for _, store := range []lane.Store{b.store.LedgerDestination(), b.store.AuditDestination()} {
		last := map[string]int64{}
		for _, r := range b.claim("p", store).fetch() {
			if last[r.Message.Key]++; r.Message.Version != last[r.Message.Key] {
				t.Errorf("key %s: version %d, want %d", r.Message.Key, r.Message.Version, last[r.Message.Key])
			}
		}
		if last["k"] != 6 || last["other"] != 1 {
			t.Errorf("got %v", last)
		}
	}
}

func TestRetryHoldsTheLaneAndDeadFreesIt(t *testing.T) {
	b := newBox(t)
	b.check(b.append(record("order.placed", "a", "a1"), record("order.placed", "a", "a2"), record("order.placed", "b", "b1")))
	c := b.claim("p", b.store.WarehouseDestination())
	rows := c.fetch()
	b.want("all", sorted(rows), "a1 a2 b1")
	head := func(rows []lane.Row, payload string) lane.Row {
		for _, r := range rows {
			if string(r.Message.Payload) == payload {
				return r
			}
		}
		t.Fatalf("no row %s", payload)
		return lane.Row{}
	}
	c.settle(lane.Retry, time.Hour, head(rows, "a1"))
	b.want("a waits", sorted(c.fetch()), "b1")
	b.want("state", b.text(`SELECT group_concat(state) FROM (SELECT state FROM outbox_state WHERE destination = 1001 ORDER BY sequence)`), "retrying,pending,pending")
	b.want("error", b.text(`SELECT last_error FROM lane_hold`), "refused\uFFFD\uFFFD")
	b.exec(`UPDATE lane_hold SET due_at = 0`)
	rows = c.fetch()
	b.want("a is due", sorted(rows), "a1 a2 b1")
	if r := head(rows, "a1"); r.Attempts != 1 || !r.Held || r.Message.Attempt != 2 {
		t.Errorf("attempts %d, held %v, attempt %d", r.Attempts, r.Held, r.Message.Attempt)
	}
	c.settle(lane.Start, 0, head(rows, "a1"))
	b.want("a started, due at once", sorted(c.fetch()), "a1 a2 b1")
	c.settle(lane.Dead, 0, head(c.fetch(), "a1"))
	b.want("a goes on", sorted(c.fetch()), "a2 b1")
	b.want("holds", b.text(`SELECT count(*) FROM lane_hold`), "0")
	letters, err := b.store.DeadLetters(b.ctx, warehouse)
	b.check(err)
	if len(letters) != 1 || letters[0].Attempts != 3 || string(letters[0].Message.Payload) != "a1" || letters[0].Reason != "transient" {
		t.Fatalf("dead letters: %+v", letters)
	}
	n, err := b.store.Replay(b.ctx, warehouse, letters[0].Message.ID, event.NewUUID())
	b.check(err)
	rows = c.fetch()
	if n != 1 {
		t.Errorf("replayed %d, want 1", n)
	}
	a := head(rows, "a2").Lane
	b.want("replayed behind", payloads(slices.DeleteFunc(slices.Clone(rows), func(r lane.Row) bool { return r.Lane != a })), "a2 a1")
	if r := head(rows, "a1"); r.Message.ID != letters[0].Message.ID || r.Attempts != 0 {
		t.Errorf("the replayed message is %+v", r)
	}
	c.settle(lane.Done, 0, rows...)
	b.want("left", b.text(`SELECT count(*) FROM outbox WHERE destination = 1001`), "0")
	b.want("the other destination", b.text(`SELECT count(*) FROM outbox WHERE destination = 1002`), "3")
}

func TestUnorderedMessagesWaitAlone(t *testing.T) {
	b := newBox(t)
	for _, p := range []string{"1", "2", "3"} {
		b.check(b.append(record("news", "", p)))
	}
	c := b.claim("p", b.store.WarehouseDestination())
	rows := c.fetch()
	c.settle(lane.Retry, time.Hour, rows[0])
	rows = c.fetch()
	if len(rows) != 3 || rows[0].DueIn < 59*time.Minute || rows[0].Message.Payload != nil {
		t.Fatalf("the waiting message is not listed as such: %+v", rows)
	}
	b.want("the rest", payloads(rows), "2 3")
	c.settle(lane.Park, 0, rows[1])
	b.want("the rest", payloads(c.fetch()), "3")
	c.settle(lane.Done, 0, c.fetch()[2])
	b.want("nothing due", payloads(c.fetch()), "")
}

func TestParkReachesTheOwnerAndSurvivesFailure(t *testing.T) {
	b := newBox(t)
	b.check(b.append(record("order.placed", "a", "a1"), record("order.placed", "b", "b1")))
	c := b.claim("p", b.store.WarehouseDestination())
	rows := c.fetch()
	b.check(b.store.ParkKey(b.ctx, warehouse, "a", "look at it"))
	result := c.settle(lane.Retry, time.Hour, rows...)
	if len(result.Parked) != 1 {
		t.Errorf("settle reports parked lanes %v, want one", result.Parked)
	}
	kept, err := b.store.Keep(b.ctx, lane.KeepParams{Owner: "p", TTL: time.Hour, Scopes: []lane.ScopeLeases{{Scope: warehouse, Leases: c.leases}}})
	b.check(err)
	if len(kept) != 1 || len(kept[0].Parked) != 1 || len(kept[0].Renewed) != 1 || kept[0].Owners != 1 || kept[0].Buckets != 1 || !kept[0].Waiting {
		t.Errorf("kept %+v", kept)
	}
	b.exec(`UPDATE lane_hold SET due_at = 0`)
	b.want("only b", payloads(c.fetch()), "b1")
	counts, err := b.store.Counts(b.ctx)
	b.check(err)
	for _, n := range counts {
		if n.Scope == warehouse && (n.Waiting != 2 || n.Retrying != 2 || n.Parked != 1 || n.Name != "warehouse") {
			t.Errorf("counts %+v", n)
		}
	}
	b.check(b.store.ReleaseKey(b.ctx, warehouse, "a", "looked at it"))
	b.want("both", sorted(c.fetch()), "a1 b1")
	if r := c.fetch()[0]; r.Attempts != 1 {
		t.Errorf("attempts %d: the failure was forgotten", r.Attempts)
	}
}

func TestStaleOwnersChangeNothing(t *testing.T) {
	b := newBox(t)
	b.check(b.append(record("order.placed", "a", "a1")))
	store := b.store.WarehouseDestination()
	old := b.claim("old", store)
	rows := old.fetch()
	if got := b.claim("other", store); len(got.leases) != 0 {
		t.Fatal("a live lease was acquired")
	}
	b.exec(`UPDATE lane_bucket SET lease_until = 0`)
	if len(old.fetch()) != 0 {
		t.Error("an expired lease fetches")
	}
	taker := b.claim("new", store)
	if len(taker.leases) != 1 || !taker.leases[0].Crashed || taker.leases[0].Token != old.leases[0].Token+1 {
		t.Fatalf("taken over: %+v", taker.leases)
	}
	for _, change := range []struct {
		name string
		sql  string
	}{{"taken over", `SELECT 1`}, {"token set back", `UPDATE lane_bucket SET token = token - 1`}} {
		b.exec(change.sql)
		for _, outcome := range []lane.Outcome{lane.Done, lane.Retry, lane.Dead, lane.Park, lane.Start} {
			if result := old.settle(outcome, time.Hour, rows...); len(result.Fenced) != 1 || len(result.Gone) != 0 {
				t.Errorf("%s: settling %d: %+v", change.name, outcome, result)
			}
		}
		if len(old.fetch()) != 0 {
			t.Errorf("%s: a stale owner fetches", change.name)
		}
		kept, err := b.store.Keep(b.ctx, lane.KeepParams{Owner: "old", TTL: time.Hour, Scopes: []lane.ScopeLeases{{Scope: warehouse, Leases: old.leases}}})
		b.check(err)
		if len(kept[0].Renewed) != 0 {
			t.Errorf("%s: a stale owner renews", change.name)
		}
		b.check(store.Release(b.ctx, "old", old.leases))
		b.want(change.name+": owner", b.text(`SELECT owner FROM lane_bucket WHERE scope = 1001`), "new")
	}
	b.want("rows", b.text(`SELECT count(*) FROM outbox WHERE destination = 1001`), "1")
	b.want("holds and dead", b.text(`SELECT (SELECT count(*) FROM lane_hold) + (SELECT count(*) FROM outbox_dead)`), "0")
}

func TestReleaseHandsOverAtOnce(t *testing.T) {
	b := newBox(t)
	store := b.store.WarehouseDestination()
	first := b.claim("first", store)
	b.check(store.Release(b.ctx, "first", first.leases))
	second := b.claim("second", store)
	if len(second.leases) != 1 || second.leases[0].Crashed {
		t.Fatalf("after a release: %+v", second.leases)
	}
	crashed := second.leases[0]
	crashed.Crashed = true
	b.check(store.Release(b.ctx, "second", []lane.Lease{crashed}))
	if leases, err := store.Acquire(b.ctx, lane.AcquireParams{Owner: "third", TTL: time.Hour}); err != nil || len(leases) != 1 || !leases[0].Crashed {
		t.Fatalf("after a release on probation: %+v, %v", leases, err)
	}
	b.check(b.store.Leave(b.ctx, "third"))
}

func TestExpiredLeaseThatNobodyTookMaySettle(t *testing.T) {
	b := newBox(t)
	b.check(b.append(record("order.placed", "a", "a1")))
	c := b.claim("p", b.store.WarehouseDestination())
	rows := c.fetch()
	b.exec(`UPDATE lane_bucket SET lease_until = 0`)
	if result := c.settle(lane.Done, 0, rows...); len(result.Fenced)+len(result.Gone) != 0 {
		t.Errorf("%+v", result)
	}
	if result := c.settle(lane.Done, 0, rows...); len(result.Gone) != 1 {
		t.Errorf("settled twice: %+v", result)
	}
}

func TestCursorsVisitEveryLane(t *testing.T) {
	b := newBox(t)
	const keys = 40
	for i := range keys {
		b.check(b.append(record("order.placed", string(rune('A'+i)), "x"), record("order.placed", string(rune('A'+i)), "y")))
	}
	for range 5 {
		b.check(b.append(record("news", "", "n")))
	}
	c := b.claim("p", b.store.WarehouseDestination())
	for _, p := range []lane.FetchParams{
		{MaxLanes: 1, MaxRun: 1, MaxRows: 1, ScanLanes: 1},
		{MaxLanes: 3, MaxRun: 2, MaxRows: 4, ScanLanes: 7},
		{MaxLanes: 64, MaxRun: 2, MaxRows: 7, ScanLanes: 2},
		{MaxLanes: 64, MaxRun: 16, MaxRows: 500, ScanLanes: 512},
	} {
		p.Owner = "p"
		cursors := []lane.Cursor{{Lease: c.leases[0], Lane: c.leases[0].Lo}}
		lanes, unordered := map[int64]bool{}, 0
		for pages := 0; ; pages++ {
			if pages > 500 {
				t.Fatalf("%+v: no end", p)
			}
			p.Cursors = cursors
			page, err := c.store.Fetch(b.ctx, p)
			b.check(err)
			for _, r := range page.Rows {
				if r.Lane == 0 {
					unordered++
				}
				lanes[r.Lane] = true
			}
			if len(page.Wrapped) > 0 {
				break
			}
			cursors = page.Next
		}
		if len(lanes) != keys+1 || unordered != 5 {
			t.Errorf("%+v: saw %d lanes and %d unordered messages", p, len(lanes), unordered)
		}
	}
}

func TestReceiveStoresOnce(t *testing.T) {
	b := newBox(t)
	m := func(id, body string) inbox.Incoming {
		return inbox.Incoming{IdempotencyKey: id, EventType: "order.placed", AggregateID: "o", Payload: []byte(body)}
	}
	got, err := b.store.Receive(b.ctx, ordersRef, []inbox.Incoming{m("1", "a"), m("1", "a"), m("1", "b"), m("2", "a")})
	b.check(err)
	for i, want := range []inbox.Disposition{inbox.Stored, inbox.Duplicate, inbox.Conflict, inbox.Stored} {
		if got[i] != want {
			t.Errorf("message %d: %d, want %d", i, got[i], want)
		}
	}
	if got, err = b.store.Receive(b.ctx, refundsRef, []inbox.Incoming{m("1", "c")}); err != nil || got[0] != inbox.Stored {
		t.Errorf("another source: %v, %v", got, err)
	}
	b.want("one lane", b.text(`SELECT count(*) || '/' || count(DISTINCT lane) || '/' || count(DISTINCT scope) FROM inbox`), "3/1/1")

	b.exec(`UPDATE inbox_receipt SET received_at = 0`)
	n, err := b.store.PurgeReceipts(b.ctx, ordersRef, time.Hour, 10)
	b.check(err)
	if n != 0 {
		t.Errorf("purged %d receipts of waiting messages", n)
	}
	b.exec(`DELETE FROM inbox WHERE idempotency_key = '1'`)
	for _, left := range []string{"3", "2"} { // marked, then forgotten
		if n, err = b.store.PurgeReceipts(b.ctx, ordersRef, time.Hour, 10); err != nil || n != 1 {
			t.Errorf("purged %d, %v, want 1", n, err)
		}
		b.want("receipts", b.text(`SELECT count(*) FROM inbox_receipt`), left)
		if n, err = b.store.PurgeReceipts(b.ctx, ordersRef, time.Hour, 10); err != nil || n != 0 {
			t.Errorf("purged %d again, %v", n, err)
		}
		b.exec(`UPDATE inbox_receipt SET gone_at = 0 WHERE gone_at > 0`)
	}
	var refused *event.ConfigurationError
	_, err = b.store.Receive(b.ctx, ordersRef, []inbox.Incoming{m("3", "a"), {IdempotencyKey: "4", EventType: "x", AggregateID: strings.Repeat("a", 256)}})
	if !errors.As(err, &refused) || refused.Topic != "x" {
		t.Errorf("got %v, want a ConfigurationError of x", err)
	}
	b.want("all or nothing", b.text(`SELECT count(*) FROM inbox_receipt WHERE idempotency_key IN ('3', '4')`), "0")
}

func TestHandlerAndCompletionCommitTogether(t *testing.T) {
	b := newBox(t)
	b.exec(`CREATE TABLE effect (x TEXT)`)
	receive := func(id string) {
		_, err := b.store.Receive(b.ctx, paymentsRef, []inbox.Incoming{{IdempotencyKey: id, EventType: "e", AggregateID: "o", Payload: []byte(id)}})
		b.check(err)
	}
	receive("1")
	store := b.store.PaymentsSource()
	c := b.claim("p", store)
	effect := func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO effect VALUES ('done')`)
		return err
	}
	boom := errors.New("boom")
	row := c.fetch()[0]
	for _, attempt := range []struct {
		name  string
		fn    func(ctx context.Context, tx *sql.Tx) error
		owner string
		want  error
	}{
		{"failure", func(ctx context.Context, tx *sql.Tx) error { return errors.Join(effect(ctx, tx), boom) }, "p", boom},
		{"stale owner", effect, "q", lane.ErrLeaseLost},
		{"success", effect, "p", nil},
		{"gone", effect, "p", inbox.ErrGone},
	} {
		if err := store.Handle(b.ctx, attempt.owner, row, c.leases[0], attempt.fn); !errors.Is(err, attempt.want) {
			t.Errorf("%s: got %v, want %v", attempt.name, err, attempt.want)
		}
	}
	b.want("effects", b.text(`SELECT count(*) FROM effect`), "1")
	b.want("left", b.text(`SELECT count(*) FROM inbox`), "0")

	receive("2")
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		_ = store.Handle(b.ctx, "p", c.fetch()[0], c.leases[0], func(context.Context, *sql.Tx) error { panic("handler") })
	}()
	b.want("still there", payloads(c.fetch()), "2")
}

func TestRelayMovesOnce(t *testing.T) {
	b := newBox(t)
	var incoming []inbox.Incoming
	for _, m := range [][3]string{{"1", "order.placed", "o"}, {"2", "order.placed", "o"}, {"3", "news", ""}, {"4", "nobody.listens", "p"}, {"5", "order.placed", "p"}, {"6", "order.placed", "q"}} {
		incoming = append(incoming, inbox.Incoming{IdempotencyKey: m[0], EventType: m[1], AggregateID: m[2], Payload: []byte(m[0]), Headers: event.Headers{"h": m[0]}})
	}
	incoming[5].Payload = []byte{0xff}
	_, err := b.store.Receive(b.ctx, ordersRef, incoming)
	b.check(err)
	store := b.store.Push()
	c := b.claim("relay", store)
	runs := func() []lane.Run {
		var runs []lane.Run
		for _, r := range c.fetch() {
			if n := len(runs); n > 0 && r.Lane != 0 && runs[n-1].Lane == r.Lane {
				runs[n-1].Rows = append(runs[n-1].Rows, r)
				continue
			}
			runs = append(runs, lane.Run{Lease: c.leases[0], Lane: r.Lane, Rows: []lane.Row{r}})
		}
		return runs
	}
	first := runs()
	if verdicts, err := store.Move(b.ctx, "stranger", first, nil); err != nil || !errors.Is(verdicts[0].Err, lane.ErrLeaseLost) {
		t.Fatalf("a stranger moves: %+v, %v", verdicts, err)
	}
	verdicts, err := store.Move(b.ctx, "relay", first, nil)
	b.check(err)
	for i, v := range verdicts {
		switch string(first[i].Rows[0].Message.Payload) {
		case "1":
			if v.Accepted != 2 || !v.Completed || v.Err != nil {
				t.Errorf("o: %+v", v)
			}
		case "3":
			if v.Accepted != 1 || v.Err != nil {
				t.Errorf("unordered: %+v", v)
			}
		default: // no route; not UTF-8
			class, _ := event.Classify(v.Err)
			if v.Accepted != 0 || class != event.Permanent {
				t.Errorf("refused: %+v", v)
			}
		}
	}
	b.want("left", b.text(`SELECT group_concat(idempotency_key) FROM (SELECT idempotency_key FROM inbox ORDER BY sequence)`), "4,5,6")
	out := b.claim("p", b.store.WarehouseDestination()).fetch()
	b.want("moved", sorted(out), "1 2 3")
	if last := out[len(out)-1].Message; last.Key != "o" || last.Headers["h"] != string(last.Payload) {
		t.Errorf("moved %+v", last)
	}
	moved := []lane.Run{}
	for i, v := range verdicts {
		if v.Err == nil {
			moved = append(moved, first[i])
		}
	}
	again, err := store.Move(b.ctx, "relay", moved, nil) // rows that are gone are passed over
	b.check(err)
	for _, v := range again {
		if v.Err != nil {
			t.Errorf("again: %+v", v)
		}
	}
	b.want("moved once", b.text(`SELECT count(*) FROM outbox WHERE destination = 1001`), "3")
}

func TestRemapRunsInTheTransaction(t *testing.T) {
	b := newBox(t)
	b.exec(`CREATE TABLE effect (x TEXT)`)
	for _, id := range []string{"1", "2", "3"} {
		_, err := b.store.Receive(b.ctx, ordersRef, []inbox.Incoming{{IdempotencyKey: id, EventType: "whatever", AggregateID: "o", Payload: []byte(id)}})
		b.check(err)
	}
	c := b.claim("relay", b.store.Push())
	boom := errors.New("boom")
	remap := func(ctx context.Context, tx *sql.Tx, m event.Message) ([]outbox.Record, error) {
		if _, err := tx.ExecContext(ctx, `INSERT INTO effect VALUES (?)`, m.IdempotencyKey); err != nil {
			return nil, err
		}
		if m.IdempotencyKey == "3" {
			return nil, boom
		}
		return []outbox.Record{{Topic: "order.placed", Payload: m.Payload}, {Topic: "order.shipped", Key: "x", Payload: bytes.Repeat(m.Payload, 2)}}, nil
	}
	verdicts, err := b.store.Push().Move(b.ctx, "relay", []lane.Run{{Lease: c.leases[0], Lane: c.fetch()[0].Lane, Rows: c.fetch()}}, remap)
	b.check(err)
	if v := verdicts[0]; v.Accepted != 2 || !v.Completed || !errors.Is(v.Err, boom) {
		t.Errorf("verdict %+v", v)
	}
	b.want("effects", b.text(`SELECT group_concat(x) FROM effect`), "1,2")
	b.want("keys", b.text(`SELECT group_concat(key || ':' || payload) FROM (SELECT key, payload FROM outbox WHERE destination = 1001 ORDER BY sequence)`), "o:1,x:11,o:2,x:22")
	b.want("left", payloads(c.fetch()), "3")
}
