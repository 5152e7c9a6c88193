package postgres_test

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/outbox"
	"github.com/lanebox/lanebox/runtime/storetest/testpg"
)

func TestPublishKeepsOrderAndContent(t *testing.T) {
	forEach(t, func(t *testing.T, b *box) {
		var records []outbox.Record
		for i := range 20 {
			r := record("order.shipped.v1", fmt.Sprintf("order-%d", i%3), fmt.Sprintf(`{"n":%d}`, i))
			r.Headers, r.Version = event.Headers{"traceparent": "00-é\"", "n": "\x01"}, int64(i+1)
			records = append(records, r)
		}
		b.publish(records[:1]...)
		b.publish(records[1:]...)
		got := map[string][]outbox.Record{}
		var last int64
		for _, r := range b.own(warehouse, "a").all() {
			m := r.Message
			if m.Key != "" && len(got[m.Key]) > 0 && m.Sequence <= last {
				t.Errorf("sequence %d follows %d", m.Sequence, last)
			}
			last = m.Sequence
			if m.CreatedAt.IsZero() {
				t.Error("no creation time")
			}
			got[m.Key] = append(got[m.Key], outbox.Record{ID: m.ID, Topic: m.Topic, Key: m.Key, Payload: m.Payload, Headers: m.Headers, Version: m.Version})
		}
		want := map[string][]outbox.Record{}
		for _, r := range records {
			want[r.Key] = append(want[r.Key], r)
		}
		if !maps.EqualFunc(got, want, func(a, b []outbox.Record) bool { return slices.EqualFunc(a, b, sameRecord) }) {
			t.Errorf("got  %v\nwant %v", got, want)
		}
	})
}

func sameRecord(a, b outbox.Record) bool {
	return a.ID == b.ID && a.Topic == b.Topic && a.Key == b.Key && bytes.Equal(a.Payload, b.Payload) && maps.Equal(a.Headers, b.Headers) && a.Version == b.Version
}

func TestPlainInsertIsRoutedAndOrdered(t *testing.T) {
	forEach(t, func(t *testing.T, b *box) {
		b.exec(`INSERT INTO ` + b.table("outbox") + ` (topic, key, payload) VALUES ('order.placed.v1', 'order-42', '{"step":1}'), ('order.placed.v1', 'order-42', '{"step":2}')`)
		for _, scope := range []lane.Scope{warehouse, ledger} {
			if got := payloads(b.own(scope, "a").all()); !slices.Equal(got, []string{`{"step":1}`, `{"step":2}`}) {
				t.Errorf("got %v", got)
			}
		}
		if n := one[int](b, `SELECT count(DISTINCT id) FROM `+b.table("outbox")); n != 2 {
			t.Errorf("%d ids for two messages on two destinations", n)
		}
	})
}

func TestGlobsRouteUndeclaredTopics(t *testing.T) {
	forEach(t, func(t *testing.T, b *box) {
		b.publish(record("order.cancelled.v9", "k", "1"), record("free_%.anything", "", "2"))
		if got := payloads(b.own(warehouse, "a").all()); !slices.Equal(got, []string{"1"}) {
			t.Errorf("warehouse got %v", got)
		}
		if got := payloads(b.own(audit, "a").all()); !slices.Equal(got, []string{"2"}) {
			t.Errorf("audit got %v", got)
		}
		for _, topic := range []string{"freeX%.x", "free_X.x", "orderXplaced", "Order.x", "task.due.v1 "} {
			var refused *event.ConfigurationError
			if err := b.tryPublish(t.Context(), record(topic, "k", "1")); !errors.As(err, &refused) {
				t.Errorf("%s: %v", topic, err)
			}
		}
	})
}

func TestRefusedPublish(t *testing.T) {
	forEach(t, func(t *testing.T, b *box) {
		for name, c := range map[string]struct {
			records []outbox.Record
			reason  string
		}{
			"no route":     {[]outbox.Record{record("nowhere.v1", "k", "1")}, "no route"},
			"empty key":    {[]outbox.Record{record("order.placed.v1", "", "1")}, "key is empty"},
			"long key":     {[]outbox.Record{record("order.placed.v1", strings.Repeat("é", 128), "1")}, "256 bytes; the limit is 255"},
			"one of a few": {[]outbox.Record{record("order.placed.v1", "k", "1"), record("order.placed.v1", "", "2")}, "key is empty"},
		} {
			err := b.tryPublish(t.Context(), c.records...)
			var refused *event.ConfigurationError
			if !errors.As(err, &refused) || !strings.Contains(refused.Reason, c.reason) || refused.Topic != c.records[0].Topic {
				t.Errorf("%s: %v", name, err)
			}
		}
		insert := `INSERT INTO ` + b.table("outbox")
		for statement, code := range map[string]string{
			insert + ` (topic, payload) VALUES ('order.placed.v1', 'x')`:                        "LB002",
			insert + ` (topic, key, payload) VALUES ('order.placed.v1', '', 'x')`:               "LB002",
			insert + ` (topic, key, payload) VALUES ('nope', 'k', 'x')`:                         "LB001",
			insert + ` (topic, key, payload) VALUES (NULL, 'k', 'x')`:                           "LB001",
			insert + ` (topic, key, payload, destination) VALUES ('order.x', 'k', 'x', 101)`:    "LB004",
			insert + ` (topic, key, payload) VALUES ('order.placed.v1', repeat('k', 256), 'x')`: "LB003",
		} {
			_, err := b.pool.Exec(t.Context(), statement)
			if err == nil || !strings.Contains(err.Error(), code) {
				t.Errorf("%s: %v, want %s", statement, err, code)
			}
		}
		if n := one[int](b, `SELECT count(*) FROM `+b.table("outbox")); n != 0 {
			t.Errorf("%d rows were stored", n)
		}
	})
}

