package natsjs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/topology"
	"github.com/lanebox/lanebox/runtime/transporttest"
)

var orders = topology.NATSDestination{Name: "warehouse", Stream: "ORDERS", Subject: "orders.{key}.{type}", Declare: true}

func newDestination(t testing.TB, url string, topo topology.NATSDestination, change ...func(*Config)) *Destination {
	t.Helper()
	c := Config{URL: url, Logger: quiet, Timeout: 5 * time.Second}
	for _, f := range change {
		f(&c)
	}
	d, err := NewDestination(c, topo)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	transporttest.Eventually(t, "the destination is connected", d.link.conn.IsConnected)
	return d
}

func message(key string, n int64) event.Message {
	return event.Message{ID: event.NewUUID(), Sequence: n, Topic: "order.placed.v1", Key: key, Payload: fmt.Appendf(nil, "%d", n), Attempt: 1}
}

func classOf(err error) event.Class {
	c, _ := event.Classify(err)
	return c
}

// mustSend sends m as often as needed.
func mustSend(t testing.TB, d *Destination, m event.Message) {
	t.Helper()
	transporttest.Eventually(t, "a message is sent", func() bool {
		err := d.Send(t.Context(), m)
		if err != nil && classOf(err) == event.Permanent {
			t.Fatalf("Send: %v", err)
		}
		return err == nil
	})
}

func TestDeclaresAndPublishes(t *testing.T) {
	s := startServer(t)
	topo := orders
	topo.Duplicates = 7 * time.Minute
	d := newDestination(t, s.url(), topo)
	m := message("a.b", 1)
	mustSend(t, d, m)
	mustSend(t, d, m) // as a retry would: the server has it
	stream, err := s.jetStream(t).Stream(t.Context(), "ORDERS")
	if err != nil {
		t.Fatal(err)
	}
	info := stream.CachedInfo()
	if info.State.Msgs != 1 || info.Config.Subjects[0] != "orders.*.>" || info.Config.Duplicates != 7*time.Minute || info.Config.Discard != jetstream.DiscardNew {
		t.Errorf("the stream is %+v with %d messages", info.Config, info.State.Msgs)
	}
	got, err := stream.GetMsg(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if got.Subject != "orders.a%2Eb.order.placed.v1" || got.Header.Get("ce-id") != m.ID.String() || got.Header.Get("ce-partitionkey") != "a.b" || got.Header.Get("content-type") != "application/json" {
		t.Errorf("published %s with %v", got.Subject, got.Header)
	}
}

// Two destinations may share a stream, and a message routed to both has one id.
func TestDestinationsOfOneStreamDropNothingOfEachOther(t *testing.T) {
	s := startServer(t)
	stream := s.addStream(t, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>", "audit.>"}})
	first := newDestination(t, s.url(), orders)
	audit := orders
	audit.Name, audit.Subject = "audit", "audit.{key}"
	second := newDestination(t, s.url(), audit)
	m := message("k", 1)
	mustSend(t, first, m)
	mustSend(t, second, m)
	if info, err := stream.Info(t.Context()); err != nil || info.State.Msgs != 2 {
		t.Errorf("the stream has %d messages, %v", info.State.Msgs, err)
	}
	if first.Address() == second.Address() || strings.Contains(newDestination(t, "nats://user:secret@"+s.address(), orders).Address(), "secret") {
		t.Errorf("addresses %s and %s", first.Address(), second.Address())
	}
}

func TestFullStreamIsBackPressure(t *testing.T) {
	for name, limit := range map[string]func(*jetstream.StreamConfig){
		"messages":    func(c *jetstream.StreamConfig) { c.MaxMsgs = 2 },
		"bytes":       func(c *jetstream.StreamConfig) { c.MaxBytes = 1500 },
		"per subject": func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject, c.DiscardNewPerSubject = 2, true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			config := jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}, Discard: jetstream.DiscardNew}
			limit(&config)
			stream := s.addStream(t, config)
			d := newDestination(t, s.url(), orders)
			var err error
			n := 0
			for ; err == nil && n < 10; n++ {
				err = d.Send(t.Context(), message("k", int64(n)))
			}
			if classOf(err) != event.BackPressure || n < 3 {
				t.Fatalf("message %d: %v (%v), want back-pressure", n, err, classOf(err))
			}
			// A full stream costs nothing and holds up nothing: it goes on when there is
			// room.
			if err := stream.Purge(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := d.Send(t.Context(), message("k", 9)); err != nil {
				t.Errorf("Send with room again: %v", err)
			}
		})
	}
}

