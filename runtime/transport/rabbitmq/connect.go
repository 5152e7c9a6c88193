package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// ErrClosed is returned by Send after Close. Nothing was sent.
var ErrClosed = errors.New("the destination is closed")

// errLost is why a link ended when the broker did not say.
var errLost = errors.New("the connection was lost")

// A link is one connection to the broker, from its beginning to its end.
type link struct {
	conn *amqp.Connection
	// gone is closed when the connection has ended; err says why then.
	gone chan struct{}
	err  error
	// blocked says that the broker takes no messages on this connection.
	blocked atomic.Bool
	// stale says that what was prepared has to be prepared again.
	stale atomic.Bool
}

// newLink watches a connection. Its notifications are read until they end, since
// the client waits for their readers.
func newLink(conn *amqp.Connection) *link {
	l := &link{conn: conn, gone: make(chan struct{}), err: errLost}
	closes := conn.NotifyClose(make(chan *amqp.Error, 1))
	blocks := conn.NotifyBlocked(make(chan amqp.Blocking, 8))
	go func() {
		for b := range blocks {
			l.blocked.Store(b.Active)
		}
	}()
	go func() {
		defer close(l.gone)
		for err := range closes {
			l.err = err
		}
	}()
	return l
}

// alive reports whether the connection has not ended yet.
func (l *link) alive() bool {
	select {
	case <-l.gone:
		return false
	default:
		return true
	}
}

// closeTime bounds the farewell of a connection, and before it that of the channels
// of a source.
const closeTime = 2 * time.Second

// close ends the connection and returns when it has ended, or does not end in time:
// one that the service made may know no deadline.
func (l *link) close() {
	timer := time.NewTimer(closeTime + time.Second)
	defer timer.Stop()
	go l.conn.CloseDeadline(time.Now().Add(closeTime))
	select {
	case <-l.gone:
	case <-timer.C:
	}
}

// A connector keeps one connection and makes it again, when it is asked for, once
// it was lost. It is safe for concurrent use.
type connector struct {
	config Config
	// prepare is run on every new connection before it is used, and again when it
	// is stale. It must end when the connection does.
	prepare func(*link) error

	mu      sync.Mutex
	closed  bool
	link    *link    // nil: none was made yet
	attempt *attempt // nil: none is under way
	next    int      // index of the URL to try
	made    int64    // how many connections were made
}

// An attempt is one try to connect, shared by everybody who waits for it.
type attempt struct {
	done chan struct{}
	link *link
	err  error
}

// get returns the connection, which it makes if there is none. It returns an
// error when that fails, or when ctx ends before.
func (c *connector) get(ctx context.Context) (*link, error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, ErrClosed
	}
	if c.link != nil && c.link.alive() && !c.link.stale.Load() {
		defer c.mu.Unlock()
		return c.link, nil
	}
	if c.attempt == nil {
		c.attempt = &attempt{done: make(chan struct{})}
		go c.connect(c.attempt)
	}
	a := c.attempt
	c.mu.Unlock()
	select {
	case <-a.done:
		return a.link, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// connect carries out an attempt.
func (c *connector) connect(a *attempt) {
	c.mu.Lock()
	l := c.link
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), c.config.DialTimeout)
	defer cancel()
	var err error
	if l == nil || !l.alive() {
		l, err = c.dial(ctx)
	}
	if err == nil {
		err = c.ready(ctx, l)
	}
	c.mu.Lock()
	c.attempt = nil
	if err == nil && c.closed {
		err = ErrClosed
	}
	if err == nil {
		a.link = l
	}
	a.err = err
	c.mu.Unlock()
	close(a.done)
}

// dial makes a connection and keeps it.
func (c *connector) dial(ctx context.Context) (*link, error) {
	conn, err := c.open(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	l := newLink(conn)
	l.stale.Store(true)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		go l.close()
		return nil, ErrClosed
	}
	c.link = l
	c.made++
	return l, nil
}

// ready prepares a link. What takes too long ends with the link.
func (c *connector) ready(ctx context.Context, l *link) error {
	stop := context.AfterFunc(ctx, l.close)
	defer stop()
	l.stale.Store(false)
	err := c.prepare(l)
	if err != nil {
		l.stale.Store(true)
	}
	return err
}

func (c *connector) open(ctx context.Context) (*amqp.Connection, error) {
	if c.config.Dial != nil {
		return c.config.Dial(ctx)
	}
	c.mu.Lock()
	urls := c.config.urls()
	text := urls[c.next%len(urls)]
	c.next++
	c.mu.Unlock()
	properties := amqp.NewConnectionProperties()
	properties.SetClientConnectionName(c.config.ConnectionName)
	return amqp.DialConfig(text, amqp.Config{
		TLSClientConfig: c.config.TLS.Clone(),
		Heartbeat:       c.config.Heartbeat,
		Properties:      properties,
		Dial: func(network, address string) (net.Conn, error) {
			return dialTCP(ctx, network, address, c.config.WriteTimeout)
		},
	})
}

// dialTCP makes a connection whose handshake ends with ctx.
func dialTCP(ctx context.Context, network, address string, write time.Duration) (net.Conn, error) {
	dialer := &net.Dialer{KeepAlive: 15 * time.Second}
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		conn.SetDeadline(deadline) // the client removes it after the handshake
	}
	return &impatient{Conn: conn, write: write}, nil
}

// An impatient connection fails when a write takes too long; the client itself
// would wait for ever, with everybody behind it. And a deadline for everything, as
// a farewell has it, is not put off: the client sets a later one for reading with
// every frame that comes, such as a heartbeat.
type impatient struct {
	net.Conn
	write time.Duration

	mu   sync.Mutex
	last time.Time // the deadline for everything; zero when there is none
}

func (c *impatient) SetDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = t
	return c.Conn.SetDeadline(t)
}

func (c *impatient) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.Conn.SetReadDeadline(c.bound(t))
}

func (c *impatient) Write(b []byte) (int, error) {
	c.mu.Lock()
	c.Conn.SetWriteDeadline(c.bound(time.Now().Add(c.write)))
	c.mu.Unlock()
	return c.Conn.Write(b)
}

// bound returns t, or the deadline for everything if that is earlier.
func (c *impatient) bound(t time.Time) time.Time {
	if !c.last.IsZero() && (t.IsZero() || t.After(c.last)) {
		return c.last
	}
	return t
}

// close ends the connection; get fails from now on.
func (c *connector) close() {
	c.mu.Lock()
	c.closed = true
	l := c.link
	c.mu.Unlock()
	if l != nil {
		l.close()
	}
}
