package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/topology"
	"github.com/lanebox/lanebox/runtime/transporttest"
	"github.com/lanebox/lanebox/runtime/transporttest/testrabbit"
)

// tryRun runs a source for a moment that should fail at start.
func tryRun(t *testing.T, server string, s topology.RabbitMQSource) error {
	t.Helper()
	source, err := NewSource(Config{URL: server, Logger: quiet}, s)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err = source.Run(ctx, transporttest.NewReceiver(&transporttest.Ledger{}, 0))
	if ctx.Err() != nil {
		t.Fatal("the source runs")
	}
	return err
}

// TestUnorderedQueueIsRefused: an ordered source refuses a queue that exists and
// cannot keep the order, and says what to change. ordered: false takes it.
func TestUnorderedQueueIsRefused(t *testing.T) {
	server := testrabbit.URL(t)
	conn := raw(t, server)
	for name, c := range map[string]struct {
		args amqp.Table
		says []string
	}{
		"quorum":           {amqp.Table{argType: "quorum"}, []string{"x-single-active-consumer: true", "ordered: false"}},
		"classic":          {nil, []string{"x-single-active-consumer: true", "ordered: false"}},
		"said to be false": {amqp.Table{argSingleActive: false}, []string{"x-single-active-consumer"}},
		"priorities":       {amqp.Table{argSingleActive: true, argPriority: 3}, []string{argPriority, "overtake"}},
		"TTL retry":        {amqp.Table{argSingleActive: true, argTTL: 3_600_000, argDeadLetter: "x"}, []string{argTTL, "behind"}},
	} {
		queue := testrabbit.Name("found")
		removed(t, server, nil, []string{queue})
		on(t, conn, func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare(queue, true, false, false, false, c.args)
			return err
		})
		err := tryRun(t, server, topology.RabbitMQSource{Name: "in", Queues: []string{queue}, Ordered: true, Declare: true})
		var wrong *event.ConfigurationError
		if !errors.As(err, &wrong) {
			t.Errorf("%s: Run = %v, want a configuration error", name, err)
			continue
		}
		for _, says := range append(c.says, queue) {
			if !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %v does not say %q", name, err, says)
			}
		}
		ledger := &transporttest.Ledger{}
		run(t, Config{URL: server}, topology.RabbitMQSource{Name: "in", Queues: []string{queue}}, transporttest.NewReceiver(ledger, 0))
		publishRaw(t, conn, queue, amqp.Publishing{Type: "x", Headers: amqp.Table{"x-event-type": "e.v1"}, MessageId: "1"})
		transporttest.Eventually(t, name+": the message is stored", func() bool { return ledger.Count() == 1 })
	}
	err := tryRun(t, server, topology.RabbitMQSource{Name: "in", Queues: []string{declared(t, conn, server, amqp.Table{argType: "stream"})}, Ordered: true})
	if err == nil || !strings.Contains(err.Error(), "stream: false") {
		t.Errorf("a stream gives %v", err)
	}
}

// declared declares a queue of the test's own.
func declared(t testing.TB, conn *amqp.Connection, server string, args amqp.Table) string {
	t.Helper()
	name := testrabbit.Name("queue")
	removed(t, server, nil, []string{name})
	on(t, conn, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(name, true, false, false, false, args)
		return err
	})
	return name
}

// publishRaw publishes to a queue as any program does.
func publishRaw(t testing.TB, conn *amqp.Connection, queue string, messages ...amqp.Publishing) {
	t.Helper()
	on(t, conn, func(ch *amqp.Channel) error {
		if err := ch.Confirm(false); err != nil {
			return err
		}
		for _, m := range messages {
			confirm, err := ch.PublishWithDeferredConfirm("", queue, true, false, m)
			if err != nil {
				return err
			}
			if !confirm.Wait() {
				return errors.New("not confirmed")
			}
		}
		return nil
	})
}

// TestOrderedQueuesAreTaken: what does not touch the order may be as it is.
func TestOrderedQueuesAreTaken(t *testing.T) {
	server := testrabbit.URL(t)
	conn := raw(t, server)
	for name, args := range map[string]amqp.Table{
		"classic":      {argSingleActive: true},
		"bounded":      {argType: "quorum", argSingleActive: true, "x-max-length": 1000, argLimit: 3},
		"dead letters": {argType: "quorum", argSingleActive: true, argDeadLetter: "x", "x-dead-letter-routing-key": "y"},
		"expiring":     {argSingleActive: true, "x-expires": 3_600_000, "x-queue-mode": "lazy"},
	} {
		queue := declared(t, conn, server, args)
		ledger := &transporttest.Ledger{}
		run(t, Config{URL: server}, topology.RabbitMQSource{Name: "in", Queues: []string{queue}, Ordered: true}, transporttest.NewReceiver(ledger, 0))
		publishRaw(t, conn, queue, amqp.Publishing{Headers: amqp.Table{"x-event-type": "e.v1"}, MessageId: "1"})
		transporttest.Eventually(t, name+": the message is stored", func() bool { return ledger.Count() == 1 })
	}
}

