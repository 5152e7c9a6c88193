package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/outbox"
)

// waitUntil polls a condition.
func waitUntil(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("gave up waiting: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// waiters counts sessions that wait for an advisory lock.
func (b *box) waiters() int {
	return one[int](b, `SELECT count(*) FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database
 WHERE l.locktype = 'advisory' AND NOT l.granted AND d.datname = current_database()`)
}

func (b *box) begin() pgx.Tx {
	b.t.Helper()
	tx, err := b.pool.Begin(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { tx.Rollback(context.Background()) })
	return tx
}

// A transaction that wrote a key first and commits late is delivered first; other
// keys, and messages without a key, do not wait for it.
func TestLateCommitOnHotKey(t *testing.T) {
	forEach(t, func(t *testing.T, b *box) {
		ctx := t.Context()
		late := b.begin()
		if err := b.appender(late).Append(ctx, []outbox.Record{record("order.shipped.v1", "hot", "first")}); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 2)
		go func() { done <- b.tryPublish(ctx, record("order.shipped.v1", "hot", "second")) }()
		waitUntil(t, "the generated writer waits", func() bool { return b.waiters() == 1 })
		go func() {
			_, err := b.pool.Exec(ctx, `INSERT INTO `+b.table("outbox")+` (topic, key, payload) VALUES ('order.shipped.v1', 'hot', 'third')`)
			done <- err
		}()
		waitUntil(t, "the plain writer waits", func() bool { return b.waiters() == 2 })
		b.publish(record("order.shipped.v1", "cold", "cold"), record("task.due.v1", "", "task"))
		c := b.own(warehouse, "me")
		if got := payloads(c.all()); !slices.Equal(got, []string{"cold"}) {
			t.Errorf("before the commit: %v", got)
		}
		if err := late.Commit(ctx); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(<-done, <-done); err != nil {
			t.Fatal(err)
		}
		var hot []string
		for _, r := range c.all() {
			if r.Message.Key == "hot" {
				hot = append(hot, string(r.Message.Payload))
			}
		}
		if !slices.Equal(hot, []string{"first", "second", "third"}) {
			t.Errorf("got %v", hot)
		}
	})
}

// A journal notes messages while their locks are held: its order is the commit
// order.
type journal struct {
	mu  sync.Mutex
	log map[string][]string // by key
}

func (j *journal) note(records []outbox.Record) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, r := range records {
		j.log[r.Key] = append(j.log[r.Key], string(r.Payload))
	}
}

// check compares a scope with the journal.
func (j *journal) check(t *testing.T, c *client) {
	t.Helper()
	got := map[string][]string{}
	for _, r := range c.all() {
		got[r.Message.Key] = append(got[r.Message.Key], string(r.Message.Payload))
	}
	for key, want := range j.log {
		for i := range max(len(want), len(got[key])) {
			if i >= len(want) || i >= len(got[key]) || got[key][i] != want[i] {
				t.Errorf("key %s: %d delivered, %d committed; they differ from %d on", key, len(got[key]), len(want), i)
				break
			}
		}
	}
}

// write publishes records in one way or another, notes them, and commits.
func (b *box) write(ctx context.Context, j *journal, plainSQL bool, records ...outbox.Record) error {
	return pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) error {
		if plainSQL {
			for _, r := range records {
				if _, err := tx.Exec(ctx, `INSERT INTO `+b.table("outbox")+` (topic, key, payload) VALUES ($1, $2, $3)`, r.Topic, r.Key, string(r.Payload)); err != nil {
					return err
				}
			}
		} else if err := b.appender(tx).Append(ctx, records); err != nil {
			return err
		}
		j.note(records)
		_, err := tx.Exec(ctx, `SELECT pg_sleep(random() * 0.001)`) // commits overlap
		return err
	})
}

func manyConnections(c *pgxpool.Config) {
	c.MaxConns = 52
	c.ConnConfig.RuntimeParams["deadlock_timeout"] = "100ms"
	c.ConnConfig.RuntimeParams["synchronous_commit"] = "off"
}

// Fifty writers insert the first messages of new keys at once, half of them with
// plain SQL; the event is fanned out and numbered densely.
func TestFirstInsertsOfNewKeys(t *testing.T) {
	b := newBox(t, &fixtures[0], manyConnections)
	j := &journal{log: map[string][]string{}}
	for round := range 4 {
		var wg sync.WaitGroup
		start := make(chan struct{})
		for w := range 50 {
			wg.Go(func() {
				<-start
				r := record("invoice.sent.v1", fmt.Sprintf("new-%d", round), fmt.Sprintf("%d/%d", round, w))
				if err := b.write(t.Context(), j, w%2 == 0, r); err != nil {
					t.Error(err)
				}
			})
		}
		close(start)
		wg.Wait()
	}
	for _, scope := range []lane.Scope{ledger, audit} {
		c := b.own(scope, "me")
		j.check(t, c)
		next := map[string]int64{}
		for _, r := range c.all() {
			next[r.Message.Key]++
			if r.Message.Version != next[r.Message.Key] {
				t.Errorf("key %s: version %d, want %d", r.Message.Key, r.Message.Version, next[r.Message.Key])
			}
		}
	}
}

