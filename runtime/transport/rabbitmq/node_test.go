package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/topology"
	"github.com/lanebox/lanebox/runtime/transporttest"
	"github.com/lanebox/lanebox/runtime/transporttest/testrabbit"
)

// control runs rabbitmqctl.
func control(t testing.TB, n *testrabbit.Node, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := n.Control(ctx, args...); err != nil {
		t.Fatal(err)
	}
}

// A load sends messages of several keys, one after the other for each key.
type load struct {
	keys    int
	sent    []int64
	cancel  func()
	running sync.WaitGroup
	// answers counts failed attempts by class.
	answers [4]atomic.Int64
}

// startLoad sends to d until stop is called.
func startLoad(t testing.TB, d *Destination, keys int) *load {
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{keys: keys, sent: make([]int64, keys), cancel: cancel}
	for k := range keys {
		l.running.Go(func() {
			pace := backoff{first: 5 * time.Millisecond, last: 5 * time.Millisecond}
			for ctx.Err() == nil {
				l.one(t, d, newMessage(fmt.Sprintf("key-%d", k), l.sent[k]))
				l.sent[k]++
				pace.pause(ctx)
			}
		})
	}
	t.Cleanup(cancel)
	return l
}

// one sends m until it is sent. Failures wait a little, as a poller does.
func (l *load) one(t testing.TB, d *Destination, m event.Message) {
	wait := backoff{first: 5 * time.Millisecond, last: 100 * time.Millisecond}
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		err := d.Send(ctx, m)
		cancel()
		if err == nil {
			return
		}
		l.answers[class(err)].Add(1)
		if class(err) == event.Permanent {
			t.Errorf("a good message is refused for good: %v", err)
			return
		}
		wait.pause(context.Background())
	}
}

// stop ends the load; it returns how many messages of each key were sent, and of
// all.
func (l *load) stop() (next map[string]int64, total int) {
	l.cancel()
	l.running.Wait()
	next = map[string]int64{}
	for k, n := range l.sent {
		next[fmt.Sprintf("key-%d", k)] = n
		total += int(n)
	}
	return next, total
}

// TestBrokerRestartsUnderLoad restarts the broker 20 times, in every way, while
// messages are sent and received. Nothing is lost, the order holds, both sides go
// on by themselves, and only what was on its way spends an attempt.
func TestBrokerRestartsUnderLoad(t *testing.T) {
	node := testrabbit.Own(t)
	to, from := ordered(t, node.URL(), 2)
	ledger := &transporttest.Ledger{}
	source, _ := run(t, Config{URL: node.URL()}, from, transporttest.NewReceiver(ledger, 0))
	d := newDestination(t, Config{URL: node.URL()}, to)
	const keys, restarts = 10, 20
	l := startLoad(t, d, keys)
	flows := func() {
		t.Helper()
		before := ledger.Count()
		transporttest.Eventually(t, "messages flow", func() bool { return ledger.Count() > before+keys })
	}
	full := os.Getenv("LANEBOX_TEST_FULL") != ""
	for n := range restarts {
		flows()
		switch {
		case n == 7:
			node.Stop()
			startAgain(t, node)
		case n == 14:
			node.Kill()
			startAgain(t, node)
		case n%5 == 0 || full:
			control(t, node, "stop_app")
			control(t, node, "start_app")
		default:
			control(t, node, "close_all_connections", "restart")
		}
	}
	flows()
	next, total := l.stop()
	transporttest.Eventually(t, "all are stored", func() bool { return ledger.Count() == total })
	checkOrder(t, ledger, next)
	if n := l.answers[event.Transient].Load(); n > keys*restarts {
		t.Errorf("%d attempts were spent; at most %d messages were on their way", n, keys*restarts)
	}
	if s := source.Stats(); s.Reconnects < restarts || s.Disordered != 0 {
		t.Errorf("stats %+v", s)
	}
	t.Logf("%d messages; failures: %d transient, %d unavailable", total, l.answers[event.Transient].Load(), l.answers[event.Unavailable].Load())
}

func startAgain(t testing.TB, node *testrabbit.Node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := node.Start(ctx); err != nil {
		t.Fatal(err)
	}
}

// TestEverythingGoesOutAfterAnOutage: what waited for the broker goes out when it
// is back, and not just the first message.
func TestEverythingGoesOutAfterAnOutage(t *testing.T) {
	node := testrabbit.Own(t)
	to, from := ordered(t, node.URL(), 2)
	ledger := &transporttest.Ledger{}
	run(t, Config{URL: node.URL()}, from, transporttest.NewReceiver(ledger, 0))
	d := newDestination(t, Config{URL: node.URL()}, to)
	mustSend(t, d, newMessage("", 0))
	control(t, node, "stop_app")
	defer control(t, node, "start_app")
	const keys, each = 10, 10
	var waiting, lanes sync.WaitGroup
	waiting.Add(keys)
	for k := range keys {
		lanes.Go(func() {
			l := &load{}
			if err := send(t, d, newMessage(fmt.Sprintf("key-%d", k), 0)); class(err) != event.Unavailable && class(err) != event.Transient {
				t.Errorf("Send without a broker = %v (%v)", err, class(err))
			}
			waiting.Done()
			for n := range each {
				l.one(t, d, newMessage(fmt.Sprintf("key-%d", k), int64(n)))
			}
		})
	}
	waiting.Wait()
	control(t, node, "start_app")
	lanes.Wait()
	transporttest.Eventually(t, "all are stored", func() bool { return ledger.Count() == keys*each+1 })
}

