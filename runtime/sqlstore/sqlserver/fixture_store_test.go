package sqlserver_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/outbox"
	store "github.com/lanebox/lanebox/runtime/sqlstore/sqlserver"
)

// TestGeneratedStore runs its cases on one database of each fixture, which is
// emptied in between: making one takes some engines longer than the cases.
func TestGeneratedStore(t *testing.T) {
	for i := range fixtures {
		t.Run(fixtures[i].name, func(t *testing.T) {
			b := newBox(t, &fixtures[i])
			for _, c := range cases {
				t.Run(c.name, func(t *testing.T) {
					b.empty()
					one := *b
					one.T = t
					c.run(&one)
				})
			}
		})
	}
}

var cases = []struct {
	name string
	run  func(b *box)
}{
	{"TheWayOfAMessage", theWayOfAMessage},
	{"KeysAreBytes", keysAreBytes},
	{"Refusals", refusals},
	{"Handle", handle},
	{"HookThatBreaksTheTransactionIsBlamedAlone", hookThatBreaksTheTransactionIsBlamedAlone},
	{"HooksHaveSavepoints", hooksHaveSavepoints},
	{"MoveOnlyTriesLocks", moveOnlyTriesLocks},
	{"MoveIsolatesWhatCannotBeMoved", moveIsolatesWhatCannotBeMoved},
	{"PositionMovesWithItsMessages", positionMovesWithItsMessages},
	{"ReceiveInATransaction", receiveInATransaction},
	{"PublishNeedsItsTransaction", publishNeedsItsTransaction},
}

// A message goes the whole way with any names of tables, and with text and bytes.
func theWayOfAMessage(b *box) {
	body := `{"żółć":"漢字 😀 \" \\ \n \u0000 <&>"}`
	if b.binary {
		body = "\x00\xff\xfe" + body
	}
	r := record("order.shipped.v1", "k", body)
	r.Headers = event.Headers{"h": "żółć 😀"}
	b.check(b.publish(r))
	b.check(b.publish(record("order.shipped.v1", "k", "2"), record("order.shipped.v1", "other", "3"), record("order.shipped.v1", "k", "4")))
	c := b.own(warehouse, "me")
	var keyed []lane.Row
	for _, row := range c.all() {
		if row.Message.Key == "k" {
			keyed = append(keyed, row)
		}
	}
	if len(keyed) != 3 || string(keyed[0].Message.Payload) != body || keyed[0].Message.Headers["h"] != "żółć 😀" || keyed[0].Message.ID != r.ID {
		b.Fatalf("fetched %+v", keyed)
	}
	b.want("order", payloads(keyed[1:]), "2 4")
	if age := time.Since(keyed[0].Message.CreatedAt); age < -time.Minute || age > time.Hour {
		b.Errorf("created %v ago", age)
	}
	c.settle(lane.Dead, keyed[0])
	c.settle(lane.Done, keyed[1:]...)
	dead, err := b.store.DeadLetters(b.Context(), warehouse)
	b.check(err)
	if len(dead) != 1 || dead[0].Error != "boom\uFFFD\uFFFD" || dead[0].Reason != "test" || string(dead[0].Message.Payload) != body || dead[0].Attempts != 1 {
		b.Errorf("dead letters %+v", dead)
	}
	n, err := b.store.Replay(b.Context(), warehouse, dead[0].Message.ID)
	b.check(err)
	b.want("replayed", n, 1)
	b.check(b.store.ParkKey(b.Context(), warehouse, "k", "reason"))
	b.want("while parked", payloads(c.all()), "3")
	b.check(b.store.ReleaseKey(b.Context(), warehouse, "k", "reason"))
	b.want("after the release", len(c.all()), 2)
	counts, err := b.store.Counts(b.Context())
	b.check(err)
	found := false
	for _, x := range counts {
		if x.Scope == warehouse {
			found = x.Waiting == 2 && x.Dead == 0 && x.Kind == "destination" && x.Name == "warehouse"
		}
	}
	if !found {
		b.Errorf("counts %+v", counts)
	}
	b.check(b.store.Outbox(warehouse).Release(b.Context(), "me", c.leases))
	b.want("buckets given back", len(b.own(warehouse, "other").leases), 128)
}

