package schedule

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/lane"
)

// Reasons that are recorded beside an outcome.
const (
	reasonExhausted = "attempts exhausted"
	reasonSuspect   = "suspect"
)

// busyAlone is the number of times that a run may find its key locked before it
// is handed over alone.
const busyAlone = 3

var (
	errUnreported = errors.New("the process ended during the last delivery")
	errNoReason   = errors.New("the destination accepted only a part and gave no reason")
)

// A record is one outcome on its way to the database.
type record struct {
	s lane.Settlement
	l *laneState
	// gate says that the gate is kept until the record is settled.
	gate bool
}

// pend adds a record to the next settlement.
func (m *Machine) pend(l *laneState, r *lane.Row, s lane.Settlement, gate bool) {
	s.Bucket, s.Lane, s.Sequence, s.Held = r.Bucket, r.Lane, r.Message.Sequence, r.Held
	m.pending = append(m.pending, record{s, l, gate})
	l.unsettled++
	l.b.unsettled++
	if s.Outcome != lane.Start {
		m.unsettled++
	}
	if s.Outcome != lane.Done {
		l.blocked = true
	}
	if gate {
		m.gate.records++
	}
}

// forget takes a record out of the counters.
func (m *Machine) forget(r record) {
	r.l.unsettled--
	r.l.b.unsettled--
	if r.s.Outcome != lane.Start {
		m.unsettled--
	}
	if r.gate {
		m.gate.records--
	}
}

// answered takes in the verdict of a delivery.
func (m *Machine) answered(a Answer) {
	f := m.flights[a.Flight]
	if f == nil {
		return
	}
	delete(m.flights, a.Flight)
	l := f.l
	if m.gate.lane == l {
		m.gate.lane = nil
	}
	if f.canceled {
		m.returnedLate(l)
		return
	}
	l.flight = nil
	l.b.inFlight--
	m.live--
	m.inFlight -= len(f.rows)
	m.circuit.probed(l)
	m.verdict(f, a)
	m.enqueue(l)
	m.free(l)
}

// returnedLate opens the lane of a canceled delivery again.
func (m *Machine) returnedLate(l *laneState) {
	delete(m.closed, l.ref)
	if l.sequence != 0 && m.fetchCall.busy {
		m.passed[l.ref] = true
	}
	if b := m.buckets[l.b.lease.Bucket]; b != nil && !b.leaving {
		m.wake(b)
	}
}

// verdict records what became of the messages of a flight.
func (m *Machine) verdict(f *flight, a Answer) {
	l, v := f.l, a.Verdict
	accepted := min(max(0, v.Accepted), len(f.rows))
	if errors.Is(v.Err, lane.ErrLeaseLost) {
		m.lose(l.b, "fenced")
		return
	}
	for i := range accepted {
		m.accept(f, &f.rows[i], a)
	}
	if accepted > 0 {
		l.busy = 0
		m.closeCircuit(l.ref)
	}
	if accepted == len(f.rows) {
		return
	}
	// Nothing behind the failure was accepted.
	behind := len(f.rows) - accepted
	l.next = f.from + accepted
	m.count(l, behind)
	if l.parked || l.b.leaving { // what was dropped stays dropped
		m.count(l, -behind+1)
		l.rows = l.rows[:l.next+1]
	}
	err := v.Err
	if err == nil {
		err = errNoReason
	}
	r := &l.rows[l.next]
	if errors.Is(err, lane.ErrBusy) {
		m.locked(f, r)
		return
	}
	l.next++
	m.count(l, -1)
	m.fail(f, r, err, a)
}

// accept records a delivered message.
func (m *Machine) accept(f *flight, r *lane.Row, a Answer) {
	m.stats.Delivered++
	if r.Attempts > 0 {
		m.stats.Redelivered++
	}
	delete(m.unspent, f.l.ref)
	if m.verbose {
		m.report(Delivered{Message: r.Message, Took: a.Took, Redelivered: r.Attempts > 0})
	}
	if f.suspect {
		m.vouch(f.l, 1)
		m.shorten(f.l, a.Took)
	}
	if !a.Verdict.Completed {
		m.pend(f.l, r, lane.Settlement{Outcome: lane.Done, Attempts: r.Attempts + 1}, f.suspect)
	}
}

