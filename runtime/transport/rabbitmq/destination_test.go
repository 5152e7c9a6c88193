package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/topology"
	"github.com/lanebox/lanebox/runtime/transporttest"
	"github.com/lanebox/lanebox/runtime/transporttest/testrabbit"
)

const patience = 60 * time.Second

// newMessage returns the n-th message of a key.
func newMessage(key string, n int64) event.Message {
	return event.Message{
		ID: event.NewUUID(), Sequence: n, Topic: "thing.happened.v1", Key: key,
		Payload: fmt.Appendf(nil, `{"key":%q,"n":%d}`, key, n), CreatedAt: time.Now(), Attempt: 1,
	}
}

func class(err error) event.Class {
	c, _ := event.Classify(err)
	return c
}

// send sends m once, within a bounded time.
func send(t testing.TB, d *Destination, m event.Message) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := d.Send(ctx, m)
	if errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Send did not end within %v: %v", patience, err)
	}
	return err
}

// mustSend sends m as often as needed.
func mustSend(t testing.TB, d *Destination, m event.Message) {
	t.Helper()
	transporttest.Eventually(t, "a message is sent", func() bool { return send(t, d, m) == nil })
}

// raw is a connection of the test itself.
func raw(t testing.TB, server string) *amqp.Connection {
	t.Helper()
	conn, err := amqp.Dial(server)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// on runs f on a channel of its own and fails the test with its error.
func on(t testing.TB, conn *amqp.Connection, f func(*amqp.Channel) error) {
	t.Helper()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	defer ch.Close()
	if err := f(ch); err != nil {
		t.Fatal(err)
	}
}

// length returns how many messages a queue holds.
func length(t testing.TB, conn *amqp.Connection, queue string) (n int) {
	t.Helper()
	on(t, conn, func(ch *amqp.Channel) error {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		n = q.Messages
		return err
	})
	return n
}

// TestUnroutableIsNeverLost: a message that no queue takes is confirmed by the
// broker; Send must not take that for success.
func TestUnroutableIsNeverLost(t *testing.T) {
	server := testrabbit.URL(t)
	conn := raw(t, server)
	name := testrabbit.Name("events")
	removed(t, server, []string{name + ".x"}, []string{name + ".q"})
	d := newDestination(t, Config{URL: server}, topology.RabbitMQDestination{Name: "events", Exchange: name + ".x", ExchangeType: "topic"})
	for range 3 {
		err := send(t, d, newMessage("k", 1))
		var unroutable *UnroutableError
		if !errors.As(err, &unroutable) || unroutable.Code != amqp.NoRoute || class(err) != event.Transient {
			t.Fatalf("Send = %v (%v), want an unroutable message", err, class(err))
		}
	}
	on(t, conn, func(ch *amqp.Channel) error {
		if _, err := ch.QueueDeclare(name+".q", true, false, false, false, amqp.Table{argType: "quorum"}); err != nil {
			return err
		}
		return ch.QueueBind(name+".q", "thing.#", name+".x", false, nil)
	})
	if err := send(t, d, newMessage("k", 1)); err != nil {
		t.Errorf("Send with a queue: %v", err)
	}
	if n := length(t, conn, name+".q"); n != 1 {
		t.Errorf("%d messages are in the queue", n)
	}
}

// TestReturnsAreMatched sends routable and unroutable messages side by side.
func TestReturnsAreMatched(t *testing.T) {
	server := testrabbit.URL(t)
	conn := raw(t, server)
	name := testrabbit.Name("events")
	removed(t, server, []string{name + ".x"}, []string{name + ".q"})
	d := newDestination(t, Config{URL: server, MaxInFlight: 4},
		topology.RabbitMQDestination{Name: "events", Exchange: name + ".x", ExchangeType: "topic", RoutingKey: "{header:to}"})
	first := newMessage("k", 1)
	first.Headers = event.Headers{"to": "no"}
	if err := send(t, d, first); class(err) != event.Transient { // declares the exchange
		t.Fatal(err)
	}
	on(t, conn, func(ch *amqp.Channel) error {
		if _, err := ch.QueueDeclare(name+".q", true, false, false, false, amqp.Table{argType: "quorum"}); err != nil {
			return err
		}
		return ch.QueueBind(name+".q", "yes", name+".x", false, nil)
	})
	var all sync.WaitGroup
	const count = 200
	for i := range count {
		all.Go(func() {
			m := newMessage("", int64(i))
			m.Headers = event.Headers{"to": []string{"yes", "no"}[i%2]}
			err := send(t, d, m)
			var unroutable *UnroutableError
			if errors.As(err, &unroutable) != (i%2 == 1) || err != nil && i%2 == 0 {
				t.Errorf("message %d: %v", i, err)
			}
		})
	}
	all.Wait()
	if n := length(t, conn, name+".q"); n != count/2 {
		t.Errorf("%d messages are in the queue, want %d", n, count/2)
	}
}

// TestDeletedShardIsDeclaredAgain: no attempt is spent on a message whose shard
// has gone, and the shard comes back.
func TestDeletedShardIsDeclaredAgain(t *testing.T) {
	server := testrabbit.URL(t)
	conn := raw(t, server)
	to, _ := ordered(t, server, 1)
	d := newDestination(t, Config{URL: server}, to)
	for name, remove := range map[string]func(*amqp.Channel) error{
		"queue": func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(to.ShardQueues[0], false, false, false)
			return err
		},
		"exchange": func(ch *amqp.Channel) error { return ch.ExchangeDelete(to.Exchange, false, false) },
		"binding": func(ch *amqp.Channel) error {
			return ch.QueueUnbind(to.ShardQueues[0], "", to.Exchange, amqp.Table{"x-match": "all", shardHeader: shardName(0)})
		},
	} {
		mustSend(t, d, newMessage("k", 1))
		before := length(t, conn, to.ShardQueues[0])
		on(t, conn, remove)
		if err := send(t, d, newMessage("k", 2)); class(err) != event.Unavailable {
			t.Errorf("%s: Send = %v (%v), want unavailable", name, err, class(err))
		}
		mustSend(t, d, newMessage("k", 2))
		if name == "queue" {
			before = 0
		}
		if n := length(t, conn, to.ShardQueues[0]); n != before+1 {
			t.Errorf("%s: %d messages are in the shard, want %d", name, n, before+1)
		}
	}
	if d.connector.made != 1 {
		t.Errorf("%d connections were made; one is enough", d.connector.made)
	}
}

