package rabbitmq

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/topology"
	"github.com/lanebox/lanebox/runtime/transporttest"
	"github.com/lanebox/lanebox/runtime/transporttest/testrabbit"
)

// TestStreamGoesOn: a stream is read from the recorded position on, whichever
// process reads, and one at a time reads.
func TestStreamGoesOn(t *testing.T) {
	server := testrabbit.URL(t)
	to, from := ordered(t, server, 1)
	to.Stream, from.Stream = true, true
	d := newDestination(t, Config{URL: server}, to)
	ledger := &transporttest.Ledger{}
	next := map[string]int64{}
	for round := range 4 {
		a, stopA := run(t, Config{URL: server}, from, transporttest.NewReceiver(ledger, 0))
		b, stopB := run(t, Config{URL: server}, from, transporttest.NewReceiver(ledger, 0))
		for range 20 {
			mustSend(t, d, newMessage("k", next["k"]))
			next["k"]++
		}
		transporttest.Eventually(t, "all are stored", func() bool { return int64(ledger.Count()) == next["k"] })
		stopA()
		stopB()
		if n := a.Stats().Duplicates + b.Stats().Duplicates; n != 0 {
			t.Errorf("round %d: %d messages were read again", round, n)
		}
		if a.Stats().Stored > 0 && b.Stats().Stored > 0 {
			t.Errorf("round %d: both have read", round)
		}
	}
	checkOrder(t, ledger, next)
}

// TestStreamHandsOver: when the one that reads a stream ends, another takes over.
func TestStreamHandsOver(t *testing.T) {
	server := testrabbit.URL(t)
	to, from := ordered(t, server, 1)
	to.Stream, from.Stream = true, true
	d := newDestination(t, Config{URL: server}, to)
	ledger := &transporttest.Ledger{}
	var stops []func()
	for range 3 {
		_, stop := run(t, Config{URL: server}, from, transporttest.NewReceiver(ledger, 0))
		stops = append(stops, stop)
	}
	for n, stop := range stops {
		mustSend(t, d, newMessage("k", int64(n)))
		transporttest.Eventually(t, "the message is stored", func() bool { return ledger.Count() == n+1 })
		stop()
	}
	checkOrder(t, ledger, map[string]int64{"k": 3})
}

// TestStreamStart: a new source begins where the schema says.
func TestStreamStart(t *testing.T) {
	server := testrabbit.URL(t)
	conn := raw(t, server)
	queue := declared(t, conn, server, amqp.Table{argType: "stream"})
	message := func(n int) amqp.Publishing {
		return amqp.Publishing{Headers: amqp.Table{"x-event-type": "e.v1"}, Body: []byte(strconv.Itoa(n))}
	}
	publishRaw(t, conn, queue, message(0), message(1))
	for offset, min := range map[string]int{"first": 2, "last": 1, "2020-01-02T03:04:05Z": 2, "": 2} {
		ledger := &transporttest.Ledger{}
		_, stop := run(t, Config{URL: server}, topology.RabbitMQSource{Name: "in-" + offset, Queues: []string{queue}, Ordered: true, Stream: true, Offset: offset},
			transporttest.NewReceiver(ledger, 0))
		transporttest.Eventually(t, offset+": the last message is stored", func() bool {
			stored := ledger.Stored()
			return len(stored) >= min && string(stored[len(stored)-1].Payload) == "1"
		})
		if keys := ledger.Stored(); offset == "first" && keys[0].IdempotencyKey != queue+"/0" {
			t.Errorf("the idempotency key is %q", keys[0].IdempotencyKey)
		}
		stop()
	}
}

// numbered are messages without an id, whose bodies are numbers.
func numbered(from, n int) (list []amqp.Publishing) {
	for i := range n {
		list = append(list, amqp.Publishing{Headers: amqp.Table{"x-event-type": "e.v1"}, Body: []byte(strconv.Itoa(from + i))})
	}
	return list
}

// checkNumbers fails unless the bodies in the ledger are the first n numbers.
func checkNumbers(t *testing.T, ledger *transporttest.Ledger, n int) {
	t.Helper()
	transporttest.Eventually(t, fmt.Sprintf("%d messages are stored", n), func() bool { return ledger.Count() >= n })
	for i, m := range ledger.Stored() {
		if string(m.Payload) != strconv.Itoa(i) {
			t.Fatalf("message %d is %s", i, m.Payload)
		}
	}
	if dead := ledger.Dead(); len(dead) > 0 {
		t.Errorf("%d messages are dead: %+v", len(dead), dead[0])
	}
}