// locked puts a lane aside whose key another transaction holds. Nothing is
// recorded, unless the start of a suspect was.
func (m *Machine) locked(f *flight, r *lane.Row) {
	l := f.l
	if f.suspect {
		l.next++
		m.count(l, -1)
		m.restore(l, r)
		return
	}
	if l.parked || l.b.leaving {
		m.drop(l)
		return
	}
	l.busy++
	pause := min(callCap, callBase<<min(l.busy-1, 10))
	l.paused = true
	m.paused.add(m.now.Add(pause/2+m.random(pause/2)), l)
}

// restore takes back the attempt that was recorded before a suspect's delivery.
func (m *Machine) restore(l *laneState, r *lane.Row) {
	m.hold(l, r, lane.Settlement{Outcome: lane.Retry, Attempts: r.Attempts, Delay: callBase, Reason: reasonSuspect}, false)
}

// fail records a failed delivery.
func (m *Machine) fail(f *flight, r *lane.Row, err error, a Answer) {
	class, after := event.Classify(err)
	probe := f.probe && m.circuit.open
	spent := class == event.Permanent || class == event.Transient && !probe
	attempts := r.Attempts
	if spent {
		attempts++
	}
	if class == event.Permanent {
		m.closeCircuit(f.l.ref)
	} else {
		m.failedLane(f, class, after, err)
	}
	switch {
	case class == event.Permanent:
		m.bury(f.l, r, attempts, class.String(), err, a, f.suspect)
	case spent && attempts >= m.policy.MaxAttempts:
		m.bury(f.l, r, attempts, reasonExhausted, err, a, f.suspect)
	default:
		m.retry(f, r, attempts, m.delay(f.l.ref, class, spent, attempts, after), class, err, a)
	}
	if f.suspect {
		m.vouch(f.l, 1)
	}
}

// maxUnspent bounds the table of failures that spent no attempt.
const maxUnspent = 4096

// delay returns how long a failed message waits.
func (m *Machine) delay(r ref, class event.Class, spent bool, attempts int, after time.Duration) time.Duration {
	if spent {
		return m.backoff(attempts)
	}
	if class == event.BackPressure && after > 0 {
		return min(after, m.policy.RetryCap)
	}
	if len(m.unspent) > maxUnspent {
		clear(m.unspent)
	}
	m.unspent[r]++
	return m.backoff(m.unspent[r])
}

// retry has a message tried again after a delay. A keyed lane waits with it.
func (m *Machine) retry(f *flight, r *lane.Row, attempts int, delay time.Duration, class event.Class, err error, a Answer) {
	m.stats.Retried++
	m.report(Retried{Message: r.Message, Class: class, Spent: attempts > r.Attempts, Delay: delay, Err: err, Took: a.Took})
	m.hold(f.l, r, lane.Settlement{Outcome: lane.Retry, Attempts: attempts, Delay: delay, Reason: class.String(), Error: text(err)}, f.suspect)
}

// hold records an outcome that keeps the lane waiting, and drops the rest of it.
func (m *Machine) hold(l *laneState, r *lane.Row, s lane.Settlement, gate bool) {
	m.pend(l, r, s, gate)
	m.drop(l)
	l.more, l.skipped = false, false
}

// bury gives a message up: to the dead letters, or parked where it is.
func (m *Machine) bury(l *laneState, r *lane.Row, attempts int, reason string, err error, a Answer, gate bool) {
	delete(m.unspent, l.ref)
	s := lane.Settlement{Outcome: lane.Dead, Attempts: attempts, Reason: reason, Error: text(err)}
	if !m.policy.ParkDead {
		m.stats.Dead++
		m.report(Died{Message: r.Message, Attempts: attempts, Reason: reason, Err: err, Took: a.Took})
		m.pend(l, r, s, gate)
		return
	}
	m.stats.Parked++
	m.report(Parked{Message: r.Message, Attempts: attempts, Reason: reason, Err: err, Took: a.Took})
	s.Outcome = lane.Park
	m.hold(l, r, s, gate)
}

