package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lanebox/lanebox/examples/fulfilment/internal/database"
	"github.com/lanebox/lanebox/examples/fulfilment/orders"
	"github.com/lanebox/lanebox/examples/fulfilment/warehouse"
	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/storetest/testpg"
	"github.com/lanebox/lanebox/runtime/transport/handler"
	"github.com/lanebox/lanebox/runtime/transporttest/testrabbit"
)

// The whole demonstration, with every broker and database that it may find.
func TestDemonstration(t *testing.T) {
	for name, prepare := range map[string]func(t *testing.T) (Carrier, string){
		"RabbitMQ and PostgreSQL": func(t *testing.T) (Carrier, string) {
			return testRabbitMQ(testrabbit.URL(t), len(orders.Warehouse.ShardQueues)), testpg.URL(t)
		},
		"NATS and SQLite": func(t *testing.T) (Carrier, string) {
			url, stop, err := embedNATS(t.TempDir(), 0)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(stop)
			return NATS{url}, filepath.Join(t.TempDir(), "orders.db")
		},
	} {
		t.Run(name, func(t *testing.T) {
			carrier, db := prepare(t)
			var out bytes.Buffer
			err := tell(t.Context(), &out, carrier, db, filepath.Join(t.TempDir(), "warehouse.db"))
			if err != nil {
				t.Fatalf("%v\n%s", err, &out)
			}
			for _, want := range []string{"the warehouse closes", "opens again", "dropped (stale", "0 orders wrong; 40 parcels sent, 20 returned", "OK"} {
				if !strings.Contains(out.String(), want) {
					t.Errorf("the output does not say %q:\n%s", want, &out)
				}
			}
		})
	}
}

// testRabbitMQ returns the carrier that the schemas describe, with names and a
// number of shards of its own.
func testRabbitMQ(url string, shards int) RabbitMQ {
	r := NewRabbitMQ(url)
	r.To.Exchange = testrabbit.Name(r.To.Exchange)
	r.To.ShardQueues = nil
	for i := range shards {
		r.To.ShardQueues = append(r.To.ShardQueues, fmt.Sprintf("%s.shard.%02d.q", r.To.Exchange, i))
	}
	r.At.Queues = r.To.ShardQueues
	return r
}

// What the sender and the receiver say about the broker agrees.
func TestTopologies(t *testing.T) {
	to, at := orders.Warehouse, warehouse.Orders
	if fmt.Sprint(to.ShardQueues) != fmt.Sprint(at.Queues) || len(at.Queues) != 8 || !to.Ordered || !at.Ordered {
		t.Errorf("the order service sends to %v, the warehouse takes from %v", to.ShardQueues, at.Queues)
	}
}

// A message is applied when it is the next one of its order. One that was applied
// before, or is older than what is known, is dropped; one that comes too early is
// neither applied nor dropped.
func TestVersions(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) string{
		"PostgreSQL": func(t *testing.T) string { return testpg.URL(t) },
		"SQLite":     func(t *testing.T) string { return filepath.Join(t.TempDir(), "warehouse.db") },
	} {
		t.Run(name, func(t *testing.T) { testVersions(t, open(t)) })
	}
}

