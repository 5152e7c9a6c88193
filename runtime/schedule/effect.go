package schedule

import (
	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/lane"
)

// An Effect is something the machine wants done. The set is closed. At most one
// Acquire, one Release, one Fetch and one Settle is under way at a time; each is
// answered by exactly one input.
type Effect interface{ effect() }

type (
	// Acquire asks for buckets; Acquired answers.
	Acquire struct{ Params lane.AcquireParams }

	// Release gives buckets back; Released answers.
	Release struct{ Leases []lane.Lease }

	// Fetch asks for messages; Fetched answers.
	Fetch struct{ Params lane.FetchParams }

	// Settle records outcomes; Settled answers. The slices are the loop's until
	// it answers.
	Settle struct {
		Leases      []lane.Lease
		Settlements []lane.Settlement
	}

	// Deliver hands a run over, with the policy's timeout; an Answer answers.
	Deliver struct {
		Flight uint64
		Run    lane.Run
		// Alone asks a batch deliverer to take no other run in the same call:
		// the run found its key locked several times.
		Alone bool
	}

	// Cancel cancels the contexts of deliveries that no longer count. They still
	// have to be answered when they return.
	Cancel struct{ Flights []uint64 }

	// AskGate asks for the process-wide gate through which suspects are
	// delivered one at a time; GateOpened answers.
	AskGate struct{}

	// FreeGate gives the gate back.
	FreeGate struct{}

	// Report passes an event on to observers.
	Report struct{ Event Event }

	// Drained says that a drain has ended and nothing more will come. Abandoned
	// are the messages whose deliveries were given up; their buckets were not
	// given back.
	Drained struct{ Abandoned []event.Message }
)

func (Acquire) effect()  {}
func (Release) effect()  {}
func (Fetch) effect()    {}
func (Settle) effect()   {}
func (Deliver) effect()  {}
func (Cancel) effect()   {}
func (AskGate) effect()  {}
func (FreeGate) effect() {}
func (Report) effect()   {}
func (Drained) effect()  {}
