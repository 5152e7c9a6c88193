package natsjs

import (
	"context"
	"testing"
	"time"

	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/topology"
	"github.com/lanebox/lanebox/runtime/transporttest"
)

// runSource runs a source until the test ends or the returned function is called.
func runSource(t testing.TB, s *Source, r *inbox.Receiver) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Run(ctx, r); err != nil {
			t.Errorf("Run: %v", err)
		}
	}()
	stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	return stop
}

func TestContract(t *testing.T) {
	each(t, func(t *testing.T, ordered bool) {
		transporttest.Run(t, harness(ordered, Config{AckWait: 2 * time.Second, Takeover: time.Second}),
			transporttest.Features{OrderedPerKey: ordered, Network: true, Broker: true, MaxBytes: 1 << 20})
	})
}

func TestSourceEnds(t *testing.T) {
	each(t, func(t *testing.T, ordered bool) {
		transporttest.RunEndings(t, harness(ordered, Config{Timeout: time.Hour}))
	})
}

func each(t *testing.T, test func(t *testing.T, ordered bool)) {
	t.Run("ordered", func(t *testing.T) { test(t, true) })
	t.Run("unordered", func(t *testing.T) { test(t, false) })
}

// harness connects destinations and sources; c is the configuration of the source.
func harness(ordered bool, c Config) transporttest.Harness {
	return func(t *testing.T, r *inbox.Receiver) transporttest.Link {
		server := startServer(t)
		proxy := transporttest.NewProxy(t, server.address())
		d, err := NewDestination(Config{URL: "nats://" + proxy.Address(), MaxBytes: 1 << 20, Logger: quiet, Timeout: 3 * time.Second},
			topology.NATSDestination{Name: "link", Stream: "LINK", Subject: "link.{key}.{type}", Declare: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		sourceProxy := transporttest.NewProxy(t, server.address())
		c := c
		c.URL, c.Logger = "nats://"+sourceProxy.Address(), quiet
		s, err := NewSource(c, topology.NATSSource{Name: "link", Stream: "LINK", Durable: "link", Ordered: ordered})
		if err != nil {
			t.Fatal(err)
		}
		stop := runSource(t, s, r)
		return transporttest.Link{Destination: d, Close: d.Close, Proxy: proxy, SourceProxy: sourceProxy, StopSource: stop, Restart: server.restart}
	}
}
