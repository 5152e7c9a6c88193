package schedule

import (
	"math/rand/v2"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/lane"
)

// A Config makes a machine.
type Config struct {
	// Owner names the process in every statement; it must be random per start.
	Owner  string
	Policy Policy
	// Rand spreads delays. It is used by the machine alone.
	Rand *rand.Rand
	// Verbose asks for a Delivered event for every accepted message.
	Verbose bool
}

// A Machine decides for one scope. It is not safe for concurrent use.
type Machine struct {
	owner   string
	policy  Policy
	rand    *rand.Rand
	verbose bool

	now     time.Time // of the current step
	effects []Effect

	// buckets holds every bucket that is leased and not being given back; order
	// lists them in the order in which a fetch serves them.
	buckets   map[lane.Bucket]*bucket
	order     []*bucket
	trustEnds time.Time // earliest of all buckets; zero without buckets
	acquired  bool      // buckets came since the last answer of the keeper
	// lost are the last leases of the buckets that were lost.
	lost  map[lane.Bucket]lane.Lease
	spare spare

	// lanes holds every lane of which a message is in memory. A message of an
	// unordered lane is a lane of its own.
	lanes map[ref]*laneState
	// closed are lanes of canceled deliveries that have not returned yet.
	closed map[ref]bool
	// passed are messages of unordered lanes that left memory while a fetch was
	// under way, which may still list them.
	passed map[ref]bool

	ready    queue[*laneState]  // lanes whose next message may start
	suspects queue[*laneState]  // lanes whose next message needs the gate
	paused   alarms[*laneState] // lanes that found their key locked
	wakes    alarms[lane.Bucket]
	unspent  map[ref]int // failures in a row that spent no attempt

	flights    map[uint64]*flight
	lastFlight uint64
	// Invariant: live <= Concurrency and inFlight+unsettled <= MaxUnsettled.
	live        int // flights that were not canceled
	inFlight    int // their messages
	unsettled   int // messages answered and not yet settled
	buffered    int // messages in memory that have not started, without suspects
	suspectRows int // the same in lanes that are suspect

	acquireCall, releaseCall, fetchCall, settleCall call

	pending, settling []record
	releasing         []*bucket     // of the release under way
	returned          []*bucket     // to be given back
	cursors           []lane.Cursor // of the fetch under way

	runRows  int // rows fetched per lane, B
	pageRows int // rows fetched per page, N
	depth    int // suspects behind the first one of a lane that may still be named

	circuit circuit
	gate    gate

	draining, gaveUp, drained bool
	abandoned                 []event.Message

	stats Stats
}

// The size of what is read at once.
const (
	minRunRows   = 16
	firstPage    = 256
	maxPage      = 4096
	bigPage      = 16 << 20 // bytes; a larger page makes the next one smaller
	smallPage    = 4 << 20  // bytes; a smaller full page makes the next one larger
	pagesInMem   = 4        // messages kept in memory, in pages
	maxScanLanes = 512
	maxSettle    = 2048
)

// New returns a machine that holds nothing yet.
func New(c Config) *Machine {
	return &Machine{
		owner: c.Owner, policy: c.Policy.WithDefaults(), rand: c.Rand, verbose: c.Verbose,
		buckets: map[lane.Bucket]*bucket{}, lost: map[lane.Bucket]lane.Lease{}, lanes: map[ref]*laneState{},
		closed: map[ref]bool{}, passed: map[ref]bool{}, unspent: map[ref]int{},
		flights: map[uint64]*flight{}, runRows: minRunRows, pageRows: firstPage,
	}
}

// Step applies one input and returns the effects it calls for. The slice is
// valid until the next step. now must not run backwards.
func (m *Machine) Step(now time.Time, in Input) []Effect {
	m.now = now
	clear(m.effects)
	m.effects = m.effects[:0]
	if m.drained {
		return nil
	}
	m.apply(in)
	m.expire()
	m.ring()
	m.start()
	m.passGate()
	m.flush()
	m.giveBack()
	m.look()
	m.finish()
	return m.effects
}

