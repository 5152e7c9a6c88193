package rabbitmq

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

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

// TestStreamsThatAreMadeAgain: a stream that its source saw go is read from its
// beginning when one of its name is made again, and a whole one is not.
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

	stop()

	// Nothing is read again of a stream that is whole.
	source, stop := start()
	publishRaw(t, conn, name, numbered(30, 1)...)
	checkNumbers(t, ledger, 31)
	stop()
	if s := source.Stats(); s.Stored != 1 || s.Duplicates != 0 {
		t.Errorf("stats %+v", s)
	}
	if _, ok, _ := receiver.Position(context.Background(), name+"#3"); ok {
		t.Error("a whole stream got another life")
	}
}

// TestNamesOfLives: no queue may have the name under which a later life of another
// is recorded.
func TestNamesOfLives(t *testing.T) {
	for _, queues := range [][]string{{"x", "x#2"}, {"a#3", "b", "a"}, {"x#2#2", "x#2"}} {
		if err := checkSource(topology.RabbitMQSource{Queues: queues, Stream: true}); err == nil || !strings.Contains(err.Error(), "#") {
			t.Errorf("%q gives %v", queues, err)
		}
		if err := checkSource(topology.RabbitMQSource{Queues: queues}); err != nil {
			t.Errorf("%q that are no streams give %v", queues, err)
		}
	}
	for _, queues := range [][]string{{"x", "x#y"}, {"x#2", "y"}, {"x", "x#02"}, {"x", "x#"}, {"#2", "x"}} {
		if err := checkSource(topology.RabbitMQSource{Queues: queues, Stream: true}); err != nil {
			t.Errorf("%q gives %v", queues, err)
		}
	}
}

// TestDroppedMessagesAreTold: only what lies between the last message that is
// stored and the first one that comes was dropped.
func TestDroppedMessagesAreTold(t *testing.T) {
	for _, c := range []struct {
		stored, first int64
		want          bool
	}{{-1, 7, false}, {5, 5, false}, {5, 6, false}, {5, 7, true}, {5, 100, true}, {5, 2, false}} {
		var out strings.Builder
		q := &consumer{source: &Source{t: topology.RabbitMQSource{Stream: true}}, log: slog.New(slog.NewTextHandler(&out, nil))}
		q.lookForGap(amqp.Delivery{Headers: amqp.Table{offsetHeader: c.first}}, c.stored)
		if told := out.Len() > 0; told != c.want {
			t.Errorf("stored up to %d, first %d: logged %q", c.stored, c.first, &out)
		}
	}
}
