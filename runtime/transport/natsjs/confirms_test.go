package natsjs

import (
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/transporttest"
)

// TestTheWriterWaitsForNoReader: what is sent at the moment when the connection is
// lost has one answer, although the client refuses it too and the caller of Send
// may have left.
func TestTheWriterWaitsForNoReader(t *testing.T) {
	s := startServer(t)
	conn, err := nats.Connect(s.url())
	if err != nil {
		t.Fatal(err)
	}
	c, err := newConfirms(conn)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	lost, stopped, sent := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-lost:
				return
			default:
				c.fail(nats.ErrDisconnected)
			}
		}
	}()
	messages := make([]publish, 5000)
	go func() {
		defer close(sent)
		for i := range messages {
			messages[i].m, messages[i].done = &nats.Msg{Subject: "orders.a"}, make(chan error, 1)
			c.send(&messages[i])
		}
	}()
	transporttest.Eventually(t, "all messages have their answers", func() bool {
		select {
		case <-sent:
			return true
		default:
			return false
		}
	})
	close(lost)
	<-stopped
	for i := range messages {
		if len(messages[i].done) != 1 {
			t.Fatalf("message %d has no answer", i)
		}
		if err := <-messages[i].done; classOf(err) != event.Unavailable {
			t.Fatalf("message %d was not sent, and is answered with %v (%v), want unavailable", i, err, classOf(err))
		}
	}
}
