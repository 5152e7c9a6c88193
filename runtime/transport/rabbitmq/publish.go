package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/lanebox/lanebox/runtime/event"
)

// An UnroutableError says that the broker took a message and found no queue for
// it. The message is nowhere.
type UnroutableError struct {
	Exchange, RoutingKey string
	// Code and Text are what the broker said: 312 and "NO_ROUTE".
	Code int
	Text string
}

func (e *UnroutableError) Error() string {
	return fmt.Sprintf("no queue of exchange %q takes routing key %q: %d %s", e.Exchange, e.RoutingKey, e.Code, e.Text)
}

var (
	errBlocked   = errors.New("the broker takes no messages on this connection: it is short of memory or disk")
	errNacked    = errors.New("the broker did not take the message (negative confirm)")
	errNoConfirm = errors.New("no confirm came in time")
	errStray     = errors.New("the broker returned another message than the one sent")
)

// A channel carries one message at a time, so that whatever the broker says on it
// speaks of that message. One whose message was given up is closed: a confirm that
// comes late has nobody to mistake it.
type channel struct {
	ch      *amqp.Channel
	returns chan amqp.Return
	closes  chan *amqp.Error
}

func newChannel(l *link) (*channel, error) {
	ch, err := l.conn.Channel()
	if err != nil {
		return nil, err
	}
	if err := ch.Confirm(false); err != nil {
		ch.Close()
		return nil, err
	}
	return &channel{
		ch:      ch,
		returns: ch.NotifyReturn(make(chan amqp.Return, 1)),
		closes:  ch.NotifyClose(make(chan *amqp.Error, 1)),
	}, nil
}

// A pool keeps the channels of one link.
type pool struct {
	link  *link
	slots chan struct{} // one for each channel in use; shared by all links

	mu   sync.Mutex
	idle []*channel
}

// take returns an idle channel, or a new one.
func (p *pool) take() (*channel, error) {
	p.mu.Lock()
	if n := len(p.idle); n > 0 {
		c := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		return c, nil
	}
	p.mu.Unlock()
	return newChannel(p.link)
}

func (p *pool) give(c *channel) {
	p.mu.Lock()
	p.idle = append(p.idle, c)
	p.mu.Unlock()
}

// Stages of an exchange.
const (
	waiting   = iota // nothing has been sent
	sent             // the message is, or may be, on its way
	abandoned        // nobody waits; nothing was and nothing will be sent
)

// An exchange is one message on its way: it is published once and answered once.
type exchange struct {
	exchange, key string
	message       amqp.Publishing

	stage  atomic.Int32
	answer chan error
	// givenUp is closed when the answer is not waited for any more.
	givenUp chan struct{}
}

// publish sends a message on a channel of its own and waits for its confirm. It
// returns soon after ctx ends; a client that still writes then goes on in the
// background, on a slot that it gives back when its connection ends at the latest.
func (p *pool) publish(ctx context.Context, e *exchange) error {
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return event.AsUnavailable(fmt.Errorf("no channel became free: %w", ctx.Err()))
	}
	e.answer, e.givenUp = make(chan error, 1), make(chan struct{})
	go func() {
		defer func() { <-p.slots }()
		p.carry(e)
	}()
	select {
	case err := <-e.answer:
		return err
	case <-ctx.Done():
	}
	close(e.givenUp)
	if e.stage.CompareAndSwap(waiting, abandoned) {
		return event.AsUnavailable(ctx.Err())
	}
	if p.link.blocked.Load() {
		return event.AsBackPressure(fmt.Errorf("%w: %w", errBlocked, ctx.Err()), 0)
	}
	return fmt.Errorf("%w: %w", errNoConfirm, ctx.Err())
}

// carry takes a message through its exchange.
func (p *pool) carry(e *exchange) {
	c, err := p.take()
	if err != nil {
		e.answer <- event.AsUnavailable(fmt.Errorf("open a channel: %w", err))
		return
	}
	if !e.stage.CompareAndSwap(waiting, sent) {
		p.give(c)
		return
	}
	confirm, err := c.ch.PublishWithDeferredConfirm(e.exchange, e.key, true, false, e.message)
	if err != nil {
		c.ch.Close()
		e.answer <- publishError(err)
		return
	}
	select {
	case <-confirm.Done():
	case <-e.givenUp:
		c.ch.Close()
		return
	}
	err = c.verdict(e, confirm.Acked())
	if c.ch.IsClosed() || errors.Is(err, errStray) {
		c.ch.Close()
	} else {
		p.give(c)
	}
	e.answer <- err
}

// publishError classifies an error of the client. It refuses to write on a
// channel that is closed already; any other write may have left.
func publishError(err error) error {
	if errors.Is(err, amqp.ErrClosed) {
		return event.AsUnavailable(err)
	}
	return err
}

// verdict returns what became of a message whose confirm has come, or whose
// channel has ended. A return comes before the confirm of its message.
func (c *channel) verdict(e *exchange, acked bool) error {
	var returned *amqp.Return
	select {
	case r, ok := <-c.returns:
		if ok {
			returned = &r
		}
	default:
	}
	switch {
	case returned != nil && returned.MessageId != e.message.MessageId:
		return errStray
	case returned != nil:
		return &UnroutableError{Exchange: e.exchange, RoutingKey: e.key, Code: int(returned.ReplyCode), Text: returned.ReplyText}
	case acked:
		return nil
	}
	select {
	case err := <-c.closes:
		return closedError(err)
	default:
		return event.AsBackPressure(errNacked, 0)
	}
}

// closedError classifies the end of a channel that had a message on its way. nil
// means that this side ended it.
func closedError(err *amqp.Error) error {
	switch {
	case err == nil:
		return errLost
	case !err.Server:
	case err.Code == amqp.NotFound, err.Code == amqp.AccessRefused:
		// The exchange is not there, or not for us: the message was not looked at.
		return event.AsUnavailable(err)
	case err.Code == amqp.PreconditionFailed:
		// The message itself: too large for the broker, or a property it refuses.
		return event.AsPermanent(err)
	}
	return fmt.Errorf("the channel ended before the confirm came: %w", err)
}