// TestMissingQueueIsWaitedFor: a consumer may start before the one who declares.
func TestMissingQueueIsWaitedFor(t *testing.T) {
	server := testrabbit.URL(t)
	to, from := ordered(t, server, 2)
	from.Declare = false
	ledger := &transporttest.Ledger{}
	run(t, Config{URL: server}, from, transporttest.NewReceiver(ledger, 0))
	d := newDestination(t, Config{URL: server}, to)
	mustSend(t, d, newMessage("k", 0))
	transporttest.Eventually(t, "the message is stored", func() bool { return ledger.Count() == 1 })
}

// TestDeletedQueueIsComeBackTo: the broker ends the consumer of a queue that is
// deleted, or forgets it; the source goes on with the next queue of that name.
func TestDeletedQueueIsComeBackTo(t *testing.T) {
	server := testrabbit.URL(t)
	conn := raw(t, server)
	to, from := ordered(t, server, 1)
	ledger := &transporttest.Ledger{}
	source, err := NewSource(Config{URL: server, Logger: quiet}, from)
	if err != nil {
		t.Fatal(err)
	}
	source.idle = 20 * time.Millisecond
	runSource(t, source, transporttest.NewReceiver(ledger, 0))
	d := newDestination(t, Config{URL: server}, to)
	for n := range 5 {
		mustSend(t, d, newMessage("k", int64(n)))
		transporttest.Eventually(t, "the message is stored", func() bool { return ledger.Count() == n+1 })
		on(t, conn, func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(from.Queues[0], false, false, false)
			return err
		})
	}
}

// TestForeignMessages: what other programs publish is stored with what identifies
// it, and what cannot be handled is dead and leaves the queue.
func TestForeignMessages(t *testing.T) {
	server := testrabbit.URL(t)
	conn := raw(t, server)
	queue := declared(t, conn, server, amqp.Table{argType: "quorum", argSingleActive: true})
	ledger := &transporttest.Ledger{}
	source, stop := run(t, Config{URL: server}, topology.RabbitMQSource{
		Name: "in", Queues: []string{queue}, Ordered: true,
		Extract: topology.Extract{EventType: []string{"$.kind"}},
	}, transporttest.NewReceiver(ledger, 0))
	publishRaw(t, conn, queue,
		amqp.Publishing{Body: []byte(`{"kind":"a.v1"}`), ContentType: "application/json; charset=utf-8", Headers: amqp.Table{
			"x-idempotency-key": "i", "x-aggregate-id": int64(7), "flag": true, "at": time.Unix(0, 0), "list": []any{"x"}, "raw": []byte("b")}},
		amqp.Publishing{Body: []byte(`{"kind":"b.v1"}`), MessageId: "m"},
		amqp.Publishing{Body: []byte(`{"kind":"c.v1"}`)},
		amqp.Publishing{Body: []byte(`{"kind":"d.v1"}`), Headers: amqp.Table{"cloudEvents:id": "e", "cloudEvents_partitionkey": "k", "ce-aggregateversion": int32(3), "tenant": "acme"}},
		amqp.Publishing{Body: []byte(`{"kind":`), MessageId: "broken"},
		amqp.Publishing{Body: []byte(`{"none":1}`), MessageId: "untyped"},
		amqp.Publishing{Body: []byte(`{"kind":"x.v1"}`), MessageId: "bad\xff"},
	)
	transporttest.Eventually(t, "all are taken", func() bool { return ledger.Count()+len(ledger.Dead()) == 7 })
	stored := ledger.Stored()
	first := stored[0]
	if first.IdempotencyKey != "i" || first.AggregateID != "7" || first.EventType != "a.v1" {
		t.Errorf("the first is %+v", first)
	}
	for name, want := range map[string]string{"flag": "true", "at": "1970-01-01T00:00:00Z", "raw": "b", "content-type": "application/json; charset=utf-8"} {
		if got := first.Headers[name]; got != want {
			t.Errorf("header %s is %q, want %q", name, got, want)
		}
	}
	if stored[1].IdempotencyKey != "m" || !strings.HasPrefix(stored[2].IdempotencyKey, "sha256:") {
		t.Errorf("last resorts are %q and %q", stored[1].IdempotencyKey, stored[2].IdempotencyKey)
	}
	if m := stored[3]; m.IdempotencyKey != "e" || m.AggregateID != "k" || m.Version != 3 || m.Headers["tenant"] != "acme" {
		t.Errorf("the CloudEvent is %+v", m)
	}
	var dead []string
	for _, m := range ledger.Dead() {
		dead = append(dead, m.IdempotencyKey)
	}
	if !slices.Equal(dead, []string{"broken", "untyped"}) {
		t.Errorf("dead are %q", dead)
	}
	stop()
	if n := length(t, conn, queue); n != 0 {
		t.Errorf("%d messages are left in the queue", n)
	}
	if s := source.Stats(); s.Stored != 5 || s.Buried != 2 || s.Redelivered != 0 {
		t.Errorf("stats %+v", s)
	}
}