// TestFullQueueIsBackPressure: a negative confirm spends no attempt.
func TestFullQueueIsBackPressure(t *testing.T) {
	server := testrabbit.URL(t)
	conn := raw(t, server)
	name := testrabbit.Name("full")
	removed(t, server, nil, []string{name})
	on(t, conn, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(name, true, false, false, false, amqp.Table{"x-max-length": 1, argOverflow: "reject-publish"})
		return err
	})
	d := newDestination(t, Config{URL: server}, topology.RabbitMQDestination{Name: "full", RoutingKey: name})
	mustSend(t, d, newMessage("k", 1))
	if err := send(t, d, newMessage("k", 2)); class(err) != event.BackPressure {
		t.Errorf("Send to a full queue = %v (%v), want back-pressure", err, class(err))
	}
	on(t, conn, func(ch *amqp.Channel) error { _, err := ch.QueuePurge(name, false); return err })
	mustSend(t, d, newMessage("k", 2))
}

// TestWhatAMessageCannotBe: such messages are dead at once, and end no connection
// for others.
func TestWhatAMessageCannotBe(t *testing.T) {
	server := testrabbit.URL(t)
	to, _ := ordered(t, server, 2)
	to.RoutingKey = "{header:tenant}.{key}"
	d := newDestination(t, Config{URL: server, MaxBytes: 1000}, to)
	with := func(change func(*event.Message)) event.Message {
		m := newMessage("k", 1)
		m.Headers = event.Headers{"tenant": "acme"}
		change(&m)
		return m
	}
	for name, m := range map[string]event.Message{
		"large":              with(func(m *event.Message) { m.Payload = make([]byte, 1001) }),
		"long routing key":   with(func(m *event.Message) { m.Key = strings.Repeat("k", 254) }),
		"no routing header":  with(func(m *event.Message) { m.Headers = nil }),
		"long header name":   with(func(m *event.Message) { m.Headers[strings.Repeat("N", 250)] = "" }),
		"long content type":  with(func(m *event.Message) { m.Headers[event.HeaderContentType] = "text/" + strings.Repeat("x", 300) }),
		"wrong content type": with(func(m *event.Message) { m.Headers[event.HeaderContentType] = "no type" }),
		"large headers":      with(func(m *event.Message) { m.Headers["x"] = strings.Repeat("x", 131_000) }),
	} {
		if err := send(t, d, m); class(err) != event.Permanent {
			t.Errorf("%s: Send = %v (%v), want permanent", name, err, class(err))
		}
	}
	for _, m := range []event.Message{
		with(func(m *event.Message) { m.Key = strings.Repeat("k", 250) }),
		with(func(m *event.Message) { m.Headers["x"] = strings.Repeat("x", 130_000) }),
		with(func(m *event.Message) { m.Topic = strings.Repeat("t", 255) }),
		with(func(m *event.Message) { m.Headers[event.HeaderCorrelationID] = strings.Repeat("c", 1000) }),
	} {
		mustSend(t, d, m)
	}
	if d.connector.made != 1 {
		t.Errorf("%d connections were made", d.connector.made)
	}
}

