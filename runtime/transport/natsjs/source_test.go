package natsjs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/topology"
	"github.com/lanebox/lanebox/runtime/transporttest"
)

var errInjected = errors.New("injected failure")

// incoming is an ordered source of the stream ORDERS.
var incoming = topology.NATSSource{Name: "orders", Stream: "ORDERS", Durable: "billing", Ordered: true}

func newSource(t testing.TB, url string, topo topology.NATSSource, change ...func(*Config)) *Source {
	t.Helper()
	c := Config{URL: url, Logger: quiet, Timeout: 5 * time.Second, AckWait: 2 * time.Second, Takeover: time.Second}
	for _, f := range change {
		f(&c)
	}
	s, err := NewSource(c, topo)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func ordersStream(t testing.TB, s *testServer) jetstream.Stream {
	return s.addStream(t, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}})
}

// publishNumbers publishes the numbers from first to last of each key, as a
// publisher that is not lanebox does.
func publishNumbers(t testing.TB, js jetstream.JetStream, keys []string, first, last int) {
	t.Helper()
	for n := first; n <= last; n++ {
		for _, key := range keys {
			m := &nats.Msg{Subject: "orders." + key, Data: []byte(strconv.Itoa(n)), Header: nats.Header{"X-Event-Type": {"order.placed.v1"}, "x-aggregate-id": {key}}}
			if _, err := js.PublishMsg(t.Context(), m); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// numbers returns what is stored of a key, in commit order.
func numbers(l *transporttest.Ledger, key string) (out []int) {
	for _, m := range l.Stored() {
		if m.AggregateID == key {
			n, _ := strconv.Atoi(string(m.Payload))
			out = append(out, n)
		}
	}
	return out
}

func upTo(first, last int) (out []int) {
	for n := first; n <= last; n++ {
		out = append(out, n)
	}
	return out
}

func mustStore(t testing.TB, l *transporttest.Ledger, key string, want []int) {
	t.Helper()
	transporttest.Eventually(t, fmt.Sprintf("%d messages of %s are stored", len(want), key), func() bool { return len(numbers(l, key)) >= len(want) })
	if got := numbers(l, key); !slices.Equal(got, want) {
		t.Fatalf("key %s: stored %v, want %v", key, got, want)
	}
}

// mustSettle waits until the consumer has nothing left to deliver or to
// acknowledge.
func mustSettle(t testing.TB, stream jetstream.Stream, durable string) {
	t.Helper()
	transporttest.Eventually(t, "everything is acknowledged", func() bool {
		c, err := stream.Consumer(t.Context(), durable)
		return err == nil && c.CachedInfo().NumAckPending == 0 && c.CachedInfo().NumPending == 0
	})
}

// abandon takes messages with a client of its own that never acknowledges them and
// is then gone, as a process that was killed.
func abandon(t testing.TB, s *testServer, stream jetstream.Stream, topo topology.NATSSource, c Config, count int) {
	t.Helper()
	config := consumerConfig(c, topo, start{}, stream.CachedInfo())
	if _, err := stream.CreateConsumer(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	conn, err := nats.Connect(s.url())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	consumer, err := js.Consumer(t.Context(), topo.Stream, topo.Durable)
	if err != nil {
		t.Fatal(err)
	}
	var options []jetstream.FetchOpt
	if topo.Ordered {
		options = append(options, jetstream.FetchPriorityGroup(pinGroup))
	}
	batch, err := consumer.Fetch(count, append(options, jetstream.FetchMaxWait(10*time.Second))...)
	if err != nil {
		t.Fatal(err)
	}
	got := 0
	for range batch.Messages() {
		got++
	}
	if got != count {
		t.Fatalf("the abandoned client got %d messages, want %d: %v", got, count, batch.Error())
	}
}

// What a dead puller had in hand comes back only after the acknowledgement wait,
// newer messages at once. The ordered source stores them in the stream's order all
// the same, and need not wait for it; without order the newer ones come first.
func TestNewerMessagesWaitForThoseOfADeadPuller(t *testing.T) {
	for _, ordered := range []bool{true, false} {
		t.Run(fmt.Sprint("ordered ", ordered), func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			stream := ordersStream(t, s)
			js := s.jetStream(t)
			topo := incoming
			topo.Ordered = ordered
			publishNumbers(t, js, []string{"a", "b"}, 1, 10)
			abandon(t, s, stream, topo, Config{AckWait: 5 * time.Second, Takeover: time.Second, Batch: 16}, 20)
			publishNumbers(t, js, []string{"a", "b"}, 11, 20)

			ledger := &transporttest.Ledger{}
			source := newSource(t, s.url(), topo)
			runSource(t, source, transporttest.NewReceiver(ledger, 0))
			transporttest.Eventually(t, "all messages are stored", func() bool { return len(ledger.Stored()) == 40 })
			inOrder := slices.Equal(numbers(ledger, "a"), upTo(1, 20)) && slices.Equal(numbers(ledger, "b"), upTo(1, 20))
			if inOrder != ordered {
				t.Errorf("stored a: %v", numbers(ledger, "a"))
			}
			mustSettle(t, stream, topo.Durable)
			if stats := source.Stats(); ordered && stats.Reordered != 20 || stats.Stored != 40 {
				t.Errorf("stats %+v", stats)
			}
		})
	}
}

// What comes back in the order of the stream is stored without a question for each
// message, which would take long at a busy server.
func TestRepeatsInARowNeedNoReading(t *testing.T) {
	s := startServer(t)
	stream := ordersStream(t, s)
	js := s.jetStream(t)
	publishNumbers(t, js, []string{"a"}, 1, 50)
	abandon(t, s, stream, incoming, Config{AckWait: time.Second, Takeover: time.Second, Batch: 16}, 50)
	var asked atomic.Int64
	if _, err := js.Conn().Subscribe("$JS.API.STREAM.MSG.GET.ORDERS", func(*nats.Msg) { asked.Add(1) }); err != nil {
		t.Fatal(err)
	}
	if err := js.Conn().Flush(); err != nil {
		t.Fatal(err)
	}
	ledger := &transporttest.Ledger{}
	source := newSource(t, s.url(), incoming)
	runSource(t, source, transporttest.NewReceiver(ledger, 0))
	mustStore(t, ledger, "a", upTo(1, 50))
	if n := source.Stats().Redelivered; n != 50 || asked.Load() > 10 { // the server may return a few in another order
		t.Errorf("%d messages were redelivered; the stream was asked %d times", n, asked.Load())
	}
}

func TestCatchesUpInAFilteredStream(t *testing.T) {
	s := startServer(t)
	stream := ordersStream(t, s)
	js := s.jetStream(t)
	topo := incoming
	topo.Subjects = []string{"orders.a", "orders.b.>", "orders.b"}
	publishNumbers(t, js, []string{"a", "x", "b"}, 1, 10)
	abandon(t, s, stream, topo, Config{AckWait: time.Hour, Takeover: time.Second, Batch: 16}, 7)
	ledger := &transporttest.Ledger{}
	runSource(t, newSource(t, s.url(), topo), transporttest.NewReceiver(ledger, 0))
	mustStore(t, ledger, "a", upTo(1, 10))
	mustStore(t, ledger, "b", upTo(1, 10))
	if got := numbers(ledger, "x"); got != nil {
		t.Errorf("stored what the filter leaves out: %v", got)
	}
}

func TestLargeMessageIsReadFromTheStream(t *testing.T) {
	s := startServer(t)
	stream := ordersStream(t, s)
	js := s.jetStream(t)
	m := &nats.Msg{Subject: "orders.a", Data: []byte(strings.Repeat("x", 1<<20)), Header: nats.Header{"x-event-type": {"k.v1"}, "x-aggregate-id": {"large"}}}
	if _, err := js.PublishMsg(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	abandon(t, s, stream, incoming, Config{AckWait: time.Hour, Takeover: time.Second, Batch: 16}, 1)
	publishNumbers(t, js, []string{"a"}, 1, 1)
	ledger := &transporttest.Ledger{}
	runSource(t, newSource(t, s.url(), incoming), transporttest.NewReceiver(ledger, 0))
	mustStore(t, ledger, "a", []int{1})
	if stored := ledger.Stored(); stored[0].AggregateID != "large" || len(stored[0].Payload) != 1<<20 || stored[0].Headers[event.HeaderRedelivered] != "true" {
		t.Errorf("stored first: %s with %d bytes, %v", stored[0].AggregateID, len(stored[0].Payload), stored[0].Headers)
	}
}

// A replica is one process with a source on a connection of its own.
type replica struct {
	proxy *transporttest.Proxy
	stop  func()
}

func startReplica(t *testing.T, s *testServer, topo topology.NATSSource, l *transporttest.Ledger) *replica {
	r := &replica{proxy: transporttest.NewProxy(t, s.address())}
	source := newSource(t, "nats://"+r.proxy.Address(), topo, func(c *Config) { c.Batch = 16 })
	r.stop = runSource(t, source, transporttest.NewReceiver(l, 0))
	return r
}

// kill cuts the replica off first, so that it acknowledges and hands over nothing
// any more.
func (r *replica) kill(t *testing.T) {
	r.proxy.Set(t, transporttest.Refuse)
	r.stop()
}

// Five replicas come and go, some in good order and some killed with messages in
// hand. The control without order shows that this is what would break it.
func TestReplicasKeepOrder(t *testing.T) {
	for _, ordered := range []bool{true, false} {
		t.Run(fmt.Sprint("ordered ", ordered), func(t *testing.T) {
			t.Parallel()
			replicasKeepOrder(t, ordered)
		})
	}
}

func replicasKeepOrder(t *testing.T, ordered bool) {
	const perKey = 60
	keys := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	s := startServer(t)
	stream := ordersStream(t, s)
	topo := incoming
	topo.Ordered = ordered
	ledger := &transporttest.Ledger{}
	ledger.Before(func(_ context.Context, try int, _ inbox.Incoming) error {
		if try%5 == 0 {
			return errInjected
		}
		return nil
	})
	var replicas []*replica
	for range 5 {
		replicas = append(replicas, startReplica(t, s, topo, ledger))
	}
	js := s.jetStream(t)
	published := make(chan struct{})
	go func() {
		defer close(published)
		for n := 1; n <= perKey; n++ {
			publishNumbers(t, js, keys, n, n)
		}
	}()
	for round := 0; len(ledger.Stored()) < perKey*len(keys); round++ {
		before := ledger.Tries()
		transporttest.Eventually(t, "somebody stores", func() bool {
			return ledger.Tries() >= before+1 || len(ledger.Stored()) == perKey*len(keys)
		})
		i := round % len(replicas)
		if rand.N(2) == 0 {
			replicas[i].kill(t)
		} else {
			replicas[i].stop()
		}
		replicas[i] = startReplica(t, s, topo, ledger)
	}
	<-published
	mustSettle(t, stream, topo.Durable)
	kept := true
	for _, key := range keys {
		kept = kept && slices.Equal(numbers(ledger, key), upTo(1, perKey))
	}
	if kept != ordered {
		t.Errorf("order kept: %v, want %v; key a: %v", kept, ordered, numbers(ledger, "a"))
	}
}

// TestServerRestartsUnderLoad restarts the server 20 times while several lanes
// publish and a source takes: nothing is lost, and each lane stays in order.
func TestServerRestartsUnderLoad(t *testing.T) {
	const lanes, restarts = 8, 20
	s := startServer(t)
	d := newDestination(t, s.url(), orders)
	ledger := &transporttest.Ledger{}
	mustSend(t, d, message("first", 1))
	source := newSource(t, s.url(), incoming)
	runSource(t, source, transporttest.NewReceiver(ledger, 0))
	var all sync.WaitGroup
	defer all.Wait() // however the test ends: lanes report to it
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	sent := make([]int, lanes)
	for lane := range lanes {
		all.Go(func() {
			for ctx.Err() == nil {
				mustSend(t, d, message(strconv.Itoa(lane), int64(sent[lane]+1)))
				sent[lane]++
			}
		})
	}
	for range restarts {
		before := len(ledger.Stored())
		transporttest.Eventually(t, "messages flow", func() bool { return len(ledger.Stored()) >= before+50 })
		s.restart()
	}
	cancel()
	all.Wait()
	for lane := range lanes {
		mustStore(t, ledger, strconv.Itoa(lane), upTo(1, sent[lane]))
	}
	t.Logf("sent per lane %v, stats %+v", sent, source.Stats())
}

// TestMissingStreamIsWaitedFor: a source says what it waits for, and nothing when it
// is told to end.
func TestMissingStreamIsWaitedFor(t *testing.T) {
	s := startServer(t)
	var log logbook
	source := newSource(t, s.url(), incoming, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	ledger := &transporttest.Ledger{}
	stop := runSource(t, source, transporttest.NewReceiver(ledger, 0))
	transporttest.Eventually(t, "the missing stream is logged", func() bool { return strings.Contains(log.String(), "stream ORDERS does not exist yet") })
	ordersStream(t, s)
	publishNumbers(t, s.jetStream(t), []string{"a"}, 1, 3)
	mustStore(t, ledger, "a", upTo(1, 3))
	stop()
	if strings.Contains(log.String(), "connection to NATS lost") {
		t.Errorf("a source that was told to end reports a lost connection:\n%s", log.String())
	}
}

// A logbook is what was logged. It is safe for concurrent use.
type logbook struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logbook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func TestDeletedStreamBeginsAnew(t *testing.T) {
	for _, running := range []bool{true, false} {
		t.Run(fmt.Sprint("running ", running), func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			stream := ordersStream(t, s)
			js := s.jetStream(t)
			ledger := &transporttest.Ledger{}
			receiver := transporttest.NewReceiver(ledger, 0)
			source := newSource(t, s.url(), incoming)
			stop := runSource(t, source, receiver)
			publishNumbers(t, js, []string{"a"}, 1, 30)
			mustStore(t, ledger, "a", upTo(1, 30))
			mustSettle(t, stream, incoming.Durable)
			if !running {
				stop()
			}
			if err := js.DeleteStream(t.Context(), "ORDERS"); err != nil {
				t.Fatal(err)
			}
			stream = ordersStream(t, s)
			publishNumbers(t, js, []string{"a"}, 31, 40) // with the sequences 1 to 10
			if !running {
				runSource(t, source, receiver)
			}
			mustStore(t, ledger, "a", upTo(1, 40))
			mustSettle(t, stream, incoming.Durable)
		})
	}
}

// A stream that is restored from an old backup counts again from where the backup
// ends. What comes then has sequences that are stored already, and is new.
func TestStreamThatLostItsEnd(t *testing.T) {
	s := startServer(t)
	stream := ordersStream(t, s)
	js := s.jetStream(t)
	ledger := &transporttest.Ledger{}
	receiver := transporttest.NewReceiver(ledger, 0)
	if _, err := receiver.ReceiveAt(t.Context(), inbox.Position{Log: logName(stream.CachedInfo()), Offset: 1000}); err != nil {
		t.Fatal(err)
	}
	publishNumbers(t, js, []string{"a"}, 1, 20)
	abandon(t, s, stream, incoming, Config{AckWait: time.Second, Takeover: time.Second, Batch: 16}, 1)
	runSource(t, newSource(t, s.url(), incoming), receiver)
	transporttest.Eventually(t, "all messages are stored", func() bool { return len(numbers(ledger, "a")) == 20 })
	mustSettle(t, stream, incoming.Durable)
}

// A consumer that somebody deletes is made again behind what is stored, and what
// was published in between is not skipped, whatever the schema says about new
// consumers.
func TestDeletedConsumerSkipsNothing(t *testing.T) {
	for _, ordered := range []bool{true, false} {
		t.Run(fmt.Sprint("ordered ", ordered), func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			stream := ordersStream(t, s)
			js := s.jetStream(t)
			topo := incoming
			topo.Ordered, topo.Start = ordered, "last"
			publishNumbers(t, js, []string{"old"}, 1, 5)
			ledger := &transporttest.Ledger{}
			receiver := transporttest.NewReceiver(ledger, 0)
			source := newSource(t, s.url(), topo)
			stop := runSource(t, source, receiver)
			transporttest.Eventually(t, "the consumer is there", func() bool {
				_, err := stream.Consumer(t.Context(), topo.Durable)
				return err == nil
			})
			publishNumbers(t, js, []string{"a"}, 1, 20)
			mustStore(t, ledger, "a", upTo(1, 20))
			mustSettle(t, stream, topo.Durable)
			stop()
			if err := stream.DeleteConsumer(t.Context(), topo.Durable); err != nil {
				t.Fatal(err)
			}
			publishNumbers(t, js, []string{"a"}, 21, 30)
			runSource(t, source, receiver)
			transporttest.Eventually(t, "the rest is stored", func() bool { return len(numbers(ledger, "a")) == 30 })
			if got := numbers(ledger, "a"); ordered && !slices.Equal(got, upTo(1, 30)) {
				t.Errorf("stored %v", got)
			}
			if got := numbers(ledger, "old"); got != nil {
				t.Errorf("stored what was there before: %v", got)
			}
		})
	}
}

// The connection is cut between commit and acknowledgement: the messages come
// again, are found to be stored, and are acknowledged.
func TestCutBetweenCommitAndAcknowledgement(t *testing.T) {
	s := startServer(t)
	stream := ordersStream(t, s)
	js := s.jetStream(t)
	proxy := transporttest.NewProxy(t, s.address())
	ledger := &transporttest.Ledger{}
	var once sync.Once
	ledger.After(func(context.Context, int, inbox.Incoming) error {
		once.Do(func() { proxy.Set(t, transporttest.Refuse) })
		return nil
	})
	publishNumbers(t, js, []string{"a"}, 1, 10)
	source := newSource(t, "nats://"+proxy.Address(), incoming, func(c *Config) { c.AckWait = time.Second })
	runSource(t, source, transporttest.NewReceiver(ledger, 0))
	transporttest.Eventually(t, "something is stored", func() bool { return len(ledger.Stored()) > 0 })
	proxy.Set(t, transporttest.Pass)
	mustSettle(t, stream, incoming.Durable)
	mustStore(t, ledger, "a", upTo(1, 10))
	if stats := source.Stats(); stats.Duplicates == 0 || stats.Redelivered == 0 || stats.Reconnects == 0 {
		t.Errorf("stats %+v", stats)
	}
}

// While the database is down, the server hears of every message in hand that it is
// worked on, so that none is delivered again.
func TestWorkIsExtendedWhileStoringFails(t *testing.T) {
	const count, times = 12, 3
	s := startServer(t)
	stream := ordersStream(t, s)
	js := s.jetStream(t)
	publishNumbers(t, js, []string{"a"}, 1, count)
	var mu sync.Mutex
	extended := map[string]int{}
	_, err := js.Conn().Subscribe("$JS.ACK.ORDERS."+incoming.Durable+".>", func(m *nats.Msg) {
		mu.Lock()
		defer mu.Unlock()
		if string(m.Data) == "+WPI" {
			extended[m.Subject]++
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	ledger := &transporttest.Ledger{}
	ledger.Before(func(context.Context, int, inbox.Incoming) error { return errInjected })
	source := newSource(t, s.url(), incoming)
	runSource(t, source, transporttest.NewReceiver(ledger, 0))
	transporttest.Eventually(t, "every message is extended several times", func() bool {
		mu.Lock()
		defer mu.Unlock()
		often := 0
		for _, n := range extended {
			if n >= times {
				often++
			}
		}
		return often >= count
	})
	ledger.Before(nil)
	mustStore(t, ledger, "a", upTo(1, count))
	mustSettle(t, stream, incoming.Durable)
	if stats := source.Stats(); stats.Failures < 2 || stats.Stored != count {
		t.Errorf("stats %+v", stats)
	}
}

// A dead puller may hold as many messages as the consumer lets be unacknowledged:
// it delivers nothing until they come back.
func TestConsumerThatIsFullOfADeadPuller(t *testing.T) {
	s := startServer(t)
	stream := ordersStream(t, s)
	publishNumbers(t, s.jetStream(t), []string{"a"}, 1, 20)
	abandon(t, s, stream, incoming, Config{AckWait: 2 * time.Second, Takeover: time.Second, Batch: 16, MaxAckPending: 5}, 5)
	ledger := &transporttest.Ledger{}
	runSource(t, newSource(t, s.url(), incoming), transporttest.NewReceiver(ledger, 0))
	mustStore(t, ledger, "a", upTo(1, 20))
	mustSettle(t, stream, incoming.Durable)
}

// A replica that stops hands over at once: the time until a silent puller is
// replaced is an hour here.
func TestStoppingHandsOver(t *testing.T) {
	s := startServer(t)
	stream := ordersStream(t, s)
	js := s.jetStream(t)
	patient := func(c *Config) { c.AckWait, c.Takeover = 5*time.Second, time.Hour }
	failing := &transporttest.Ledger{}
	failing.Before(func(context.Context, int, inbox.Incoming) error { return errInjected })
	stop := runSource(t, newSource(t, s.url(), incoming, patient), transporttest.NewReceiver(failing, 0))
	publishNumbers(t, js, []string{"a"}, 1, 30)
	transporttest.Eventually(t, "the first replica has messages in hand", func() bool { return failing.Tries() > 1 })

	ledger := &transporttest.Ledger{}
	second := newSource(t, s.url(), incoming, patient)
	runSource(t, second, transporttest.NewReceiver(ledger, 0))
	stop()
	mustStore(t, ledger, "a", upTo(1, 30))
	mustSettle(t, stream, incoming.Durable)
	if failing.Stored() != nil {
		t.Error("the first replica stored something")
	}
}

func TestWorkQueueStream(t *testing.T) {
	s := startServer(t)
	stream := s.addStream(t, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}, Retention: jetstream.WorkQueuePolicy})
	js := s.jetStream(t)
	publishNumbers(t, js, []string{"a"}, 1, 20)
	abandon(t, s, stream, incoming, Config{AckWait: 2 * time.Second, Takeover: time.Second, Batch: 16}, 10)
	ledger := &transporttest.Ledger{}
	receiver := transporttest.NewReceiver(ledger, 0)
	stop := runSource(t, newSource(t, s.url(), incoming), receiver)
	mustStore(t, ledger, "a", upTo(1, 20))
	mustSettle(t, stream, incoming.Durable)
	stop()
	if err := stream.DeleteConsumer(t.Context(), incoming.Durable); err != nil {
		t.Fatal(err)
	}
	publishNumbers(t, js, []string{"a"}, 21, 30)
	runSource(t, newSource(t, s.url(), incoming), receiver)
	mustStore(t, ledger, "a", upTo(1, 30))
	transporttest.Eventually(t, "the queue is empty", func() bool {
		info, err := stream.Info(t.Context())
		return err == nil && info.State.Msgs == 0
	})
}

func TestForeignMessages(t *testing.T) {
	s := startServer(t)
	stream := ordersStream(t, s)
	js := s.jetStream(t)
	topo := incoming
	topo.Extract = topology.Extract{AggregateID: []string{"$.id"}, AggregateIDMissing: "unordered"}
	for _, m := range []struct {
		data   string
		header nats.Header
	}{
		{`{"id":"a"}`, nats.Header{"x-event-type": {"k.v1"}}},
		{`{"id":"a"}`, nats.Header{"x-event-type": {"k.v1"}}}, // the same again is another message
		{`{"id":"b"}`, nats.Header{"X-EVENT-TYPE": {"k.v1"}, "x-idempotency-key": {"own"}, "Nats-Msg-Id": {"other"}}},
		{`{"id":"c"}`, nats.Header{"x-event-type": {"k.v1"}, "Nats-Msg-Id": {"given"}}},
		{`{`, nats.Header{"x-event-type": {"k.v1"}, "Nats-Msg-Id": {"broken"}}},
		{`{"id":"d"}`, nil},
		{`{"id":"e"}`, nats.Header{"x-event-type": {transporttest.Unroutable}}},
		{`{"id":"f"}`, nats.Header{"ce-type": {"k%2"}}},
	} {
		if _, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: "orders.x", Data: []byte(m.data), Header: m.header}); err != nil {
			t.Fatal(err)
		}
	}
	ledger := &transporttest.Ledger{}
	source := newSource(t, s.url(), topo)
	runSource(t, source, transporttest.NewReceiver(ledger, 0))
	mustSettle(t, stream, topo.Durable)
	log := logName(stream.CachedInfo())
	var got []string
	for _, m := range ledger.Stored() {
		got = append(got, m.AggregateID+" "+m.IdempotencyKey)
	}
	if want := []string{"a " + log + "#1", "a " + log + "#2", "b own", "c given"}; !slices.Equal(got, want) {
		t.Errorf("stored %q, want %q", got, want)
	}
	if stats := source.Stats(); stats.Buried != 4 {
		t.Errorf("stats %+v", stats)
	}
}

func TestConsumersThatCannotServe(t *testing.T) {
	s := startServer(t)
	stream := ordersStream(t, s)
	good := consumerConfig(Config{AckWait: time.Second, Takeover: time.Second, Batch: 1}, incoming, start{}, stream.CachedInfo())
	for says, change := range map[string]func(*jetstream.ConsumerConfig){
		"ordered: false": func(c *jetstream.ConsumerConfig) {
			c.PriorityPolicy, c.PriorityGroups, c.PinnedTTL = jetstream.PriorityPolicyNone, nil, 0
		},
		pinGroup:         func(c *jetstream.ConsumerConfig) { c.PriorityGroups = []string{"others"} },
		"explicit":       func(c *jetstream.ConsumerConfig) { c.AckPolicy = jetstream.AckAllPolicy },
		"max_deliver":    func(c *jetstream.ConsumerConfig) { c.MaxDeliver = 5 },
		"headers":        func(c *jetstream.ConsumerConfig) { c.HeadersOnly = true },
		"filter":         func(c *jetstream.ConsumerConfig) { c.FilterSubject = "orders.x" },
		"inactive":       func(c *jetstream.ConsumerConfig) { c.InactiveThreshold = time.Hour },
		"":               func(*jetstream.ConsumerConfig) {},
		"push consumer;": nil,
	} {
		config := good
		var err error
		if change != nil {
			change(&config)
			_, err = stream.CreateConsumer(t.Context(), config)
		} else {
			_, err = stream.CreatePushConsumer(t.Context(), jetstream.ConsumerConfig{Durable: incoming.Durable, DeliverSubject: "there", AckPolicy: jetstream.AckExplicitPolicy})
		}
		if err != nil {
			t.Fatalf("%s: %v", says, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		if says == "" {
			cancel()
		}
		err = newSource(t, s.url(), incoming).Run(ctx, transporttest.NewReceiver(&transporttest.Ledger{}, 0))
		cancel()
		var wrong *event.ConfigurationError
		if says == "" && err != nil || says != "" && (!errors.As(err, &wrong) || !strings.Contains(err.Error(), says)) {
			t.Errorf("%q: Run = %v", says, err)
		}
		if err := stream.DeleteConsumer(t.Context(), incoming.Durable); err != nil {
			t.Fatal(err)
		}
	}
}

// A source may start before its server and before the stream is there.
func TestSourceWaitsForServerAndStream(t *testing.T) {
	s := startServer(t)
	s.stop()
	ledger := &transporttest.Ledger{}
	runSource(t, newSource(t, s.url(), incoming), transporttest.NewReceiver(ledger, 0))
	s.start()
	ordersStream(t, s)
	publishNumbers(t, s.jetStream(t), []string{"a"}, 1, 3)
	mustStore(t, ledger, "a", upTo(1, 3))
}