// TestRedeliveriesAreRecorded: a message that comes again says so, and how often.
func TestRedeliveriesAreRecorded(t *testing.T) {
	server := testrabbit.URL(t)
	conn := raw(t, server)
	queue := declared(t, conn, server, amqp.Table{argType: "quorum", argSingleActive: true})
	publishRaw(t, conn, queue, amqp.Publishing{MessageId: "m", Headers: amqp.Table{"x-event-type": "e.v1"}})
	on(t, conn, func(ch *amqp.Channel) error {
		deliveries, err := ch.Consume(queue, "", false, false, false, false, nil)
		for range 3 {
			if err == nil {
				err = (<-deliveries).Nack(false, true)
			}
		}
		return err
	})
	ledger := &transporttest.Ledger{}
	source, _ := run(t, Config{URL: server}, topology.RabbitMQSource{Name: "in", Queues: []string{queue}, Ordered: true}, transporttest.NewReceiver(ledger, 0))
	transporttest.Eventually(t, "the message is stored", func() bool { return ledger.Count() == 1 })
	headers := ledger.Stored()[0].Headers
	count, _ := strconv.Atoi(headers[event.HeaderDeliveryCount])
	if headers[event.HeaderRedelivered] != "true" || count < 3 {
		t.Errorf("headers %v", headers)
	}
	transporttest.Eventually(t, "it is counted", func() bool { return source.Stats().Redelivered == 1 })
}

// TestStorageFailurePauses: nothing goes back to the queue, nothing is overtaken,
// and what was not stored at the end is still in the queue.
func TestStorageFailurePauses(t *testing.T) {
	server := testrabbit.URL(t)
	conn := raw(t, server)
	to, from := ordered(t, server, 1)
	d := newDestination(t, Config{URL: server}, to)
	for n := range 10 {
		mustSend(t, d, newMessage("k", int64(n)))
	}
	ledger := &transporttest.Ledger{}
	var failing atomic.Bool
	failing.Store(true)
	tries := make(chan struct{}, 1000)
	ledger.Before(func(context.Context, int, inbox.Incoming) error {
		if failing.Load() {
			tries <- struct{}{}
			return errors.New("the database is not there")
		}
		return nil
	})
	source, stop := run(t, Config{URL: server}, from, transporttest.NewReceiver(ledger, 0))
	for range 3 {
		<-tries
	}
	stop()
	if s := source.Stats(); s.Failures < 3 || s.Redelivered != 0 || s.Stored != 0 {
		t.Errorf("stats %+v", s)
	}
	transporttest.Eventually(t, "all are in the queue again", func() bool { return length(t, conn, from.Queues[0]) == 10 })
	failing.Store(false)
	run(t, Config{URL: server}, from, transporttest.NewReceiver(ledger, 0))
	transporttest.Eventually(t, "all are stored", func() bool { return ledger.Count() == 10 })
	checkOrder(t, ledger, map[string]int64{"k": 10})
}

// TestShutdownFinishesTheTransaction: what is being stored when the source is
// stopped is acknowledged, and nothing behind it.
func TestShutdownFinishesTheTransaction(t *testing.T) {
	server := testrabbit.URL(t)
	conn := raw(t, server)
	to, from := ordered(t, server, 1)
	from.Prefetch = 4
	d := newDestination(t, Config{URL: server}, to)
	for n := range 10 {
		mustSend(t, d, newMessage("k", int64(n)))
	}
	ledger := &transporttest.Ledger{}
	began, goOn := make(chan struct{}, 100), make(chan struct{})
	ledger.Before(func(ctx context.Context, _ int, _ inbox.Incoming) error {
		began <- struct{}{}
		<-goOn
		return ctx.Err()
	})
	source, err := NewSource(Config{URL: server, Logger: quiet}, from)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- source.Run(ctx, transporttest.NewReceiver(ledger, 0)) }()
	<-began
	cancel()
	close(goOn)
	if err := <-done; err != nil {
		t.Errorf("Run = %v", err)
	}
	stored := ledger.Count()
	if stored == 0 || stored > from.Prefetch {
		t.Errorf("%d messages are stored", stored)
	}
	transporttest.Eventually(t, "the rest is in the queue", func() bool { return length(t, conn, from.Queues[0]) == 10-stored })
}