// TestBrokenTopologyIsSaid: a shard or exchange that exists and cannot keep the
// order is an error that names it, and no message is sent.
func TestBrokenTopologyIsSaid(t *testing.T) {
	server := testrabbit.URL(t)
	conn := raw(t, server)
	for name, c := range map[string]struct {
		args amqp.Table // of the existing queue; nil: the exchange is wrong
		says string
	}{
		"several consumers": {amqp.Table{argType: "quorum"}, "x-single-active-consumer"},
		"classic":           {amqp.Table{argType: "classic"}, "x-single-active-consumer"},
		"priorities":        {amqp.Table{argSingleActive: true, argPriority: 5}, "x-max-priority"},
		"a TTL retry queue": {amqp.Table{argSingleActive: true, argTTL: 1000, argDeadLetter: "elsewhere", argType: "quorum"}, "x-message-ttl"},
		"a stream":          {amqp.Table{argType: "stream"}, "stream"},
		"exchange":          {nil, "other properties"},
	} {
		to, _ := ordered(t, server, 1)
		on(t, conn, func(ch *amqp.Channel) error {
			if c.args == nil {
				return ch.ExchangeDeclare(to.Exchange, "direct", true, false, false, false, nil)
			}
			_, err := ch.QueueDeclare(to.ShardQueues[0], true, false, false, false, c.args)
			return err
		})
		err := send(t, newDestination(t, Config{URL: server}, to), newMessage("k", 1))
		var wrong *event.ConfigurationError
		if !errors.As(err, &wrong) || class(err) != event.Unavailable || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: Send = %v (%v)", name, err, class(err))
		}
		if c.args != nil && length(t, conn, to.ShardQueues[0]) != 0 {
			t.Errorf("%s: a message was sent", name)
		}
	}
}

// TestExistingShardMayDiffer: what does not touch the order is the operator's.
func TestExistingShardMayDiffer(t *testing.T) {
	server := testrabbit.URL(t)
	conn := raw(t, server)
	for name, args := range map[string]amqp.Table{
		"bounded":      {argType: "quorum", argSingleActive: true, "x-max-length": 1000, argOverflow: "reject-publish", argLimit: 5},
		"classic":      {argSingleActive: true, "x-max-length-bytes": 1 << 20},
		"dead letters": {argType: "quorum", argSingleActive: true, argDeadLetter: "other", "x-dead-letter-routing-key": "it's 'quoted'"},
		"placed":       {argType: "quorum", argSingleActive: true, "x-quorum-initial-group-size": 1, "x-queue-leader-locator": "balanced"},
	} {
		to, _ := ordered(t, server, 1)
		on(t, conn, func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare(to.ShardQueues[0], true, false, false, false, args)
			return err
		})
		if err := send(t, newDestination(t, Config{URL: server}, to), newMessage("k", 1)); err != nil {
			t.Errorf("%s: Send = %v", name, err)
		}
	}
}

// TestDeadLettersAreKept: what a queue gives up after its delivery limit is in
// the queue of the dead-letter exchange.
func TestDeadLettersAreKept(t *testing.T) {
	server := testrabbit.URL(t)
	conn := raw(t, server)
	to, _ := ordered(t, server, 1)
	to.DeliveryLimit, to.DeadLetterExchange = 2, testrabbit.Name("dead")
	removed(t, server, []string{to.DeadLetterExchange}, []string{to.DeadLetterExchange + ".q"})
	d := newDestination(t, Config{URL: server}, to)
	mustSend(t, d, newMessage("k", 1))
	on(t, conn, func(ch *amqp.Channel) error {
		deliveries, err := ch.Consume(to.ShardQueues[0], "", false, false, false, false, nil)
		for range to.DeliveryLimit + 1 {
			if err == nil {
				err = (<-deliveries).Nack(false, true)
			}
		}
		return err
	})
	transporttest.Eventually(t, "the message is a dead letter", func() bool { return length(t, conn, to.DeadLetterExchange+".q") == 1 })
}

