package memstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/lanebox/lanebox/runtime/lane"
)

// store is one scope as a delivering loop sees it.
type store struct {
	db     *DB
	number lane.Scope
}

// Outbox returns the store of a destination.
func (db *DB) Outbox(n lane.Scope) lane.Store { return &store{db, n} }

// Inbox returns the store of a pull source, or of all push sources together.
func (db *DB) Inbox(n lane.Scope) lane.Store { return &store{db, n} }

// enter applies faults and returns the scope with the DB locked; the caller
// unlocks it when err is nil.
func (s *store) enter(ctx context.Context, op Op, owner string) (sc *scope, answer, err error) {
	answer, err = s.db.enter(ctx, Call{Op: op, Scope: s.number, Owner: owner})
	if err != nil {
		return nil, nil, err
	}
	s.db.mu.Lock()
	if sc = s.db.scopes[s.number]; sc == nil {
		s.db.mu.Unlock()
		return nil, nil, fmt.Errorf("%s: scope %d does not exist", op, s.number)
	}
	return sc, answer, nil
}

// Acquire implements lane.Store.
func (s *store) Acquire(ctx context.Context, p lane.AcquireParams) ([]lane.Lease, error) {
	sc, answer, err := s.enter(ctx, OpAcquire, p.Owner)
	if err != nil {
		return nil, err
	}
	defer s.db.mu.Unlock()
	now := s.db.now()
	var leases []lane.Lease
	free := p.MaxFree
	for _, b := range sc.buckets {
		crashed := b.owner != ""
		switch {
		case crashed && b.until.After(now): // a live lease
			continue
		case !crashed && free <= 0:
			continue
		case !crashed:
			free--
		}
		b.token++
		b.owner, b.until = p.Owner, now.Add(p.TTL)
		leases = append(leases, lane.Lease{Bucket: b.number, Token: b.token, Lo: b.lo, Hi: b.hi, Crashed: crashed})
	}
	if answer != nil {
		return nil, answer
	}
	return leases, nil
}

// nobody owns the buckets that were given back on probation: they are not free.
const nobody = "nobody"

// Release implements lane.Store.
func (s *store) Release(ctx context.Context, owner string, leases []lane.Lease) error {
	sc, answer, err := s.enter(ctx, OpRelease, owner)
	if err != nil {
		return err
	}
	defer s.db.mu.Unlock()
	for _, l := range leases {
		if !sc.passes(owner, l) {
			continue
		}
		b := sc.bucket(l.Bucket)
		b.until = time.Time{}
		b.owner = ""
		if l.Crashed { // on probation: nobody's, but not free
			b.owner = nobody
		}
	}
	return answer
}

// Fetch implements lane.Store.
func (s *store) Fetch(ctx context.Context, p lane.FetchParams) (lane.Page, error) {
	sc, answer, err := s.enter(ctx, OpFetch, p.Owner)
	if err != nil {
		return lane.Page{}, err
	}
	defer s.db.mu.Unlock()
	page := sc.page(p, s.db.now())
	if answer != nil {
		return lane.Page{}, answer
	}
	return page, nil
}

// page walks the buckets in cursor order until the page is full.
func (sc *scope) page(p lane.FetchParams, now time.Time) lane.Page {
	var rows []lane.Row
	var stops []lane.Stop
	for _, c := range p.Cursors {
		if len(rows) >= p.MaxRows {
			break
		}
		if !sc.passes(p.Owner, c.Lease) || !sc.bucket(c.Lease.Bucket).until.After(now) {
			continue
		}
		var stop *lane.Stop
		if rows, stop = sc.walk(rows, c, p, now); stop != nil {
			stops = append(stops, *stop)
		}
	}
	return lane.Advance(p, rows, stops)
}