// What differs in one byte is another key: in the outbox, as an aggregate, and as
// an idempotency key.
func keysAreBytes(b *box) {
	keys := []string{"A", "a", "a ", "a  ", " a", "ä", "a\u0308", "ß", "ss", "😀", "ı", "i", "K", "\u212A", "żółć", "a\t"}
	var records []outbox.Record
	var messages []inbox.Incoming
	for i, key := range keys {
		records = append(records, record("order.shipped.v1", key, fmt.Sprint(i)))
		messages = append(messages, incoming(key, "order.shipped.v1", key, fmt.Sprint(i)))
	}
	b.check(b.publish(records...))
	for _, d := range b.receive(paymentSource, messages...) {
		b.want("disposition", d, inbox.Stored)
	}
	for _, scope := range []lane.Scope{warehouse, payments} {
		lanes := map[int64]string{}
		rows := b.own(scope, "me").all()
		for _, row := range rows {
			if other, taken := lanes[row.Lane]; taken {
				b.Errorf("scope %d: %q and %q share a lane", scope, row.Message.Key, other)
			}
			lanes[row.Lane] = row.Message.Key
			if want := fmt.Sprint(slices.Index(keys, row.Message.Key)); string(row.Message.Payload) != want {
				b.Errorf("scope %d: key %q came with payload %s, want %s", scope, row.Message.Key, row.Message.Payload, want)
			}
		}
		b.want("messages", len(rows), len(keys))
	}
}

// What the outbox refuses names the topic, and keeps nothing of the transaction.
func refusals(b *box) {
	for _, r := range []outbox.Record{
		record("nobody.listens", "k", "1"), record("order.placed.v1", "", "1"),
	} {
		for _, list := range [][]outbox.Record{{r}, {record("order.shipped.v1", "k", "0"), r}} {
			var refused *event.ConfigurationError
			if err := b.publish(list...); !errors.As(err, &refused) || refused.Topic != r.Topic || refused.Reason == "" {
				b.Errorf("%s: %v", r.Topic, err)
			}
		}
	}
	long := record("order.shipped.v1", string(bytes.Repeat([]byte("é"), 128)), "1")
	var refused *event.ConfigurationError
	if err := b.publish(long); !errors.As(err, &refused) {
		b.Errorf("a key of 256 bytes: %v", err)
	}
	_, err := b.db.ExecContext(b.Context(), `INSERT INTO `+b.table("outbox")+` (topic, [key], payload) VALUES (@p1, @p2, @p3)`, long.Topic, long.Key, long.Payload)
	if b.binary && err == nil || !errors.As(store.Classify("insert", err), &refused) && b.binary {
		b.Errorf("a key of 256 bytes in plain SQL: %v", err)
	}
	b.want("messages", b.count(`SELECT COUNT(*) FROM `+b.table("outbox")), 0)
}

// A handler's effect and the completion of its message are one; a stale owner and
// a message that is gone complete nothing.
func handle(b *box) {
	b.exec(`CREATE TABLE effect (n int NOT NULL)`)
	b.receive(paymentSource, incoming("1", "t", "a", "1"), incoming("2", "t", "a", "2"))
	c := b.own(payments, "me")
	rows := c.all()
	handle := func(owner string, row lane.Row, fn func() error) error {
		return b.store.Inbox(payments).Handle(b.Context(), owner, row, c.lease(row), func(ctx context.Context, tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, `INSERT INTO effect VALUES (1)`); err != nil {
				return err
			}
			return fn()
		})
	}
	bad := errors.New("bad")
	if err := handle("me", rows[0], func() error { return bad }); !errors.Is(err, bad) {
		b.Errorf("error of the handler: %v", err)
	}
	if err := handle("other", rows[0], func() error { return nil }); !errors.Is(err, lane.ErrLeaseLost) {
		b.Errorf("another owner: %v", err)
	}
	func() {
		defer func() { b.want("panic", recover(), "panic") }()
		handle("me", rows[0], func() error { panic("panic") })
	}()
	b.want("effects", b.count(`SELECT COUNT(*) FROM effect`), 0)
	b.check(handle("me", rows[0], func() error { return nil }))
	b.want("effects", b.count(`SELECT COUNT(*) FROM effect`), 1)
	if err := handle("me", rows[0], func() error { return nil }); !errors.Is(err, inbox.ErrGone) {
		b.Errorf("a message that is gone: %v", err)
	}
	b.want("left", payloads(c.all()), "2")
}

