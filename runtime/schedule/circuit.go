package schedule

import (
	"time"

	"github.com/lanebox/lanebox/runtime/event"
)

// A circuit stops deliveries while nothing gets through. It opens when several
// lanes fail with no success between: three, or all that are in memory but at
// least two. A single lane in trouble never opens it. The first success, or a
// permanent refusal, closes it: the other side answers.
//
// While it is open one probe at a time goes out, in rounds with growing pauses
// between them. Probes spend no attempts, so that nothing dies during an outage.
//
// Many lanes in trouble must not hide one that is well. So lanes that have not
// failed go first, beside a probe that hangs, and never wait longer than the
// first pause; a round goes on to the next such lane at once while requests are
// sent and fail, and a round that met no others does not lengthen the pause. It
// ends when a request could not be sent at all or was told to wait.
type circuit struct {
	open bool
	// failing are the lanes that failed since the last success; troubled are
	// those whose own last delivery failed.
	failing, troubled map[ref]bool
	rounds            int       // that failed, in a row
	inRound           int       // probes of this round
	probeAt, freshAt  time.Time // the next round, and for lanes that have not failed
	// probe and scout are under way: of a lane that has failed, and of one that
	// has not. A probe that hangs holds back no scout.
	probe, scout *laneState
}

// Number of failing lanes that open the circuit, and the pauses between two
// rounds of probes.
const (
	circuitLanes = 3
	circuitFew   = 2
	maxTroubled  = 1 << 14 // lanes that are remembered
	circuitBase  = time.Second
	circuitCap   = 30 * time.Second
)

// allowed reports whether the circuit lets a delivery start.
func (m *Machine) allowed() bool {
	c := &m.circuit
	switch {
	case !c.open:
		return true
	case c.scout != nil || m.now.Before(m.nextProbe()):
		return false
	default:
		return c.probe == nil || m.fresh()
	}
}

// probing notes that a delivery of l starts while the circuit is open.
func (m *Machine) probing(l *laneState) {
	c := &m.circuit
	if c.probe == nil && (c.troubled[l.ref] || c.scout != nil) {
		c.probe = l
	} else if c.scout == nil {
		c.scout = l
	}
}

// probes reports whether the delivery of l is a probe.
func (c *circuit) probes(l *laneState) bool { return c.probe == l || c.scout == l }

// probed notes that a delivery of l has ended, whatever it was.
func (c *circuit) probed(l *laneState) {
	if c.probe == l {
		c.probe = nil
	}
	if c.scout == l {
		c.scout = nil
	}
}

// nextProbe returns when an open circuit lets the next probe start.
func (m *Machine) nextProbe() time.Time {
	if c := &m.circuit; c.freshAt.Before(c.probeAt) && m.fresh() {
		return c.freshAt
	}
	return m.circuit.probeAt
}

// failedLane notes that a delivery did not get through. after is how long the
// other side asked to wait.
func (m *Machine) failedLane(f *flight, class event.Class, after time.Duration, err error) {
	c := &m.circuit
	if c.failing == nil {
		c.failing, c.troubled = map[ref]bool{}, map[ref]bool{}
	}
	known := c.troubled[f.l.ref]
	if len(c.troubled) < maxTroubled {
		c.troubled[f.l.ref] = true
	}
	if c.open {
		if f.probe {
			m.failedProbe(known, class, after)
		}
		return
	}
	c.failing[f.l.ref] = true
	if n := len(c.failing); n >= circuitLanes || n >= circuitFew && m.allFailing() {
		c.open, c.rounds, c.inRound = true, 1, 0
		pause := m.pause(1, after)
		c.probeAt = m.now.Add(pause)
		c.freshAt = c.probeAt
		m.report(CircuitOpened{Pause: pause, Err: err})
	}
}

// failedProbe goes on with the round or ends it.
func (m *Machine) failedProbe(known bool, class event.Class, after time.Duration) {
	c := &m.circuit
	met := !known && class == event.Transient // a lane that had not failed before
	if c.inRound++; met && c.inRound < m.policy.Concurrency {
		return
	}
	if !met {
		c.rounds++
	}
	c.inRound = 0
	c.probeAt = m.now.Add(m.pause(c.rounds, after))
	c.freshAt = m.now.Add(m.pause(1, after))
}

// nextReady takes the next lane out of line; while the circuit is open one that
// has not failed, if there is any.
func (m *Machine) nextReady() *laneState {
	for n := m.ready.len(); m.circuit.open && n > 0; n-- {
		l, _ := m.ready.pop()
		if !l.gone && !m.circuit.troubled[l.ref] {
			return l
		}
		m.ready.push(l)
	}
	l, _ := m.ready.pop()
	return l
}

// fresh reports whether a lane is in line that is not known to be in trouble.
func (m *Machine) fresh() bool {
	for _, l := range m.ready.items[m.ready.head:] {
		if !l.gone && !m.circuit.troubled[l.ref] {
			return true
		}
	}
	return m.suspects.len() > 0
}

// pause returns the time to wait for another round after so many that failed.
func (m *Machine) pause(rounds int, after time.Duration) time.Duration {
	limit := min(m.policy.RetryCap, circuitCap)
	pause := min(m.policy.RetryBase, circuitBase)
	for ; rounds > 1 && pause < limit; rounds-- {
		pause *= 2
	}
	pause = min(pause, limit)
	return max(pause/2+m.random(pause/2), min(after, m.policy.RetryCap))
}

// allFailing reports whether every lane in memory failed.
func (m *Machine) allFailing() bool {
	for r := range m.lanes {
		if !m.circuit.failing[r] {
			return false
		}
	}
	return true
}

// closeCircuit notes that the other side answered a lane.
func (m *Machine) closeCircuit(r ref) {
	c := &m.circuit
	delete(c.troubled, r)
	clear(c.failing)
	if c.open {
		c.open, c.probeAt, c.freshAt = false, time.Time{}, time.Time{}
		m.report(CircuitClosed{})
	}
}
