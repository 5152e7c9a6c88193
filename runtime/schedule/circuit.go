package schedule

import (
	"time"

	"github.com/lanebox/lanebox/runtime/event"
)

// A circuit stops deliveries while nothing gets through. It opens when several
// lanes fail with no success between: three, or all that are in memory but at
// least two. A single lane in trouble never opens it. While it is open one
// probe at a time goes out, in rounds with growing pauses between them. Lanes
// that have not failed go first, so that many lanes in trouble do not hide one
// that is well: a round goes on to the next such lane at once while requests
// are sent and fail, and ends when one could not be sent at all or was told to
// wait. Probes spend no attempts, so that nothing dies during an outage. The
// first success, or a permanent refusal, closes the circuit: the other side
// answers.
type circuit struct {
	open bool
	// failing are the lanes that failed since the last success; troubled are
	// those whose own last delivery failed.
	failing, troubled map[ref]bool
	rounds            int // that failed, in a row
	probes            int // of this round
	probeAt           time.Time
	probe             *laneState // under way
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

// allows reports whether a delivery may start.
func (c *circuit) allows(now time.Time) bool {
	return !c.open || c.probe == nil && !now.Before(c.probeAt)
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
		c.open, c.rounds, c.probes = true, 1, 0
		pause := m.pause(after)
		c.probeAt = m.now.Add(pause)
		m.report(CircuitOpened{Pause: pause, Err: err})
	}
}

// failedProbe goes on with the round or ends it.
func (m *Machine) failedProbe(known bool, class event.Class, after time.Duration) {
	c := &m.circuit
	if c.probes++; !known && class == event.Transient && c.probes < m.policy.Concurrency {
		return
	}
	c.rounds++
	c.probes = 0
	c.probeAt = m.now.Add(m.pause(after))
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

// pause returns the time until the next round of probes.
func (m *Machine) pause(after time.Duration) time.Duration {
	limit := min(m.policy.RetryCap, circuitCap)
	pause := min(m.policy.RetryBase, circuitBase)
	for n := m.circuit.rounds; n > 1 && pause < limit; n-- {
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
		c.open, c.probeAt = false, time.Time{}
		m.report(CircuitClosed{})
	}
}
