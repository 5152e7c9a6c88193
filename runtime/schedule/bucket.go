package schedule

import (
	"cmp"
	"slices"
	"time"

	"github.com/lanebox/lanebox/runtime/lane"
)

// A bucket is one leased share of the lanes.
type bucket struct {
	lease lane.Lease
	// trusted is when trust in the lease ends. Invariant: nothing of the bucket
	// is started at or after it.
	trusted time.Time
	// looked is when the database was last asked for parked lanes.
	looked time.Time
	cursor lane.Cursor
	// need is the number of times that the cursor has to come round before
	// everything that was committed by now has been seen.
	need int
	// inFlight and unsettled count flights and records; lanes counts lanes in
	// memory. A bucket is given back only when the first two are 0.
	inFlight, unsettled, lanes int
	// leaving says that the bucket is to be given back: nothing of it starts.
	leaving bool
	// tainted says that a delivery was abandoned: it must not be given back.
	tainted bool
	// gone says that the lease is lost.
	gone bool
	probation
}

// kept applies an answer of the keeper.
func (m *Machine) kept(in Kept) {
	renewed := make(map[lane.Bucket]bool, len(in.Answer.Renewed))
	for _, n := range in.Answer.Renewed {
		renewed[n] = true
	}
	for _, sent := range in.Sent {
		b := m.buckets[sent.Bucket]
		if b == nil || b.lease.Token != sent.Token {
			continue // given back or lost in the meantime
		}
		if !renewed[sent.Bucket] {
			m.lose(b, "not renewed")
			continue
		}
		b.trusted = in.Asked.Add(in.TTL - m.policy.margin())
		b.looked = in.Asked
	}
	m.trust()
	m.park(in.Answer.Parked)
	if in.Answer.Waiting {
		m.wakeAll()
	}
	m.share(in.Answer)
}

// share takes buckets up to the fair share, and gives the surplus back. Expired
// buckets are taken in any case: nobody serves them.
func (m *Machine) share(k lane.Kept) {
	wanted := (k.Buckets + max(1, k.Owners) - 1) / max(1, k.Owners)
	held := 0
	for _, b := range m.order {
		if !b.leaving {
			held++
		}
	}
	fresh := m.acquired
	m.acquired = false
	if m.draining {
		return
	}
	missing, keep := m.spare.look(m.now, k, max(0, wanted-held), m.policy.Lease)
	if held > wanted && !fresh && !keep { // what was just taken is kept for one round
		m.shed(held - wanted)
	}
	if (k.Expired > 0 || k.Free > 0 && missing > 0) && m.acquireCall.free(m.now) {
		m.acquireCall.busy = true
		m.emit(Acquire{lane.AcquireParams{Owner: m.owner, MaxFree: missing, TTL: m.policy.Lease}})
	}
}

// A spare watches free buckets that nobody takes: owners that died, or that are
// shutting down, count as live for a while and take no share. Such buckets are
// taken above the fair share, and kept until the number of owners changes or a
// lease's time has passed, since an owner may also have been unable to take them.
type spare struct {
	rounds int // answers in a row with free buckets above what was missing
	owners int // the number of owners when spare buckets were taken
	until  time.Time
}

// patience is how many answers in a row have to show free buckets before they
// count as spare: enough for every live owner to take its share.
const patience = 3

// look returns how many free buckets to take, and whether buckets above the fair
// share are kept.
func (s *spare) look(now time.Time, k lane.Kept, missing int, lease time.Duration) (take int, keep bool) {
	if k.Free > missing {
		s.rounds++
	} else {
		s.rounds = 0
	}
	if s.rounds >= patience {
		s.rounds, s.owners, s.until = 0, k.Owners, now.Add(lease)
		missing = k.Free
	}
	return missing, k.Owners == s.owners && now.Before(s.until)
}

