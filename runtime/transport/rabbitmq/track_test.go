package rabbitmq

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/transport/internal/tally"
)

// seen returns a message of aggregate a, with a version, or with a sequence of
// publisher p.
func seen(a string, version, sequence int64, p string, again bool) inbox.Incoming {
	m := inbox.Incoming{AggregateID: a, Version: version, IdempotencyKey: fmt.Sprintf("%s-%d-%d", a, version, sequence), Headers: event.Headers{}}
	if sequence > 0 {
		m.Headers["ce-sequence"], m.Headers["ce-source"] = strconv.FormatInt(sequence, 10), p
	}
	if again {
		m.Headers[event.HeaderRedelivered] = "true"
	}
	return m
}

func keysOf(batch []inbox.Incoming) (keys []string) {
	for _, m := range batch {
		keys = append(keys, m.IdempotencyKey)
	}
	return keys
}

func TestRedeliveriesArePutRight(t *testing.T) {
	for _, c := range []struct {
		name  string
		batch []inbox.Incoming
		want  []string
		moved int64
	}{
		{"by version", []inbox.Incoming{seen("a", 2, 0, "", false), seen("b", 9, 0, "", false), seen("a", 1, 0, "", true)},
			[]string{"a-1-0", "b-9-0", "a-2-0"}, 2},
		{"by sequence", []inbox.Incoming{seen("a", 0, 7, "p", false), seen("a", 0, 8, "p", true), seen("a", 0, 6, "p", true)},
			[]string{"a-0-6", "a-0-7", "a-0-8"}, 3},
		{"nothing was redelivered", []inbox.Incoming{seen("a", 2, 0, "", false), seen("a", 1, 0, "", false)}, []string{"a-2-0", "a-1-0"}, 0},
		{"two publishers", []inbox.Incoming{seen("a", 0, 7, "p", false), seen("a", 0, 6, "q", true)}, []string{"a-0-7", "a-0-6"}, 0},
		{"a version and a sequence", []inbox.Incoming{seen("a", 7, 0, "", false), seen("a", 0, 6, "q", true)}, []string{"a-7-0", "a-0-6"}, 0},
		{"no aggregate", []inbox.Incoming{seen("", 2, 0, "", false), seen("", 1, 0, "", true)}, []string{"-2-0", "-1-0"}, 0},
		{"another aggregate was redelivered", []inbox.Incoming{seen("a", 2, 0, "", false), seen("a", 1, 0, "", false), seen("b", 1, 0, "", true)},
			[]string{"a-2-0", "a-1-0", "b-1-0"}, 0},
	} {
		var stats tally.Tally
		newTracker(&stats, quiet).putRight(c.batch)
		if got := keysOf(c.batch); !slices.Equal(got, c.want) || stats.Reordered.Load() != c.moved {
			t.Errorf("%s: got %v, %d moved", c.name, got, stats.Reordered.Load())
		}
	}
}

func TestDisorderIsCounted(t *testing.T) {
	var stats tally.Tally
	tr := newTracker(&stats, quiet)
	note := func(m inbox.Incoming, d inbox.Disposition) { tr.note("q", []inbox.Incoming{m}, []inbox.Disposition{d}) }
	note(seen("a", 0, 5, "p", false), inbox.Stored)
	note(seen("a", 0, 3, "p", true), inbox.Duplicate) // it was stored in its place before
	note(seen("b", 0, 1, "p", false), inbox.Stored)
	note(seen("a", 0, 4, "q", false), inbox.Stored) // of another publisher
	note(seen("a", 0, 5, "q", false), inbox.Stored)
	if n := stats.Disordered.Load(); n != 0 {
		t.Errorf("%d are counted as disordered", n)
	}
	note(seen("a", 0, 4, "q", true), inbox.Stored)
	if n := stats.Disordered.Load(); n != 1 {
		t.Errorf("%d are counted as disordered, want 1", n)
	}
}

func TestWanderingAggregatesAreCountedOnce(t *testing.T) {
	var stats tally.Tally
	tr := newTracker(&stats, quiet)
	for i := range 6 {
		m := seen("a", int64(i+1), 0, "", false)
		tr.note(fmt.Sprintf("shard-%d", i%2), []inbox.Incoming{m, seen("b", int64(i+1), 0, "", false)}[:1+i%2], make([]inbox.Disposition, 2))
	}
	if n := stats.Wandered.Load(); n != 1 {
		t.Errorf("%d aggregates have wandered, want 1", n)
	}
}

func TestTrackerForgets(t *testing.T) {
	var stats tally.Tally
	tr := newTracker(&stats, quiet)
	for i := range 3 * tracked {
		tr.noteOne("q", seen(strconv.Itoa(i), 1, 0, "", false))
	}
	if len(tr.byID) != tracked || tr.recent.Len() != tracked {
		t.Errorf("%d and %d aggregates are remembered", len(tr.byID), tr.recent.Len())
	}
}