func testVersions(t *testing.T, name string) {
	db, err := database.Open(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	feed := make(feed)
	refused := make(chan string, 100)
	w, err := warehouse.New(t.Context(), db, warehouse.Config{Orders: feed, Logger: slog.New(slog.DiscardHandler), Refused: func(m inbox.Raw, reason error) {
		refused <- fmt.Sprint(m.Version, " ", reason)
	}})
	if err != nil {
		t.Fatal(err)
	}
	running := start(t.Context(), w.Run)
	defer running.stop()
	send := func(version int64, topic, payload string) {
		t.Helper()
		stored := make(chan struct{})
		feed <- delivery{stored: stored, message: inbox.Incoming{
			IdempotencyKey: event.NewUUID().String(), EventType: topic, AggregateID: "o", Payload: []byte(payload), Version: version,
		}}
		<-stored
	}
	state := func(want string) {
		t.Helper()
		var version, quantity, journal int
		var status string
		err := db.Scan(t.Context(), `SELECT version, status, quantity, (SELECT count(*) FROM journal) FROM parcel`, &version, &status, &quantity, &journal)
		if got := fmt.Sprintln(version, status, quantity, journal); err != nil && !errors.Is(err, sql.ErrNoRows) || got != want+"\n" {
			t.Errorf("the parcel is %s (%v), want %s", got, err, want)
		}
	}
	says := func(want string) {
		t.Helper()
		select {
		case got := <-refused:
			if !strings.HasPrefix(got, want) {
				t.Errorf("refused: %s, want %s", got, want)
			}
		case <-t.Context().Done():
			t.Fatalf("nothing was refused, want %s", want)
		}
	}
	settled := func(waiting int) {
		t.Helper()
		eventually(t, "the inbox to be handled", func() bool {
			var n int
			if err := db.Scan(t.Context(), `SELECT count(*) FROM warehouse_inbox`, &n); err != nil {
				t.Fatal(err)
			}
			return n == waiting
		})
	}

	send(1, "order.placed.v1", `{"order_id":"o","quantity":2}`)
	send(2, "order.changed.v1", `{"order_id":"o","quantity":3}`)
	settled(0)
	state("2 open 3 2")
	send(2, "order.changed.v1", `{"order_id":"o","quantity":3}`)
	says("2 duplicate")
	send(1, "order.placed.v1", `{"order_id":"o","quantity":2}`)
	says("1 stale")
	settled(0)
	state("2 open 3 2")
	send(3, "order.shipped.v1", `{"order_id":"o","tracking":"T"}`)
	settled(0)
	state("3 sent 3 3")
	send(5, "order.changed.v1", `{"order_id":"o","quantity":9}`)
	says("5 gap: expected version 4, got 5")
	says("5 gap: expected version 4, got 5")
	settled(1)
	state("3 sent 3 3")
}

// A message that contradicts the state of its parcel is parked, and nothing of it is
// applied.
func TestConflict(t *testing.T) {
	db, err := database.Open(t.Context(), filepath.Join(t.TempDir(), "warehouse.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	feed := make(feed)
	w, err := warehouse.New(t.Context(), db, warehouse.Config{Orders: feed, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	running := start(t.Context(), w.Run)
	defer running.stop()
	for i, m := range []inbox.Incoming{
		{EventType: "order.placed.v1", Payload: []byte(`{"order_id":"o","quantity":2}`)},
		{EventType: "order.shipped.v1", Payload: []byte(`{"order_id":"o","tracking":"T"}`)},
		{EventType: "order.cancelled.v1", Payload: []byte(`{"order_id":"o","reason":"R"}`)},
	} {
		m.IdempotencyKey, m.AggregateID, m.Version = event.NewUUID().String(), "o", int64(i+1)
		stored := make(chan struct{})
		feed <- delivery{m, stored}
		<-stored
	}
	eventually(t, "the message to be parked", func() bool {
		var parked int
		if err := db.Scan(t.Context(), `SELECT count(*) FROM warehouse_lane_hold WHERE parked = 1`, &parked); err != nil {
			t.Fatal(err)
		}
		return parked > 0
	})
	var version, journal int
	var status string
	if err := db.Scan(t.Context(), `SELECT version, status, (SELECT count(*) FROM journal) FROM parcel`, &version, &status, &journal); err != nil {
		t.Fatal(err)
	}
	if version != 2 || status != "sent" || journal != 2 {
		t.Errorf("version %d, %s, %d entries; want what was before the conflict: 2, sent, 2", version, status, journal)
	}
}

// A feed is a source whose messages are written by a test.
type feed chan delivery

type delivery struct {
	message inbox.Incoming
	stored  chan<- struct{}
}

// Run implements inbox.Source.
func (f feed) Run(ctx context.Context, r *inbox.Receiver) error {
	for {
		select {
		case d := <-f:
			if _, err := r.ReceiveAll(ctx, d.message); err != nil {
				return err
			}
			close(d.stored)
		case <-ctx.Done():
			return nil
		}
	}
}

// An order that is shipped cannot be changed or cancelled, and the warehouse hears
// nothing of the attempt.
func TestTooLate(t *testing.T) {
	db, err := database.Open(t.Context(), filepath.Join(t.TempDir(), "orders.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	heard := make(chan event.Message, 10)
	s, err := orders.New(t.Context(), db, orders.Config{Logger: slog.New(slog.DiscardHandler), Warehouse: handler.NewDestination(func(_ context.Context, m event.Message) error {
		heard <- m
		return nil
	})})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	if err := errors.Join(s.Place(ctx, "o", 1), s.Ship(ctx, "o", "T")); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{"cancel": s.Cancel(ctx, "o", "late"), "change": s.Change(ctx, "o", 2), "ship": s.Ship(ctx, "o", "T")} {
		if !errors.Is(err, orders.ErrTooLate) {
			t.Errorf("%s: %v, want ErrTooLate", what, err)
		}
	}
	if err := s.Place(ctx, "p", 1); err != nil {
		t.Fatal(err)
	}
	running := start(ctx, s.Run)
	defer running.stop()
	got := map[string][]int64{}
	for range 3 {
		select {
		case m := <-heard:
			got[m.Key] = append(got[m.Key], m.Version)
		case <-t.Context().Done():
			t.Fatal("the messages do not come")
		}
	}
	if fmt.Sprint(got["o"], got["p"]) != "[1 2] [1]" {
		t.Errorf("the warehouse heard %v", got)
	}
	if len(heard) > 0 {
		t.Errorf("the warehouse also heard %v", <-heard)
	}
}