// walk looks at the lanes of one bucket from the cursor on and appends what may
// be delivered. It returns where it ended, or nil after MaxLanes lanes.
func (sc *scope) walk(rows []lane.Row, c lane.Cursor, p lane.FetchParams, now time.Time) ([]lane.Row, *lane.Stop) {
	b, found, looked := sc.bucket(c.Lease.Bucket), 0, 0
	i, _ := slices.BinarySearch(sc.order, max(c.Lane, b.lo))
	for ; i < len(sc.order) && sc.order[i] <= b.hi; i++ {
		l := sc.order[i]
		if looked == p.ScanLanes {
			return rows, &lane.Stop{Bucket: b.number, Lane: sc.order[i-1]}
		}
		looked++
		before := len(rows)
		switch {
		case l == b.lo:
			rows = sc.unordered(rows, b, c.After, p.MaxRows, now)
		case slices.Contains(p.Busy, l) || sc.waits(l, now):
		default:
			for _, r := range sc.lanes[l][:min(p.MaxRun, len(sc.lanes[l]))] {
				rows = append(rows, sc.listed(b, r))
			}
		}
		if len(rows) > before {
			found++
		}
		if found == p.MaxLanes {
			return rows, nil
		}
	}
	return rows, &lane.Stop{Bucket: b.number, End: true}
}

// unordered lists the rows of the unordered lane behind after. A row that waits
// is listed without payload, so that the cursor can pass it.
func (sc *scope) unordered(rows []lane.Row, b *bucket, after int64, limit int, now time.Time) []lane.Row {
	for _, r := range sc.lanes[b.lo] {
		if r.message.Sequence <= after {
			continue
		}
		if limit == 0 {
			break
		}
		limit--
		listed := sc.listed(b, r)
		if h := sc.holds[b.lo][r.message.Sequence]; h != nil {
			listed.DueIn = h.dueIn(now)
		}
		if h := sc.holds[b.lo][0]; h != nil {
			listed.DueIn = max(listed.DueIn, h.dueIn(now))
		}
		if listed.DueIn > 0 {
			listed.Message.Payload, listed.Message.Headers = nil, nil
		}
		rows = append(rows, listed)
	}
	return rows
}

// parkedFor stands in DueIn for "until an operator decides".
const parkedFor = 365 * 24 * time.Hour

// dueIn returns how long h still holds; 0 means that it is due.
func (h *hold) dueIn(now time.Time) time.Duration {
	if h.parked {
		return parkedFor
	}
	return max(0, h.due.Sub(now))
}

// listed returns a row together with what is recorded about it.
func (sc *scope) listed(b *bucket, r *row) lane.Row {
	out := lane.Row{Bucket: b.number, Lane: r.lane, Message: r.message}
	if h := sc.holds[r.lane][r.message.Sequence]; h != nil {
		out.Held, out.Attempts = true, h.attempts
	}
	out.Message.Attempt = out.Attempts + 1
	return out
}

// Settle implements lane.Store.
func (s *store) Settle(ctx context.Context, owner string, leases []lane.Lease, settlements []lane.Settlement) (lane.SettleResult, error) {
	sc, answer, err := s.enter(ctx, OpSettle, owner)
	if err != nil {
		return lane.SettleResult{}, err
	}
	defer s.db.mu.Unlock()
	var result lane.SettleResult
	passed := map[lane.Bucket]bool{}
	for _, l := range leases {
		if passed[l.Bucket] = sc.passes(owner, l); !passed[l.Bucket] {
			result.Fenced = append(result.Fenced, l.Bucket)
		}
	}
	for _, x := range settlements {
		if b := sc.bucketOf(x.Lane); b.number != x.Bucket {
			return lane.SettleResult{}, fmt.Errorf("settle: lane %d is not of bucket %d", x.Lane, x.Bucket)
		}
		if _, named := passed[x.Bucket]; !named {
			return lane.SettleResult{}, fmt.Errorf("settle: no lease names bucket %d", x.Bucket)
		}
	}
	now := s.db.now()
	for _, x := range settlements {
		if passed[x.Bucket] && !sc.settle(x, now) {
			result.Gone = append(result.Gone, lane.Ref{Lane: x.Lane, Sequence: x.Sequence})
		}
	}
	result.Parked = sc.parkedLanes(func(b *bucket) bool { return passed[b.number] })
	if answer != nil {
		return lane.SettleResult{}, answer
	}
	return result, nil
}