// TestNothingBeginsAfterTheEnd: once a source ends, no transaction begins whose
// acknowledgement nobody would wait for.
func TestNothingBeginsAfterTheEnd(t *testing.T) {
	source, err := NewSource(Config{URL: "amqp://localhost", Logger: quiet}, topology.RabbitMQSource{Name: "in", Queues: []string{"q"}})
	if err != nil {
		t.Fatal(err)
	}
	ledger := &transporttest.Ledger{}
	q := &consumer{source: source, receiver: transporttest.NewReceiver(ledger, 0), storing: &sync.RWMutex{}, queue: "q", log: quiet}
	ctx, cancel := context.WithCancel(t.Context())
	q.storing.Lock() // somebody waits for the transactions in hand
	stored := make(chan error, 1)
	go func() {
		_, err := q.store(ctx, &intake{}, []inbox.Incoming{{IdempotencyKey: "1", EventType: "e.v1"}}, 0)
		stored <- err
	}()
	cancel()
	q.storing.Unlock()
	if err := <-stored; !errors.Is(err, errEnded) || ledger.Count() != 0 || source.Stats().Failures != 0 {
		t.Errorf("store = %v, %d messages are stored, %d failures", err, ledger.Count(), source.Stats().Failures)
	}
}

// TestReplicasKeepTheOrder: five replicas share a queue and are restarted one
// after the other, and each aggregate's messages are committed in order. The
// control, the same without a single active consumer, shows disorder.
func TestReplicasKeepTheOrder(t *testing.T) {
	server := testrabbit.URL(t)
	to, from := ordered(t, server, 1)
	from.Prefetch = 16
	d := newDestination(t, Config{URL: server}, to)
	ledger := &transporttest.Ledger{}
	next, sent, stop := rolling(t, server, d, from, ledger, func() bool { return false })
	transporttest.Eventually(t, "all are stored", func() bool { return ledger.Count() == sent })
	stop()
	checkOrder(t, ledger, next)
}

func TestReplicasWithoutSingleActiveConsumerDisorder(t *testing.T) {
	server := testrabbit.URL(t)
	conn := raw(t, server)
	queue := declared(t, conn, server, amqp.Table{argType: "quorum"})
	d := newDestination(t, Config{URL: server}, topology.RabbitMQDestination{Name: "control", RoutingKey: queue})
	deadline := time.Now().Add(patience)
	for time.Now().Before(deadline) {
		ledger := &transporttest.Ledger{}
		from := topology.RabbitMQSource{Name: "control", Queues: []string{queue}, Prefetch: 4}
		_, sent, stop := rolling(t, server, d, from, ledger, func() bool { return disordered(ledger) })
		if disordered(ledger) {
			return
		}
		transporttest.Eventually(t, "all are stored", func() bool { return ledger.Count() == sent })
		stop()
	}
	t.Error("no disorder was seen: the test of the order would not see it either")
}

// disordered reports whether any key's messages are stored out of order.
func disordered(l *transporttest.Ledger) bool {
	next := map[string]int64{}
	for _, m := range l.Stored() {
		if want := newMessage(m.AggregateID, next[m.AggregateID]); string(m.Payload) != string(want.Payload) {
			return true
		}
		next[m.AggregateID]++
	}
	return false
}