// Keys are bytes: none of these is another one.
func TestKeysAreComparedByteForByte(t *testing.T) {
	forEach(t, func(t *testing.T, b *box) {
		keys := []string{"a", "A", "a ", " a", "ä", "a\u0308", "a\t", "1", "1.0", "01", "%", "_", `\`, "'", `"`, "😀", strings.Repeat("k", 255)}
		var records []outbox.Record
		for _, k := range keys {
			records = append(records, record("order.shipped.v1", k, "1"))
		}
		b.publish(records...)
		lanes := map[int64]string{}
		for _, r := range b.own(warehouse, "a").all() {
			if other, taken := lanes[r.Lane]; taken {
				t.Errorf("keys %q and %q share a lane", other, r.Message.Key)
			}
			lanes[r.Lane] = r.Message.Key
			if r.Lane&1 != 1 {
				t.Errorf("lane %d of key %q is even", r.Lane, r.Message.Key)
			}
		}
		if got := slices.Sorted(maps.Values(lanes)); !slices.Equal(got, slices.Sorted(slices.Values(keys))) {
			t.Errorf("got %q", got)
		}
	})
}

// jsonBodies must come out as they went in.
var jsonBodies = []string{
	`{"b":1,"a":1.0,"a":2}`, `{"s":"\"\\\n\u0000\ud800"}`, "\ufeff{}", " \t\r\n{ } ", `{"n":9007199254740993,"m":18446744073709551615}`,
	`{"x":"😀 漢字 żółć"}`, `"\\x41"`, `\x41`, `'`, `$1`, ``, `null`, `{"html":"<&>"}`,
}

func TestPayloadsAreUnchanged(t *testing.T) {
	forEach(t, func(t *testing.T, b *box) {
		bodies := slices.Clone(jsonBodies)
		if b.binary {
			bodies = append(bodies, "\x00\xff\xfe binary", string([]byte{0}))
		}
		var records []outbox.Record
		for _, body := range bodies {
			records = append(records, record("order.shipped.v1", "k", body))
		}
		b.publish(records...)
		for _, r := range records {
			b.publish(r)
		}
		got := payloads(b.own(warehouse, "a").all())
		if want := append(slices.Clone(bodies), bodies...); !slices.Equal(got, want) {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	})
}

// A literal of plain SQL is text: backslashes mean nothing in it.
func TestPlainInsertTakesJSONLiterally(t *testing.T) {
	b := newPlain(t)
	for _, body := range jsonBodies {
		b.exec(`INSERT INTO outbox (topic, key, payload) VALUES ('order.shipped.v1', 'k', '` + strings.ReplaceAll(body, "'", "''") + `')`)
	}
	if got := payloads(b.own(warehouse, "a").all()); !slices.Equal(got, jsonBodies) {
		t.Errorf("got  %q\nwant %q", got, jsonBodies)
	}
}

func TestTextOutboxRefusesBytes(t *testing.T) {
	b := newPlain(t)
	for _, body := range []string{"\xff", "a\x00b"} {
		var invalid *event.ValidationError
		if err := b.tryPublish(t.Context(), record("order.shipped.v1", "k", body)); !errors.As(err, &invalid) {
			t.Errorf("%q: %v", body, err)
		}
	}
}

func TestDenseVersionsCountPerDestination(t *testing.T) {
	forEach(t, func(t *testing.T, b *box) {
		for i := range 3 {
			b.publish(record("invoice.sent.v1", "i-1", fmt.Sprint(i)), record("invoice.sent.v1", "i-2", fmt.Sprint(i)))
		}
		ctx := t.Context()
		tx, err := b.pool.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.appender(tx).Append(ctx, []outbox.Record{record("invoice.sent.v1", "i-1", "rolled back")}); err != nil {
			t.Fatal(err)
		}
		if err := tx.Rollback(ctx); err != nil {
			t.Fatal(err)
		}
		b.exec(`INSERT INTO ` + b.table("outbox") + ` (topic, key, payload) VALUES ('invoice.sent.v1', 'i-1', '3')`)
		for _, c := range []*client{b.own(ledger, "a"), b.own(audit, "a")} {
			versions := map[string][]int64{}
			for _, r := range c.all() {
				versions[r.Message.Key] = append(versions[r.Message.Key], r.Message.Version)
			}
			if !slices.Equal(versions["i-1"], []int64{1, 2, 3, 4}) || !slices.Equal(versions["i-2"], []int64{1, 2, 3}) {
				t.Errorf("got %v", versions)
			}
		}
	})
}

func TestHeadersOfPlainWriters(t *testing.T) {
	b := newPlain(t)
	for _, text := range []string{`{"a":"b"}`, `{"a":1,"b":{"c":[]},"d":"e"}`, `[1]`, `broken`, ``} {
		b.exec(`INSERT INTO outbox (topic, key, payload, headers) VALUES ('order.shipped.v1', 'k', $1, $1)`, text)
	}
	b.exec(`INSERT INTO outbox (topic, key, payload) VALUES ('order.shipped.v1', 'k', 'none')`)
	want := []event.Headers{{"a": "b"}, {"a": "1", "b": `{"c":[]}`, "d": "e"}, nil, nil, nil, nil}
	for i, r := range b.own(warehouse, "a").all() {
		if !maps.Equal(r.Message.Headers, want[i]) {
			t.Errorf("%s: got %v, want %v", r.Message.Payload, r.Message.Headers, want[i])
		}
	}
}

// Names inside triggers and functions are qualified: no search_path matters.
func TestAnySearchPath(t *testing.T) {
	forEach(t, func(t *testing.T, b *box) {
		b.exec(`CREATE SCHEMA evil`)
		b.exec(`CREATE TABLE evil.outbox (x integer)`)
		b.exec(`CREATE FUNCTION evil.outbox_lane(key text) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'`)
		for i, path := range []string{`""`, "pg_catalog", "evil, pg_catalog"} {
			other := *b
			other.pool = testpg.Pool(t, b.url, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["search_path"] = path })
			other.store = b.open(other.pool)
			key := fmt.Sprint(i)
			other.publish(record("invoice.sent.v1", key, "1"))
			other.publish(record("order.placed.v1", key, "2"), record("task.due.v1", "", "3"))
			other.receive(orders, incoming(key, "order.placed.v1", key, "x"))
			for scope, want := range map[lane.Scope][]string{ledger: {"1", "2"}, push: {"x"}} {
				c := other.own(scope, "a")
				var got []string
				for _, r := range c.all() {
					if r.Message.Key == key {
						got = append(got, string(r.Message.Payload))
					}
				}
				if !slices.Equal(got, want) {
					t.Errorf("search_path %s: got %v, want %v", path, got, want)
				}
				if err := c.lanes.Release(t.Context(), "a", c.leases); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

func TestEveryQueryExecMode(t *testing.T) {
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeExec, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec} {
		for i := range fixtures {
			t.Run(fixtures[i].name+" "+mode.String(), func(t *testing.T) {
				t.Parallel()
				everything(t, newBox(t, &fixtures[i], func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode }))
			})
		}
	}
}

func TestPublishThroughDatabaseSQL(t *testing.T) {
	forEach(t, func(t *testing.T, b *box) {
		db, err := sql.Open("pgx", b.url)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		publish := func(records ...outbox.Record) error {
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback()
			if err := b.sqlAppender(tx).Append(t.Context(), records); err != nil {
				return err
			}
			return tx.Commit()
		}
		r := record("order.shipped.v1", "k", `{"a":"\\x"}`)
		r.Headers = event.Headers{"h": "v"}
		if err := errors.Join(publish(r), publish(record("order.shipped.v1", "k", "2"), record("order.shipped.v1", "k", "3"))); err != nil {
			t.Fatal(err)
		}
		var refused *event.ConfigurationError
		if err := publish(record("nowhere", "k", "1")); !errors.As(err, &refused) || refused.Topic != "nowhere" {
			t.Errorf("got %v", err)
		}
		rows := b.own(warehouse, "a").all()
		if got := payloads(rows); !slices.Equal(got, []string{`{"a":"\\x"}`, "2", "3"}) {
			t.Errorf("got %v", got)
		}
		if rows[0].Message.ID != r.ID || rows[0].Message.Headers["h"] != "v" {
			t.Errorf("got %+v", rows[0].Message)
		}
	})
}

// The inbox and the outbox keep headers as text that is a JSON object.
func TestHeadersAreJSON(t *testing.T) {
	b := newPlain(t)
	r := record("order.shipped.v1", "k", "1")
	r.Headers = event.Headers{"a": "<é>\u2028", "b": ""}
	b.publish(r)
	var h event.Headers
	if err := json.Unmarshal([]byte(one[string](b, `SELECT headers FROM outbox`)), &h); err != nil || !maps.Equal(h, r.Headers) {
		t.Errorf("got %v, %v", h, err)
	}
}
