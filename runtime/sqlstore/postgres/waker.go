package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Times of a Waker.
const (
	// probeWait is how long a notification to oneself may take.
	probeWait = 2 * time.Second
	// heartbeat is how long a connection may be silent before it is probed: a
	// half-open connection looks like a quiet one.
	heartbeat = 20 * time.Second
	// reconnectMin and reconnectMax bound the pause between attempts to connect.
	reconnectMin, reconnectMax = 100 * time.Millisecond, 10 * time.Second
)

// ErrNoNotifications says that notifications do not reach this process, as with
// a pooler in transaction mode in between. Polling works without them.
var ErrNoNotifications = errors.New("PostgreSQL notifications do not arrive (a pooler in transaction mode, or a read replica?)")

// Channel returns the notification channel of the tables with this schema and
// prefix. It has 30 bytes whatever the names are; PostgreSQL allows 63.
func Channel(schema, prefix string) string {
	sum := sha256.Sum256([]byte(schema + "\x00" + prefix))
	return "lanebox_" + hex.EncodeToString(sum[:11])
}

// A Waker announces messages with NOTIFY and hears of them with LISTEN, on a
// connection of its own. It implements lane.Waker and is safe for concurrent
// use. Notifications carry no payload.
type Waker struct {
	pool    *pgxpool.Pool
	channel string
	// announce is Announce, and the times are the constants above, except in tests.
	announce                           func(context.Context) error
	probeWait, heartbeat, reconnectMin time.Duration
}

// NewWaker returns the waker of the tables with this schema and prefix. Announce
// uses the pool; Listen connects on its own with the pool's settings.
func NewWaker(pool *pgxpool.Pool, schema, prefix string) *Waker {
	w := &Waker{pool: pool, channel: Channel(schema, prefix), probeWait: probeWait, heartbeat: heartbeat, reconnectMin: reconnectMin}
	w.announce = w.Announce
	return w
}

// Announce implements lane.Waker. Call it outside of business transactions:
// PostgreSQL queues notifications under one lock at commit.
func (w *Waker) Announce(ctx context.Context) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	_, err := w.pool.Exec(ctx, "SELECT pg_notify($1::text, '')", w.channel)
	return Classify("announce messages", err)
}

// announceAfter is how long announcements of a process that only publishes are
// gathered.
const announceAfter = 20 * time.Millisecond

// An announcement is one that is about to be made.
type announcement struct {
	pool           *pgxpool.Pool
	schema, prefix string
}

// announcements holds those about to be made.
var announcements sync.Map

// AnnounceSoon tells other processes that messages may be waiting, for a process
// that publishes and runs no loops: a moment later, and once for all calls until
// then. It never blocks. An announcement that fails, or is lost because the
// process ends, costs time only: the others poll.
func AnnounceSoon(pool *pgxpool.Pool, schema, prefix string) {
	a := announcement{pool, schema, prefix}
	if _, under := announcements.LoadOrStore(a, true); under {
		return
	}
	time.AfterFunc(announceAfter, func() {
		announcements.Delete(a) // first: what is committed from now on needs another one
		NewWaker(pool, schema, prefix).Announce(context.Background())
	})
}

// Listen implements lane.Waker. A lost connection is made again, with growing
// pauses, and wake is called after that, since announcements may have been
// missed. Listen returns nil when ctx ends, and ErrNoNotifications when a
// notification to itself does not arrive right after the first connection.
func (w *Waker) Listen(ctx context.Context, wake func()) error {
	pause := w.reconnectMin
	for first := true; ; {
		heard, err := w.session(ctx, first, wake)
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, ErrNoNotifications) && first {
			return err
		}
		if heard {
			first, pause = false, w.reconnectMin
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause/2 + rand.N(pause)):
		}
		pause = min(2*pause, reconnectMax)
	}
}

// session listens on one connection until it fails. heard says that it worked
// at first.
func (w *Waker) session(ctx context.Context, first bool, wake func()) (heard bool, err error) {
	conn, err := w.connect(ctx)
	if err != nil {
		return false, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		conn.Close(ctx)
	}()
	if err := w.probe(ctx, conn); err != nil {
		return false, err
	}
	if !first {
		wake()
	}
	for {
		wait, cancel := context.WithTimeout(ctx, w.heartbeat)
		_, err := conn.WaitForNotification(wait)
		quiet := wait.Err() != nil && ctx.Err() == nil
		cancel()
		switch {
		case err == nil:
			wake()
		case !quiet:
			return true, err
		default:
			if err := w.probe(ctx, conn); err != nil {
				return true, err
			}
			wake() // the probe may have swallowed an announcement
		}
	}
}

// connect opens a connection and listens on it.
func (w *Waker) connect(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	conn, err := connect(ctx, w.pool)
	if err != nil {
		return nil, Classify("connect for notifications", err)
	}
	if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{w.channel}.Sanitize()); err != nil {
		conn.Close(ctx)
		return nil, Classify("listen", err)
	}
	return conn, nil
}

// probe notifies itself through the pool and waits until it hears it. The
// connection must be used by nobody else.
func (w *Waker) probe(ctx context.Context, conn *pgx.Conn) error {
	if err := w.announce(ctx); err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, w.probeWait)
	defer cancel()
	if _, err := conn.WaitForNotification(wait); err != nil {
		if wait.Err() != nil && ctx.Err() == nil {
			return fmt.Errorf("%w: nothing heard within %s", ErrNoNotifications, w.probeWait)
		}
		return Classify("wait for notifications", err)
	}
	return nil
}
