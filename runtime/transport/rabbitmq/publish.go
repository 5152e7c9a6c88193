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
)

// A channel carries messages side by side and tells what became of each. One that
// has a message which was given up is retired: it takes no other, so that a return
// or confirm that comes late cannot be mistaken for that of the message's next try.
type channel struct {
	ch *amqp.Channel
	// returns has room for a return of every message on the channel.
	returns chan amqp.Return
	// gone is closed when the channel has ended; err says why then, nil if this
	// side ended it.
	gone chan struct{}
	err  *amqp.Error

	mu      sync.Mutex
	found   map[string]amqp.Return // returns that were read, by message id
	waiters int                    // messages whose confirm is waited for
	retired bool
}

// newChannel returns a channel for at most n messages at a time.
func newChannel(l *link, n int) (*channel, error) {
	ch, err := l.conn.Channel()
	if err != nil {
		return nil, err
	}
	if err := ch.Confirm(false); err != nil {
		ch.Close()
		return nil, err
	}
	c := &channel{
		ch: ch, found: map[string]amqp.Return{}, gone: make(chan struct{}),
		returns: ch.NotifyReturn(make(chan amqp.Return, n)),
	}
	closes := ch.NotifyClose(make(chan *amqp.Error, 1))
	go func() {
		defer close(c.gone)
		for err := range closes {
			c.err = err
		}
	}()
	return c, nil
}

// enter adds a message; it returns false when the channel takes none any more.
func (c *channel) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.retired || c.ch.IsClosed() {
		return false
	}
	c.waiters++
	return true
}

// leave takes a message off. A retired channel ends with its last one.
func (c *channel) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiters--
	if c.retired && c.waiters == 0 {
		go c.ch.Close()
	}
}

func (c *channel) retire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.retired = true
}

// returned returns how a message was returned, if it was. It must be called once
// the message's confirm has come, or the channel has ended: a return comes before.
func (c *channel) returned(id string) (amqp.Return, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		select {
		case r, ok := <-c.returns:
			if ok {
				c.found[r.MessageId] = r
				continue
			}
		default:
		}
		r, ok := c.found[id]
		delete(c.found, id)
		return r, ok
	}
}

// A pool keeps the channel of a link that new messages take.
type pool struct {
	link  *link
	slots chan struct{} // one for each message on its way; shared by all links

	mu      sync.Mutex
	current *channel // nil: none yet
}

// take returns a channel that the caller has entered.
func (p *pool) take() (*channel, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current != nil && p.current.enter() {
		return p.current, nil
	}
	c, err := newChannel(p.link, cap(p.slots))
	if err != nil {
		return nil, err
	}
	c.enter()
	p.current = c
	return c, nil
}

// alone returns a channel for one message.
func (p *pool) alone() (*channel, error) {
	c, err := newChannel(p.link, 1)
	if err != nil {
		return nil, err
	}
	c.enter()
	c.retire()
	return c, nil
}

// Stages of an exchange.
const (
	waiting   = iota // nothing has been sent
	sent             // the message is, or may be, on its way
	abandoned        // nobody waits; nothing was and nothing will be sent
)

// An exchange is one message on its way, answered once.
type exchange struct {
	exchange, key string
	message       amqp.Publishing

	stage  atomic.Int32
	answer chan error
	// givenUp is closed when the answer is not waited for any more.
	givenUp chan struct{}
}

// publish sends a message and waits for its confirm. It returns soon after ctx
// ends; a client that still writes then goes on in the background, on a slot that
// it gives back when its connection ends at the latest.
func (p *pool) publish(ctx context.Context, e *exchange) error {
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return event.AsUnavailable(fmt.Errorf("no place became free: %w", ctx.Err()))
	}
	e.answer, e.givenUp = make(chan error, 1), make(chan struct{})
	go func() {
		defer func() { <-p.slots }()
		e.answer <- p.carry(e)
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

// carry takes a message through its exchange. When the broker ends the channel for
// what one of its messages is, nobody can tell which; each of them, and what came
// just too late to be sent, is published again then, on a channel of its own, which
// tells.
func (p *pool) carry(e *exchange) error {
	c, err := p.take()
	if err != nil {
		return event.AsUnavailable(fmt.Errorf("open a channel: %w", err))
	}
	if !e.stage.CompareAndSwap(waiting, sent) {
		c.leave()
		return nil
	}
	err = c.carry(e)
	if p.link.conn.IsClosed() || code(err) == 0 && !errors.Is(err, amqp.ErrClosed) {
		return err
	}
	if c, err = p.alone(); err != nil {
		return err
	}
	select {
	case <-e.givenUp:
		c.leave()
		return nil
	default:
		return c.carry(e)
	}
}

// carry publishes a message on a channel that it has entered, and leaves it.
func (c *channel) carry(e *exchange) error {
	defer c.leave()
	confirm, err := c.ch.PublishWithDeferredConfirm(e.exchange, e.key, true, false, e.message)
	if err != nil {
		return publishError(err)
	}
	select {
	case <-confirm.Done():
		return c.verdict(e, confirm.Acked())
	case <-e.givenUp:
		c.retire()
		return nil
	}
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
// channel has ended.
func (c *channel) verdict(e *exchange, acked bool) error {
	if r, ok := c.returned(e.message.MessageId); ok {
		return &UnroutableError{Exchange: e.exchange, RoutingKey: e.key, Code: int(r.ReplyCode), Text: r.ReplyText}
	}
	switch {
	case acked:
		return nil
	case c.ch.IsClosed():
		<-c.gone
		return closedError(c.err)
	}
	return event.AsBackPressure(errNacked, 0)
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
