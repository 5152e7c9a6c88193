package kafka

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lanebox/lanebox/runtime/event"
)

// benchBrokerEnv has the test binary be the benchmarks' broker: it is the least time
// that a request to produce takes.
const benchBrokerEnv = "LANEBOX_KAFKA_BENCH_BROKER"

func TestMain(m *testing.M) {
	if roundTrip, is := os.LookupEnv(benchBrokerEnv); is {
		if err := beBroker(roundTrip); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// beBroker runs kfake without files until the standard input ends. It prints its
// address.
func beBroker(text string) error {
	roundTrip, err := time.ParseDuration(text)
	if err != nil {
		return err
	}
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		return err
	}
	defer cluster.Close()
	if roundTrip > 0 {
		cluster.ControlKey(produceKey, func(kmsg.Request) (kmsg.Response, error, bool) {
			cluster.KeepControl()
			time.Sleep(roundTrip)
			return nil, nil, false
		})
	}
	fmt.Println(cluster.ListenAddrs()[0])
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// benchmarkTopic returns a topic on the real cluster, if one is named, or on kfake
// in a process of its own, as brokers are, which takes at least roundTrip for a
// request.
func benchmarkTopic(b *testing.B, roundTrip time.Duration) (addresses []string, topic string) {
	if addresses = realCluster(); addresses == nil {
		addresses = []string{startBenchBroker(b, roundTrip)}
	}
	return addresses, newTopic(b, addresses, 8, nil)
}

func startBenchBroker(b *testing.B, roundTrip time.Duration) (address string) {
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), benchBrokerEnv+"="+roundTrip.String())
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		stdin.Close()
		if err := cmd.Wait(); err != nil {
			b.Error(err)
		}
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return strings.TrimSpace(line)
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
// before, and in runs. On one machine the round trip costs little more than the
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
