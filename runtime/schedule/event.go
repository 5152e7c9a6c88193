package schedule

import (
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/lane"
)

// An Event is something that an observer may want to know. The set is closed.
type Event interface{ event() }

type (
	// Delivered says that a message was accepted. It is reported only when the
	// machine was told to (Config.Verbose).
	Delivered struct {
		Message event.Message
		Took    time.Duration
		// Redelivered says that the message had been tried before.
		Redelivered bool
	}

	// Retried says that a delivery failed and will be tried again.
	Retried struct {
		Message event.Message
		Class   event.Class
		// Spent says that the delivery counts as an attempt.
		Spent bool
		// Delay is how long the message's lane waits.
		Delay time.Duration
		Err   error
		Took  time.Duration
	}

	// Died says that a message goes to the dead letters.
	Died struct {
		Message event.Message
		// Attempts is the number of recorded deliveries.
		Attempts int
		Reason   string
		Err      error
		Took     time.Duration
	}

	// Parked says that a message stays at the head of its lane until an operator
	// decides.
	Parked struct {
		Message  event.Message
		Attempts int
		Reason   string
		Err      error
		Took     time.Duration
	}

	// LanesParked says that an operator parked lanes of which messages were in
	// memory; they were dropped.
	LanesParked struct{ Lanes []int64 }

	// LeasesAcquired says that buckets were leased.
	LeasesAcquired struct{ Leases []lane.Lease }

	// LeasesReleased says that buckets were given back.
	LeasesReleased struct{ Leases []lane.Lease }

	// LeaseLost says that a bucket is no longer the machine's.
	LeaseLost struct {
		Lease lane.Lease
		// Reason is "trust ended", "not renewed", "fenced" or "not served".
		Reason string
		// Canceled and Dropped count deliveries that were canceled and outcomes
		// that will not be recorded.
		Canceled, Dropped int
	}

	// Fenced says that the database refused outcomes of a bucket because another
	// owner has it. Nothing was changed and nothing is tried again.
	Fenced struct {
		Lease    lane.Lease
		Outcomes int
	}

	// Gone says that messages were not there any more when their outcome was
	// recorded: an operator removed or moved them, or an earlier call had
	// succeeded although its answer was lost.
	Gone struct{ Refs []lane.Ref }

	// ProbationStarted says that a bucket's former owner died.
	ProbationStarted struct{ Lease lane.Lease }

	// ProbationEnded says that all suspects of a bucket have moved.
	ProbationEnded struct{ Lease lane.Lease }

	// CircuitOpened says that deliveries are stopped, save one probe at a time.
	CircuitOpened struct {
		// Pause is the time until the first probe.
		Pause time.Duration
		Err   error
	}

	// CircuitClosed says that a delivery succeeded again.
	CircuitClosed struct{}

	// DatabaseFailed says that a database call failed and will be tried again.
	DatabaseFailed struct {
		// Op is "acquire", "release", "fetch", "settle" or "keep".
		Op  string
		Err error
		// InARow counts the failures of this operation without success between.
		InARow int
	}

	// Abandoned says that the grace time of a shutdown was over before a
	// delivery returned.
	Abandoned struct{ Message event.Message }
)

func (Delivered) event()        {}
func (Retried) event()          {}
func (Died) event()             {}
func (Parked) event()           {}
func (LanesParked) event()      {}
func (LeasesAcquired) event()   {}
func (LeasesReleased) event()   {}
func (LeaseLost) event()        {}
func (Fenced) event()           {}
func (Gone) event()             {}
func (ProbationStarted) event() {}
func (ProbationEnded) event()   {}
func (CircuitOpened) event()    {}
func (CircuitClosed) event()    {}
func (DatabaseFailed) event()   {}
func (Abandoned) event()        {}

// Stats are counters since the start and gauges of now. They are plain numbers,
// copied as a whole.
type Stats struct {
	// Delivered counts accepted messages; Retried, Dead and Parked the outcomes
	// of the others; Redelivered the accepted ones that had been tried before.
	Delivered, Redelivered, Retried, Dead, Parked uint64
	// Fenced counts outcomes that were refused, Gone messages that were not
	// there, LostLeases buckets that were lost, DatabaseFailures failed calls.
	Fenced, Gone, LostLeases, DatabaseFailures uint64
	// Fetches and Settles count calls that succeeded, FetchedRows what they read.
	Fetches, Settles, FetchedRows uint64
	// Leases, OnProbation, LanesInFlight, MessagesInFlight, Unsettled and
	// Buffered say how things stand. LanesBackingOff counts lanes that wait for a
	// retry that this process recorded.
	Leases, OnProbation, LanesInFlight, MessagesInFlight, Unsettled, Buffered, LanesBackingOff int
	// CircuitOpen says that deliveries are stopped.
	CircuitOpen bool
}
