package schedule

import (
	"time"

	"github.com/lanebox/lanebox/runtime/lane"
)

// A ref names a lane. Messages of an unordered lane are independent, so each is
// a lane of its own, named by its sequence; keyed lanes have sequence 0.
type ref struct{ lane, sequence int64 }

// A laneState is a lane of which messages are in memory.
//
// Invariant: a lane is in at most one of the queues, and has at most one flight.
type laneState struct {
	ref
	b *bucket
	// rows are the messages that were read; rows[next:] have not started.
	rows   []lane.Row
	next   int
	flight *flight
	// unsettled counts records that are not settled.
	unsettled int
	// blocked says that nothing may start before the record under way is
	// settled: it is no Done.
	blocked bool
	queued  bool
	paused  bool
	// parked says that an operator parked the lane: nothing more of it starts.
	parked bool
	// gone says that the lane is no longer in memory.
	gone bool
	// more says that there may be further messages behind those in memory,
	// skipped that a fetch stepped over the lane.
	more, skipped bool
	fetched       time.Time
	busy          int // times in a row that the key was locked
	// suspects is the number of messages, the next one first, that may have
	// killed the former owner; careful the number of messages behind them that
	// are settled one by one.
	suspects, careful int
}

// A flight is a run that was handed over.
type flight struct {
	l    *laneState
	rows []lane.Row
	from int // index of the first row in the lane
	// suspect says that its start was recorded, probe that the circuit is open.
	suspect, probe, canceled bool
}

func (l *laneState) left() int { return len(l.rows) - l.next }

// count adds n to the messages that have not started.
func (m *Machine) count(l *laneState, n int) {
	if l.suspects > 0 {
		m.suspectRows += n
	} else {
		m.buffered += n
	}
}

// drop removes from memory what has not started.
func (m *Machine) drop(l *laneState) {
	m.count(l, -l.left())
	l.rows = l.rows[:l.next]
}

// discard removes a lane from memory whatever its state.
func (m *Machine) discard(l *laneState) {
	m.drop(l)
	l.gone = true
	l.b.lanes--
	delete(m.lanes, l.ref)
}

// free removes a lane from memory when nothing of it is left.
func (m *Machine) free(l *laneState) {
	if l.gone || l.left() > 0 || l.flight != nil || l.unsettled > 0 || l.blocked {
		return
	}
	if !l.b.leaving {
		m.vouch(l, l.suspects)
	}
	m.discard(l)
	if l.sequence != 0 && m.fetchCall.busy {
		m.passed[l.ref] = true
	}
	if (l.more || l.skipped) && !l.b.leaving && !l.b.gone {
		m.wake(l.b)
	}
}

// enqueue puts a lane in line when its next message may start.
func (m *Machine) enqueue(l *laneState) {
	if l.gone || l.queued || l.paused || l.blocked || l.flight != nil {
		return
	}
	if l.parked || l.b.leaving {
		m.drop(l)
	}
	if l.left() == 0 {
		m.free(l)
		return
	}
	oneByOne := m.policy.SettleEach || l.suspects > 0 || l.careful > 0
	if oneByOne && l.unsettled > 0 {
		return // the settlement comes back here
	}
	l.queued = true
	if l.suspects > 0 {
		m.suspects.push(l)
	} else {
		m.ready.push(l)
	}
}

// start hands over what may start.
func (m *Machine) start() {
	for m.ready.len() > 0 && m.room() > 0 {
		if l := m.nextReady(); m.take(l) {
			m.launch(l, m.runLength(l))
		}
	}
}

// room returns the number of messages that may start now in lanes without
// suspects. One place is kept for a suspect that has the gate.
func (m *Machine) room() int {
	if m.draining || !m.allowed() {
		return 0
	}
	reserved := 0
	if m.gate.state == gateHeld && (m.gate.lane == nil || m.gate.lane.flight == nil) {
		reserved = 1
	}
	if m.live+reserved >= m.policy.Concurrency {
		return 0
	}
	return m.policy.MaxUnsettled - m.inFlight - m.unsettled - reserved
}

// take takes a lane out of line and reports whether its next message may be
// delivered.
func (m *Machine) take(l *laneState) bool {
	l.queued = false
	if l.gone {
		return false
	}
	looked := l.b.looked
	if l.fetched.After(looked) {
		looked = l.fetched
	}
	if l.suspects == 0 && m.now.Sub(looked) > m.policy.look() { // recording a start is a look of its own
		m.stale(l)
		return false
	}
	if l.left() == 0 {
		m.free(l)
		return false
	}
	if r := &l.rows[l.next]; r.Attempts >= m.policy.MaxAttempts {
		m.exhausted(l, r)
		return false
	}
	return true
}

// stale drops a lane that was kept too long without a look; it is read again.
func (m *Machine) stale(l *laneState) {
	m.drop(l)
	l.more = true
	m.free(l)
}

// runLength returns the number of messages of l to hand over together.
func (m *Machine) runLength(l *laneState) int {
	if m.policy.SettleEach || l.careful > 0 || l.suspects > 0 || m.circuit.open {
		return 1
	}
	limit := min(m.policy.MaxRun, l.left(), m.room())
	for n := 1; n < limit; n++ {
		if l.rows[l.next+n].Attempts >= m.policy.MaxAttempts {
			return n
		}
	}
	return limit
}

// launch hands over the next n messages of a lane.
func (m *Machine) launch(l *laneState, n int) {
	m.count(l, -n)
	l.next += n
	l.careful = max(0, l.careful-n)
	m.fly(l, l.next-n, n, false)
}

// fly hands over n messages of a lane from index from on.
func (m *Machine) fly(l *laneState, from, n int, suspect bool) {
	f := &flight{l: l, rows: l.rows[from : from+n : from+n], from: from, suspect: suspect}
	for i := range f.rows {
		f.rows[i].Message.Attempt = f.rows[i].Attempts + 1
	}
	if m.circuit.open && !m.circuit.probes(l) {
		m.probing(l)
	}
	f.probe = m.circuit.probes(l)
	m.lastFlight++
	m.flights[m.lastFlight] = f
	l.flight = f
	l.b.inFlight++
	m.live++
	m.inFlight += n
	m.emit(Deliver{Flight: m.lastFlight, Run: lane.Run{Lease: l.b.lease, Lane: l.lane, Rows: f.rows}, Alone: l.busy >= busyAlone || suspect})
}

// park drops what has not started of lanes that an operator parked.
func (m *Machine) park(lanes []int64) {
	var dropped []int64
	for _, n := range lanes {
		if l := m.lanes[ref{n, 0}]; l != nil {
			m.parkLane(l)
			dropped = append(dropped, n)
			continue
		}
		for _, b := range m.order {
			if b.lease.Lo == n && m.parkUnordered(b) {
				dropped = append(dropped, n)
			}
		}
	}
	if len(dropped) > 0 {
		m.report(LanesParked{dropped})
	}
}

func (m *Machine) parkLane(l *laneState) {
	l.parked = true
	m.drop(l)
	l.more, l.skipped = false, false
	m.free(l)
}

// parkUnordered parks every message of a bucket's unordered lane and reports
// whether any was in memory.
func (m *Machine) parkUnordered(b *bucket) bool {
	any := false
	for _, l := range m.lanes {
		if l.b == b && l.sequence != 0 {
			m.parkLane(l)
			any = true
		}
	}
	return any
}
