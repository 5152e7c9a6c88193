package natsjs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/internal/pause"
	"github.com/lanebox/lanebox/runtime/topology"
)

// A Destination publishes messages to a stream, each confirmed by the server
// before Send returns. It is safe for concurrent use; since two messages of one
// lane are never sent at the same time, at most one of a lane is unconfirmed.
//
// Failures are classified: too large is permanent; a stream, account or disk that
// is full is back-pressure; a missing connection, a missing stream and a server
// without JetStream or leader are unavailable, and so is a message that another
// stream would take; a connection or answer lost after sending is transient. What
// is repeated then is dropped by the server within the stream's duplicate window.
type Destination struct {
	config   Config
	topology topology.NATSDestination
	subject  *subjectTemplate
	link     *link
	address  string

	confirms *confirms
	queue    chan *publish
	gone     chan struct{} // closed by Close, when nobody waits any more
	writer   sync.WaitGroup

	checking chan struct{} // a token: who holds it looks at the stream
	checked  atomic.Bool

	mu      sync.Mutex
	closed  bool
	sending sync.WaitGroup // calls of Send; added to while mu is held and closed is not set
}

// maxQueued is how many messages may wait for the writer.
const maxQueued = 1024

// NewDestination returns a destination for a stream. It connects in the
// background, looks at the stream before the first message, and makes it if the
// schema says so. It returns an error when the configuration cannot work.
func NewDestination(c Config, t topology.NATSDestination) (*Destination, error) {
	fail := func(err error) (*Destination, error) { return nil, fmt.Errorf("nats destination %s: %w", t.Name, err) }
	if err := c.complete(); err != nil {
		return fail(err)
	}
	if err := checkName("stream", t.Stream); err != nil {
		return fail(err)
	}
	subject, err := parseSubject(t.Subject)
	if err != nil {
		return fail(err)
	}
	if _, err := subject.pattern(); err != nil && t.Declare {
		return fail(err)
	}
	l, err := newLink(&c, t.Name, new(atomic.Int64))
	if err != nil {
		return fail(err)
	}
	confirms, err := newConfirms(l.conn)
	if err != nil {
		l.close()
		return fail(err)
	}
	l.onLost(func() { confirms.fail(nats.ErrDisconnected) })
	l.onDenied(confirms.deny)
	d := &Destination{
		confirms: confirms,
		config:   c, topology: t, subject: subject, link: l, address: address(c, t),
		queue: make(chan *publish, maxQueued), gone: make(chan struct{}), checking: make(chan struct{}, 1),
	}
	d.writer.Go(d.write)
	return d, nil
}

// address tells apart destinations that share a stream by their subjects.
func address(c Config, t topology.NATSDestination) string {
	hosts := c.URL
	if c.Conn != nil {
		hosts = strings.Join(c.Conn.Opts.Servers, ",") + "," + c.Conn.Opts.Url
	}
	return fmt.Sprintf("%s/%s/%s?api=%s", servers(hosts), t.Stream, t.Subject, c.api())
}

// Address returns servers, stream and subject, without credentials.
func (d *Destination) Address() string { return d.address }

// Close waits for calls of Send, no longer than Config.Timeout, and ends the
// connection if it was made here. Later calls of Send fail with ErrClosed.
func (d *Destination) Close() error {
	d.mu.Lock()
	again := d.closed
	d.closed = true
	d.mu.Unlock()
	if again {
		return nil
	}
	idle := make(chan struct{})
	go func() {
		d.sending.Wait()
		close(idle)
	}()
	timer := time.NewTimer(d.config.Timeout)
	defer timer.Stop()
	select {
	case <-idle:
	case <-timer.C:
	}
	close(d.gone)
	d.confirms.close()
	d.link.close()
	d.writer.Wait()
	return nil
}

// enter registers a call of Send; it reports whether there may be one.
func (d *Destination) enter() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		d.sending.Add(1)
	}
	return !d.closed
}

// Send publishes m and returns nil when the stream has stored it, now or before.
func (d *Destination) Send(ctx context.Context, m event.Message) error {
	if !d.enter() {
		return event.AsUnavailable(d.named(ErrClosed))
	}
	defer d.sending.Done()
	p, err := d.prepare(m)
	if err != nil {
		return event.AsPermanent(d.named(err))
	}
	if err := d.ready(ctx); err != nil {
		return event.AsUnavailable(d.named(err))
	}
	return d.classified(d.submit(ctx, p))
}

