package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/topology"
)

// A Destination publishes messages to an exchange. It connects when the first
// message is sent, and again when a connection was lost. It is safe for concurrent
// use.
//
// Failures are classified. Unavailable: there is no connection or no channel, the
// exchange is not there or not allowed, or lanebox's own queue has gone; nothing
// was sent, or nothing of it is kept. Back-pressure: the broker has raised an alarm,
// or refused with a negative confirm. Permanent: the message is too large, a name in
// it is longer than AMQP takes, or the broker refuses a property of it. Transient:
// everything else after the message left, since it may have arrived, and a message
// that no queue of others takes (*UnroutableError).
type Destination struct {
	config    Config
	t         topology.RabbitMQDestination
	key       template
	connector *connector
	slots     chan struct{}
	closed    atomic.Bool
	turn      atomic.Uint64 // the shard of the next message without a key

	mu   sync.Mutex
	pool *pool // of the latest link; nil: none yet
}

// NewDestination returns a destination as the schema describes it. It returns an
// error when c or t cannot work; it does not connect.
func NewDestination(c Config, t topology.RabbitMQDestination) (*Destination, error) {
	fail := func(err error) (*Destination, error) {
		return nil, fmt.Errorf("rabbitmq destination %s: %w", t.Name, err)
	}
	if err := c.complete(); err != nil {
		return fail(err)
	}
	if err := checkTopology(t); err != nil {
		return fail(err)
	}
	key, err := parseTemplate(routingKey(t))
	if err != nil {
		return fail(err)
	}
	if _, constant := key.constant(); t.Queue != "" && t.ExchangeType == "direct" && !constant {
		return fail(errors.New("a direct exchange sends nothing to all queues: the routing key must be a constant, or the exchange of type topic"))
	}
	t.ShardQueues = slices.Clone(t.ShardQueues)
	d := &Destination{config: c, t: t, key: key, slots: make(chan struct{}, c.MaxInFlight)}
	d.connector = &connector{config: c, prepare: d.prepare}
	return d, nil
}

// routingKey returns the template of t. Through the default exchange the routing
// key is the queue's name.
func routingKey(t topology.RabbitMQDestination) string {
	if t.Exchange == "" && t.Queue != "" && t.RoutingKey == "" {
		return t.Queue
	}
	return t.RoutingKey
}

func checkTopology(t topology.RabbitMQDestination) error {
	names := append([]string{t.Exchange, t.Queue, t.DeadLetterExchange}, t.ShardQueues...)
	for _, name := range names {
		if len(name) > maxShort {
			return fmt.Errorf("the name %.40q… has %d bytes; the limit is %d", name, len(name), maxShort)
		}
	}
	switch {
	case t.Ordered && t.Exchange == "":
		return errors.New("an ordered destination needs an exchange")
	case t.Ordered && len(t.ShardQueues) == 0:
		return errors.New("an ordered destination needs at least one shard")
	case t.Ordered && slices.Contains(t.ShardQueues, ""):
		return errors.New("a shard has no name")
	case t.Ordered && len(slices.Compact(slices.Sorted(slices.Values(t.ShardQueues)))) != len(t.ShardQueues):
		return errors.New("two shards have the same name")
	}
	switch t.ExchangeType {
	case "", "topic", "direct", "fanout":
	default:
		if !t.Ordered {
			return fmt.Errorf("the exchange type is %q; write topic, direct or fanout", t.ExchangeType)
		}
	}
	return nil
}

// Address returns the broker, virtual host and exchange in a normal form, without
// user and password; a destination without shards has its routing key behind it. It
// is empty when Config has no URL.
func (d *Destination) Address() string {
	base := d.config.address()
	if base == "" {
		return ""
	}
	base += "/" + url.PathEscape(d.t.Exchange)
	if d.t.Ordered || d.t.RoutingKey == "" && d.t.Exchange != "" {
		return base
	}
	return base + "?key=" + url.QueryEscape(routingKey(d.t))
}

// Close ends the connection; later calls of Send fail with ErrClosed. What is on
// its way fails as if the connection were lost.
func (d *Destination) Close() error {
	d.closed.Store(true)
	d.connector.close()
	return nil
}

// Send publishes m and returns nil when the broker has confirmed it.
func (d *Destination) Send(ctx context.Context, m event.Message) error {
	if err := d.send(ctx, m); err != nil {
		return fmt.Errorf("publish to %s: %w", d.t.Exchange, err)
	}
	return nil
}

func (d *Destination) send(ctx context.Context, m event.Message) error {
	if d.closed.Load() {
		return event.AsUnavailable(ErrClosed)
	}
	if err := ctx.Err(); err != nil {
		return event.AsUnavailable(err)
	}
	e, size, err := d.exchange(m)
	if err != nil {
		return event.AsPermanent(err)
	}
	l, err := d.connector.get(ctx)
	if err != nil {
		return event.AsUnavailable(err)
	}
	if limit := l.conn.Config.FrameSize; limit > 0 && size > limit {
		return event.AsPermanent(fmt.Errorf("the headers have %d bytes; the broker takes %d", size, limit))
	}
	if l.blocked.Load() {
		return event.AsBackPressure(errBlocked, 0)
	}
	err = d.poolOf(l).publish(ctx, e)
	var unroutable *UnroutableError
	if errors.As(err, &unroutable) && d.owns() || code(err) == 404 {
		// What was declared has gone; it is declared again before the next message.
		l.stale.Store(true)
		err = event.AsUnavailable(err)
	}
	return err
}

// owns reports whether lanebox declares the queues that take the messages.
func (d *Destination) owns() bool { return d.t.Ordered || d.t.Queue != "" }

// exchange returns how m is published. An error is for good.
func (d *Destination) exchange(m event.Message) (*exchange, int, error) {
	if len(m.Payload) > d.config.MaxBytes {
		return nil, 0, fmt.Errorf("the payload has %d bytes; the limit is %d", len(m.Payload), d.config.MaxBytes)
	}
	key, err := d.key.render(m)
	if err != nil {
		return nil, 0, err
	}
	p, size, err := publishing(d.config.Source, m)
	if err != nil {
		return nil, 0, err
	}
	if d.t.Ordered {
		p.Headers[shardHeader] = shardName(d.shard(m.Key))
		size += 32
	}
	return &exchange{exchange: d.t.Exchange, key: key, message: p}, size, nil
}

// shard returns the shard of a key; messages without one take turns.
func (d *Destination) shard(key string) int {
	n := len(d.t.ShardQueues)
	if key == "" {
		return int(d.turn.Add(1) % uint64(n))
	}
	return Shard(key, n)
}

// poolOf returns the channels of a link.
func (d *Destination) poolOf(l *link) *pool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pool == nil || d.pool.link != l {
		d.pool = &pool{link: l, slots: d.slots}
	}
	return d.pool
}
