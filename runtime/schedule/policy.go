package schedule

import "time"

// A Policy says how one scope is delivered. A zero field takes its default.
type Policy struct {
	// Concurrency is the number of lanes (and keyless messages) in flight at one
	// time; default 16.
	Concurrency int
	// MaxUnsettled is the number of messages that may be answered, or in flight,
	// but not yet settled; it bounds what a crash repeats. Default 256.
	MaxUnsettled int
	// SettleEach settles every message before its lane's next one starts, for
	// receivers that cannot deduplicate. Default false.
	SettleEach bool
	// MaxRun is the number of consecutive messages of a lane handed over
	// together; 0 and 1 mean one at a time.
	MaxRun int
	// Timeout bounds one delivery; default 10 s. It is cut short when trust in
	// the lease ends.
	Timeout time.Duration
	// Lease is how long a bucket is leased; default 15 s. It is renewed every
	// third of it.
	Lease time.Duration
	// MaxAttempts is the number of recorded deliveries before a message is dead;
	// default 20.
	MaxAttempts int
	// RetryBase and RetryCap bound the backoff: attempt n waits a random time up
	// to min(RetryCap, RetryBase·2ⁿ⁻¹). Defaults 1 s and 5 min.
	RetryBase, RetryCap time.Duration
	// ParkDead keeps an exhausted message at the head of its parked lane instead
	// of moving it to the dead letters. Permanent failures park as well.
	ParkDead bool
}

// WithDefaults returns the policy with every zero field replaced.
func (p Policy) WithDefaults() Policy {
	orInt := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	orTime := func(v *time.Duration, d time.Duration) {
		if *v <= 0 {
			*v = d
		}
	}
	orInt(&p.Concurrency, 16)
	orInt(&p.MaxUnsettled, 256)
	orInt(&p.MaxRun, 1)
	orInt(&p.MaxAttempts, 20)
	orTime(&p.Timeout, 10*time.Second)
	orTime(&p.Lease, 15*time.Second)
	orTime(&p.RetryBase, time.Second)
	orTime(&p.RetryCap, 5*time.Minute)
	return p
}

// margin is the safety margin by which trust in a lease ends before the lease
// can end. It covers the difference in speed of two clocks and the time between
// a decision and the request it leads to.
func (p Policy) margin() time.Duration { return p.Lease / 10 }

// look is the longest time that messages are kept in memory without asking the
// database whether an operator parked their lanes.
func (p Policy) look() time.Duration { return p.Lease / 3 }
