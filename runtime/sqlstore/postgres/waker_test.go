package postgres

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lanebox/lanebox/runtime/storetest/testpg"
)

// listen starts a listener and returns how often it was woken, and its end.
func listen(t *testing.T, w *Waker) (woken *atomic.Int64, end <-chan error) {
	t.Helper()
	woken = &atomic.Int64{}
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	go func() { ended <- w.Listen(ctx, func() { woken.Add(1) }) }()
	return woken, ended
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("gave up waiting: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// listeners counts the sessions that wait for notifications.
func listeners(t *testing.T, pool *pgxpool.Pool, channel string) (n int) {
	t.Helper()
	err := pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%' || $1 || '%' AND pid <> pg_backend_pid()`, channel).Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestWakerHearsAnnouncements(t *testing.T) {
	pool := testpg.Pool(t, testpg.URL(t), nil)
	w := NewWaker(pool, "public", "")
	woken, end := listen(t, w)
	other, _ := listen(t, NewWaker(pool, "public", "x_"))
	waitFor(t, "an announcement is heard", func() bool {
		if err := w.Announce(t.Context()); err != nil {
			t.Fatal(err)
		}
		return woken.Load() > 0
	})
	if other.Load() != 0 {
		t.Error("tables with another prefix were woken")
	}
	before := woken.Load()
	if _, err := pool.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%' || $1 || '%'`, w.channel); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "a wake after the reconnection", func() bool { return woken.Load() > before })
	before = woken.Load()
	waitFor(t, "an announcement is heard again", func() bool {
		if err := w.Announce(t.Context()); err != nil {
			t.Fatal(err)
		}
		return woken.Load() > before
	})
	select {
	case err := <-end:
		t.Errorf("ended: %v", err)
	default:
	}
}

// A quiet connection is probed and stays.
func TestWakerProbesQuietConnections(t *testing.T) {
	pool := testpg.Pool(t, testpg.URL(t), nil)
	w := NewWaker(pool, "public", "")
	w.heartbeat = 10 * time.Millisecond
	woken, _ := listen(t, w)
	waitFor(t, "three probes", func() bool { return woken.Load() >= 3 })
	if n := listeners(t, pool, w.channel); n > 1 {
		t.Errorf("%d listeners", n)
	}
}

// Behind a pooler in transaction mode, LISTEN reaches another session than the
// one that waits. It looks as if nobody listened.
func TestWakerFindsOutThatNothingArrives(t *testing.T) {
	url := testpg.URL(t)
	pool := testpg.Pool(t, url, nil)
	w := NewWaker(pool, "public", "")
	w.probeWait = 50 * time.Millisecond
	elsewhere := NewWaker(testpg.Pool(t, testpg.URL(t), nil), "public", "")
	w.announce = elsewhere.Announce // another database: notifications do not cross
	_, end := listen(t, w)
	select {
	case err := <-end:
		if !errors.Is(err, ErrNoNotifications) {
			t.Errorf("got %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("still listening")
	}
}

func TestWakerEndsWithItsContext(t *testing.T) {
	pool := testpg.Pool(t, testpg.URL(t), nil)
	w := NewWaker(pool, "public", "")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Listen(ctx, func() {}) }()
	waitFor(t, "it listens", func() bool { return listeners(t, pool, w.channel) == 1 })
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("got %v", err)
	}
	waitFor(t, "its connection is closed", func() bool { return listeners(t, pool, w.channel) == 0 })
}

func TestChannelFitsAnyName(t *testing.T) {
	long := strings.Repeat("é", 31)
	seen := map[string]bool{}
	for _, name := range [][2]string{{"public", ""}, {"public", "x"}, {"publicx", ""}, {long, long}, {`a"b`, "c d"}} {
		c := Channel(name[0], name[1])
		if len(c) > 63 || seen[c] {
			t.Errorf("channel %s of %v", c, name)
		}
		seen[c] = true
	}
}

// A process that only publishes announces what it committed, gathered.
func TestAnnounceSoonIsHeard(t *testing.T) {
	pool := testpg.Pool(t, testpg.URL(t), nil)
	woken, _ := listen(t, NewWaker(pool, "public", ""))
	waitFor(t, "the listener listens", func() bool { return listeners(t, pool, Channel("public", "")) > 0 })
	before := woken.Load()
	for range 100 {
		AnnounceSoon(pool, "public", "")
	}
	waitFor(t, "the announcement is heard", func() bool { return woken.Load() > before })
	heard := woken.Load()
	AnnounceSoon(pool, "public", "")
	waitFor(t, "the next one is heard", func() bool { return woken.Load() > heard })
}
