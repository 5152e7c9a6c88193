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
	t.Run("ordered", func(t *testing.T) { contract(t, true) })
	t.Run("unordered", func(t *testing.T) { contract(t, false) })
}

func contract(t *testing.T, ordered bool) {
	transporttest.Run(t, func(t *testing.T, r *inbox.Receiver) transporttest.Link {
		server := startServer(t)
		proxy := transporttest.NewProxy(t, server.address())
		d, err := NewDestination(Config{URL: "nats://" + proxy.Address(), MaxBytes: 1 << 20, Logger: quiet, Timeout: 3 * time.Second},
			topology.NATSDestination{Name: "link", Stream: "LINK", Subject: "link.{key}.{type}", Declare: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		sourceProxy := transporttest.NewProxy(t, server.address())
		s, err := NewSource(Config{URL: "nats://" + sourceProxy.Address(), Logger: quiet, AckWait: 2 * time.Second, Takeover: time.Second},
			topology.NATSSource{Name: "link", Stream: "LINK", Durable: "link", Ordered: ordered})
		if err != nil {
			t.Fatal(err)
		}
		stop := runSource(t, s, r)
		return transporttest.Link{Destination: d, Close: d.Close, Proxy: proxy, SourceProxy: sourceProxy, StopSource: stop, Restart: server.restart}
	}, transporttest.Features{OrderedPerKey: ordered, Network: true, Broker: true, MaxBytes: 1 << 20})
}