func (m *Machine) apply(in Input) {
	switch in := in.(type) {
	case Tick:
	case Wake:
		m.wakeAll()
	case Kept:
		m.kept(in)
	case Acquired:
		m.acquiredBuckets(in)
	case Released:
		m.released(in)
	case Fetched:
		m.fetched(in)
	case Settled:
		m.settled(in)
	case Answered:
		for _, a := range in {
			m.answered(a)
		}
	case GateOpened:
		m.gate.state = gateHeld
	case Drain:
		m.drain()
	case GiveUp:
		m.giveUp()
	}
}

// Next returns when the machine wants its next Tick; the zero time means that
// only another input can change anything. It is always after the last step.
func (m *Machine) Next() time.Time {
	var next time.Time
	at := func(t time.Time) {
		if t.After(m.now) && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	at(m.trustEnds)
	at(m.wakes.first())
	at(m.paused.first())
	for _, c := range [...]*call{&m.acquireCall, &m.releaseCall, &m.fetchCall, &m.settleCall} {
		at(c.after)
	}
	if m.circuit.open {
		at(m.nextProbe())
	}
	return next
}

// Leases returns what is held, for the keeper, in no particular order.
func (m *Machine) Leases() []lane.Lease {
	leases := make([]lane.Lease, len(m.order))
	for i, b := range m.order {
		leases[i] = b.lease
	}
	return leases
}

// Stats returns counters and gauges.
func (m *Machine) Stats() Stats {
	s := m.stats
	s.Leases, s.LanesInFlight, s.MessagesInFlight = len(m.buckets), m.live, m.inFlight
	s.Unsettled, s.Buffered, s.LanesBackingOff = m.unsettled, m.buffered+m.suspectRows, m.wakes.len()
	s.CircuitOpen = m.circuit.open
	for _, b := range m.order {
		if b.lease.Crashed {
			s.OnProbation++
		}
	}
	return s
}

func (m *Machine) emit(e Effect)  { m.effects = append(m.effects, e) }
func (m *Machine) report(e Event) { m.effects = append(m.effects, Report{e}) }

// ring does what was put off until now.
func (m *Machine) ring() {
	for {
		n, ok := m.wakes.due(m.now)
		if !ok {
			break
		}
		if b := m.buckets[n]; b != nil {
			m.wake(b)
		}
	}
	for {
		l, ok := m.paused.due(m.now)
		if !ok {
			break
		}
		l.paused = false
		m.enqueue(l)
	}
}

// A call is one kind of database call, of which one is under way at a time.
type call struct {
	busy  bool
	fails int       // in a row
	after time.Time // not before
}

// free reports whether a call may be made.
func (c *call) free(now time.Time) bool { return !c.busy && !now.Before(c.after) }

// Pauses after a failed database call.
const (
	callBase = 50 * time.Millisecond
	callCap  = time.Second
)

// done notes the end of a call and reports whether it succeeded.
func (m *Machine) done(c *call, op string, err error) bool {
	c.busy = false
	if err == nil {
		c.fails, c.after = 0, time.Time{}
		return true
	}
	c.fails++
	// Half of the pause is fixed, so that a dead database is not asked in a row.
	pause := min(callCap, callBase<<min(c.fails-1, 10))
	c.after = m.now.Add(pause/2 + m.random(pause/2))
	m.stats.DatabaseFailures++
	m.report(DatabaseFailed{Op: op, Err: err, InARow: c.fails})
	return false
}

// random returns a time above 0 and up to d.
func (m *Machine) random(d time.Duration) time.Duration {
	return time.Duration(m.rand.Int64N(int64(max(1, d)))) + 1
}

// backoff returns the pause after the nth failure: a random time up to
// base·2ⁿ⁻¹, but no more than the cap.
func (m *Machine) backoff(n int) time.Duration {
	limit := m.policy.RetryBase
	for ; n > 1 && limit < m.policy.RetryCap; n-- {
		limit *= 2
	}
	return m.random(min(limit, m.policy.RetryCap))
}
