package schedule

import (
	"time"

	"github.com/lanebox/lanebox/runtime/lane"
)

// A bucket whose former owner died is on probation: one of the messages that
// were in flight may have killed it, and would kill the next owner, and nobody
// would be charged. Which ones were in flight is not recorded, so the first pass
// over the bucket names suspects: the first message of every keyed lane, as many
// further ones of these lanes as a process can have unsettled in all, and as
// many messages of the unordered lane. A suspect is delivered only after its
// start was recorded, and one at a time in the whole process. If the process
// dies, exactly this message has an attempt on record. The messages behind the
// suspects of a keyed lane are settled one by one for a while: if one of them
// kills the process, it is the first of its lane afterwards. Probation ends when
// the first pass is complete and every suspect has moved.
type probation struct {
	// firstKeyed and firstUnordered say that the first pass goes on.
	firstKeyed, firstUnordered bool
	// unordered is the number of suspects named in the unordered lane.
	unordered int
	// suspects is the number of lanes that have suspects.
	suspects int
}

// first reports whether the first pass goes on.
func (p *probation) first() bool { return p.firstKeyed || p.firstUnordered }

// seen notes how far a fetch from c came.
func (b *bucket) seen(c, next lane.Cursor, limit int) {
	if next.Lane == b.lease.Lo {
		b.firstKeyed = false
	}
	if c.Lane <= b.lease.Lo && next.After == 0 || b.unordered >= limit {
		b.firstUnordered = false
	}
}

// suspect names the suspects of a lane that was just read.
func (m *Machine) suspect(l *laneState) {
	switch b := l.b; {
	case l.sequence != 0 && b.firstUnordered && b.unordered < m.policy.MaxUnsettled:
		b.unordered++
		l.suspects = 1
	case l.sequence == 0 && b.firstKeyed:
		further := min(m.depth, len(l.rows)-1)
		m.depth -= further
		l.suspects = 1 + further
	default:
		return
	}
	l.b.suspects++
}

// vouch clears the next n suspects of a lane: they did not kill the process.
func (m *Machine) vouch(l *laneState, n int) {
	if l.suspects == 0 {
		return
	}
	m.count(l, -l.left())
	if l.suspects = max(0, l.suspects-n); l.suspects == 0 {
		l.b.suspects--
		l.careful = m.policy.MaxUnsettled
		m.acquit(l.b)
	}
	m.count(l, l.left())
}

// settleTime is how long a process that works takes to settle what it delivered.
const settleTime = 100 * time.Millisecond

// shorten clears suspects of a lane that cannot have been reached: deliveries
// that take long do not run far ahead of their settlement. So a slow destination
// is not slowed down further, one message at a time.
func (m *Machine) shorten(l *laneState, took time.Duration) {
	if reach := int(settleTime/max(took, 1)) + 1; l.suspects > reach {
		m.vouch(l, l.suspects-reach)
	}
}

// acquit ends a bucket's probation when all suspects have moved.
func (m *Machine) acquit(b *bucket) {
	if b.lease.Crashed && !b.first() && b.suspects == 0 {
		b.lease.Crashed = false
		m.report(ProbationEnded{b.lease})
	}
}

// A gate is the machine's view of the process-wide gate for suspects.
type gate struct {
	state gateState
	// lane is the suspect's lane: its start is being recorded, or it is in
	// flight. A canceled delivery keeps the gate until it returns.
	lane *laneState
	// records is the number of outcomes of suspects that are not settled; the
	// gate is kept until they are, so that the next suspect's end charges nobody.
	records int
	turns   int // suspects since the gate opened
}

type gateState uint8

const (
	gateClosed gateState = iota
	gateAsked
	gateHeld
)

// maxTurns is the number of suspects before the other scopes have their turn.
const maxTurns = 32

// passGate starts the next suspect.
func (m *Machine) passGate() {
	g := &m.gate
	if g.state == gateHeld && g.lane == nil && !m.nextSuspect() && g.records == 0 {
		g.state, g.turns = gateClosed, 0
		m.emit(FreeGate{})
	}
	if g.state == gateClosed && m.suspects.len() > 0 && !m.draining && m.allowed() {
		g.state = gateAsked
		m.emit(AskGate{})
	}
}

// nextSuspect records the start of the next suspect. It returns false when the
// gate is not needed now.
func (m *Machine) nextSuspect() bool {
	if m.draining || m.gate.turns >= maxTurns || !m.allowed() {
		return false
	}
	for m.suspects.len() > 0 {
		if m.live >= m.policy.Concurrency || m.inFlight+m.unsettled >= m.policy.MaxUnsettled {
			return true // there will be room
		}
		if l, _ := m.suspects.pop(); m.take(l) {
			m.record(l)
			return true
		}
	}
	return false
}

// record records the start of a lane's next message.
func (m *Machine) record(l *laneState) {
	r := &l.rows[l.next]
	l.next++
	m.count(l, -1)
	m.pend(l, r, lane.Settlement{Outcome: lane.Start, Attempts: r.Attempts + 1, Reason: reasonSuspect}, false)
	m.gate.lane = l
	m.gate.turns++
	if m.circuit.open {
		m.probing(l)
	}
}

// started goes on with a suspect whose start was recorded. It reports whether
// the lane can go on without it.
func (m *Machine) started(l *laneState, gone bool) bool {
	r := &l.rows[l.next-1]
	r.Held = true
	switch {
	case !m.now.Before(l.b.trusted): // the bucket is lost in this very step
		return false
	case gone:
		m.vouch(l, 1)
	case l.b.leaving || l.parked:
		m.restore(l, r)
	default:
		m.fly(l, l.next-1, 1, true)
		return false
	}
	m.gate.lane = nil
	m.circuit.probed(l)
	return true
}
