package natsjs

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/lanebox/lanebox/runtime/event"
)

// A publish is a message on its way.
type publish struct {
	m     *nats.Msg
	taken atomic.Bool // by the writer, or by a Send that gives up
	token uint64
	// done has one answer at most: nil when the server has stored the message.
	done chan error

	// While it is being written the writer alone knows whether it was sent: a loss
	// of the connection is noted, for the writer to answer with. Guarded by confirms.
	writing bool
	lost    error
}

// confirms match the server's answers to their publishes. They are safe for
// concurrent use.
type confirms struct {
	conn   *nats.Conn
	prefix string // of the subjects that answers come to
	sub    *nats.Subscription

	mu      sync.Mutex
	next    uint64
	waiting map[uint64]*publish
}

func newConfirms(conn *nats.Conn) (*confirms, error) {
	c := &confirms{conn: conn, prefix: conn.NewInbox() + ".", waiting: map[uint64]*publish{}}
	var err error
	c.sub, err = conn.Subscribe(c.prefix+"*", c.answer)
	return c, err
}

// send publishes p. What cannot be sent is answered at once, unless it has an
// answer: the connection may be lost meanwhile. A second answer would have to wait
// for somebody who reads it.
func (c *confirms) send(p *publish) {
	c.mu.Lock()
	c.next++
	p.token, p.writing = c.next, true
	c.waiting[p.token] = p
	c.mu.Unlock()
	p.m.Reply = c.prefix + strconv.FormatUint(p.token, 10)
	err := c.conn.PublishMsg(p.m)
	if err != nil {
		err = refused(err)
	}
	if err = c.written(p, err); err != nil {
		p.done <- err
	}
}

// written ends the writing of p. It returns what p is to be answered with: err, or
// that the connection was lost; nil when p waits for the server, or has an answer.
func (c *confirms) written(p *publish, err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	p.writing = false
	if err == nil {
		err = p.lost
	}
	if _, waiting := c.waiting[p.token]; err == nil || !waiting {
		return nil
	}
	delete(c.waiting, p.token)
	return err
}

// forget makes an answer to p come to nothing.
func (c *confirms) forget(p *publish) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, p.token)
}

// take returns the publish of an answer's subject, once; nil if nobody waits.
func (c *confirms) take(subject string) *publish {
	token, err := strconv.ParseUint(strings.TrimPrefix(subject, c.prefix), 10, 64)
	if err != nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.waiting[token]
	delete(c.waiting, token)
	return p
}

// answer hands an answer to its publish.
func (c *confirms) answer(m *nats.Msg) {
	if p := c.take(m.Subject); p != nil {
		p.done <- verdict(m)
	}
}

// fail ends all waiting with err.
func (c *confirms) fail(err error) {
	var failed []*publish
	c.mu.Lock()
	for token, p := range c.waiting {
		if p.writing {
			p.lost = err
			continue
		}
		failed = append(failed, p)
		delete(c.waiting, token)
	}
	c.mu.Unlock()
	for _, p := range failed {
		p.done <- err
	}
}

// deny ends the waiting for answers to what the server says was not permitted. It
// names the subject.
func (c *confirms) deny(err error) {
	var denied []*publish
	c.mu.Lock()
	for token, p := range c.waiting {
		if strings.Contains(err.Error(), strconv.Quote(p.m.Subject)) {
			denied = append(denied, p)
			delete(c.waiting, token)
		}
	}
	c.mu.Unlock()
	for _, p := range denied {
		p.done <- event.AsUnavailable(err)
	}
}

func (c *confirms) close() {
	c.sub.Unsubscribe()
	c.fail(errGone)
}

// verdict reads an answer: nil when the message is stored, now or before.
func verdict(m *nats.Msg) error {
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
		return jetstream.ErrNoStreamResponse
	}
	var ack struct {
		Error  *jetstream.APIError `json:"error"`
		Stream string              `json:"stream"`
	}
	switch err := json.Unmarshal(m.Data, &ack); {
	case err != nil:
		return fmt.Errorf("the answer is no acknowledgement: %w", err)
	case ack.Error != nil:
		return ack.Error
	case ack.Stream == "":
		return jetstream.ErrInvalidJSAck
	}
	return nil
}