// TestStreamsThatAreMadeAgain: a stream that was deleted and made again under its
// old name is read from its beginning, whether its source saw it go or not.
func TestStreamsThatAreMadeAgain(t *testing.T) {
	server := testrabbit.URL(t)
	conn := raw(t, server)
	name := declared(t, conn, server, amqp.Table{argType: "stream"})
	ledger := &transporttest.Ledger{}
	receiver := transporttest.NewReceiver(ledger, 0)
	start := func() (source *Source, stop func()) {
		source, err := NewSource(Config{URL: server}, topology.RabbitMQSource{Name: "in", Queues: []string{name}, Ordered: true, Stream: true})
		if err != nil {
			t.Fatal(err)
		}
		source.idle = 50 * time.Millisecond
		return source, runSource(t, source, receiver)
	}
	remove := func() {
		on(t, conn, func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(name, false, false, false)
			return err
		})
	}
	create := func() {
		on(t, conn, func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare(name, true, false, false, false, amqp.Table{argType: "stream"})
			return err
		})
	}
	publishRaw(t, conn, name, numbered(0, 10)...)
	_, stop := start()
	checkNumbers(t, ledger, 10)

	// It sees the stream go: the next one may become as long as it likes.
	remove()
	transporttest.Eventually(t, "the second life is recorded", func() bool {
		_, ok, err := receiver.Position(context.Background(), name+"#2")
		return ok && err == nil
	})
	create()
	publishRaw(t, conn, name, numbered(10, 20)...)
	checkNumbers(t, ledger, 30)

	// It does not see it go, and the next one is shorter, or empty at first.
	for life, from := 3, 30; life < 5; life++ {
		stop()
		remove()
		create()
		if life == 3 {
			publishRaw(t, conn, name, numbered(from, 3)...)
			from += 3
		}
		_, stop = start()
		transporttest.Eventually(t, fmt.Sprintf("life %d is recorded", life), func() bool {
			_, ok, err := receiver.Position(context.Background(), fmt.Sprint(name, "#", life))
			return ok && err == nil
		})
		publishRaw(t, conn, name, numbered(from, 2)...)
		from += 2
		checkNumbers(t, ledger, from)
	}
	stop()

	// Nothing is read again of a stream that is whole.
	source, stop := start()
	publishRaw(t, conn, name, numbered(37, 1)...)
	checkNumbers(t, ledger, 38)
	stop()
	if s := source.Stats(); s.Stored != 1 || s.Duplicates != 0 {
		t.Errorf("stats %+v", s)
	}
	if _, ok, _ := receiver.Position(context.Background(), name+"#5"); ok {
		t.Error("a whole stream got another life")
	}
}

// TestQuietStreamIsWhole: a stream that brings nothing new is not taken for
// another one, although it is looked at again and again.
func TestQuietStreamIsWhole(t *testing.T) {
	server := testrabbit.URL(t)
	conn := raw(t, server)
	name := declared(t, conn, server, amqp.Table{argType: "stream"})
	publishRaw(t, conn, name, numbered(0, 300)...)
	ledger := &transporttest.Ledger{}
	receiver := transporttest.NewReceiver(ledger, 0)
	source, stop := run(t, Config{URL: server}, topology.RabbitMQSource{Name: "in", Queues: []string{name}, Ordered: true, Stream: true, Prefetch: 7}, receiver)
	checkNumbers(t, ledger, 300)
	stop()
	q := &consumer{source: source, connector: &connector{config: source.config, prepare: func(*link) error { return nil }}, receiver: receiver, queue: name, log: quiet}
	defer q.connector.close()
	l, err := q.connector.get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []inbox.Position{{Log: name, Offset: 0}, {Log: name, Offset: 150}, {Log: name, Offset: 299}} {
		q.stream = stream{life: 1, read: at, known: true}
		if err := q.checkEnd(t.Context(), l); err != nil {
			t.Errorf("at %d: %v", at.Offset, err)
		}
	}
	source.idle = 50 * time.Millisecond
	q.stream.read.Offset = 300
	if err := q.checkEnd(t.Context(), l); err != errMadeAgain {
		t.Errorf("behind the end: %v", err)
	}
}
