//go:build !race

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/lanebox/lanebox/examples/fulfilment/internal/database"
	"github.com/lanebox/lanebox/examples/fulfilment/warehouse"
	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/storetest/testpg"
	"github.com/lanebox/lanebox/runtime/transport/rabbitmq"
	"github.com/lanebox/lanebox/runtime/transporttest/testrabbit"
)

// arrivals has the consumer's database itself keep a ledger of what is committed
// to the inbox: two transactions cannot write the same position of an order, and
// one that writes a position has seen all before it committed.
const arrivals = `
CREATE TABLE arrival (order_id text NOT NULL, position bigint NOT NULL, version bigint NOT NULL, PRIMARY KEY (order_id, position));
CREATE FUNCTION arrive() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO arrival SELECT NEW.aggregate_id, coalesce(max(position), 0) + 1, NEW.version FROM arrival WHERE order_id = NEW.aggregate_id;
  RETURN NULL;
END $$;
CREATE TRIGGER arrive AFTER INSERT ON warehouse_inbox FOR EACH ROW EXECUTE FUNCTION arrive()`

// Three consumers of eight shards come and go, some killed with SIGKILL, while
// messages flow. The messages of an order are committed to the consumer's inbox,
// and then handled, in the order in which they were committed by the order service.
func TestKilledConsumersOfShardsKeepTheOrder(t *testing.T) {
	r := testRabbitMQ(testrabbit.URL(t), 8)
	w := newWorld(t, carrier{RabbitMQ: &r}, testpg.URL(t), 1, 3, 7)
	if err := w.stock.Exec(t.Context(), arrivals); err != nil {
		t.Fatal(err)
	}
	w.keys, w.each, w.changes = 100, 50, 15
	if full() {
		w.keys, w.each, w.changes = 1000, 50, 60
	}
	w.run()

	arrived := map[string]int64{}
	err := w.stock.Each(t.Context(), `SELECT order_id, position, version FROM arrival ORDER BY order_id, position`, func(scan func(...any) error) error {
		var id string
		var position, version int64
		if err := scan(&id, &position, &version); err != nil {
			return err
		}
		if arrived[id]++; position != arrived[id] || version != position {
			return fmt.Errorf("what was committed to the inbox as number %d of %s is version %d", position, id, version)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	for k := range w.keys {
		if n := arrived[orderID(k)]; n != int64(w.each) {
			t.Errorf("%d messages of %s were committed to the inbox, want %d", n, orderID(k), w.each)
		}
	}
	if n := w.counts().Wandered; n != 0 {
		t.Errorf("%d orders came from two shards", n)
	}
}

// comeOrGo starts a consumer that is away, or ends one: killed and in peace by turns. One
// is always there.
func (w *world) comeOrGo() {
	i := w.random.IntN(len(w.receivers))
	there := 0
	for _, c := range w.receivers {
		if c != nil {
			there++
		}
	}
	switch c := w.receivers[i]; {
	case c == nil:
		w.startReceiver(i)
	case there == 1:
		w.startReceiver((i + 1) % len(w.receivers))
	case w.deaths <= w.stops:
		c.kill()
		w.receivers[i] = nil
		w.deaths++
	default:
		if err := c.stop(); err != nil {
			w.t.Errorf("a consumer did not end well: %v", err)
		}
		w.receivers[i] = nil
		w.stops++
	}
}

// benchMessages are over so many orders.
const benchKeys = 1000

// BenchmarkShards measures how fast messages that wait in the shards get into the
// inbox. Each shard has one transaction after the other, so that the number of
// shards counts where transactions take long: in a database that takes 20 ms for
// each of 16 messages. In PostgreSQL on the same machine it counts until the
// processors are busy.
func BenchmarkShards(b *testing.B) {
	for _, shards := range []int{1, 2, 4, 8} {
		b.Run(fmt.Sprintf("PostgreSQL/shards=%d", shards), func(b *testing.B) {
			db, err := database.Open(b.Context(), testpg.URL(b))
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(db.Close)
			benchShards(b, shards, 0, func(from inbox.Source) (run func(context.Context) error, done func() bool) {
				s, err := warehouse.New(b.Context(), db, warehouse.Config{Orders: from, Logger: slog.New(slog.DiscardHandler)})
				if err != nil {
					b.Fatal(err)
				}
				return s.Run, func() bool { return count(b, db, `SELECT count(*) FROM warehouse_inbox_receipt`) >= b.N }
			})
		})
	}
	for _, shards := range []int{1, 2, 4, 8} {
		b.Run(fmt.Sprintf("20ms/shards=%d", shards), func(b *testing.B) {
			benchShards(b, shards, 16, func(from inbox.Source) (run func(context.Context) error, done func() bool) {
				store := &distant{}
				r := inbox.NewReceiver(inbox.ReceiverConfig{Store: store, Logger: slog.New(slog.DiscardHandler)})
				return func(ctx context.Context) error { return from.Run(ctx, r) }, func() bool { return store.count() >= b.N }
			})
		})
	}
}

func benchShards(b *testing.B, shards, prefetch int, consumer func(inbox.Source) (run func(context.Context) error, done func() bool)) {
	r := testRabbitMQ(testrabbit.URL(b), shards)
	r.At.Prefetch = prefetch
	fill(b, r)
	source, err := r.Source(slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	run, done := consumer(source)
	b.ResetTimer()
	running := start(b.Context(), run)
	eventually(b, "all messages to arrive", done)
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
	if err := running.stop(); err != nil {
		b.Error(err)
	}
}

// fill publishes the messages of a benchmark.
func fill(b *testing.B, r RabbitMQ) {
	d, err := rabbitmq.NewDestination(rabbitmq.Config{URL: r.URL}, r.To)
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	var all sync.WaitGroup
	errs := make([]error, 64)
	for i := range errs {
		all.Go(func() {
			for n := i; n < b.N && errs[i] == nil; n += len(errs) {
				errs[i] = d.Send(b.Context(), event.Message{
					ID: event.NewUUID(), Sequence: int64(n + 1), Version: int64(n/benchKeys + 1), Topic: "order.changed.v1", Attempt: 1,
					Key: orderID(n % benchKeys), Payload: fmt.Appendf(nil, `{"order_id":%q,"quantity":2}`, orderID(n%benchKeys)),
				})
			}
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		b.Fatal(err)
	}
}

// distant is a store whose every transaction takes the same time.
type distant struct {
	mu sync.Mutex
	n  int
}

// Receive implements inbox.ReceiveStore.
func (d *distant) Receive(ctx context.Context, _ inbox.SourceRef, messages []inbox.Incoming) ([]inbox.Disposition, error) {
	if err := sleep(ctx, 20*time.Millisecond); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.n += len(messages)
	return make([]inbox.Disposition, len(messages)), nil
}

// PurgeReceipts implements inbox.ReceiveStore.
func (d *distant) PurgeReceipts(context.Context, inbox.SourceRef, time.Duration, int) (int, error) {
	return 0, nil
}

func (d *distant) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.n
}
