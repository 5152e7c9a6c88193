package rabbitmq

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/transporttest"
	"github.com/lanebox/lanebox/runtime/transporttest/testrabbit"
)

// benchLanes is how many messages are on their way at a time.
const benchLanes = 64

// parallel runs f b.N times from benchLanes goroutines and reports the rate.
func parallel(b *testing.B, f func(lane int) error) {
	var left atomic.Int64
	left.Store(int64(b.N))
	var all sync.WaitGroup
	b.ResetTimer()
	for lane := range benchLanes {
		all.Go(func() {
			for left.Add(-1) >= 0 {
				if err := f(lane); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
}

// BenchmarkManyKeys sends messages of many keys to eight shards.
func BenchmarkManyKeys(b *testing.B) {
	server := testrabbit.URL(b)
	to, _ := ordered(b, server, 8)
	d := newDestination(b, Config{URL: server}, to)
	ctx := context.Background()
	var n atomic.Int64
	if err := d.Send(ctx, newMessage("k", 0)); err != nil {
		b.Fatal(err)
	}
	parallel(b, func(lane int) error {
		return d.Send(ctx, newMessage(fmt.Sprintf("key-%d-%d", lane, n.Add(1)%64), 1))
	})
}

// BenchmarkManyKeysRaw publishes the same messages with the client alone, confirmed
// and mandatory: over one channel, and over one for each sender.
func BenchmarkManyKeysRaw(b *testing.B) {
	for name, channels := range map[string]int{"one channel": 1, "64 channels": benchLanes} {
		b.Run(name, func(b *testing.B) {
			server := testrabbit.URL(b)
			to, _ := ordered(b, server, 8)
			d := newDestination(b, Config{URL: server}, to)
			if err := d.Send(context.Background(), newMessage("k", 0)); err != nil {
				b.Fatal(err)
			}
			conn := raw(b, server)
			var open []*amqp.Channel
			for range channels {
				ch, err := conn.Channel()
				if err == nil {
					err = ch.Confirm(false)
				}
				if err != nil {
					b.Fatal(err)
				}
				returns := ch.NotifyReturn(make(chan amqp.Return, 1))
				go func() {
					for r := range returns {
						b.Error(r.ReplyText)
					}
				}()
				open = append(open, ch)
			}
			var n atomic.Int64
			parallel(b, func(lane int) error {
				m := newMessage(fmt.Sprintf("key-%d-%d", lane, n.Add(1)%64), 1)
				e, _, err := d.exchange(m)
				if err != nil {
					return err
				}
				confirm, err := open[lane%channels].PublishWithDeferredConfirm(e.exchange, e.key, true, false, e.message)
				if err != nil {
					return err
				}
				if !confirm.Wait() {
					return errNacked
				}
				return nil
			})
		})
	}
}

// BenchmarkOneKey sends the messages of one key, one after the other.
func BenchmarkOneKey(b *testing.B) {
	server := testrabbit.URL(b)
	to, _ := ordered(b, server, 8)
	d := newDestination(b, Config{URL: server}, to)
	ctx := context.Background()
	mustSend(b, d, newMessage("k", 0))
	for b.Loop() {
		if err := d.Send(ctx, newMessage("k", 1)); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
}

// nowhere is a store that forgets.
type nowhere struct{ count atomic.Int64 }

func (s *nowhere) Receive(_ context.Context, _ inbox.SourceRef, messages []inbox.Incoming) ([]inbox.Disposition, error) {
	s.count.Add(int64(len(messages)))
	return make([]inbox.Disposition, len(messages)), nil
}

func (s *nowhere) PurgeReceipts(context.Context, inbox.SourceRef, time.Duration, int) (int, error) {
	return 0, nil
}

// fill puts n messages into the shards of a destination.
func fill(b *testing.B, server string, shards int) (queues []string, source func(r *inbox.Receiver) (stop func())) {
	to, from := ordered(b, server, shards)
	d := newDestination(b, Config{URL: server}, to)
	parallel(b, func(lane int) error {
		return d.Send(context.Background(), newMessage(event.NewUUID().String(), 1))
	})
	b.ResetTimer()
	return to.ShardQueues, func(r *inbox.Receiver) func() {
		_, stop := run(b, Config{URL: server}, from, r)
		return stop
	}
}

// BenchmarkSource takes messages from shards into a store that costs nothing.
func BenchmarkSource(b *testing.B) {
	for _, shards := range []int{1, 8} {
		b.Run(fmt.Sprintf("%d shards", shards), func(b *testing.B) {
			_, start := fill(b, testrabbit.URL(b), shards)
			store := &nowhere{}
			stop := start(inbox.NewReceiver(inbox.ReceiverConfig{Source: transporttest.Source, Store: store}))
			transporttest.Eventually(b, "all are taken", func() bool { return store.count.Load() >= int64(b.N) })
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
			stop()
		})
	}
}

// BenchmarkSourceRaw takes the same messages with the client alone, and acknowledges
// every 64th for those before.
func BenchmarkSourceRaw(b *testing.B) {
	for _, shards := range []int{1, 8} {
		b.Run(fmt.Sprintf("%d shards", shards), func(b *testing.B) {
			server := testrabbit.URL(b)
			queues, _ := fill(b, server, shards)
			conn := raw(b, server)
			var count atomic.Int64
			for _, queue := range queues {
				ch, err := conn.Channel()
				if err != nil {
					b.Fatal(err)
				}
				ch.Qos(DefaultPrefetch, 0, false)
				deliveries, err := ch.Consume(queue, "", false, false, false, false, nil)
				if err != nil {
					b.Fatal(err)
				}
				go func() {
					for d := range deliveries {
						if count.Add(1)%64 == 0 || d.DeliveryTag%64 == 0 {
							d.Ack(true)
						}
					}
				}()
			}
			transporttest.Eventually(b, "all are taken", func() bool { return count.Load() >= int64(b.N) })
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
		})
	}
}
