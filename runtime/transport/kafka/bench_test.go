package kafka

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lanebox/lanebox/runtime/event"
)

// benchmarkTopic returns a topic on the real cluster, if one is named, or on kfake
// without files, which takes at least roundTrip for a request.
func benchmarkTopic(b *testing.B, roundTrip time.Duration) (addresses []string, topic string) {
	if addresses = realCluster(); addresses == nil {
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(cluster.Close)
		if roundTrip > 0 {
			cluster.ControlKey(produceKey, func(kmsg.Request) (kmsg.Response, error, bool) {
				cluster.KeepControl()
				time.Sleep(roundTrip)
				return nil, nil, false
			})
		}
		addresses = cluster.ListenAddrs()
	}
	return addresses, newTopic(b, addresses, 8, nil)
}

// rawClient is the client alone, with the settings that make it safe.
func rawClient(b *testing.B, addresses []string) *kgo.Client {
	return client(b, addresses, kgo.RequiredAcks(kgo.AllISRAcks()), kgo.ProducerLinger(0))
}

func benchmarkMessage(key string, n int64) event.Message {
	m := newMessage(key, n)
	m.Payload = []byte(`{"order":"0123456789","customer":"abcdefghij","amount":"12.50","currency":"EUR","items":[1,2,3,4,5]}`)
	return m
}

func record(b *testing.B, topic string, m event.Message) *kgo.Record {
	r, err := newEncoder(topic, "lanebox", 1).encode(m)
	if err != nil {
		b.Fatal(err)
	}
	return r
}

func rate(b *testing.B) { b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s") }

// BenchmarkHotKey sends the messages of one key: each after the answer to the one
// before, and in runs. In one process the round trip costs little more than the
// messages; a network and replicas make it a millisecond at least.
func BenchmarkHotKey(b *testing.B) {
	for _, roundTrip := range []time.Duration{0, time.Millisecond} {
		b.Run(fmt.Sprintf("raw-one-by-one-%s", roundTrip), func(b *testing.B) {
			addresses, topic := benchmarkTopic(b, roundTrip)
			raw := rawClient(b, addresses)
			for n := int64(0); b.Loop(); n++ {
				if err := raw.ProduceSync(context.Background(), record(b, topic, benchmarkMessage("k", n))).FirstErr(); err != nil {
					b.Fatal(err)
				}
			}
			rate(b)
		})
		b.Run(fmt.Sprintf("lanebox-runs-%s", roundTrip), func(b *testing.B) {
			addresses, topic := benchmarkTopic(b, roundTrip)
			d := newDestination(b, Config{Brokers: addresses}, topic)
			run := make([]event.Message, d.MaxRun())
			for i := range run {
				run[i] = benchmarkMessage("k", int64(i))
			}
			b.ResetTimer()
			for sent := 0; sent < b.N; {
				n, err := d.SendRun(context.Background(), run[:min(len(run), b.N-sent)])
				if err != nil {
					b.Fatal(err)
				}
				sent += n
			}
			rate(b)
		})
	}
}

// BenchmarkManyKeys sends the messages of 1000 keys. The raw client sends without
// any bound on what is open, which keeps no order when a record fails, and with one
// open record of each key, as lanes do; lanebox sends from lanes side by side, each
// of which waits for its answer.
func BenchmarkManyKeys(b *testing.B) {
	const keys = 1000
	names := make([]string, keys)
	for k := range names {
		names[k] = fmt.Sprintf("key-%d", k)
	}
	b.Run("raw", func(b *testing.B) {
		addresses, topic := benchmarkTopic(b, 0)
		raw := rawClient(b, addresses)
		var open sync.WaitGroup
		var failed atomic.Int64
		b.ResetTimer()
		for n := range b.N {
			open.Add(1)
			raw.Produce(context.Background(), record(b, topic, benchmarkMessage(names[n%keys], int64(n))), func(_ *kgo.Record, err error) {
				if err != nil {
					failed.Add(1)
				}
				open.Done()
			})
		}
		open.Wait()
		rate(b)
		if n := failed.Load(); n > 0 {
			b.Fatalf("%d failed", n)
		}
	})
	// lanes sends b.N messages in runs of size, one run of a key at a time. send
	// returns how many of a run it sent.
	lanes := func(b *testing.B, size int64, send func(run []event.Message) (int, error)) {
		var next atomic.Int64
		var all sync.WaitGroup
		b.ResetTimer()
		for k := range keys {
			all.Go(func() {
				for from := next.Add(size) - size; from < int64(b.N); from = next.Add(size) - size {
					run := make([]event.Message, min(size, int64(b.N)-from))
					for i := range run {
						run[i] = benchmarkMessage(names[k], from+int64(i))
					}
					for len(run) > 0 {
						n, err := send(run)
						if err != nil {
							b.Error(err)
							return
						}
						run = run[n:]
					}
				}
			})
		}
		all.Wait()
		rate(b)
	}
	b.Run("raw-one-per-key", func(b *testing.B) {
		addresses, topic := benchmarkTopic(b, 0)
		raw := rawClient(b, addresses)
		lanes(b, 1, func(run []event.Message) (int, error) {
			return 1, raw.ProduceSync(context.Background(), record(b, topic, run[0])).FirstErr()
		})
	})
	for _, size := range []int64{1, 4, 16, 64} {
		b.Run(fmt.Sprintf("lanebox-runs-of-%d", size), func(b *testing.B) {
			addresses, topic := benchmarkTopic(b, 0)
			d := newDestination(b, Config{Brokers: addresses}, topic)
			lanes(b, size, func(run []event.Message) (int, error) { return d.SendRun(context.Background(), run) })
		})
	}
}
