package kafka

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/topology"
	"github.com/lanebox/lanebox/runtime/transporttest"
)

func TestContract(t *testing.T) {
	simulated := realCluster() == nil
	transporttest.Run(t, harness(2*time.Second), transporttest.Features{
		OrderedPerKey: true, Network: simulated, Broker: simulated, Runs: true, MaxBytes: maxBytes,
	})
}

func TestSourceEnds(t *testing.T) {
	if realCluster() != nil {
		t.Log("through proxies, which a cluster cannot be reached by: not tested here")
		return
	}
	transporttest.RunEndings(t, harness(time.Hour))
}

const maxBytes = 900_000

// harness connects destinations and sources. timeout is that of the source.
func harness(timeout time.Duration) transporttest.Harness {
	addresses := realCluster()
	return func(t *testing.T, r *inbox.Receiver) transporttest.Link {
		brokers, link := addresses, transporttest.Link{}
		if brokers == nil {
			b := startBroker(t)
			brokers = []string{b.address}
			link.Restart = func() { b.restart(t) }
			link.Proxy, link.SourceProxy = transporttest.NewProxy(t, b.address), transporttest.NewProxy(t, b.address)
		}
		topic := newTopic(t, brokers, 3, nil)
		c := Config{Brokers: brokers, Logger: quiet, Timeout: timeout, MaxBytes: maxBytes}
		if link.SourceProxy != nil {
			c.Options = []kgo.Opt{through(link.SourceProxy)}
		}
		_, link.StopSource = runSource(t, c, topology.KafkaSource{Name: "link", Topics: []string{topic}, Group: event.NewUUID().String(), Start: "first"}, r)
		if link.Proxy != nil {
			c.Options = []kgo.Opt{through(link.Proxy)}
		}
		c.Timeout = 2 * time.Second
		d := newDestination(t, c, topic)
		link.Destination, link.Close = d, d.Close
		return link
	}
}