// TestPlainQueue: the one queue of an unordered destination is declared as the schema
// says, bound to everything, and needs no exchange.
func TestPlainQueue(t *testing.T) {
	server := testrabbit.URL(t)
	conn := raw(t, server)
	for name, c := range map[string]struct {
		kind string // of the exchange; "": the default one
		set  func(*topology.RabbitMQDestination)
		args amqp.Table
	}{
		"default exchange": {"", nil, amqp.Table{argType: "quorum"}},
		"topic":            {"topic", nil, amqp.Table{argType: "quorum"}},
		"fanout":           {"fanout", nil, amqp.Table{argType: "quorum"}},
		"direct":           {"direct", func(t *topology.RabbitMQDestination) { t.RoutingKey = "all" }, amqp.Table{argType: "quorum"}},
		"priorities":       {"topic", func(t *topology.RabbitMQDestination) { t.MaxPriority = 5 }, amqp.Table{argPriority: 5}},
		"TTL":              {"topic", func(t *topology.RabbitMQDestination) { t.MessageTTL = time.Hour }, amqp.Table{argType: "quorum", argTTL: 3_600_000}},
		"stream":           {"topic", func(t *topology.RabbitMQDestination) { t.Stream = true }, amqp.Table{argType: "stream"}},
	} {
		base := testrabbit.Name("plain")
		to := topology.RabbitMQDestination{Name: "plain", Queue: base + ".q", ExchangeType: c.kind}
		if c.kind != "" {
			to.Exchange = base + ".x"
		}
		if c.set != nil {
			c.set(&to)
		}
		removed(t, server, []string{to.Exchange}, []string{to.Queue})
		d := newDestination(t, Config{URL: server}, to)
		if err := send(t, d, newMessage("k", 1)); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		on(t, conn, func(ch *amqp.Channel) error {
			same := queue{args: c.args}.unlimited(conn.Properties["version"])
			_, err := ch.QueueDeclare(to.Queue, true, false, false, false, same.args)
			return err
		})
		transporttest.Eventually(t, name+": the message is in the queue", func() bool { return length(t, conn, to.Queue) == 1 })
	}
}

// TestMissingExchangeIsWaitedFor: what others declare may come later.
func TestMissingExchangeIsWaitedFor(t *testing.T) {
	server := testrabbit.URL(t)
	conn := raw(t, server)
	name := testrabbit.Name("later")
	removed(t, server, []string{name}, []string{name})
	d := newDestination(t, Config{URL: server}, topology.RabbitMQDestination{Name: "later", Exchange: name})
	if err := send(t, d, newMessage("k", 1)); class(err) != event.Unavailable || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("Send = %v (%v)", err, class(err))
	}
	on(t, conn, func(ch *amqp.Channel) error {
		if _, err := ch.QueueDeclare(name, true, false, false, false, nil); err != nil {
			return err
		}
		if err := ch.ExchangeDeclare(name, "fanout", true, false, false, false, nil); err != nil {
			return err
		}
		return ch.QueueBind(name, "", name, false, nil)
	})
	mustSend(t, d, newMessage("k", 1))
	if n := length(t, conn, name); n != 1 {
		t.Errorf("%d messages are in the queue", n)
	}
}

// TestCutsBetweenPublishAndConfirm cuts the connection 100 times where a client
// could wait for ever. Every Send ends, and what it took for sent is there.
func TestCutsBetweenPublishAndConfirm(t *testing.T) {
	server := testrabbit.URL(t)
	to, from := ordered(t, server, 1)
	proxy := transporttest.NewProxy(t, hostOf(t, server))
	ledger := &transporttest.Ledger{}
	run(t, Config{URL: server}, from, transporttest.NewReceiver(ledger, 0))
	d := newDestination(t, Config{URL: through(t, server, proxy)}, to)
	for n := range 100 {
		warm, cut := newMessage("k", int64(2*n)), newMessage("k", int64(2*n+1))
		mustSend(t, d, warm)
		proxy.Set(t, transporttest.CutAnswers)
		if err := send(t, d, cut); class(err) != event.Transient {
			t.Fatalf("round %d: Send = %v (%v), want transient", n, err, class(err))
		}
		proxy.Set(t, transporttest.Pass)
		mustSend(t, d, cut)
	}
	transporttest.Eventually(t, "all are stored", func() bool { return ledger.Count() == 200 })
	checkOrder(t, ledger, map[string]int64{"k": 200})
}