// shed marks n buckets to be given back, those with the least to do first.
func (m *Machine) shed(n int) {
	candidates := slices.Clone(m.order)
	slices.SortFunc(candidates, func(a, b *bucket) int {
		return cmp.Or(compareBool(a.lease.Crashed, b.lease.Crashed), cmp.Compare(a.inFlight+a.unsettled, b.inFlight+b.unsettled),
			cmp.Compare(a.lanes, b.lanes), cmp.Compare(b.lease.Bucket, a.lease.Bucket))
	})
	for _, b := range candidates {
		if n > 0 && !b.leaving {
			m.leave(b)
			n--
		}
	}
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}

// leave stops serving a bucket. What has not started is dropped from memory.
func (m *Machine) leave(b *bucket) {
	b.leaving = true
	for _, l := range m.lanes {
		if l.b == b {
			m.drop(l)
			m.free(l)
		}
	}
}

// acquiredBuckets adds leases.
func (m *Machine) acquiredBuckets(in Acquired) {
	if !m.done(&m.acquireCall, "acquire", in.Err) || len(in.Leases) == 0 {
		return
	}
	m.acquired = true
	m.report(LeasesAcquired{in.Leases})
	m.depth = m.policy.MaxUnsettled
	for _, l := range in.Leases {
		if old := m.buckets[l.Bucket]; old != nil {
			m.lose(old, "trust ended") // it expired and was taken anew
		}
		l.Crashed = l.Crashed && !m.survived(l)
		b := &bucket{
			lease: l, trusted: in.Asked.Add(m.policy.Lease - m.policy.margin()), looked: in.Asked,
			cursor: lane.Cursor{Lease: l, Lane: l.Lo}, leaving: m.draining,
			probation: probation{firstKeyed: l.Crashed, firstUnordered: l.Crashed},
		}
		m.buckets[l.Bucket] = b
		m.order = append(m.order, b)
		m.wake(b)
		if l.Crashed {
			m.report(ProbationStarted{l})
		}
	}
	m.trust()
}

// survived reports whether l comes right after a lease of this very machine that
// ended by itself, for example while the database was away: the token says that
// nobody else had the bucket between, so nothing of it can have killed anybody.
// A probation that had not ended goes on.
func (m *Machine) survived(l lane.Lease) bool {
	last, ok := m.lost[l.Bucket]
	delete(m.lost, l.Bucket)
	return ok && !last.Crashed && l.Token == last.Token+1
}

// trust notes when the first lease stops being trusted.
func (m *Machine) trust() {
	m.trustEnds = time.Time{}
	for _, b := range m.order {
		if m.trustEnds.IsZero() || b.trusted.Before(m.trustEnds) {
			m.trustEnds = b.trusted
		}
	}
}

// expire loses the leases that are no longer trusted.
func (m *Machine) expire() {
	if m.trustEnds.IsZero() || m.now.Before(m.trustEnds) {
		return
	}
	for _, b := range slices.Clone(m.order) {
		if !m.now.Before(b.trusted) {
			m.lose(b, "trust ended")
		}
	}
	m.trust()
}

// lose forgets a bucket at once: deliveries are canceled, outcomes dropped.
func (m *Machine) lose(b *bucket, reason string) {
	m.remove(b)
	m.lost[b.lease.Bucket] = b.lease
	dropped := 0
	keep := m.pending[:0]
	for _, r := range m.pending {
		if r.l.b == b {
			m.forget(r)
			dropped++
		} else {
			keep = append(keep, r)
		}
	}
	clear(m.pending[len(keep):])
	m.pending = keep
	for _, r := range m.settling {
		if r.l.b == b {
			m.forget(r) // its answer will be ignored
			dropped++
		}
	}
	canceled := m.cancel(func(f *flight) bool { return f.l.b == b })
	for _, l := range m.lanes {
		if l.b == b {
			m.discard(l)
		}
	}
	if m.gate.lane != nil && m.gate.lane.b == b && m.gate.lane.flight == nil {
		m.gate.lane = nil
	}
	for _, p := range [...]*laneState{m.circuit.probe, m.circuit.scout} {
		if p != nil && p.b == b {
			m.circuit.probed(p)
		}
	}
	m.trust()
	m.stats.LostLeases++
	m.report(LeaseLost{Lease: b.lease, Reason: reason, Canceled: canceled, Dropped: dropped})
}

