package natsjs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// A link is a connection to the server and what is known of its state. It is
// safe for concurrent use.
type link struct {
	conn       *nats.Conn
	js         jetstream.JetStream
	owned      bool
	status     chan nats.Status
	done       chan struct{} // closed when watching has ended
	dead       chan struct{} // closed when the connection is closed for good
	reconnects *atomic.Int64 // how often the connection was made again

	mu      sync.Mutex
	session context.Context // ends when the connection is lost
	end     context.CancelFunc
	up      chan struct{} // closed while connected
	before  bool          // there was a connection
	why     error         // there is no connection
	tell    func()        // that the connection is lost; nil if nobody wants to know
}

// newLink returns a link that connects in the background, and counts in reconnects
// how often it had to again. It returns an error when the configuration cannot
// work, never because a server is down.
func newLink(c *Config, name string, reconnects *atomic.Int64) (*link, error) {
	l := &link{conn: c.Conn, reconnects: reconnects, done: make(chan struct{}), dead: make(chan struct{}), up: make(chan struct{})}
	if l.conn == nil {
		var err error
		if l.conn, err = connect(c, name); err != nil {
			return nil, err
		}
		l.owned = true
	}
	var err error
	if l.js, err = c.jetStream(l.conn); err != nil {
		if l.owned {
			l.conn.Close()
		}
		return nil, err
	}
	l.session, l.end = context.WithCancel(context.Background())
	l.end()
	l.status = l.conn.StatusChanged()
	if l.conn.IsConnected() {
		l.connected()
	} else if l.conn.IsClosed() {
		l.conn.RemoveStatusListener(l.status)
		return nil, nats.ErrConnectionClosed
	}
	go l.watch()
	return l, nil
}

func connect(c *Config, name string) (*nats.Conn, error) {
	options := []nats.Option{
		nats.Name("lanebox " + name),
		nats.Timeout(5 * time.Second),
		nats.PingInterval(10 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.FlusherTimeout(5 * time.Second),
		nats.IgnoreAuthErrorAbort(),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			c.Logger.Warn("NATS reports an error", "flow", name, "error", err)
		}),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) {
			c.Logger.Warn("no connection to NATS", "flow", name, "error", err)
		}),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil { // nil: it was closed here
				c.Logger.Warn("connection to NATS lost", "flow", name, "error", err)
			}
		}),
	}
	options = append(options, c.Options...)
	options = append(options, nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectBufSize(-1), nats.CustomReconnectDelay(reconnectDelay))
	conn, err := nats.Connect(c.URL, options...)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %s", servers(c.URL), strings.ReplaceAll(err.Error(), c.URL, servers(c.URL)))
	}
	return conn, nil
}

// reconnectDelay is how long to wait after all servers were tried n times.
func reconnectDelay(n int) time.Duration {
	return backoff(n, 5*time.Second)
}

// backoff returns a random time around 50 ms · 2ⁿ, at most limit.
func backoff(n int, limit time.Duration) time.Duration {
	d := min(50*time.Millisecond<<min(max(n, 0), 16), limit)
	return d/2 + rand.N(d/2+1)
}

// servers returns the addresses of a list of URLs in a fixed order, without user
// and password.
func servers(list string) string {
	var hosts []string
	for text := range strings.SplitSeq(list, ",") {
		text = strings.TrimSpace(text)
		if text == "" {
			continue
		}
		if !strings.Contains(text, "://") {
			text = "nats://" + text
		}
		u, err := url.Parse(text)
		if err != nil {
			continue // its text may hold a password
		}
		host := strings.ToLower(u.Host)
		if u.Port() == "" {
			host += ":4222"
		}
		hosts = append(hosts, host)
	}
	slices.Sort(hosts)
	return strings.Join(slices.Compact(hosts), ",")
}

// watch follows the state of the connection until the listener is removed.
func (l *link) watch() {
	defer close(l.done)
	for s := range l.status {
		if s != nats.CONNECTED {
			l.lost()
		}
		if s == nats.CLOSED {
			close(l.dead)
			return
		}
		// The state of now, not of the event: events are dropped when many come.
		if l.conn.IsConnected() {
			l.connected()
		}
	}
}

func (l *link) connected() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.session.Err() == nil {
		return
	}
	l.session, l.end = context.WithCancel(context.Background())
	close(l.up)
	if l.before {
		l.reconnects.Add(1)
	}
	l.before = true
}

func (l *link) lost() {
	why := l.conn.LastError()
	l.mu.Lock()
	l.why = why
	if l.session.Err() == nil {
		l.end()
		l.up = make(chan struct{})
	}
	tell := l.tell
	l.mu.Unlock()
	if tell != nil {
		tell()
	}
}

// onLost has f called whenever the connection is lost.
func (l *link) onLost(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tell = f
}

// current returns the context of the connection of now; it has ended when there
// is none.
func (l *link) current() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.session
}

// bound returns ctx with a time limit, which also ends when the connection is
// lost: an answer to what was asked before does not come any more.
func (l *link) bound(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	stop := context.AfterFunc(l.current(), cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// waitConnected returns when there is a connection, or with an error when ctx
// ends or the connection was closed for good.
func (l *link) waitConnected(ctx context.Context) error {
	l.mu.Lock()
	up := l.up
	l.mu.Unlock()
	select {
	case <-up:
		return nil
	case <-l.dead:
		return nats.ErrConnectionClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// state says why there is no connection. It does not ask the connection itself,
// which answers nobody while a write hangs.
func (l *link) state() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.why != nil {
		return fmt.Errorf("no connection to NATS: %w", l.why)
	}
	return errors.New("no connection to NATS")
}

// onDenied has f called when the server says that something is not permitted. A
// connection that was handed in keeps its own handler.
func (l *link) onDenied(f func(error)) {
	if !l.owned {
		return
	}
	before := l.conn.ErrorHandler()
	l.conn.SetErrorHandler(func(conn *nats.Conn, sub *nats.Subscription, err error) {
		if before != nil {
			before(conn, sub, err)
		}
		if errors.Is(err, nats.ErrPermissionViolation) {
			f(err)
		}
	})
}

// close ends the connection if it was made here.
func (l *link) close() {
	l.conn.RemoveStatusListener(l.status)
	<-l.done
	l.lost()
	if l.owned {
		l.conn.Close()
	}
}

// errGone says that a link was closed under a call.
var errGone = errors.New("the connection was closed meanwhile")
