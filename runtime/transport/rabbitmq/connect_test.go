package rabbitmq

import (
	"context"
	"errors"
	"net"
	"os"
	"runtime"
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

// silent accepts connections and says nothing.
func silent(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { conn.Close() })
		}
	}()
	return "amqp://guest:guest@" + l.Addr().String() + "/"
}

// TestSilentBrokerIsGivenUp: a broker that accepts connections and never answers
// holds a message for the dial timeout and no longer.
func TestSilentBrokerIsGivenUp(t *testing.T) {
	d := newDestination(t, Config{URL: silent(t), DialTimeout: 50 * time.Millisecond}, topology.RabbitMQDestination{Name: "d", RoutingKey: "q"})
	if err := send(t, d, newMessage("k", 1)); class(err) != event.Unavailable {
		t.Errorf("Send = %v (%v), want unavailable", err, class(err))
	}
}

// TestFurtherNodes: the nodes of a cluster are tried in turn.
func TestFurtherNodes(t *testing.T) {
	server := testrabbit.URL(t)
	to, _ := ordered(t, server, 1)
	d := newDestination(t, Config{URL: "amqp://127.0.0.1:1/", More: []string{silent(t), server}, DialTimeout: time.Second}, to)
	mustSend(t, d, newMessage("k", 1))
}

// TestReadyMadeConnection: a service may make the connections itself.
func TestReadyMadeConnection(t *testing.T) {
	server := testrabbit.URL(t)
	to, from := ordered(t, server, 1)
	dials := 0
	c := Config{Dial: func(context.Context) (*amqp.Connection, error) {
		if dials++; dials == 1 {
			return nil, errors.New("not yet")
		}
		return amqp.Dial(server)
	}}
	ledger := &transporttest.Ledger{}
	run(t, Config{URL: server}, from, transporttest.NewReceiver(ledger, 0))
	d := newDestination(t, c, to)
	if d.Address() != "" {
		t.Errorf("address %q", d.Address())
	}
	if err := send(t, d, newMessage("k", 0)); class(err) != event.Unavailable || !strings.Contains(err.Error(), "not yet") {
		t.Errorf("Send = %v (%v)", err, class(err))
	}
	mustSend(t, d, newMessage("k", 0))
	transporttest.Eventually(t, "the message is stored", func() bool { return ledger.Count() == 1 })
}

// TestDeadlineIsNotPutOff: a deadline for everything holds, whatever the client sets
// for reading and writing later, until it is taken away.
func TestDeadlineIsNotPutOff(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	c := &impatient{Conn: near, write: time.Hour}
	later := time.Now().Add(time.Hour)
	for name, op := range map[string]func() error{
		"read":       func() error { c.SetReadDeadline(later); _, err := c.Read(make([]byte, 1)); return err },
		"read never": func() error { c.SetReadDeadline(time.Time{}); _, err := c.Read(make([]byte, 1)); return err },
		"write":      func() error { _, err := c.Write([]byte{1}); return err },
	} {
		c.SetDeadline(time.Now().Add(time.Millisecond))
		if err := op(); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
	}
	c.SetDeadline(time.Time{})
	go far.Write([]byte{1})
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Errorf("without a deadline: %v", err)
	}
}

// TestCloseEndsEverything: Close ends what is on its way, even when the broker
// does not answer, and leaves nothing running.
func TestCloseEndsEverything(t *testing.T) {
	server := testrabbit.URL(t)
	to, _ := ordered(t, server, 1)
	before := runtime.NumGoroutine()
	for _, mode := range []transporttest.Mode{transporttest.Pass, transporttest.Stall} {
		proxy := transporttest.NewProxy(t, hostOf(t, server))
		d := newDestination(t, Config{URL: through(t, server, proxy)}, to)
		mustSend(t, d, newMessage("", 0))
		proxy.Set(t, mode)
		var all sync.WaitGroup
		for n := range 100 {
			all.Go(func() {
				for class(send(t, d, newMessage("", int64(n)))) != event.Unavailable {
				}
			})
		}
		if err := d.Close(); err != nil {
			t.Errorf("Close = %v", err)
		}
		all.Wait()
		if err := send(t, d, newMessage("", 0)); !errors.Is(err, ErrClosed) {
			t.Errorf("Send after Close = %v", err)
		}
		proxy.Set(t, transporttest.Refuse)
	}
	transporttest.Eventually(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before+4 })
}
