package rabbitmq

import (
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/lanebox/lanebox/runtime/topology"
)

// prepare declares what a destination publishes to, on a new connection, and
// checks what exists already.
func (d *Destination) prepare(l *link) error {
	if d.t.Ordered {
		return d.prepareShards(l)
	}
	if err := d.declareExchange(l, d.t.Exchange, d.t.ExchangeType); err != nil {
		return err
	}
	if d.t.Queue == "" {
		return nil
	}
	if err := d.declareDeadLetters(l); err != nil {
		return err
	}
	if _, err := l.declare(plainQueue(d.t)); err != nil {
		return d.wrong(d.t.Queue, err)
	}
	return d.bind(l, d.t.Queue, bindingKey(d.t, d.key), nil)
}

// bindingKey returns with which key a queue gets all messages of an exchange.
func bindingKey(t topology.RabbitMQDestination, key template) string {
	if constant, ok := key.constant(); ok {
		return constant
	}
	return "#"
}

func (d *Destination) prepareShards(l *link) error {
	if err := d.declareExchange(l, d.t.Exchange, amqp.ExchangeHeaders); err != nil {
		return err
	}
	if err := d.declareDeadLetters(l); err != nil {
		return err
	}
	for i, name := range d.t.ShardQueues {
		found, err := l.declare(workQueue(name, true, d.t.Stream, d.t.DeliveryLimit, d.t.DeadLetterExchange))
		if err != nil {
			return d.wrong(name, err)
		}
		if err := d.checkShard(found); err != nil {
			return err
		}
		if at := found.text(argDeadLetter); at != d.t.DeadLetterExchange {
			d.config.Logger.Warn("a shard exists with another dead-letter exchange than the schema says",
				"destination", d.t.Name, "queue", name, "exists", at, "schema", d.t.DeadLetterExchange)
		}
		if err := d.bind(l, name, "", amqp.Table{"x-match": "all", shardHeader: shardName(i)}); err != nil {
			return err
		}
	}
	return nil
}

// shardName is how messages and bindings name a shard.
func shardName(i int) string { return fmt.Sprintf("%02d", i) }

// checkShard refuses a queue that exists and would lose or reorder messages.
func (d *Destination) checkShard(q queue) error {
	const advice = "; remove the queue once it is empty, so that it is declared anew, or give it another name"
	if err := q.cannotOrder(); err != nil {
		return misconfigured(d.t.Name, q.name, "%v%s", err, advice)
	}
	switch {
	case !q.durable || q.autoDelete:
		return misconfigured(d.t.Name, q.name, "the queue is not durable, or is deleted with its last consumer%s", advice)
	case (q.text(argType) == "stream") != d.t.Stream:
		return misconfigured(d.t.Name, q.name, "the schema wants stream: %t, and the queue is of type %q%s", d.t.Stream, q.text(argType), advice)
	}
	return nil
}

func (d *Destination) declareExchange(l *link, name, kind string) error {
	if name == "" {
		return nil // the default exchange is always there
	}
	err := l.onChannel(func(ch *amqp.Channel) error {
		if kind == "" {
			return ch.ExchangeDeclarePassive(name, amqp.ExchangeTopic, true, false, false, false, nil)
		}
		return ch.ExchangeDeclare(name, kind, true, false, false, false, nil)
	})
	return d.wrong(name, err)
}

// declareDeadLetters sees to it that the dead-letter exchange has a queue: what
// goes to an exchange without one is lost. Both are only declared when there is
// no such exchange; otherwise they are somebody else's.
func (d *Destination) declareDeadLetters(l *link) error {
	name := d.t.DeadLetterExchange
	if name == "" {
		return nil
	}
	err := l.onChannel(func(ch *amqp.Channel) error {
		return ch.ExchangeDeclarePassive(name, amqp.ExchangeFanout, true, false, false, false, nil)
	})
	if code(err) != amqp.NotFound {
		return d.wrong(name, err)
	}
	err = l.onChannel(func(ch *amqp.Channel) error {
		if _, err := ch.QueueDeclare(name+".q", true, false, false, false, amqp.Table{argType: "quorum"}); err != nil {
			return err
		}
		if err := ch.ExchangeDeclare(name, amqp.ExchangeFanout, true, false, false, false, nil); err != nil {
			return err
		}
		return ch.QueueBind(name+".q", "", name, false, nil)
	})
	return d.wrong(name, err)
}

func (d *Destination) bind(l *link, queue, key string, args amqp.Table) error {
	if d.t.Exchange == "" {
		return nil
	}
	err := l.onChannel(func(ch *amqp.Channel) error {
		return ch.QueueBind(queue, key, d.t.Exchange, false, args)
	})
	return d.wrong(queue, err)
}

// wrong explains an error of a declaration. One that an operator has to put right
// is a *TopologyError.
func (d *Destination) wrong(object string, err error) error {
	switch {
	case err == nil:
		return nil
	case code(err) == amqp.PreconditionFailed, errors.Is(err, errUnknowable):
		return misconfigured(d.t.Name, object, "it exists with other properties than the schema wants: %v", err)
	case code(err) == amqp.NotFound:
		return misconfigured(d.t.Name, object, "it does not exist, and the schema does not have lanebox declare it: %v", err)
	case code(err) == amqp.AccessRefused:
		return misconfigured(d.t.Name, object, "the user may not declare or read it: %v", err)
	}
	return fmt.Errorf("declare %s: %w", object, err)
}
