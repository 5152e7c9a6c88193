package natsjs

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/transporttest"
)

// benchLanes is how many lanes send at a time, and how many publishes the raw
// client keeps unacknowledged.
const benchLanes = 256

// BenchmarkPublish compares a destination with the raw client that makes the same
// publishes, confirmed, on a stream in files. The raw client keeps as many
// unacknowledged as there are lanes: from one goroutine, in which the messages of a
// key overtake each other when one fails, and one of each key, as lanes do. Many
// keys only: a single key is one message per round trip in both.
func BenchmarkPublish(b *testing.B) {
	payload := make([]byte, 512)
	// lanes publishes b.N messages, one of each lane at a time.
	lanes := func(b *testing.B, send func(m event.Message) error) {
		b.ResetTimer()
		var all sync.WaitGroup
		for lane := range benchLanes {
			all.Go(func() {
				m := message(strconv.Itoa(lane), 0)
				m.Payload = payload
				for n := lane; n < b.N; n += benchLanes {
					m.ID, m.Sequence = event.NewUUID(), int64(n)
					if err := send(m); err != nil {
						b.Error(err)
					}
				}
			})
		}
		all.Wait()
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
	}
	b.Run("lanebox", func(b *testing.B) {
		s := startServer(b)
		d := newDestination(b, s.url(), orders)
		mustSend(b, d, message("k", 1))
		lanes(b, func(m event.Message) error { return d.Send(context.Background(), m) })
	})
	raw := func(b *testing.B) (publish func(m event.Message) jetstream.PubAckFuture) {
		s := startServer(b)
		s.addStream(b, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}, Discard: jetstream.DiscardNew, AllowDirect: true})
		conn, err := nats.Connect(s.url(), nats.ReconnectBufSize(-1))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(conn.Close)
		js, err := jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(1<<16))
		if err != nil {
			b.Fatal(err)
		}
		return func(m event.Message) jetstream.PubAckFuture {
			msg, err := encode("lanebox", "orders."+m.Key+"."+m.Topic, m)
			if err != nil {
				b.Error(err)
			}
			f, err := js.PublishMsgAsync(msg, jetstream.WithMsgID(m.ID.String()+".warehouse"), jetstream.WithExpectStream("ORDERS"))
			if err != nil {
				b.Error(err)
			}
			return f
		}
	}
	confirm := func(f jetstream.PubAckFuture) error {
		select {
		case <-f.Ok():
			return nil
		case err := <-f.Err():
			return err
		}
	}
	b.Run("raw-one-per-key", func(b *testing.B) {
		publish := raw(b)
		lanes(b, func(m event.Message) error { return confirm(publish(m)) })
	})
	b.Run("raw", func(b *testing.B) {
		publish := raw(b)
		b.ResetTimer()
		var open []jetstream.PubAckFuture
		for n := range b.N {
			m := message(strconv.Itoa(n%benchLanes), int64(n))
			m.Payload = payload
			if open = append(open, publish(m)); len(open) >= benchLanes {
				if err := confirm(open[0]); err != nil {
					b.Error(err)
				}
				open = open[1:]
			}
		}
		for _, f := range open {
			if err := confirm(f); err != nil {
				b.Error(err)
			}
		}
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
	})
}

// A countingStore takes everything and keeps nothing.
type countingStore struct {
	mu    sync.Mutex
	count int
	all   chan struct{}
	want  int
}

func (s *countingStore) Receive(_ context.Context, _ inbox.SourceRef, messages []inbox.Incoming) ([]inbox.Disposition, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.count += len(messages); s.count == s.want {
		close(s.all)
	}
	return make([]inbox.Disposition, len(messages)), nil
}

func (s *countingStore) ReceiveAt(ctx context.Context, source inbox.SourceRef, messages []inbox.Incoming, _ inbox.Position) ([]inbox.Disposition, error) {
	return s.Receive(ctx, source, messages)
}

func (s *countingStore) Position(context.Context, inbox.SourceRef, string) (int64, bool, error) {
	return 0, false, nil
}

func (s *countingStore) PurgeReceipts(context.Context, inbox.SourceRef, time.Duration, int) (int, error) {
	return 0, nil
}

// BenchmarkConsume compares an ordered source on a store that costs nothing with
// the raw client that takes and acknowledges the same messages.
func BenchmarkConsume(b *testing.B) {
	fill := func(b *testing.B) *testServer {
		s := startServer(b)
		ordersStream(b, s)
		js := s.jetStream(b)
		for n := range b.N {
			msg, err := encode("lanebox", "orders.k", message(strconv.Itoa(n%100), int64(n)))
			if err != nil {
				b.Fatal(err)
			}
			if _, err := js.PublishMsgAsync(msg, jetstream.WithStallWait(time.Minute)); err != nil {
				b.Fatal(err)
			}
		}
		<-js.PublishAsyncComplete()
		return s
	}
	b.Run("lanebox", func(b *testing.B) {
		s := fill(b)
		store := &countingStore{all: make(chan struct{}), want: b.N}
		source := newSource(b, s.url(), incoming)
		receiver := inbox.NewReceiver(inbox.ReceiverConfig{Source: transporttest.Source, Store: store})
		b.ResetTimer()
		stop := runSource(b, source, receiver)
		<-store.all
		b.StopTimer()
		stop()
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
	})
	b.Run("raw", func(b *testing.B) {
		s := fill(b)
		js := s.jetStream(b)
		consumer, err := js.CreateConsumer(b.Context(), "ORDERS", jetstream.ConsumerConfig{Durable: "raw", AckPolicy: jetstream.AckExplicitPolicy})
		if err != nil {
			b.Fatal(err)
		}
		b.ResetTimer()
		for left := b.N; left > 0; {
			batch, err := consumer.Fetch(min(left, DefaultBatch))
			if err != nil {
				b.Fatal(err)
			}
			for m := range batch.Messages() {
				if left--; left == 0 {
					err = m.DoubleAck(b.Context())
				} else {
					err = m.Ack()
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		}
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
	})
}
