// Package tally counts what a source at a broker sees.
package tally

import (
	"sync/atomic"

	"github.com/lanebox/lanebox/runtime/inbox"
)

// A Tally holds the numbers of inbox.SourceStats while they grow. The zero Tally
// is ready; it is safe for concurrent use.
type Tally struct {
	Stored, Duplicates, Buried                   atomic.Int64
	Redelivered, Reordered, Disordered, Wandered atomic.Int64
	Failures, Reconnects                         atomic.Int64
}

// Count adds what became of messages.
func (t *Tally) Count(dispositions []inbox.Disposition) {
	for _, d := range dispositions {
		switch d {
		case inbox.Stored:
			t.Stored.Add(1)
		case inbox.Duplicate:
			t.Duplicates.Add(1)
		case inbox.Buried:
			t.Buried.Add(1)
		}
	}
}

// Stats returns the numbers as they are.
func (t *Tally) Stats() inbox.SourceStats {
	return inbox.SourceStats{
		Stored: t.Stored.Load(), Duplicates: t.Duplicates.Load(), Buried: t.Buried.Load(),
		Redelivered: t.Redelivered.Load(), Reordered: t.Reordered.Load(), Disordered: t.Disordered.Load(), Wandered: t.Wandered.Load(),
		Failures: t.Failures.Load(), Reconnects: t.Reconnects.Load(),
	}
}
