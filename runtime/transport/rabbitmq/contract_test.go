package rabbitmq

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/topology"
	"github.com/lanebox/lanebox/runtime/transporttest"
	"github.com/lanebox/lanebox/runtime/transporttest/testrabbit"
)

// quiet discards logs.
var quiet = slog.New(slog.DiscardHandler)

// through returns the URL of a server behind a proxy.
func through(t testing.TB, server string, proxy *transporttest.Proxy) string {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = proxy.Address()
	return u.String()
}

func hostOf(t testing.TB, server string) string {
	t.Helper()
	u, err := amqp.ParseURI(server)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%s:%d", u.Host, u.Port)
}

// ordered returns the topology of a destination of its own with n shards, and of
// the source that reads them. Both are removed when the test ends.
func ordered(t testing.TB, server string, n int) (topology.RabbitMQDestination, topology.RabbitMQSource) {
	name := testrabbit.Name("orders")
	d := topology.RabbitMQDestination{Name: "orders", Exchange: name + ".x", Ordered: true}
	for i := range n {
		d.ShardQueues = append(d.ShardQueues, fmt.Sprintf("%s.shard.%02d.q", name, i))
	}
	removed(t, server, []string{d.Exchange}, d.ShardQueues)
	return d, topology.RabbitMQSource{Name: "orders", Queues: d.ShardQueues, Ordered: true, Declare: true}
}

// removed removes exchanges and queues when the test ends.
func removed(t testing.TB, server string, exchanges, queues []string) {
	t.Cleanup(func() {
		conn, err := amqp.Dial(server)
		if err != nil {
			return // the server has ended with the test
		}
		defer conn.Close()
		for _, name := range queues {
			if ch, err := conn.Channel(); err == nil {
				ch.QueueDelete(name, false, false, false)
			}
		}
		for _, name := range exchanges {
			if ch, err := conn.Channel(); err == nil {
				ch.ExchangeDelete(name, false, false)
			}
		}
	})
}

func newDestination(t testing.TB, c Config, d topology.RabbitMQDestination) *Destination {
	t.Helper()
	if c.Logger == nil {
		c.Logger = quiet
	}
	destination, err := NewDestination(c, d)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { destination.Close() })
	return destination
}

// run runs a source until stop is called, or the test ends.
func run(t testing.TB, c Config, s topology.RabbitMQSource, r *inbox.Receiver) (source *Source, stop func()) {
	t.Helper()
	if c.Logger == nil {
		c.Logger = quiet
	}
	source, err := NewSource(c, s)
	if err != nil {
		t.Fatal(err)
	}
	return source, runSource(t, source, r)
}

// runSource runs a source until stop is called, or the test ends.
func runSource(t testing.TB, source *Source, r *inbox.Receiver) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- source.Run(ctx, r) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func TestContract(t *testing.T) {
	each(t, func(t *testing.T, stream bool) {
		transporttest.Run(t, harness(testrabbit.URL(t), stream, 0), transporttest.Features{OrderedPerKey: true, Network: true, Broker: true, MaxBytes: 1 << 20})
	})
}

func TestSourceEnds(t *testing.T) {
	each(t, func(t *testing.T, stream bool) {
		transporttest.RunEndings(t, harness(testrabbit.URL(t), stream, time.Hour))
	})
}

func each(t *testing.T, test func(t *testing.T, stream bool)) {
	t.Run("queues", func(t *testing.T) { test(t, false) })
	t.Run("streams", func(t *testing.T) { test(t, true) })
}

// harness connects destinations and sources; heartbeat is that of the source.
func harness(server string, stream bool, heartbeat time.Duration) transporttest.Harness {
	return func(t *testing.T, r *inbox.Receiver) transporttest.Link {
		to, from := ordered(t, server, 3)
		to.Stream, from.Stream = stream, stream
		proxy := transporttest.NewProxy(t, hostOf(t, server))
		back := transporttest.NewProxy(t, hostOf(t, server))
		_, stop := run(t, Config{URL: through(t, server, back), Heartbeat: heartbeat}, from, r)
		d := newDestination(t, Config{URL: through(t, server, proxy), MaxBytes: 1 << 20}, to)
		return transporttest.Link{Destination: d, Close: d.Close, Proxy: proxy, SourceProxy: back, StopSource: stop}
	}
}
