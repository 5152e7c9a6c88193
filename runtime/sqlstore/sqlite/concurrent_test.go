package sqlite_test

import (
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/outbox"
	sqlitestore "github.com/lanebox/lanebox/runtime/sqlstore/sqlite"
	shop "github.com/lanebox/lanebox/runtime/sqlstore/sqlite/internal/shop/sqlite"
)

const (
	writers  = 8
	claimers = 4
	perKey   = 40 // messages of one writer
	keys     = 6
)

// TestWritersAndClaimersShareOneFile is two processes' worth of connections:
// every writer and every claimer has a pool of its own, half of the writers use
// plain SQL through a DSN of their own, claimers take over from each other. No
// statement may fail, and every key must be delivered in commit order.
func TestWritersAndClaimersShareOneFile(t *testing.T) {
	b := newBox(t)
	var failures failures
	var log deliveries
	var writing, claiming sync.WaitGroup
	for n := range writers {
		db := open(t, b.path)
		if n%2 == 1 {
			db = plainDB(t, "file:"+(&url.URL{Path: b.path}).EscapedPath()+"?_pragma=busy_timeout(30000)")
		}
		writing.Go(func() { failures.add(b.write(db, n, n%2 == 1)) })
	}
	written := make(chan struct{})
	for n := range claimers {
		store := shop.NewStore(open(t, b.path)).WarehouseDestination()
		claiming.Go(func() { failures.add(b.deliver(fmt.Sprint("claimer-", n), store, &log, written)) })
	}
	writing.Wait()
	close(written)
	claiming.Wait()
	failures.report(t)
	if left := b.text(`SELECT count(*) FROM outbox WHERE destination = 1001`); left != "0" {
		t.Errorf("%s messages are left", left)
	}
	log.judge(t)
}

// write publishes the writer's messages, some in transactions of several keys.
func (b *box) write(db *sql.DB, n int, plain bool) error {
	for i := range perKey {
		key, payload := fmt.Sprint("key-", (n+i)%keys), fmt.Sprintf("%d:%d", n, i)
		if plain {
			if _, err := db.ExecContext(b.ctx, `INSERT INTO outbox (topic, key, payload) VALUES ('order.placed', ?, ?)`, key, payload); err != nil {
				return fmt.Errorf("plain writer: %w", err)
			}
			continue
		}
		err := sqlitestore.Write(b.ctx, db, func(tx *sql.Tx) error {
			return shop.Appender(tx).Append(b.ctx, []outbox.Record{record("order.placed", key, payload)})
		})
		if err != nil {
			return fmt.Errorf("generated writer: %w", err)
		}
	}
	return nil
}

// deliver claims, delivers and settles until all is written and nothing is
// left. Every few pages it hands its lease over.
func (b *box) deliver(owner string, store lane.Store, log *deliveries, written <-chan struct{}) error {
	for done := false; ; {
		select {
		case <-written:
			done = true
		case <-time.After(time.Millisecond): // a poller's pause
		}
		leases, err := store.Acquire(b.ctx, lane.AcquireParams{Owner: owner, MaxFree: 1, TTL: time.Hour})
		if err != nil {
			return fmt.Errorf("acquire: %w", err)
		}
		empty := true
		if len(leases) > 0 {
			if empty, err = b.drainPages(owner, store, leases, log); err != nil {
				return err
			}
			if err := store.Release(b.ctx, owner, leases); err != nil {
				return fmt.Errorf("release: %w", err)
			}
		}
		if done && empty && (len(leases) > 0 || b.empty()) {
			return nil
		}
	}
}

func (b *box) empty() bool {
	var n int
	err := b.db.QueryRowContext(b.ctx, `SELECT EXISTS (SELECT 1 FROM outbox WHERE destination = 1001)`).Scan(&n)
	return err == nil && n == 0
}

// drainPages delivers up to three pages.
func (b *box) drainPages(owner string, store lane.Store, leases []lane.Lease, log *deliveries) (empty bool, err error) {
	cursors := []lane.Cursor{{Lease: leases[0], Lane: leases[0].Lo}}
	for range 3 {
		page, err := store.Fetch(b.ctx, lane.FetchParams{Owner: owner, Cursors: cursors, MaxLanes: 8, MaxRun: 4, MaxRows: 32, ScanLanes: 64})
		if err != nil {
			return false, fmt.Errorf("fetch: %w", err)
		}
		if len(page.Rows) == 0 {
			return true, nil
		}
		var settlements []lane.Settlement
		for _, r := range page.Rows {
			log.add(r.Message)
			settlements = append(settlements, lane.Settlement{Bucket: r.Bucket, Lane: r.Lane, Sequence: r.Message.Sequence})
		}
		result, err := store.Settle(b.ctx, owner, leases, settlements)
		if err != nil {
			return false, fmt.Errorf("settle: %w", err)
		}
		if len(result.Fenced)+len(result.Gone) > 0 {
			return false, fmt.Errorf("settling a held lease answered %+v", result)
		}
		cursors = page.Next
	}
	return false, nil
}

// deliveries is what was delivered, in that order.
type deliveries struct {
	sync.Mutex
	messages []event.Message
}

func (d *deliveries) add(m event.Message) {
	d.Lock()
	defer d.Unlock()
	d.messages = append(d.messages, m)
}

// judge compares the deliveries with what was written: sequences rise within a
// key (one writer at a time: sequence order is commit order), a writer's own
// messages of a key keep their order, and each comes once.
func (d *deliveries) judge(t *testing.T) {
	t.Helper()
	last, program, seen := map[string]int64{}, map[string]int{}, map[string]bool{}
	for _, m := range d.messages {
		if m.Sequence <= last[m.Key] {
			t.Errorf("%s: sequence %d after %d", m.Key, m.Sequence, last[m.Key])
		}
		last[m.Key] = m.Sequence
		var writer, n int
		if _, err := fmt.Sscanf(string(m.Payload), "%d:%d", &writer, &n); err != nil {
			t.Fatal(err)
		}
		own := fmt.Sprint(m.Key, "/", writer)
		if before, ok := program[own]; ok && n <= before {
			t.Errorf("%s: message %d after %d", own, n, before)
		}
		program[own] = n
		if seen[string(m.Payload)] {
			t.Errorf("%s was delivered twice", m.Payload)
		}
		seen[string(m.Payload)] = true
	}
	if want := writers * perKey; len(seen) != want {
		t.Errorf("%d messages were delivered, want %d", len(seen), want)
	}
}

// failures collects errors of goroutines.
type failures struct {
	sync.Mutex
	errs []error
}

func (f *failures) add(err error) {
	f.Lock()
	defer f.Unlock()
	f.errs = append(f.errs, err)
}

func (f *failures) report(t *testing.T) {
	t.Helper()
	if err := errors.Join(f.errs...); err != nil {
		t.Errorf("%v", err)
		if strings.Contains(err.Error(), "locked") {
			t.Error("the database was locked")
		}
	}
}
