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
	const maxBytes = 900_000
	addresses := realCluster()
	transporttest.Run(t, func(t *testing.T, r *inbox.Receiver) transporttest.Link {
		brokers, link := addresses, transporttest.Link{}
		if brokers == nil {
			b := startBroker(t)
			brokers = []string{b.address}
			link.Restart = func() { b.restart(t) }
			link.Proxy, link.SourceProxy = transporttest.NewProxy(t, b.address), transporttest.NewProxy(t, b.address)
		}
		topic := newTopic(t, brokers, 3, nil)
		c := Config{Brokers: brokers, Logger: quiet, Timeout: 2 * time.Second, MaxBytes: maxBytes}
		if link.SourceProxy != nil {
			c.Options = []kgo.Opt{through(link.SourceProxy)}
		}
		_, stop := runSource(t, c, topology.KafkaSource{Name: "link", Topics: []string{topic}, Group: event.NewUUID().String(), Start: "first"}, r)
		if link.Proxy != nil {
			link.StopSource = stop
			c.Options = []kgo.Opt{through(link.Proxy)}
		}
		d := newDestination(t, c, topic)
		link.Destination, link.Close = d, d.Close
		return link
	}, transporttest.Features{OrderedPerKey: true, Network: addresses == nil, Broker: addresses == nil, Runs: true, MaxBytes: maxBytes})
}
