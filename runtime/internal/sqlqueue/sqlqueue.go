// Package sqlqueue has what stores on database servers share: it turns the rows of
// their queries into what the lane package calls them.
package sqlqueue

import (
	"fmt"

	"github.com/lanebox/lanebox/runtime/lane"
)

// MaxPage bounds the payloads of one fetch, in bytes: the message that reaches
// it is the last one.
const MaxPage = 16 << 20

// How a walk or a page ended; see the query Fetch. Any other number above zero
// ended a walk that may go on later, and zero is a message.
const (
	StopEnd   = 2
	StopBytes = 3
)

// Page sorts the n rows of a fetch into messages and stops. at returns row i and
// its stop; of a row that ended a walk it needs the bucket and the lane alone.
func Page(p lane.FetchParams, n int, at func(i int) (row lane.Row, stop int64)) lane.Page {
	rows := make([]lane.Row, 0, n)
	var stops []lane.Stop
	for i := range n {
		row, stop := at(i)
		if stop == StopBytes {
			p.MaxRows = min(p.MaxRows, len(rows))
		} else if stop > 0 {
			stops = append(stops, lane.Stop{Bucket: row.Bucket, Lane: row.Lane, End: stop == StopEnd})
			continue
		}
		rows = append(rows, row)
	}
	return lane.Advance(p, rows, stops)
}

// OutcomeCode is the number that the query Settle knows an outcome by.
func OutcomeCode(o lane.Outcome) int {
	switch o {
	case lane.Done:
		return 0
	case lane.Retry:
		return 1
	case lane.Dead:
		return 2
	case lane.Park:
		return 3
	case lane.Start:
		return 4
	}
	panic(fmt.Sprintf("unknown outcome %d", o))
}

// UsedLeases returns the leases of the buckets that occur in settlements.
func UsedLeases(leases []lane.Lease, settlements []lane.Settlement) []lane.Lease {
	occurs := map[lane.Bucket]bool{}
	for i := range settlements {
		occurs[settlements[i].Bucket] = true
	}
	used := make([]lane.Lease, 0, len(occurs))
	for _, l := range leases {
		if occurs[l.Bucket] {
			used = append(used, l)
		}
	}
	return used
}

// Settled says what a settlement did not change, and why: leased are the buckets
// whose lease was good, changed the sequences of the messages that were found.
// Within a scope, a sequence belongs to one message.
func Settled(settlements []lane.Settlement, leased map[lane.Bucket]bool, changed map[int64]bool) lane.SettleResult {
	var result lane.SettleResult
	fenced := map[lane.Bucket]bool{}
	for i := range settlements {
		st := &settlements[i]
		switch {
		case !leased[st.Bucket] && !fenced[st.Bucket]:
			fenced[st.Bucket] = true
			result.Fenced = append(result.Fenced, st.Bucket)
		case leased[st.Bucket] && !changed[st.Sequence]:
			result.Gone = append(result.Gone, lane.Ref{Lane: st.Lane, Sequence: st.Sequence})
		}
	}
	return result
}
