package kafka

import (
	"context"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/topology"
	"github.com/lanebox/lanebox/runtime/transporttest"
)

// brokersVariable names a real cluster: host:port, several of them with commas.
const brokersVariable = "LANEBOX_TEST_KAFKA_BROKERS"

// realCluster returns the addresses of a real cluster; nil when none is named.
func realCluster() []string {
	if text := os.Getenv(brokersVariable); text != "" {
		return strings.Split(text, ",")
	}
	return nil
}

var quiet = slog.New(slog.DiscardHandler)

// A broker is a kfake cluster with one node that keeps its data when it restarts.
type broker struct {
	*kfake.Cluster
	address string
	port    int
	options []kfake.Opt
}

func startBroker(t testing.TB, options ...kfake.Opt) *broker {
	t.Helper()
	b := &broker{options: append(options, kfake.NumBrokers(1), kfake.DataDir(t.TempDir()), kfake.SyncWrites())}
	var err error
	if b.Cluster, err = kfake.NewCluster(b.options...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Cluster.Close() })
	b.address = b.ListenAddrs()[0]
	_, port, _ := net.SplitHostPort(b.address)
	b.port, _ = strconv.Atoi(port)
	return b
}

// restart ends the node and starts it again with its data.
func (b *broker) restart(t testing.TB) {
	t.Helper()
	b.Cluster.Close()
	transporttest.Eventually(t, "the broker is back", func() bool {
		cluster, err := kfake.NewCluster(append(b.options, kfake.Ports(b.port))...)
		if err == nil {
			b.Cluster = cluster
		}
		return err == nil
	})
}

// stable waits until a group has so many members and nothing changes.
func (b *broker) stable(t testing.TB, group string, members int) *kfake.GroupInfo {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	info, err := b.WaitGroupStable(ctx, group, members)
	if err != nil {
		t.Fatalf("the group is not stable with %d members: %v", members, err)
	}
	return info
}

// holdJoin keeps back the answer to the next join of a member; the channel is closed
// when that has come.
func (b *broker) holdJoin(t testing.TB, member string) <-chan struct{} {
	joining := make(chan struct{})
	b.ControlKey(int16(kmsg.JoinGroup), func(request kmsg.Request) (kmsg.Response, error, bool) {
		b.KeepControl()
		if request.(*kmsg.JoinGroupRequest).MemberID == member {
			close(joining)
			b.SleepControl(func() { <-t.Context().Done() })
		}
		return nil, nil, false
	})
	return joining
}

// newTopic makes a topic of its own for a test and returns its name.
func newTopic(t testing.TB, addresses []string, partitions int32, settings map[string]string) string {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addresses...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	topic := "lanebox-test-" + event.NewUUID().String()
	values := map[string]*string{}
	for name, value := range settings {
		values[name] = &value
	}
	if _, err := kadm.NewClient(client).CreateTopic(ctx, partitions, 1, values, topic); err != nil {
		t.Fatal(err)
	}
	return topic
}

// through returns a dialer that reaches every broker through a proxy.
func through(p *transporttest.Proxy) kgo.Opt {
	var dialer net.Dialer
	return kgo.Dialer(func(ctx context.Context, network, _ string) (net.Conn, error) {
		return dialer.DialContext(ctx, network, p.Address())
	})
}

func newDestination(t testing.TB, c Config, topic string) *Destination {
	t.Helper()
	if c.Logger == nil {
		c.Logger = quiet
	}
	d, err := NewDestination(c, topology.KafkaDestination{Name: "test", Topic: topic})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// runSource runs a member of the group until the returned function is called or
// the test ends.
func runSource(t testing.TB, c Config, from topology.KafkaSource, r *inbox.Receiver) (s *Source, stop func()) {
	t.Helper()
	if c.Logger == nil {
		c.Logger = quiet
	}
	s, err := NewSource(c, from)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, r) }()
	ended := false
	stop = func() {
		if ended {
			return
		}
		ended = true
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run = %v", err)
			}
		case <-time.After(30 * time.Second):
			t.Error("Run did not end")
		}
	}
	t.Cleanup(stop)
	return s, stop
}

func newMessage(key string, n int64) event.Message {
	return event.Message{
		ID: event.NewUUID(), Sequence: n, Topic: "thing.happened.v1", Key: key, Attempt: 1,
		Payload: strconv.AppendInt([]byte(key+" "), n, 10), CreatedAt: time.Unix(1700000000, 0),
	}
}

// records returns the values in a partition, in order.
func records(t testing.TB, addresses []string, topic string, partitions int) [][]*kgo.Record {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addresses...), kgo.ConsumeTopics(topic), kgo.FetchMaxWait(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	ends, err := kadm.NewClient(client).ListEndOffsets(ctx, topic)
	if err != nil {
		t.Fatal(err)
	}
	missing := int64(0)
	ends.Each(func(o kadm.ListedOffset) { missing += o.Offset })
	out := make([][]*kgo.Record, partitions)
	for missing > 0 {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("%d records are missing", missing)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			out[r.Partition] = append(out[r.Partition], r)
			missing--
		})
	}
	return out
}