// prepare builds what is published.
func (d *Destination) prepare(m event.Message) (*publish, error) {
	if d.config.MaxBytes > 0 && len(m.Payload) > d.config.MaxBytes {
		return nil, fmt.Errorf("the payload has %d bytes; the limit is %d", len(m.Payload), d.config.MaxBytes)
	}
	subject, err := d.subject.subject(m)
	if err != nil {
		return nil, err
	}
	msg, err := encode(d.config.Source, subject, m)
	if err != nil {
		return nil, err
	}
	msg.Header[nats.MsgIdHdr] = []string{d.publishID(m)}
	msg.Header[nats.ExpectedStreamHdr] = []string{d.topology.Stream}
	return &publish{m: msg, done: make(chan error, 1)}, nil
}

// publishID returns what the server deduplicates by. A message that is routed to
// two destinations has one id, and both may publish to one stream, which would
// drop the second: the destination's name keeps them apart.
func (d *Destination) publishID(m event.Message) string {
	if d.topology.Name == "" {
		return m.ID.String()
	}
	return m.ID.String() + "." + d.topology.Name
}

// ready returns nil when there is a connection and the stream was looked at.
func (d *Destination) ready(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if d.link.current().Err() != nil {
		return d.link.state()
	}
	if d.checked.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, d.config.Timeout)
	defer cancel()
	select {
	case d.checking <- struct{}{}:
		defer func() { <-d.checking }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if d.checked.Load() {
		return nil
	}
	return d.Check(ctx)
}

// Check looks at the stream, and makes it if it is missing and the schema says
// so. An error that wraps an *event.ConfigurationError says what is wrong with it;
// any other that it could not be looked at. Send does the same before its first
// message.
func (d *Destination) Check(ctx context.Context) error {
	ctx, cancel := d.link.bound(ctx, d.config.Timeout)
	defer cancel()
	info, err := ensureStream(ctx, d.link.js, d.topology, d.subject)
	if err != nil {
		return err
	}
	if dropsOld(info.Config) && !d.checked.Load() {
		d.config.Logger.WarnContext(ctx, "the stream drops its oldest messages when it is full, whether they were read or not",
			"destination", d.topology.Name, "stream", info.Config.Name)
	}
	d.checked.Store(true)
	return nil
}

// submit hands p to the writer and waits for the server's answer, at most until ctx
// ends or the time is over. A message whose turn has not come then is not sent.
func (d *Destination) submit(ctx context.Context, p *publish) error {
	timer := pause.Timer(d.config.Timeout)
	defer pause.Stop(timer)
	select {
	case d.queue <- p:
	case <-ctx.Done():
		return unsent(context.Cause(ctx))
	case <-timer.C:
		return unsent(context.DeadlineExceeded)
	}
	var end error
	select {
	case err := <-p.done:
		if errors.Is(err, jetstream.ErrNoStreamResponse) { // look again, and make it again if that is ours to do
			d.checked.Store(false)
		}
		return failed(d.topology.Stream, p.m.Subject, err)
	case <-d.gone:
		return errGone
	case <-ctx.Done():
		end = context.Cause(ctx)
	case <-timer.C:
		end = context.DeadlineExceeded
	}
	if p.taken.CompareAndSwap(false, true) {
		return unsent(end)
	}
	d.confirms.forget(p)
	return fmt.Errorf("no acknowledgement: %w", end)
}

// write publishes what comes, one after the other. It is the only goroutine that
// may be held up by a connection that takes no bytes; callers are not.
func (d *Destination) write() {
	for {
		select {
		case p := <-d.queue:
			if p.taken.CompareAndSwap(false, true) { // otherwise Send says that it was not sent
				d.confirms.send(p)
			}
		case <-d.gone:
			return
		}
	}
}

// classified names the destination in an error and keeps its class.
func (d *Destination) classified(err error) error {
	if err == nil {
		return nil
	}
	class, wait := event.Classify(err)
	return &event.DeliveryError{Class: class, RetryAfter: wait, Err: d.named(err)}
}

func (d *Destination) named(err error) error {
	return fmt.Errorf("publish to stream %s: %w", d.topology.Stream, err)
}