// endings are ways to end a transaction that one was only lent.
var endings = map[string]func(ctx context.Context, tx *sql.Tx) error{
	"Commit":       func(_ context.Context, tx *sql.Tx) error { tx.Commit(); return nil },
	"Rollback":     func(_ context.Context, tx *sql.Tx) error { tx.Rollback(); return nil },
	"SQL ROLLBACK": func(ctx context.Context, tx *sql.Tx) error { tx.ExecContext(ctx, "ROLLBACK"); return nil },
	"SQL COMMIT":   func(ctx context.Context, tx *sql.Tx) error { tx.ExecContext(ctx, "COMMIT"); return nil },
	"SQL ROLLBACK and BEGIN": func(ctx context.Context, tx *sql.Tx) error {
		tx.ExecContext(ctx, "ROLLBACK; BEGIN TRANSACTION")
		return nil
	},
	"an inner BEGIN": func(ctx context.Context, tx *sql.Tx) error { tx.ExecContext(ctx, "BEGIN TRANSACTION"); return nil },
	"ROLLBACK, error": func(ctx context.Context, tx *sql.Tx) error {
		tx.ExecContext(ctx, "ROLLBACK")
		return errors.New("rolled back")
	},
	"an error of the server": func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "SET XACT_ABORT ON; THROW 50000, 'no', 1")
		return err
	},
	"interrupted": func(ctx context.Context, tx *sql.Tx) error {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		defer cancel()
		_, err := tx.ExecContext(ctx, `SET XACT_ABORT ON; WAITFOR DELAY '00:01:00'`)
		return err
	},
}

// A hook that takes the transaction down with it is blamed alone: what comes
// before it in its lane and all other lanes are moved, each once.
func hookThatBreaksTheTransactionIsBlamedAlone(b *box) {
	if b.binary {
		return // one is enough
	}
	c := b.own(push, "me")
	for name, end := range endings {
		var messages []inbox.Incoming
		for _, key := range []string{"a", "b", "c"} {
			for i := range 3 {
				messages = append(messages, incoming(fmt.Sprint(name, key, i), "order.shipped.v1", key, fmt.Sprint(key, i)))
			}
		}
		b.receive(orders, messages...)
		runs, verdicts := c.move(func(ctx context.Context, tx *sql.Tx, m inbox.Raw) ([]outbox.Record, error) {
			if string(m.Payload) == "b1" {
				if err := end(ctx, tx); err != nil {
					return nil, err
				}
			}
			return asIs(ctx, tx, m)
		})
		for i, v := range verdicts {
			guilty := runs[i].Rows[0].Message.Key == "b"
			if guilty && (v.Accepted != 1 || v.Err == nil) || !guilty && (v.Accepted != 3 || v.Err != nil) {
				b.Errorf("%s: %s got %+v", name, runs[i].Rows[0].Message.Key, v)
			}
		}
		b.want(name+": left", payloads(c.all()), "b1 b2")
		b.want(name+": in the outbox", b.count(`SELECT COUNT(DISTINCT id) FROM outbox`), 7)
		b.exec(`DELETE FROM outbox_row`)
		b.exec(`DELETE FROM inbox_row`)
	}
}