// remove takes a bucket out of the tables.
func (m *Machine) remove(b *bucket) {
	b.gone = true
	if m.buckets[b.lease.Bucket] == b {
		delete(m.buckets, b.lease.Bucket)
	}
	m.order = slices.DeleteFunc(m.order, func(o *bucket) bool { return o == b })
}

// cancel cancels flights. Their lanes stay closed until they return. It returns
// how many there were.
func (m *Machine) cancel(which func(*flight) bool) int {
	var ids []uint64
	for id, f := range m.flights {
		if !f.canceled && which(f) {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return 0
	}
	slices.Sort(ids)
	for _, id := range ids {
		f := m.flights[id]
		f.canceled = true
		m.live--
		m.inFlight -= len(f.rows)
		m.closed[f.l.ref] = true
	}
	m.emit(Cancel{ids})
	return len(ids)
}

// giveBack releases the buckets that are leaving and have nothing in flight. A
// bucket with an abandoned delivery is only forgotten: a peer must not start its
// lanes beside a request that may still run.
func (m *Machine) giveBack() {
	for _, b := range slices.Clone(m.order) {
		if !b.leaving || b.inFlight > 0 || b.unsettled > 0 {
			continue
		}
		m.remove(b)
		if !b.tainted {
			m.returned = append(m.returned, b)
		}
		m.trust()
	}
	if len(m.returned) == 0 || !m.releaseCall.free(m.now) {
		return
	}
	m.releaseCall.busy = true
	m.releasing, m.returned = m.returned, nil
	leases := make([]lane.Lease, len(m.releasing))
	for i, b := range m.releasing {
		leases[i] = b.lease
	}
	m.emit(Release{leases})
}

// released notes which buckets were given back. After a failure it is tried
// again until the leases end by themselves.
func (m *Machine) released(in Released) {
	buckets := m.releasing
	m.releasing = nil
	if m.done(&m.releaseCall, "release", in.Err) {
		leases := make([]lane.Lease, len(buckets))
		for i, b := range buckets {
			leases[i] = b.lease
		}
		m.report(LeasesReleased{leases})
		return
	}
	for _, b := range buckets {
		if m.now.Before(b.trusted) && m.buckets[b.lease.Bucket] == nil {
			m.returned = append(m.returned, b)
		}
	}
}

// drain stops claiming.
func (m *Machine) drain() {
	m.draining = true
	for _, b := range m.order {
		m.leave(b)
	}
}

// giveUp abandons what is in flight. Suspects get back the attempt that was
// recorded before their delivery: a shutdown spends none.
func (m *Machine) giveUp() {
	if !m.draining {
		m.drain()
	}
	m.gaveUp = true
	var ids []uint64
	for id, f := range m.flights {
		if !f.canceled {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	m.cancel(func(*flight) bool { return true })
	for _, id := range ids {
		f := m.flights[id]
		f.l.b.tainted = true
		f.l.b.inFlight--
		for i := range f.rows {
			m.abandoned = append(m.abandoned, f.rows[i].Message)
			m.report(Abandoned{f.rows[i].Message})
		}
		f.l.flight = nil
		if f.suspect {
			m.restore(f.l, &f.rows[0])
		}
		m.free(f.l)
	}
	m.gate.lane = nil
	m.circuit.probe, m.circuit.scout = nil, nil
}

// finish ends a drain when nothing is left to do.
func (m *Machine) finish() {
	busy := m.acquireCall.busy || m.releaseCall.busy || m.fetchCall.busy || m.settleCall.busy
	if !m.draining || busy || m.live > 0 || len(m.order) > 0 || len(m.returned) > 0 || len(m.pending) > 0 {
		return
	}
	if m.gate.state == gateHeld {
		m.emit(FreeGate{})
	}
	m.drained = true
	m.emit(Drained{m.abandoned})
}