// exhausted gives up a message whose last attempt was recorded before its
// delivery and never reported: it killed its process.
func (m *Machine) exhausted(l *laneState, r *lane.Row) {
	l.next++
	m.count(l, -1)
	m.bury(l, r, r.Attempts, reasonExhausted, errUnreported, Answer{}, false)
	m.vouch(l, 1)
}

// maxText bounds the text of an error that is recorded, in bytes.
const maxText = 2000

// text returns what is recorded of an error.
func text(err error) string {
	s := strings.ReplaceAll(strings.ToValidUTF8(err.Error(), "\uFFFD"), "\x00", "\uFFFD")
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText], "")
	}
	return s
}

// flush settles what is pending, in one call at a time: the slower the database,
// the larger the batches.
func (m *Machine) flush() {
	if len(m.pending) == 0 || !m.settleCall.free(m.now) {
		return
	}
	n := min(len(m.pending), maxSettle)
	m.settling = append(m.settling[:0], m.pending[:n]...)
	rest := copy(m.pending, m.pending[n:])
	clear(m.pending[rest:])
	m.pending = m.pending[:rest]
	e := Settle{Settlements: make([]lane.Settlement, n)}
	named := map[lane.Bucket]bool{}
	for i, r := range m.settling {
		e.Settlements[i] = r.s
		if !named[r.s.Bucket] {
			named[r.s.Bucket] = true
			e.Leases = append(e.Leases, r.l.b.lease)
		}
	}
	slices.SortFunc(e.Leases, func(a, b lane.Lease) int { return cmp.Compare(a.Bucket, b.Bucket) })
	m.settleCall.busy = true
	m.emit(e)
}

// settled takes in what a settlement changed.
func (m *Machine) settled(in Settled) {
	if !m.done(&m.settleCall, "settle", in.Err) {
		m.again()
		return
	}
	m.stats.Settles++
	m.fenced(in.Result.Fenced)
	gone := make(map[lane.Ref]bool, len(in.Result.Gone))
	for _, r := range in.Result.Gone {
		gone[r] = true
	}
	m.park(in.Result.Parked)
	var missing []lane.Ref
	for _, r := range m.settling {
		if r.l.b.gone {
			continue
		}
		if in.Asked.After(r.l.b.looked) {
			r.l.b.looked = in.Asked
		}
		ref := lane.Ref{Lane: r.s.Lane, Sequence: r.s.Sequence}
		if gone[ref] {
			missing = append(missing, ref)
		}
		m.recorded(r, gone[ref])
	}
	clear(m.settling)
	m.settling = m.settling[:0]
	if len(missing) > 0 {
		m.stats.Gone += uint64(len(missing))
		m.report(Gone{missing})
	}
}

// again puts the records of a failed call back in front, so that the outcomes of
// a lane keep their order.
func (m *Machine) again() {
	var front []record
	for _, r := range m.settling {
		if !r.l.b.gone {
			front = append(front, r)
		}
	}
	clear(m.settling)
	m.settling = m.settling[:0]
	m.pending = append(front, m.pending...)
}

// fenced loses the buckets that another owner has.
func (m *Machine) fenced(buckets []lane.Bucket) {
	for _, n := range buckets {
		outcomes := 0
		var b *bucket
		for _, r := range m.settling {
			if r.s.Bucket == n && !r.l.b.gone {
				b = r.l.b
				outcomes++
			}
		}
		if b != nil {
			m.stats.Fenced += uint64(outcomes)
			m.report(Fenced{b.lease, outcomes})
			m.lose(b, "fenced")
		}
	}
}

// recorded goes on with a lane after one of its records was settled.
func (m *Machine) recorded(r record, gone bool) {
	m.forget(r)
	l := r.l
	if r.s.Outcome != lane.Done {
		l.blocked = false
	}
	switch {
	case r.s.Outcome == lane.Retry && !gone:
		// Now, not when the delivery failed: the database counts the delay from
		// the moment at which it recorded it, and a look before its end is in vain.
		m.wakes.add(m.now.Add(r.s.Delay+time.Millisecond), l.b.lease.Bucket)
	case r.s.Outcome == lane.Start && !m.started(l, gone):
		return
	}
	m.enqueue(l)
	m.free(l)
}
