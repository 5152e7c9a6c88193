package schedule

import (
	"time"
)

// A circuit stops deliveries while nothing gets through. It opens when several
// lanes fail with no success between: three, or all that are in memory but at
// least two. A single lane in trouble never opens it. While it is open one
// probe at a time goes out, after a pause that grows; lanes take turns, since a
// lane whose probe failed waits. Probes spend no attempts, so that nothing dies
// during an outage. The first success, or a permanent refusal, closes it: the
// other side answers.
type circuit struct {
	open bool
	// failing are the lanes that failed since the last success.
	failing map[ref]bool
	probes  int // failed in a row
	probeAt time.Time
	probe   *laneState // under way
}

// Number of failing lanes that open the circuit, and the longest pause between
// two probes.
const (
	circuitLanes = 3
	circuitFew   = 2
	circuitCap   = 30 * time.Second
)

// allows reports whether a delivery may start.
func (c *circuit) allows(now time.Time) bool {
	return !c.open || c.probe == nil && !now.Before(c.probeAt)
}

// failedLane notes that a delivery did not get through. after is how long the
// other side asked to wait.
func (m *Machine) failedLane(f *flight, after time.Duration, err error) {
	c := &m.circuit
	if c.open {
		if f.probe {
			c.probes++
			c.probeAt = m.now.Add(m.pause(after))
		}
		return
	}
	if c.failing == nil {
		c.failing = map[ref]bool{}
	}
	c.failing[f.l.ref] = true
	if n := len(c.failing); n >= circuitLanes || n >= circuitFew && m.allFailing() {
		c.open, c.probes = true, 1
		pause := m.pause(after)
		c.probeAt = m.now.Add(pause)
		m.report(CircuitOpened{Pause: pause, Err: err})
	}
}

// pause returns the time until the next probe.
func (m *Machine) pause(after time.Duration) time.Duration {
	limit := min(m.policy.RetryCap, circuitCap)
	pause := m.policy.RetryBase
	for n := m.circuit.probes; n > 1 && pause < limit; n-- {
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

// closeCircuit notes that the other side answers.
func (m *Machine) closeCircuit() {
	c := &m.circuit
	clear(c.failing)
	if c.open {
		c.open, c.probes, c.probeAt = false, 0, time.Time{}
		m.report(CircuitClosed{})
	}
}
