package schedule

import (
	"time"

	"github.com/lanebox/lanebox/runtime/lane"
)

// An Input tells the machine what happened. The set is closed.
type Input interface{ input() }

type (
	// Tick says that time has passed.
	Tick struct{}

	// Wake says that messages may be waiting.
	Wake struct{}

	// Kept is the answer to a call of Keeper.Keep.
	Kept struct {
		// Asked is the time just before the call.
		Asked time.Time
		// TTL is the length of lease that was asked for.
		TTL time.Duration
		// Sent are the leases of this scope that were to be renewed; empty when
		// the call only looked.
		Sent   []lane.Lease
		Answer lane.Kept
	}

	// Acquired answers Acquire.
	Acquired struct {
		// Asked is the time just before the call.
		Asked  time.Time
		Leases []lane.Lease
		Err    error
	}

	// Released answers Release.
	Released struct{ Err error }

	// Fetched answers Fetch.
	Fetched struct {
		Page lane.Page
		Err  error
	}

	// Settled answers Settle.
	Settled struct {
		// Asked is the time just before the call.
		Asked  time.Time
		Result lane.SettleResult
		Err    error
	}

	// Answered carries the verdicts of deliveries that returned.
	Answered []Answer

	// GateOpened answers AskGate.
	GateOpened struct{}

	// Drain stops claiming: what is in flight is finished and settled, then the
	// buckets are given back.
	Drain struct{}

	// GiveUp ends a drain that takes too long: deliveries in flight are
	// abandoned.
	GiveUp struct{}
)

// An Answer is the verdict of one delivery.
type Answer struct {
	Flight  uint64
	Verdict lane.Verdict
	// Took is the duration of the delivery.
	Took time.Duration
}

func (Tick) input()       {}
func (Wake) input()       {}
func (Kept) input()       {}
func (Acquired) input()   {}
func (Released) input()   {}
func (Fetched) input()    {}
func (Settled) input()    {}
func (Answered) input()   {}
func (GateOpened) input() {}
func (Drain) input()      {}
func (GiveUp) input()     {}