// Batches of many keys in any order, fanned out and numbered, never deadlock
// with each other, and keep the order of every key.
func TestPublishAllNeverDeadlocks(t *testing.T) {
	b := newBox(t, &fixtures[0], manyConnections)
	j := &journal{log: map[string][]string{}}
	var wg sync.WaitGroup
	for w := range 24 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(7, uint64(w)))
			for n := range 12 {
				var records []outbox.Record
				for i := range 8 {
					records = append(records, record("invoice.sent.v1", fmt.Sprintf("k%d", rng.IntN(12)), fmt.Sprintf("%d/%d/%d", w, n, i)))
				}
				if err := b.write(t.Context(), j, false, records...); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	j.check(t, b.own(ledger, "me"))
	j.check(t, b.own(audit, "me"))
}

// Transactions that take keys one by one in opposite orders can deadlock; the
// error says so and the loser leaves nothing.
func TestDeadlockIsRetryable(t *testing.T) {
	b := newBox(t, &fixtures[0], manyConnections)
	ctx := t.Context()
	first, second := b.begin(), b.begin()
	for tx, key := range map[pgx.Tx]string{first: "a", second: "b"} {
		if err := b.appender(tx).Append(ctx, []outbox.Record{record("order.shipped.v1", key, "1")}); err != nil {
			t.Fatal(err)
		}
	}
	errs := make(chan error, 2)
	go func() {
		err := b.appender(first).Append(ctx, []outbox.Record{record("order.shipped.v1", "b", "2")})
		errs <- errors.Join(err, first.Commit(ctx))
	}()
	go func() {
		err := b.appender(second).Append(ctx, []outbox.Record{record("order.shipped.v1", "a", "2")})
		errs <- errors.Join(err, second.Commit(ctx))
	}()
	var lost, won int
	for range 2 {
		err := <-errs
		var retryable *event.RetryableError
		switch {
		case err == nil:
			won++
		case errors.As(err, &retryable):
			lost++
		default:
			t.Error(err)
		}
	}
	if won != 1 || lost != 1 {
		t.Errorf("%d committed, %d lost", won, lost)
	}
	if n := one[int](b, `SELECT count(*) FROM outbox`); n != 2 {
		t.Errorf("%d rows, want the winner's 2", n)
	}
}

func TestSerializationAndLockTimeoutAreRetryable(t *testing.T) {
	b := newPlain(t)
	ctx := t.Context()
	holder, waiter := b.begin(), b.begin()
	if err := b.appender(holder).Append(ctx, []outbox.Record{record("order.shipped.v1", "a", "1")}); err != nil {
		t.Fatal(err)
	}
	if _, err := waiter.Exec(ctx, `SET LOCAL lock_timeout = '1ms'`); err != nil {
		t.Fatal(err)
	}
	var retryable *event.RetryableError
	if err := b.appender(waiter).Append(ctx, []outbox.Record{record("order.shipped.v1", "a", "2")}); !errors.As(err, &retryable) {
		t.Errorf("lock timeout: %v", err)
	}
}

// Whoever reads while others write sees each lane as a prefix: a message never
// appears behind one that was there before it.
func TestReadersSeePrefixes(t *testing.T) {
	b := newBox(t, &fixtures[0], manyConnections)
	ctx, cancel := context.WithCancel(t.Context())
	var writers, reader sync.WaitGroup
	j := &journal{log: map[string][]string{}}
	for w := range 20 {
		writers.Go(func() {
			for n := range 25 {
				key := "hot"
				if n%2 == 0 {
					key = fmt.Sprintf("cold-%d", (w+n)%7)
				}
				if err := b.write(t.Context(), j, w%2 == 0, record("order.shipped.v1", key, fmt.Sprintf("%d/%d", w, n))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	c := b.own(warehouse, "me")
	reader.Go(func() {
		seen := map[int64]bool{}
		highest := map[int64]int64{}
		for ctx.Err() == nil {
			page, err := c.lanes.Fetch(ctx, c.start())
			if err != nil {
				if ctx.Err() == nil {
					t.Error(err)
				}
				return
			}
			for _, r := range page.Rows {
				seq := r.Message.Sequence
				if !seen[seq] && seq < highest[r.Lane] {
					t.Errorf("lane %d: %d appeared behind %d", r.Lane, seq, highest[r.Lane])
				}
				seen[seq], highest[r.Lane] = true, max(seq, highest[r.Lane])
			}
		}
	})
	writers.Wait()
	cancel()
	reader.Wait()
	j.check(t, c)
}
