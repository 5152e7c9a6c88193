package outbox

import (
	"context"
	"errors"

	"github.com/lanebox/lanebox/runtime/engine"
	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/schedule"
)

// A PollerConfig describes the delivery of one destination.
type PollerConfig struct {
	// Name is the destination's name in the schema, Scope its stable number.
	Name  string
	Scope lane.Scope
	Store lane.Store
	// Destination takes the messages: several of a lane at a time when it is a
	// RunDestination, otherwise one.
	Destination Destination
	// Policy's MaxRun is ignored unless Destination is a RunDestination; then 0
	// means the destination's own limit, which it never exceeds.
	Policy schedule.Policy
}

// NewPoller returns the loop that delivers a destination's messages. It runs as
// part of an engine.Process.
func NewPoller(c PollerConfig) *engine.Loop {
	var d lane.Deliverer
	runs, ok := c.Destination.(RunDestination)
	switch {
	case c.Destination == nil: // the process refuses to start
	case ok:
		if limit := max(1, runs.MaxRun()); c.Policy.MaxRun <= 0 || c.Policy.MaxRun > limit {
			c.Policy.MaxRun = limit
		}
		d = runSender{runs}
	default:
		c.Policy.MaxRun = 1
		d = sender{c.Destination}
	}
	return engine.NewLoop(engine.Config{Name: c.Name, Scope: c.Scope, Store: c.Store, Deliverer: d, Policy: c.Policy})
}

// A sender delivers messages one at a time.
type sender struct{ to Destination }

func (s sender) Deliver(ctx context.Context, _ string, run lane.Run) lane.Verdict {
	for i := range run.Rows {
		if err := s.to.Send(ctx, run.Rows[i].Message); err != nil {
			return lane.Verdict{Accepted: i, Err: err}
		}
	}
	return lane.Verdict{Accepted: len(run.Rows)}
}

var errShortRun = errors.New("the destination accepted only a part of the run and gave no reason")

// A runSender delivers whole runs.
type runSender struct{ to RunDestination }

func (s runSender) Deliver(ctx context.Context, _ string, run lane.Run) lane.Verdict {
	messages := make([]event.Message, len(run.Rows))
	for i := range run.Rows {
		messages[i] = run.Rows[i].Message
	}
	accepted, err := s.to.SendRun(ctx, messages)
	if err == nil && accepted < len(messages) {
		err = errShortRun
	}
	return lane.Verdict{Accepted: accepted, Err: err}
}