func TestTooLargeIsPermanent(t *testing.T) {
	s := startServer(t)
	s.addStream(t, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}, MaxMsgSize: 10_000})
	d := newDestination(t, s.url(), orders)
	for what, change := range map[string]func(*event.Message){
		"more than the stream takes":   func(m *event.Message) { m.Payload = make([]byte, 20_000) },
		"more than the server takes":   func(m *event.Message) { m.Payload = make([]byte, 3<<20) },
		"headers of more than 64 KiB":  func(m *event.Message) { m.Headers = event.Headers{"x": strings.Repeat("x", 70_000)} },
		"a subject that is too long":   func(m *event.Message) { m.Topic = strings.Repeat("x", 3000) },
		"a media type that is not one": func(m *event.Message) { m.Headers = event.Headers{event.HeaderContentType: "\r\n"} },
	} {
		m := message("k", 1)
		change(&m)
		if err := d.Send(t.Context(), m); classOf(err) != event.Permanent {
			t.Errorf("%s: %v (%v), want a permanent failure", what, err, classOf(err))
		}
	}
	mustSend(t, d, message("k", 2))
}

func TestMissingStreamIsUnavailable(t *testing.T) {
	s := startServer(t)
	topo := orders
	topo.Declare = false
	d := newDestination(t, s.url(), topo)
	m := message("k", 1)
	if err := d.Send(t.Context(), m); classOf(err) != event.Unavailable || !strings.Contains(err.Error(), "ORDERS") {
		t.Fatalf("Send without a stream: %v (%v), want unavailable", err, classOf(err))
	}
	s.addStream(t, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}})
	mustSend(t, d, m)

	// Deleted under a destination that has sent already.
	if err := s.jetStream(t).DeleteStream(t.Context(), "ORDERS"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := d.Send(t.Context(), m); classOf(err) != event.Unavailable {
			t.Fatalf("Send after the stream was deleted: %v (%v), want unavailable", err, classOf(err))
		}
	}
	stream := s.addStream(t, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}})
	mustSend(t, d, m)
	if info, err := stream.Info(t.Context()); err != nil || info.State.Msgs != 1 {
		t.Errorf("the new stream has %d messages, %v", info.State.Msgs, err)
	}
}

func TestDeletedStreamIsDeclaredAgain(t *testing.T) {
	s := startServer(t)
	d := newDestination(t, s.url(), orders)
	mustSend(t, d, message("k", 1))
	if err := s.jetStream(t).DeleteStream(t.Context(), "ORDERS"); err != nil {
		t.Fatal(err)
	}
	mustSend(t, d, message("k", 2))
}

func TestAnotherStreamIsUnavailable(t *testing.T) {
	s := startServer(t)
	s.addStream(t, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"elsewhere.>"}})
	other := s.addStream(t, jetstream.StreamConfig{Name: "OTHER", Subjects: []string{"orders.>"}})
	d := newDestination(t, s.url(), orders)
	if err := d.Send(t.Context(), message("k", 1)); classOf(err) != event.Unavailable || !strings.Contains(err.Error(), "another stream") {
		t.Errorf("Send = %v (%v), want unavailable", err, classOf(err))
	}
	if info, err := other.Info(t.Context()); err != nil || info.State.Msgs != 0 {
		t.Errorf("the other stream has %d messages, %v", info.State.Msgs, err)
	}
}

func TestServerWithoutJetStreamIsUnavailable(t *testing.T) {
	s := startServer(t, func(o *server.Options) { o.JetStream = false })
	d := newDestination(t, s.url(), orders)
	if err := d.Send(t.Context(), message("k", 1)); classOf(err) != event.Unavailable {
		t.Errorf("Send = %v (%v), want unavailable", err, classOf(err))
	}
}

// A message that the server does not permit was not sent: waiting for permission
// costs no attempts.
func TestDeniedSubjectIsUnavailable(t *testing.T) {
	s := startServer(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "u", Password: "p", Permissions: &server.Permissions{
			Publish: &server.SubjectPermission{Deny: []string{"orders.closed.>"}},
		}}}
	})
	d := newDestination(t, "nats://u:p@"+s.address(), orders)
	mustSend(t, d, message("open", 1))
	if err := d.Send(t.Context(), message("closed", 1)); classOf(err) != event.Unavailable || !strings.Contains(err.Error(), "orders.closed") {
		t.Errorf("Send of what is not permitted = %v (%v), want unavailable", err, classOf(err))
	}
	mustSend(t, d, message("open", 2))
}