// checkOrder checks that a ledger has each key's messages from 0 on, once and in
// order.
func checkOrder(t testing.TB, l *transporttest.Ledger, sent map[string]int64) {
	t.Helper()
	next := map[string]int64{}
	for _, m := range l.Stored() {
		if want := newMessage(m.AggregateID, next[m.AggregateID]); string(m.Payload) != string(want.Payload) {
			t.Fatalf("key %s: got %s, want %s", m.AggregateID, m.Payload, want.Payload)
		}
		next[m.AggregateID]++
	}
	for key, n := range sent {
		if next[key] != n {
			t.Errorf("key %s: %d messages are stored, %d were sent", key, next[key], n)
		}
	}
}

func TestConfigurationsThatCannotWork(t *testing.T) {
	good := topology.RabbitMQDestination{Name: "d", Exchange: "x", Ordered: true, ShardQueues: []string{"a", "b"}}
	for name, c := range map[string]struct {
		config Config
		change func(*topology.RabbitMQDestination)
	}{
		"no URL":           {Config{}, nil},
		"other scheme":     {Config{URL: "http://host"}, nil},
		"no host":          {Config{URL: "amqp://"}, nil},
		"wrong further":    {Config{URL: "amqp://host", More: []string{"host"}}, nil},
		"negative":         {Config{URL: "amqp://host", MaxInFlight: -1}, nil},
		"short heartbeat":  {Config{URL: "amqp://host", Heartbeat: time.Millisecond}, nil},
		"no shards":        {Config{URL: "amqp://host"}, func(t *topology.RabbitMQDestination) { t.ShardQueues = nil }},
		"the same shard":   {Config{URL: "amqp://host"}, func(t *topology.RabbitMQDestination) { t.ShardQueues = []string{"a", "a"} }},
		"unnamed shard":    {Config{URL: "amqp://host"}, func(t *topology.RabbitMQDestination) { t.ShardQueues = []string{""} }},
		"no exchange":      {Config{URL: "amqp://host"}, func(t *topology.RabbitMQDestination) { t.Exchange = "" }},
		"long name":        {Config{URL: "amqp://host"}, func(t *topology.RabbitMQDestination) { t.Exchange = strings.Repeat("x", 256) }},
		"routing key":      {Config{URL: "amqp://host"}, func(t *topology.RabbitMQDestination) { t.RoutingKey = "{nothing}" }},
		"unknown exchange": {Config{URL: "amqp://host"}, func(t *topology.RabbitMQDestination) { t.Ordered, t.ExchangeType = false, "x-random" }},
		"direct to all": {Config{URL: "amqp://host"}, func(t *topology.RabbitMQDestination) {
			t.Ordered, t.ExchangeType, t.Queue = false, "direct", "q"
		}},
	} {
		changed := good
		if c.change != nil {
			c.change(&changed)
		}
		if _, err := NewDestination(c.config, changed); err == nil {
			t.Errorf("%s: was accepted", name)
		}
	}
	secret := "s3cret-with-%zz"
	if _, err := NewDestination(Config{URL: "amqp://user:" + secret + "@host"}, good); err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("the error is %v", err)
	}
}

func TestAddress(t *testing.T) {
	address := func(url string, change func(*topology.RabbitMQDestination)) string {
		to := topology.RabbitMQDestination{Name: "d", Exchange: "x"}
		if change != nil {
			change(&to)
		}
		d, err := NewDestination(Config{URL: url}, to)
		if err != nil {
			t.Fatal(err)
		}
		return d.Address()
	}
	base := address("amqp://user:password@HOST/", nil)
	if base != "amqp://host:5672/%2F/x" {
		t.Errorf("address %q", base)
	}
	if same := address("amqp://other:secret@host:5672/%2f?heartbeat=3", nil); same != base {
		t.Errorf("%q and %q are one broker", same, base)
	}
	for _, other := range []string{
		address("amqp://host/v", nil), address("amqp://host:1/", nil),
		address("amqp://host/", func(t *topology.RabbitMQDestination) { t.Exchange = "y" }),
		address("amqp://host/", func(t *topology.RabbitMQDestination) { t.Exchange, t.RoutingKey = "", "q" }),
		address("amqp://host/", func(t *topology.RabbitMQDestination) { t.Exchange, t.RoutingKey = "", "r" }),
	} {
		if other == base || strings.Contains(other, "password") {
			t.Errorf("%q is taken for %q", other, base)
		}
	}
}