// TestAlarmIsBackPressure: a broker that is short of memory takes no messages, and
// that spends no attempt. It goes on by itself, and consumers were never stopped.
func TestAlarmIsBackPressure(t *testing.T) {
	node := testrabbit.Own(t)
	to, from := ordered(t, node.URL(), 2)
	ledger := &transporttest.Ledger{}
	run(t, Config{URL: node.URL()}, from, transporttest.NewReceiver(ledger, 0))
	d := newDestination(t, Config{URL: node.URL()}, to)
	elsewhere, _ := ordered(t, node.URL(), 1)
	other := newDestination(t, Config{URL: node.URL()}, elsewhere)
	mustSend(t, other, newMessage("k", 0))
	l := startLoad(t, d, 8)
	transporttest.Eventually(t, "messages flow", func() bool { return ledger.Count() > 20 })
	defer control(t, node, "set_vm_memory_high_watermark", "0.9")
	control(t, node, "set_vm_memory_high_watermark", "0.0000001")
	transporttest.Eventually(t, "the broker pushes back", func() bool { return l.answers[event.BackPressure].Load() > 100 })
	if err := send(t, d, newMessage("", 0)); !errors.Is(err, errBlocked) || class(err) != event.BackPressure {
		t.Errorf("Send = %v (%v), want back-pressure", err, class(err))
	}
	// The broker reads nothing from a connection that has published, but its heartbeats
	// come.
	transporttest.Eventually(t, "the other connection is blocked", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		return errors.Is(other.Send(ctx, newMessage("k", 1)), errBlocked)
	})
	if err := other.Close(); err != nil {
		t.Errorf("Close in the alarm = %v", err)
	}
	control(t, node, "set_vm_memory_high_watermark", "0.9")
	before := ledger.Count()
	transporttest.Eventually(t, "messages flow again", func() bool { return ledger.Count() > before+100 })
	next, total := l.stop()
	transporttest.Eventually(t, "all are stored", func() bool { return ledger.Count() == total })
	checkOrder(t, ledger, next)
	if n := l.answers[event.Transient].Load(); n != 0 {
		t.Errorf("the alarm spent %d attempts", n)
	}
}

// TestPermissions: who may not publish, declare or read is told so, and no message
// dies of it.
func TestPermissions(t *testing.T) {
	node := testrabbit.Own(t)
	to, from := ordered(t, node.URL(), 1)
	mustSend(t, newDestination(t, Config{URL: node.URL()}, to), newMessage("k", 0))
	control(t, node, "add_user", "guarded", "secret")
	defer control(t, node, "delete_user", "guarded")
	as := "amqp://guarded:secret@" + node.Address() + "/"
	allow := func(configure, write, read string) {
		control(t, node, "set_permissions", "guarded", configure, write, read)
	}
	unavailable := func(what, server, says string) {
		t.Helper()
		err := send(t, newDestination(t, Config{URL: server}, to), newMessage("k", 0))
		if class(err) != event.Unavailable || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: Send = %v (%v)", what, err, class(err))
		}
	}
	unavailable("wrong password", "amqp://guarded:wrong@"+node.Address()+"/", "403")
	unavailable("no virtual host", as, "connect")
	allow("^$", ".*", ".*")
	unavailable("no configure permission", as, "may not declare")
	err := tryRun(t, as, from)
	var wrong *event.ConfigurationError
	if !errors.As(err, &wrong) || !strings.Contains(err.Error(), "configure permission") {
		t.Errorf("Run without the configure permission = %v", err)
	}

	loose := topology.RabbitMQDestination{Name: "loose", Exchange: to.Exchange}
	allow("^$", "^$", ".*")
	d := newDestination(t, Config{URL: as}, loose)
	if err := send(t, d, newMessage("k", 0)); class(err) != event.Unavailable || !strings.Contains(err.Error(), "ACCESS_REFUSED") {
		t.Errorf("Send without the write permission = %v (%v)", err, class(err))
	}
}

// TestTooLargeForTheBroker: the broker's own limit makes a message permanent, and
// others are not touched.
func TestTooLargeForTheBroker(t *testing.T) {
	node := testrabbit.Own(t)
	limit := func(bytes string) {
		// From 3.13 on the node keeps it elsewhere once it runs.
		control(t, node, "eval", "application:set_env(rabbit, max_message_size, "+bytes+"), persistent_term:put(max_message_size, "+bytes+").")
	}
	defer limit("134217728")
	limit("1000")
	to, _ := ordered(t, node.URL(), 1)
	d := newDestination(t, Config{URL: node.URL()}, to)
	l := startLoad(t, d, 4)
	for range 10 {
		m := newMessage("", 0)
		m.Payload = make([]byte, 2000)
		if err := send(t, d, m); class(err) != event.Permanent {
			t.Errorf("Send = %v (%v), want permanent", err, class(err))
		}
	}
	l.stop()
	for c := range l.answers {
		if n := l.answers[c].Load(); n != 0 {
			t.Errorf("%d other messages failed: %v", n, event.Class(c))
		}
	}
}