func TestStreamsThatCannotServe(t *testing.T) {
	s := startServer(t)
	s.addStream(t, jetstream.StreamConfig{Name: "SOURCE", Subjects: []string{"x"}})
	for name, config := range map[string]jetstream.StreamConfig{
		"no_ack":      {NoAck: true, Subjects: []string{"orders.>"}},
		"mirror":      {Mirror: &jetstream.StreamSource{Name: "SOURCE"}},
		"dupe-window": {Duplicates: time.Second, Subjects: []string{"orders.>"}},
	} {
		config.Name = "ORDERS"
		s.addStream(t, config)
		topo := orders
		topo.Duplicates = time.Minute
		d := newDestination(t, s.url(), topo)
		err := d.Send(t.Context(), message("k", 1))
		var wrong *event.ConfigurationError
		if classOf(err) != event.Unavailable || !errors.As(err, &wrong) || !strings.Contains(err.Error(), strings.TrimSuffix(name, "!")) {
			t.Errorf("%s: %v (%v), want unavailable because of the configuration", name, err, classOf(err))
		}
		if err := s.jetStream(t).DeleteStream(t.Context(), "ORDERS"); err != nil {
			t.Fatal(err)
		}
	}
}

// What could not be sent must not wait in a buffer and come late, behind what was
// sent after it by another process.
func TestNothingIsKeptForTheNextConnection(t *testing.T) {
	s := startServer(t)
	stream := s.addStream(t, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}})
	proxy := transporttest.NewProxy(t, s.address())
	d := newDestination(t, "nats://"+proxy.Address(), orders)
	mustSend(t, d, message("k", 0))
	for round := range 5 {
		proxy.Set(t, transporttest.Refuse)
		transporttest.Eventually(t, "the loss is noticed", func() bool { return !d.link.conn.IsConnected() })
		var all sync.WaitGroup
		for n := range 20 {
			all.Go(func() {
				m := message(fmt.Sprint("lost-", n), 1)
				if err := d.Send(t.Context(), m); classOf(err) != event.Unavailable {
					t.Errorf("Send without a connection: %v (%v), want unavailable", err, classOf(err))
				}
				// Behind the checks of Send, the client itself must refuse.
				if _, err := d.link.js.PublishAsync("orders.late", nil); err == nil && !d.link.conn.IsConnected() {
					t.Error("the client took a message without a connection")
				}
			})
		}
		all.Wait()
		proxy.Set(t, transporttest.Pass)
		mustSend(t, d, message("k", int64(round+1)))
		info, err := stream.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if want := uint64(round + 2); info.State.Msgs != want {
			t.Fatalf("the stream has %d messages, want %d", info.State.Msgs, want)
		}
	}
}

func TestLostConnectionEndsSendAtOnce(t *testing.T) {
	s := startServer(t)
	proxy := transporttest.NewProxy(t, s.address())
	d := newDestination(t, "nats://"+proxy.Address(), orders, func(c *Config) { c.Timeout = time.Hour })
	mustSend(t, d, message("k", 0))
	proxy.Set(t, transporttest.Stall)
	m := message("k", 1)
	sent := make(chan error, 1)
	go func() { sent <- d.Send(t.Context(), m) }()
	stream, err := s.jetStream(t).Stream(t.Context(), "ORDERS")
	if err != nil {
		t.Fatal(err)
	}
	transporttest.Eventually(t, "the message is in the stream", func() bool {
		info, err := stream.Info(t.Context())
		return err == nil && info.State.Msgs == 2
	})
	proxy.Set(t, transporttest.Refuse)
	select {
	case err := <-sent:
		if err == nil || classOf(err) != event.Transient {
			t.Errorf("Send = %v (%v), want transient: it was stored", err, classOf(err))
		}
	case <-time.After(20 * time.Second):
		t.Fatal("Send still waits for an answer that cannot come")
	}
	proxy.Set(t, transporttest.Pass)
	mustSend(t, d, m)
	if info, err := stream.Info(t.Context()); err != nil || info.State.Msgs != 2 {
		t.Errorf("the stream has %d messages, %v: the repeat was not dropped", info.State.Msgs, err)
	}
}