// settle records one outcome and reports whether the message was there.
func (sc *scope) settle(x lane.Settlement, now time.Time) bool {
	if sc.find(x.Lane, x.Sequence) == nil {
		return false
	}
	switch x.Outcome {
	case lane.Done:
		sc.remove(x.Lane, x.Sequence)
	case lane.Dead:
		sc.bury(sc.remove(x.Lane, x.Sequence), x, now)
	default:
		h := &hold{attempts: x.Attempts, due: now, reason: x.Reason, lastError: x.Error}
		switch x.Outcome {
		case lane.Retry:
			h.due = now.Add(x.Delay)
		case lane.Park:
			h.parked = true
		}
		sc.hold(x.Lane, x.Sequence, h)
	}
	return true
}

// bury keeps a row among the dead letters.
func (sc *scope) bury(r *row, x lane.Settlement, now time.Time) {
	sc.dead = append(sc.dead, &deadRow{row: *r, attempts: x.Attempts, reason: x.Reason, lastError: x.Error, died: now})
}

// Keep implements lane.Keeper.
func (db *DB) Keep(ctx context.Context, p lane.KeepParams) ([]lane.Kept, error) {
	answer, err := db.enter(ctx, Call{Op: OpKeep, Owner: p.Owner})
	if err != nil {
		return nil, err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	for _, x := range p.Scopes {
		if db.scopes[x.Scope] == nil {
			return nil, fmt.Errorf("keep: scope %d does not exist", x.Scope)
		}
	}
	kept := make([]lane.Kept, 0, len(p.Scopes))
	for _, x := range p.Scopes {
		kept = append(kept, db.scopes[x.Scope].keep(p, x.Leases, db.now()))
	}
	if answer != nil {
		return nil, answer
	}
	return kept, nil
}

// keep renews and counts in one scope.
func (sc *scope) keep(p lane.KeepParams, leases []lane.Lease, now time.Time) lane.Kept {
	k := lane.Kept{Scope: sc.number, Buckets: len(sc.buckets), Waiting: len(sc.order) > 0}
	renewed := map[lane.Bucket]bool{}
	for _, l := range leases {
		if sc.passes(p.Owner, l) {
			sc.bucket(l.Bucket).until = now.Add(p.TTL)
			renewed[l.Bucket] = true
			k.Renewed = append(k.Renewed, l.Bucket)
		}
	}
	slices.SortFunc(k.Renewed, cmp.Compare)
	k.Parked = sc.parkedLanes(func(b *bucket) bool { return renewed[b.number] })
	sc.owners[p.Owner] = now
	for owner, seen := range sc.owners {
		if seen.Add(p.TTL).After(now) {
			k.Owners++
		} else {
			delete(sc.owners, owner)
		}
	}
	for _, b := range sc.buckets {
		switch {
		case b.owner == "":
			k.Free++
		case !b.until.After(now):
			k.Expired++
		}
	}
	return k
}

// Leave implements lane.Keeper.
func (db *DB) Leave(ctx context.Context, owner string) error {
	answer, err := db.enter(ctx, Call{Op: OpLeave, Owner: owner})
	if err != nil {
		return err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	for _, sc := range db.scopes {
		delete(sc.owners, owner)
	}
	return answer
}

// Listen implements lane.Waker.
func (db *DB) Listen(ctx context.Context, wake func()) error {
	heard := make(chan struct{}, 1)
	db.mu.Lock()
	db.wakers[heard] = true
	db.mu.Unlock()
	defer func() {
		db.mu.Lock()
		defer db.mu.Unlock()
		delete(db.wakers, heard)
	}()
	wake()
	for {
		select {
		case <-heard:
			wake()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Announce implements lane.Waker.
func (db *DB) Announce(ctx context.Context) error {
	answer, err := db.enter(ctx, Call{Op: OpAnnounce})
	if err != nil {
		return err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	for heard := range db.wakers {
		select {
		case heard <- struct{}{}:
		default: // one wake-up is waiting already
		}
	}
	return answer
}

var (
	_ lane.Store  = (*store)(nil)
	_ lane.Keeper = (*DB)(nil)
	_ lane.Waker  = (*DB)(nil)
)
