package postgres_test

import (
	"context"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/lane"
)

func incoming(idempotencyKey, eventType, aggregateID, payload string) inbox.Incoming {
	return inbox.Incoming{IdempotencyKey: idempotencyKey, EventType: eventType, AggregateID: aggregateID, Payload: []byte(payload)}
}

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
	verdicts, err := b.store.Inbox(push).Move(ctx, "me", []lane.Run{{Lease: c.lease(rows[0]), Lane: rows[0].Lane, Rows: rows}}, nil)
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

func TestEverything(t *testing.T) { forEach(t, everything) }

var _ = event.NoKey{}
var _ pgx.Tx

func noHandler(context.Context, pgx.Tx) error { return nil }