// A connection that takes no bytes holds up no caller beyond its context, and is
// given up in the end.
func TestStuckConnectionHoldsUpNobody(t *testing.T) {
	s := startServer(t)
	dialer := &stuckDialer{}
	d := newDestination(t, s.url(), orders, func(c *Config) {
		c.Options = []nats.Option{nats.SetCustomDialer(dialer)}
	})
	mustSend(t, d, message("k", 0))
	dialer.stuck.Store(true)
	var all sync.WaitGroup
	for n := range 50 {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			m := message(fmt.Sprint(n), 1)
			m.Payload = make([]byte, 100_000)
			err := d.Send(ctx, m)
			if err == nil || classOf(err) == event.Permanent {
				t.Errorf("Send over a stuck connection = %v (%v)", err, classOf(err))
			}
			if dialer.released.Load() {
				t.Error("Send returned only after the connection was given up")
			}
		})
	}
	all.Wait()
	dialer.stuck.Store(false)
	mustSend(t, d, message("k", 1))
}

// A stuckDialer makes connections that take no bytes while stuck is set. released
// says that one of their writes has ended, at its deadline.
type stuckDialer struct{ stuck, released atomic.Bool }

func (d *stuckDialer) Dial(network, address string) (net.Conn, error) {
	c, err := net.Dial(network, address)
	return &stuckConn{Conn: c, dialer: d}, err
}

type stuckConn struct {
	net.Conn
	dialer *stuckDialer
	mu     sync.Mutex
	until  time.Time
}

func (c *stuckConn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.until = t
	return c.Conn.SetWriteDeadline(t)
}

func (c *stuckConn) Write(b []byte) (int, error) {
	if !c.dialer.stuck.Load() {
		return c.Conn.Write(b)
	}
	c.mu.Lock()
	until := c.until
	c.mu.Unlock()
	<-time.After(time.Until(until))
	c.dialer.released.Store(true)
	return 0, os.ErrDeadlineExceeded
}

func TestConnectionHandedIn(t *testing.T) {
	s := startServer(t)
	buffered, err := nats.Connect(s.url())
	if err != nil {
		t.Fatal(err)
	}
	defer buffered.Close()
	if _, err := NewDestination(Config{Conn: buffered}, orders); err == nil || !strings.Contains(err.Error(), "ReconnectBufSize") {
		t.Errorf("a connection that keeps messages was accepted: %v", err)
	}
	conn, err := nats.Connect(s.url(), nats.ReconnectBufSize(-1))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	d, err := NewDestination(Config{Conn: conn, Logger: quiet}, orders)
	if err != nil {
		t.Fatal(err)
	}
	if want := newDestination(t, s.url(), orders).Address(); d.Address() != want {
		t.Errorf("address %s, want %s", d.Address(), want)
	}
	mustSend(t, d, message("k", 1))
	if err := d.Close(); err != nil || !conn.IsConnected() {
		t.Errorf("Close = %v; the connection is %v", err, conn.Status())
	}
}

func TestWrongConfiguration(t *testing.T) {
	good := Config{URL: "nats://127.0.0.1:1", Logger: quiet}
	for what, change := range map[string]func(*Config, *topology.NATSDestination){
		"no address":          func(c *Config, _ *topology.NATSDestination) { c.URL = "" },
		"a URL that is none":  func(c *Config, _ *topology.NATSDestination) { c.URL = "nats://user:hunter2@ho st" },
		"no stream":           func(_ *Config, d *topology.NATSDestination) { d.Stream = "" },
		"a stream with a dot": func(_ *Config, d *topology.NATSDestination) { d.Stream = "a.b" },
		"no subject":          func(_ *Config, d *topology.NATSDestination) { d.Subject = "" },
		"nothing fixed":       func(_ *Config, d *topology.NATSDestination) { d.Subject = "{type}" },
		"negative":            func(c *Config, _ *topology.NATSDestination) { c.Timeout = -1 },
		"another protocol":    func(c *Config, _ *topology.NATSDestination) { c.URL = "nats://127.0.0.1:1,http://127.0.0.1:2" },
		"two prefixes":        func(c *Config, _ *topology.NATSDestination) { c.Domain, c.APIPrefix = "a", "b" },
	} {
		c, d := good, orders
		change(&c, &d)
		if _, err := NewDestination(c, d); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, topo := range map[string]topology.NATSSource{
		"no stream":        {Durable: "d"},
		"no consumer":      {Stream: "S"},
		"a start":          {Stream: "S", Durable: "d", Start: "middle"},
		"a rule":           {Stream: "S", Durable: "d", Extract: topology.Extract{EventType: []string{"type"}}},
		"a consumer's dot": {Stream: "S", Durable: "d.e"},
	} {
		if _, err := NewSource(good, topo); err == nil {
			t.Errorf("%s was accepted", what)
		}
	}
}