// rolling sends while five replicas of a source are restarted in turn. It returns
// how many messages of each key, and of all, were sent, and how to stop what runs.
func rolling(t *testing.T, server string, d *Destination, from topology.RabbitMQSource, ledger *transporttest.Ledger, enough func() bool) (next map[string]int64, sent int, stop func()) {
	t.Helper()
	const replicas, restarts, keys = 5, 20, 5
	var stops [replicas]func()
	var proxies [replicas]*transporttest.Proxy
	start := func(i int) {
		_, stops[i] = run(t, Config{URL: through(t, server, proxies[i])}, from, transporttest.NewReceiver(ledger, 0))
	}
	for i := range stops {
		proxies[i] = transporttest.NewProxy(t, hostOf(t, server))
		start(i)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	counts := make([]int64, keys)
	var lanes sync.WaitGroup
	for k := range keys {
		lanes.Go(func() {
			for ctx.Err() == nil {
				mustSend(t, d, newMessage(fmt.Sprintf("key-%d", k), counts[k]))
				counts[k]++
			}
		})
	}
	for n := 0; n < restarts && !enough(); n++ {
		before := ledger.Count()
		transporttest.Eventually(t, "messages flow", func() bool { return ledger.Count() > before+20 })
		i := n % replicas
		if n%2 == 1 { // it is cut off before it ends, as if it were killed
			proxies[i].Set(t, transporttest.Refuse)
		}
		stops[i]()
		proxies[i].Set(t, transporttest.Pass)
		start(i)
	}
	cancel()
	lanes.Wait()
	next = map[string]int64{}
	for k, n := range counts {
		next[fmt.Sprintf("key-%d", k)] = n
		sent += int(n)
	}
	return next, sent, func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// TestShards: eight shards, and three consumers of all of them that come and go.
// Each key's messages are committed in order, and every shard has had some.
func TestShards(t *testing.T) {
	server := testrabbit.URL(t)
	to, from := ordered(t, server, 8)
	d := newDestination(t, Config{URL: server}, to)
	ledger := &transporttest.Ledger{}
	receiver := transporttest.NewReceiver(ledger, 0)
	const keys, each, consumers = 64, 40, 3
	var lanes sync.WaitGroup
	for k := range keys {
		lanes.Go(func() {
			for n := range each {
				mustSend(t, d, newMessage(fmt.Sprintf("key-%d", k), int64(n)))
			}
		})
	}
	sources := map[*Source]func(){}
	for ledger.Count() < keys*each {
		source, stop := run(t, Config{URL: server}, from, receiver)
		sources[source] = stop
		before := ledger.Count()
		transporttest.Eventually(t, "messages flow", func() bool {
			return ledger.Count() > before+50 || ledger.Count() == keys*each
		})
		if len(sources) > consumers {
			for old, stop := range maps.Clone(sources) {
				stop()
				delete(sources, old)
				break
			}
		}
	}
	lanes.Wait()
	want := map[string]int64{}
	for k := range keys {
		want[fmt.Sprintf("key-%d", k)] = each
	}
	checkOrder(t, ledger, want)
	for source := range sources {
		if s := source.Stats(); s.Wandered != 0 || s.Disordered != 0 {
			t.Errorf("stats %+v", s)
		}
	}
}

func TestSourcesThatCannotWork(t *testing.T) {
	for name, s := range map[string]topology.RabbitMQSource{
		"no queue":      {},
		"unnamed":       {Queues: []string{""}},
		"twice":         {Queues: []string{"q", "q"}},
		"prefetch":      {Queues: []string{"q"}, Prefetch: 70_000},
		"offset":        {Queues: []string{"q"}, Offset: "first"},
		"wrong offset":  {Queues: []string{"q"}, Offset: "yesterday", Stream: true},
		"wrong extract": {Queues: []string{"q"}, Extract: topology.Extract{EventType: []string{"nonsense"}}},
	} {
		if _, err := NewSource(Config{URL: "amqp://host"}, s); err == nil {
			t.Errorf("%s: was accepted", name)
		}
	}
}

// TestPanicEndsTheRun: a panic ends the source with an error, not the process, and
// what was in hand is in the queue again.
func TestPanicEndsTheRun(t *testing.T) {
	server := testrabbit.URL(t)
	conn := raw(t, server)
	queue := declared(t, conn, server, amqp.Table{argType: "quorum", argSingleActive: true})
	publishRaw(t, conn, queue, amqp.Publishing{MessageId: "m", Headers: amqp.Table{"x-event-type": "e.v1"}})
	source, err := NewSource(Config{URL: server, Logger: quiet}, topology.RabbitMQSource{Name: "in", Queues: []string{queue, queue + ".other"}, Declare: true, Ordered: true})
	if err != nil {
		t.Fatal(err)
	}
	removed(t, server, nil, []string{queue + ".other"})
	ledger := &transporttest.Ledger{}
	ledger.Before(func(context.Context, int, inbox.Incoming) error { panic("of the store") })
	err = source.Run(t.Context(), transporttest.NewReceiver(ledger, 0))
	if err == nil || !strings.Contains(err.Error(), "panic: of the store") {
		t.Errorf("Run = %v", err)
	}
	transporttest.Eventually(t, "the message is in the queue", func() bool { return length(t, conn, queue) == 1 })
}
