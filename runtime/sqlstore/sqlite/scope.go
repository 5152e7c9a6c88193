package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/lanebox/lanebox/runtime/lane"
)

// An OutboxScope is one destination of a store.
type OutboxScope struct{ scope }

// An InboxScope is one pull source of a store, or all push sources together.
type InboxScope struct{ scope }

var (
	_ lane.Store = (*OutboxScope)(nil)
	_ lane.Store = (*InboxScope)(nil)
)

// Outbox returns the lanes of one destination.
func (s *Store) Outbox(number lane.Scope) *OutboxScope {
	return &OutboxScope{scope{s, int64(number), Queries.Outbox}}
}

// Inbox returns the lanes of one pull source, or of all push sources together.
func (s *Store) Inbox(number lane.Scope) *InboxScope {
	return &InboxScope{scope{s, int64(number), Queries.Inbox}}
}

// A scope is one set of lanes in one of the queues.
type scope struct {
	store  *Store
	number int64
	queue  func(Queries) QueueQueries
}

// Acquire implements lane.Store.
func (s *scope) Acquire(ctx context.Context, p lane.AcquireParams) ([]lane.Lease, error) {
	var leases []lane.Lease
	err := s.store.write(ctx, "acquire buckets", func(_ *sql.Tx, q Queries) error {
		expired, err := q.Expired(ctx, ExpiredParams{Scope: s.number, MaxFree: int64(max(p.MaxFree, 0))})
		if err != nil || len(expired) == 0 {
			return err
		}
		crashed, buckets := map[int64]bool{}, make([]int64, len(expired))
		for i, b := range expired {
			crashed[b.Bucket], buckets[i] = b.Crashed == 1, b.Bucket
		}
		taken, err := q.Acquire(ctx, AcquireParams{Owner: p.Owner, LeaseMs: Milliseconds(p.TTL), Scope: s.number, Buckets: List(buckets)})
		for _, b := range taken {
			leases = append(leases, lane.Lease{Bucket: lane.Bucket(b.Bucket), Token: b.Token, Lo: b.Lo, Hi: b.Hi, Crashed: crashed[b.Bucket]})
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return leases, nil
}

// Release implements lane.Store.
func (s *scope) Release(ctx context.Context, owner string, leases []lane.Lease) error {
	return s.store.write(ctx, "release buckets", func(_ *sql.Tx, q Queries) error {
		for _, l := range leases {
			p := ReleaseParams{Scope: s.number, Bucket: int64(l.Bucket), Owner: owner, Token: l.Token}
			if l.Crashed {
				p.Crashed = 1
			}
			if _, err := q.Release(ctx, p); err != nil {
				return err
			}
		}
		return nil
	})
}

// fence returns the bucket of a lease while owner and token still hold it.
func (s *scope) fence(ctx context.Context, q Queries, owner string, l lane.Lease) (row FenceRow, held bool, err error) {
	rows, err := q.Fence(ctx, FenceParams{Scope: s.number, Bucket: int64(l.Bucket), Owner: owner, Token: l.Token})
	if err != nil || len(rows) == 0 {
		return FenceRow{}, false, err
	}
	return rows[0], true, nil
}

// Fetch implements lane.Store. All its queries see one state of the database.
func (s *scope) Fetch(ctx context.Context, p lane.FetchParams) (lane.Page, error) {
	f := fetch{scope: s, p: p, busy: List(p.Busy)}
	err := Read(ctx, s.store.c.DB, func(tx *sql.Tx) error {
		f.q = s.store.c.Bind(tx)
		for _, c := range p.Cursors {
			if len(f.rows) >= p.MaxRows {
				return nil
			}
			if err := f.bucket(ctx, c); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return lane.Page{}, Classify("fetch", err)
	}
	return lane.Advance(p, f.rows, f.stops), nil
}

// A fetch reads one page.
type fetch struct {
	*scope
	q     Queries
	p     lane.FetchParams
	busy  string
	rows  []lane.Row
	stops []lane.Stop
}

// bucket reads one bucket from its cursor on: the unordered lane first, since it
// is the lowest, then the keyed ones. It records where the walk stopped, unless
// the page's room or MaxLanes cut it.
func (f *fetch) bucket(ctx context.Context, c lane.Cursor) error {
	b, held, err := f.fence(ctx, f.q, f.p.Owner, c.Lease)
	if err != nil || !held || b.Live == 0 {
		return err
	}
	lanes, scan := f.p.MaxLanes, f.p.ScanLanes
	if c.Lane <= c.Lease.Lo {
		rows, err := f.queue(f.q).Unordered(ctx, UnorderedParams{Scope: f.number, Lane: c.Lease.Lo, After: c.After, MaxRows: f.room()})
		if err != nil {
			return err
		}
		if err := f.add(c.Lease.Bucket, rows); err != nil {
			return err
		}
		if len(rows) > 0 {
			lanes, scan = lanes-1, scan-1
		}
	}
	switch {
	case f.room() == 0 || lanes == 0:
		return nil
	case scan == 0:
		f.stops = append(f.stops, lane.Stop{Bucket: c.Lease.Bucket, Lane: c.Lease.Lo})
		return nil
	}
	return f.keyed(ctx, c, lanes, scan)
}

// keyed reads keyed lanes: lanes at most, of scan that it looks at.
func (f *fetch) keyed(ctx context.Context, c lane.Cursor, lanes, scan int) error {
	from := max(c.Lane, c.Lease.Lo+1)
	rows, err := f.queue(f.q).Fetch(ctx, FetchParams{
		Scope: f.number, MaxRun: int64(f.p.MaxRun), MaxRows: f.room(), FromLane: from, Hi: c.Lease.Hi,
		ScanLanes: int64(scan), Busy: f.busy, MaxLanes: int64(lanes),
	})
	if err != nil {
		return err
	}
	if err := f.add(c.Lease.Bucket, rows); err != nil || f.room() == 0 || countLanes(rows) == lanes {
		return err
	}
	end, err := f.queue(f.q).Walk(ctx, WalkParams{ScanLanes: int64(scan), Scope: f.number, FromLane: from, Hi: c.Lease.Hi})
	f.stops = append(f.stops, lane.Stop{Bucket: c.Lease.Bucket, Lane: end.Lane, End: end.More == 0})
	return err
}

// room is the number of rows that the page still takes.
func (f *fetch) room() int64 { return int64(f.p.MaxRows - len(f.rows)) }

// add appends rows to the page. Those that wait come without their content.
func (f *fetch) add(bucket lane.Bucket, rows []MessageRow) error {
	for i := range rows {
		r := &rows[i]
		m, err := f.store.message(r)
		if err != nil {
			return err
		}
		m.Attempt = int(r.Attempts) + 1
		if r.DueInMs > 0 {
			m.Payload, m.Headers = nil, nil
		}
		f.rows = append(f.rows, lane.Row{
			Bucket: bucket, Lane: r.Lane, Attempts: int(r.Attempts), Held: r.Held == 1,
			DueIn: time.Duration(r.DueInMs) * time.Millisecond, Message: m,
		})
	}
	return nil
}

// countLanes counts the lanes of rows in lane order.
func countLanes(rows []MessageRow) int {
	n := 0
	for i := range rows {
		if i == 0 || rows[i].Lane != rows[i-1].Lane {
			n++
		}
	}
	return n
}

// Settle implements lane.Store. Nobody can take a bucket while its transaction
// is open, so one look at the fence holds for all that follows.
func (s *scope) Settle(ctx context.Context, owner string, leases []lane.Lease, settlements []lane.Settlement) (lane.SettleResult, error) {
	var t settling
	err := s.store.write(ctx, "settle", func(_ *sql.Tx, q Queries) error {
		t = settling{scope: s, q: q, named: map[lane.Bucket]bool{}, passed: map[lane.Bucket]FenceRow{}}
		if err := t.fences(ctx, owner, leases); err != nil {
			return err
		}
		return t.all(ctx, settlements)
	})
	if err != nil {
		return lane.SettleResult{}, err
	}
	return t.result, nil
}

// A settling is one call of Settle.
type settling struct {
	*scope
	q      Queries
	named  map[lane.Bucket]bool
	passed map[lane.Bucket]FenceRow
	result lane.SettleResult
}

// fences checks every lease and looks for parked lanes in those that hold.
func (t *settling) fences(ctx context.Context, owner string, leases []lane.Lease) error {
	for _, l := range leases {
		b, held, err := t.fence(ctx, t.q, owner, l)
		if err != nil {
			return err
		}
		t.named[l.Bucket] = true
		if !held {
			t.result.Fenced = append(t.result.Fenced, l.Bucket)
			continue
		}
		t.passed[l.Bucket] = b
		parked, err := t.q.Parked(ctx, t.number, b.Lo, b.Hi)
		if err != nil {
			return err
		}
		t.result.Parked = append(t.result.Parked, parked...)
	}
	return nil
}

// all records the settlements: delivered messages in one statement for each
// bucket, all others one by one.
func (t *settling) all(ctx context.Context, settlements []lane.Settlement) error {
	done := map[lane.Bucket][]lane.Settlement{}
	for _, x := range settlements {
		b, passed := t.passed[x.Bucket]
		switch {
		case !t.named[x.Bucket]:
			return fmt.Errorf("no lease names bucket %d", x.Bucket)
		case !passed:
		case x.Lane < b.Lo || x.Lane > b.Hi:
			return fmt.Errorf("lane %d is not of bucket %d", x.Lane, x.Bucket)
		case x.Outcome == lane.Done:
			done[x.Bucket] = append(done[x.Bucket], x)
		default:
			if err := t.one(ctx, b, x); err != nil {
				return err
			}
		}
	}
	for bucket, list := range done {
		gone, err := t.remove(ctx, t.q, t.passed[bucket], list)
		if err != nil {
			return err
		}
		t.result.Gone = append(t.result.Gone, gone...)
	}
	return nil
}

// one records any outcome but Done.
func (t *settling) one(ctx context.Context, b FenceRow, x lane.Settlement) error {
	found, err := t.record(ctx, b, x)
	if err == nil && !found {
		t.result.Gone = append(t.result.Gone, lane.Ref{Lane: x.Lane, Sequence: x.Sequence})
	}
	return err
}

// record writes a hold, or moves the message to the dead letters.
func (t *settling) record(ctx context.Context, b FenceRow, x lane.Settlement) (found bool, err error) {
	if x.Outcome == lane.Dead {
		return t.bury(ctx, b, x)
	}
	p := HoldParams{
		Attempts: int64(x.Attempts), Reason: Text(x.Reason), LastError: Text(x.Error),
		Sequence: x.Sequence, Scope: t.number, Lane: x.Lane,
	}
	switch x.Outcome {
	case lane.Retry:
		p.DelayMs = Milliseconds(x.Delay)
	case lane.Park:
		p.Parked = 1
	}
	n, err := t.queue(t.q).Hold(ctx, p)
	return n > 0, err
}

// bury moves a message to the dead letters.
func (t *settling) bury(ctx context.Context, b FenceRow, x lane.Settlement) (found bool, err error) {
	n, err := t.queue(t.q).Bury(ctx, BuryParams{
		Attempts: int64(x.Attempts), Reason: Text(x.Reason), LastError: Text(x.Error),
		Sequence: x.Sequence, Scope: t.number, Lane: x.Lane,
	})
	if err != nil || n == 0 {
		return false, err
	}
	x.Held = true // a hold row may have come since the message was fetched
	_, err = t.remove(ctx, t.q, b, []lane.Settlement{x})
	return true, err
}

// remove deletes messages of one bucket, with their holds, and returns those
// that were not there.
func (s *scope) remove(ctx context.Context, q Queries, b FenceRow, done []lane.Settlement) ([]lane.Ref, error) {
	sequences := make([]int64, len(done))
	for i, x := range done {
		sequences[i] = x.Sequence
	}
	removed, err := s.queue(q).Remove(ctx, RemoveParams{Sequences: List(sequences), Scope: s.number, Lo: b.Lo, Hi: b.Hi})
	if err != nil {
		return nil, err
	}
	found := make(map[int64]bool, len(removed))
	for _, n := range removed {
		found[n] = true
	}
	var gone []lane.Ref
	for _, x := range done {
		if !found[x.Sequence] {
			gone = append(gone, lane.Ref{Lane: x.Lane, Sequence: x.Sequence})
		}
		if x.Held {
			if err := q.Unhold(ctx, s.number, x.Lane, x.Sequence); err != nil {
				return nil, err
			}
		}
	}
	return gone, nil
}
