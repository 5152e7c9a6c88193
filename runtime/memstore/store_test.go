package memstore

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/outbox"
	"github.com/lanebox/lanebox/runtime/storetest"
)

// reference is the schema of examples/reference, as far as a store sees it.
func reference(t *testing.T, buckets int, now func() time.Time) *DB {
	t.Helper()
	db, err := New(Config{
		Now: now,
		Scopes: []Scope{
			{Number: 101, Name: storetest.Warehouse, Buckets: buckets},
			{Number: 102, Name: storetest.Ledger, Buckets: buckets},
			{Number: 103, Name: storetest.Mail, Buckets: buckets},
			{Number: 201, Name: storetest.Payments, Buckets: buckets, Inbox: true},
			{Number: 202, Name: storetest.Stock, Buckets: buckets, Inbox: true},
			{Number: 1, Name: storetest.Push, Buckets: buckets, Inbox: true},
		},
		Topics: []Topic{
			{Name: "order.placed.v1", Keyed: true}, {Name: "order.cancelled.v1", Keyed: true},
			{Name: "shipment.moved.v1", Keyed: true, Dense: true}, {Name: "account.opened.v1", Keyed: true},
			{Name: "mail.requested.v1"},
		},
		Routes: []Route{
			{Globs: []string{"order.*", "shipment.*"}, To: []lane.Scope{101, 102}},
			{Globs: []string{"account.opened.v1"}, To: []lane.Scope{102}},
			{Globs: []string{"mail.requested.v1"}, To: []lane.Scope{103}},
			{Globs: []string{"return.*"}, To: []lane.Scope{101}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return db
}

var scopes = map[string]lane.Scope{
	storetest.Warehouse: 101, storetest.Ledger: 102, storetest.Mail: 103,
	storetest.Payments: 201, storetest.Stock: 202, storetest.Push: 1,
}

func source(name string) inbox.SourceRef {
	switch name {
	case storetest.Orders:
		return inbox.SourceRef{Name: name, Number: 301, Scope: 1}
	case storetest.Returns:
		return inbox.SourceRef{Name: name, Number: 302, Scope: 1}
	}
	return inbox.SourceRef{Name: name, Number: int32(scopes[name]), Scope: scopes[name]}
}

// harness presents db to the suite.
func harness(db *DB) *storetest.DB[*Tx] {
	return &storetest.DB[*Tx]{
		Scope:    func(name string) lane.Scope { return scopes[name] },
		Source:   source,
		Begin:    func(context.Context) (*Tx, error) { return db.Begin(), nil },
		Commit:   func(ctx context.Context, tx *Tx) error { return tx.Commit(ctx) },
		Rollback: func(ctx context.Context, tx *Tx) error { return tx.Rollback(ctx) },
		Appender: func(tx *Tx) outbox.Appender { return tx },
		Insert: func(ctx context.Context, tx *Tx, topic string, key *string, payload string) error {
			return tx.Insert(ctx, topic, key, payload)
		},
		Outbox: db.Outbox, Inbox: db.Inbox, Keeper: db, Waker: db, Receive: db,
		ReceiveIn: func(ctx context.Context, tx *Tx, s inbox.SourceRef, m inbox.Incoming) error {
			_, err := tx.Receive(ctx, s, []inbox.Incoming{m})
			return err
		},
		Pull:        db.Pull,
		Push:        func() inbox.PushStore[*Tx] { return db.Push(scopes[storetest.Push]) },
		DeadLetters: db.DeadLetters,
		Replay: func(ctx context.Context, n lane.Scope, ids ...event.UUID) error {
			_, err := db.Replay(ctx, n, ids...)
			return err
		},
		Park: func(ctx context.Context, n lane.Scope, key string) error { return db.ParkKey(ctx, n, key, "test") },
		Unpark: func(ctx context.Context, n lane.Scope, key string) error {
			return db.ReleaseKey(ctx, n, key, "test")
		},
		Remove: func(_ context.Context, n lane.Scope, l, sequence int64) error {
			db.mu.Lock()
			defer db.mu.Unlock()
			db.scopes[n].remove(l, sequence)
			return nil
		},
		LockWaiters: func(context.Context) (int, error) {
			db.mu.Lock()
			defer db.mu.Unlock()
			n := 0
			for _, l := range db.locks {
				n += len(l.waiters)
			}
			return n, nil
		},
		Now: func(context.Context) (time.Time, error) { return db.now(), nil },
		ExpireLeases: func(_ context.Context, n lane.Scope, owner string) error {
			db.ExpireLeases(n, owner)
			return nil
		},
		MakeDue: func(_ context.Context, n lane.Scope) error {
			db.MakeDue(n)
			return nil
		},
		AddToTokens: func(_ context.Context, n lane.Scope, d int64) error {
			db.mu.Lock()
			defer db.mu.Unlock()
			for _, b := range db.scopes[n].buckets {
				b.token += d
			}
			return nil
		},
		AgeReceipts: func(_ context.Context, d time.Duration) error {
			db.mu.Lock()
			defer db.mu.Unlock()
			for k, r := range db.receipts {
				r.received = r.received.Add(-d)
				if !r.gone.IsZero() {
					r.gone = r.gone.Add(-d)
				}
				db.receipts[k] = r
			}
			return nil
		},
		Fingerprint: func(context.Context) (string, error) { return fingerprint(db), nil },
	}
}

// fingerprint prints everything but heartbeats.
func fingerprint(db *DB) string {
	db.mu.Lock()
	defer db.mu.Unlock()
	var lines []string
	for _, sc := range db.scopes {
		for _, b := range sc.buckets {
			lines = append(lines, fmt.Sprintf("%s bucket %+v", sc.name, *b))
		}
		for _, rows := range sc.lanes {
			for _, r := range rows {
				lines = append(lines, fmt.Sprintf("%s row %+v", sc.name, *r))
			}
		}
		for l, holds := range sc.holds {
			for sequence, h := range holds {
				lines = append(lines, fmt.Sprintf("%s hold %d/%d %+v", sc.name, l, sequence, *h))
			}
		}
		for _, d := range sc.dead {
			lines = append(lines, fmt.Sprintf("%s dead %+v", sc.name, *d))
		}
	}
	for k, v := range db.versions {
		lines = append(lines, fmt.Sprint("version ", k, v))
	}
	for k, r := range db.receipts {
		lines = append(lines, fmt.Sprint("receipt ", k, r))
	}
	slices.Sort(lines)
	return fmt.Sprintf("%q", lines)
}

func TestStore(t *testing.T) {
	if name := os.Getenv(mutantVariable); name != "" {
		runMutant(t, name)
		return
	}
	// The database's clock and this process's are an hour apart, either way.
	ahead := func() time.Time { return time.Now().Add(time.Hour) }
	behind := func() time.Time { return time.Now().Add(-time.Hour) }
	for name, c := range map[string]struct {
		buckets int
		now     func() time.Time
	}{"128 buckets": {128, ahead}, "1 bucket": {1, behind}} {
		t.Run(name, func(t *testing.T) {
			storetest.Run(t, storetest.Harness[*Tx]{
				Features: storetest.Features{Buckets: c.buckets, ConcurrentWriters: true},
				Open:     func(t *testing.T) *storetest.DB[*Tx] { return harness(reference(t, c.buckets, c.now)) },
			})
		})
	}
}
