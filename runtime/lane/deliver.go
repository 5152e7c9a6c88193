package lane

import "context"

// A Run is an unbroken run of consecutive messages of one lane. It has more
// than one message only for a Deliverer that declares it takes runs.
type Run struct {
	Lease Lease
	Lane  int64
	Rows  []Row
}

// A Verdict says what became of a run.
type Verdict struct {
	// Accepted is the number of messages, from the first on, that are safe. When
	// it is less than the length of the run, Err says why the next one is not,
	// and nothing behind it was accepted.
	Accepted int
	// Completed says that the accepted messages were already removed from the
	// database in the transaction that handled them: they need no settlement.
	Completed bool
	// Err is nil when the whole run was accepted. event.Classify gives its class;
	// ErrLeaseLost and ErrBusy have meanings of their own.
	Err error
}

// A Deliverer hands runs over: to a destination, to a typed handler, or to the
// outbox. It is called from many goroutines, never twice for one lane at the
// same time. It must return soon after ctx ends. A panic counts as a transient
// failure of the first message.
type Deliverer interface {
	Deliver(ctx context.Context, owner string, run Run) Verdict
}

// A BatchDeliverer takes the runs of several lanes in one call, for example to
// move them in one transaction. It returns one verdict per run, in order.
type BatchDeliverer interface {
	DeliverBatch(ctx context.Context, owner string, runs []Run) []Verdict
}
