package tally_test

import (
	"testing"

	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/transport/internal/tally"
)

func TestTally(t *testing.T) {
	var y tally.Tally
	y.Count([]inbox.Disposition{inbox.Stored, inbox.Duplicate, inbox.Stored, inbox.Buried, inbox.Stored, inbox.Duplicate})
	y.Redelivered.Add(4)
	y.Reordered.Add(5)
	y.Disordered.Add(6)
	y.Wandered.Add(7)
	y.Failures.Add(8)
	y.Reconnects.Add(9)
	want := inbox.SourceStats{Stored: 3, Duplicates: 2, Buried: 1, Redelivered: 4, Reordered: 5, Disordered: 6, Wandered: 7, Failures: 8, Reconnects: 9}
	if got := y.Stats(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