// A hook that fails leaves nothing of its message behind; an error that it has
// dealt with costs nothing.
func hooksHaveSavepoints(b *box) {
	b.exec(`CREATE TABLE effect (n nvarchar(10) NOT NULL PRIMARY KEY)`)
	b.receive(orders, incoming("1", "order.shipped.v1", "a", "1"), incoming("2", "order.shipped.v1", "a", "2"), incoming("3", "order.shipped.v1", "a", "3"))
	c := b.own(push, "me")
	bad := errors.New("bad")
	_, verdicts := c.move(func(ctx context.Context, tx *sql.Tx, m inbox.Raw) ([]outbox.Record, error) {
		if _, err := tx.ExecContext(ctx, `INSERT INTO effect (n) VALUES (@p1)`, string(m.Payload)); err != nil {
			return nil, err
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO effect (n) VALUES (@p1)`, string(m.Payload)); err == nil {
			b.Error("the key was stored twice")
		}
		if string(m.Payload) == "2" {
			return nil, bad
		}
		return asIs(ctx, tx, m)
	})
	if v := verdicts[0]; v.Accepted != 1 || !errors.Is(v.Err, bad) {
		b.Errorf("verdict %+v", v)
	}
	b.want("effects", b.count(`SELECT COUNT(*) FROM effect WHERE n = N'1'`)*10+b.count(`SELECT COUNT(*) FROM effect`), 11)
	b.want("left", payloads(c.all()), "2 3")
}

// The relay never waits for a key: the run of a locked one is busy, with hooks
// and without, and nothing of it is done; all others are moved.
func moveOnlyTriesLocks(b *box) {
	b.exec(`CREATE TABLE effect (n nvarchar(10) NOT NULL)`)
	c := b.own(push, "me")
	tx, err := b.db.BeginTx(b.Context(), nil)
	b.check(err)
	defer tx.Rollback()
	b.check(b.appender(tx).Append(b.Context(), []outbox.Record{record("order.shipped.v1", "locked", "0")}))
	for i, remap := range []inbox.Remap[*sql.Tx]{nil, func(ctx context.Context, tx *sql.Tx, m inbox.Raw) ([]outbox.Record, error) {
		if _, err := tx.ExecContext(ctx, `INSERT INTO effect (n) VALUES (@p1)`, m.Key); err != nil {
			return nil, err
		}
		return asIs(ctx, tx, m)
	}} {
		b.receive(orders, incoming(fmt.Sprint(i, "a"), "order.shipped.v1", "free", "1"), incoming(fmt.Sprint(i, "b"), "order.shipped.v1", "locked", "2"),
			incoming(fmt.Sprint(i, "c"), "order.shipped.v1", "also free", "3"))
		runs, verdicts := c.move(remap)
		for j, v := range verdicts {
			if locked := runs[j].Rows[0].Message.Key == "locked"; locked != errors.Is(v.Err, lane.ErrBusy) || locked && v.Accepted != 0 || !locked && v.Accepted != 1 {
				b.Errorf("%s: %+v", runs[j].Rows[0].Message.Key, v)
			}
		}
		b.want("effects", b.count(`SELECT COUNT(*) FROM effect`), 2*i)
		left := c.runs(c.all())
		if len(left) != 1 {
			b.Fatalf("%d runs are left", len(left))
		}
		v, err := b.store.Inbox(push).MoveWaiting(b.Context(), "me", left[0], remap, 50*time.Millisecond)
		if err != nil || !errors.Is(v.Err, lane.ErrBusy) {
			b.Errorf("waiting in vain: %+v, %v", v, err)
		}
		b.want("effects", b.count(`SELECT COUNT(*) FROM effect`), 2*i)
		b.exec(`DELETE FROM ` + b.table("inbox_row"))
		b.exec(`DELETE FROM ` + b.table("outbox_row") + ` WHERE [key] <> N'locked'`)
	}
	b.receive(orders, incoming("last", "order.shipped.v1", "locked", "4"))
	run := c.runs(c.all())[0]
	b.check(tx.Commit())
	v, err := b.store.Inbox(push).MoveWaiting(b.Context(), "me", run, nil, time.Second)
	if err != nil || v.Accepted != 1 || v.Err != nil {
		b.Errorf("waiting with success: %+v, %v", v, err)
	}
	b.want("left", len(c.all()), 0)
}

// A message that the outbox refuses stays behind alone; what is gone is passed
// over; a lost bucket keeps its messages.
func moveIsolatesWhatCannotBeMoved(b *box) {
	c := b.own(push, "me")
	for name, remap := range map[string]inbox.Remap[*sql.Tx]{"as they are": nil, "mapped": asIs} {
		b.receive(orders, incoming(name+"1", "order.shipped.v1", "a", "1"), incoming(name+"2", "nobody.listens", "a", "2"), incoming(name+"3", "order.shipped.v1", "a", "3"),
			incoming(name+"4", "order.shipped.v1", "b", "4"), incoming(name+"5", "order.shipped.v1", "b", "5"))
		rows := c.all()
		b.exec(`DELETE FROM ` + b.table("inbox_row") + ` WHERE idempotency_key = N'` + name + `4'`)
		runs := c.runs(rows)
		verdicts, err := b.store.Inbox(push).Move(b.Context(), "me", runs, remap)
		b.check(err)
		for i, v := range verdicts {
			class, _ := event.Classify(v.Err)
			if refused := runs[i].Rows[0].Message.Key == "a"; refused && (v.Accepted != 1 || class != event.Permanent) || !refused && (v.Accepted != 2 || v.Err != nil) {
				b.Errorf("%s: %s got %+v", name, runs[i].Rows[0].Message.Key, v)
			}
		}
		b.want(name+": left", payloads(c.all()), "2 3")
		b.want(name+": moved", b.count(`SELECT COUNT(*) FROM `+b.table("outbox")), 2)
		lost := c.runs(c.all())
		b.exec(`UPDATE ` + b.table("lane_bucket") + ` SET token = token + 1 WHERE scope = 1`)
		verdicts, err = b.store.Inbox(push).Move(b.Context(), "me", lost, remap)
		if err != nil || !errors.Is(verdicts[0].Err, lane.ErrLeaseLost) {
			b.Errorf("%s: with lost buckets: %+v, %v", name, verdicts, err)
		}
		for i := range c.leases {
			c.leases[i].Token++
		}
		b.exec(`DELETE FROM ` + b.table("inbox_row"))
		b.exec(`DELETE FROM ` + b.table("outbox_row"))
	}
}

// A position moves with its messages or not at all, and never back.
func positionMovesWithItsMessages(b *box) {
	ctx := b.Context()
	position := func() (int64, bool) {
		offset, ok, err := b.store.Position(ctx, orders, "log")
		b.check(err)
		return offset, ok
	}
	if _, ok := position(); ok {
		b.Error("there is a position before the first message")
	}
	m := incoming("1", "order.shipped.v1", "a", "1")
	dead := inbox.Incoming{IdempotencyKey: "2", Payload: []byte{0xff, 0}, Dead: "bad"}
	ds, err := b.store.ReceiveAt(ctx, orders, []inbox.Incoming{m, dead}, inbox.Position{Log: "log", Offset: 7})
	b.check(err)
	b.want("dispositions", ds, []inbox.Disposition{inbox.Stored, inbox.Buried})
	offset, _ := position()
	b.want("position", offset, 7)
	letters, err := b.store.DeadLetters(ctx, push)
	b.check(err)
	if len(letters) != 1 || !bytes.Equal(letters[0].Message.Payload, dead.Payload) || letters[0].Error != "bad" {
		b.Errorf("dead letters %+v", letters)
	}
	_, err = b.store.ReceiveAt(ctx, orders, nil, inbox.Position{Log: "log", Offset: 3})
	b.check(err)
	offset, _ = position()
	b.want("after a lower one", offset, 7)
	if _, err := b.store.ReceiveAt(ctx, orders, []inbox.Incoming{{}}, inbox.Position{Log: "log", Offset: 9}); err == nil {
		b.Error("a message without idempotency key was stored")
	}
	offset, _ = position()
	b.want("after a failure", offset, 7)
	ds, err = b.store.ReceiveAt(ctx, orders, []inbox.Incoming{m, incoming("2", "order.shipped.v1", "a", "other")}, inbox.Position{Log: "log", Offset: 9})
	b.check(err)
	b.want("repeated", ds, []inbox.Disposition{inbox.Duplicate, inbox.Conflict})
	offset, _ = position()
	b.want("position after a conflict", offset, 7)
}

// Receiving inside a transaction of the caller commits and rolls back with it.
func receiveInATransaction(b *box) {
	m := []inbox.Incoming{incoming("1", "t", "a", "1")}
	for i, rollback := range []bool{true, false} {
		tx, err := b.db.BeginTx(b.Context(), nil)
		b.check(err)
		ds, err := b.store.ReceiveIn(b.Context(), tx, paymentSource, m)
		b.check(err)
		b.want("disposition", ds, []inbox.Disposition{inbox.Stored})
		if rollback {
			b.check(tx.Rollback())
		} else {
			b.check(tx.Commit())
		}
		b.want("messages", b.count(`SELECT COUNT(*) FROM `+b.table("inbox")), i)
	}
	b.want("repeated", b.receive(paymentSource, m...), []inbox.Disposition{inbox.Duplicate})
}

// Whoever ended the transaction that a publish belongs to, the publish does not
// happen by itself.
func publishNeedsItsTransaction(b *box) {
	for _, end := range []string{"ROLLBACK TRANSACTION", "COMMIT TRANSACTION"} {
		for n := range 2 { // the batch for one message, and that for several
			tx, err := b.db.BeginTx(b.Context(), nil)
			b.check(err)
			if _, err := tx.ExecContext(b.Context(), end); err != nil {
				b.Fatal(err)
			}
			records := []outbox.Record{record("order.shipped.v1", "k", "1"), record("order.shipped.v1", "k", "2")}
			if err := b.appender(tx).Append(b.Context(), records[n:]); err == nil || !strings.Contains(err.Error(), "the transaction is over") {
				b.Errorf("after %s a publish of %d answers %v", end, 2-n, err)
			}
			_ = tx.Rollback()
		}
	}
	var left int
	b.check(b.db.QueryRowContext(b.Context(), `SELECT COUNT(*) FROM `+b.table("outbox_row")).Scan(&left))
	b.want("messages that were published by themselves", left, 0)
}
