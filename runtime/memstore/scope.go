package memstore

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/lane"
)

// A scope holds the rows, leases and holds of one set of lanes. The DB's mutex
// guards it.
type scope struct {
	name    string
	number  lane.Scope
	inbox   bool
	shift   uint // a lane's bucket is lane >> shift
	buckets []*bucket
	// lanes holds the committed rows of each lane in sequence order; a lane
	// without rows is absent. order lists the lanes, ascending.
	lanes map[int64][]*row
	order []int64
	// holds are the hold rows: lane, then sequence. Sequence 0 is an operator's
	// park of the whole lane.
	holds  map[int64]map[int64]*hold
	dead   []*deadRow
	owners map[string]time.Time // heartbeats
}

// A bucket is the lease row of one share of the lanes. An owner with an until
// in the past let its lease expire; no owner means given back or never owned.
type bucket struct {
	number lane.Bucket
	lo, hi int64
	token  int64
	owner  string
	until  time.Time
}

type row struct {
	lane         int64
	sourceNumber int32 // inbox only
	message      event.Message
}

type hold struct {
	attempts          int
	due               time.Time
	parked            bool
	reason, lastError string
}

type deadRow struct {
	row
	attempts          int
	reason, lastError string
	died              time.Time
}

// insert makes a committed row visible.
func (s *scope) insert(r *row) {
	rows, had := s.lanes[r.lane]
	if !had {
		i, _ := slices.BinarySearch(s.order, r.lane)
		s.order = slices.Insert(s.order, i, r.lane)
	}
	i, _ := slices.BinarySearchFunc(rows, r.message.Sequence, bySequence)
	s.lanes[r.lane] = slices.Insert(rows, i, r)
}

// find returns a waiting row, or nil.
func (s *scope) find(l, sequence int64) *row {
	rows := s.lanes[l]
	if i, ok := slices.BinarySearchFunc(rows, sequence, bySequence); ok {
		return rows[i]
	}
	return nil
}

// remove takes a waiting row out, together with its hold row. It returns nil
// when there is no such row.
func (s *scope) remove(l, sequence int64) *row {
	rows := s.lanes[l]
	i, ok := slices.BinarySearchFunc(rows, sequence, bySequence)
	if !ok {
		return nil
	}
	r := rows[i]
	if len(rows) == 1 {
		delete(s.lanes, l)
		j, _ := slices.BinarySearch(s.order, l)
		s.order = slices.Delete(s.order, j, j+1)
	} else {
		s.lanes[l] = slices.Delete(rows, i, i+1)
	}
	s.unhold(l, sequence)
	return r
}

func bySequence(r *row, sequence int64) int { return cmp.Compare(r.message.Sequence, sequence) }

// hold records h for one message, or for a whole lane with sequence 0.
func (s *scope) hold(l, sequence int64, h *hold) {
	if s.holds[l] == nil {
		s.holds[l] = map[int64]*hold{}
	}
	s.holds[l][sequence] = h
}

func (s *scope) unhold(l, sequence int64) {
	delete(s.holds[l], sequence)
	if len(s.holds[l]) == 0 {
		delete(s.holds, l)
	}
}

// waits reports whether a keyed lane waits for a retry or an operator.
func (s *scope) waits(l int64, now time.Time) bool {
	for _, h := range s.holds[l] {
		if h.parked || h.due.After(now) {
			return true
		}
	}
	return false
}

// passes reports whether owner may still change what belongs to lease l. An
// expired lease that nobody took over passes.
func (s *scope) passes(owner string, l lane.Lease) bool {
	b := s.bucket(l.Bucket)
	return b != nil && owner != "" && b.owner == owner && b.token == l.Token
}

// parkedLanes returns the lanes of the given buckets that an operator parked.
func (s *scope) parkedLanes(in func(*bucket) bool) []int64 {
	var parked []int64
	for _, l := range slices.Sorted(maps.Keys(s.holds)) {
		if h := s.holds[l][0]; h != nil && h.parked && in(s.bucketOf(l)) {
			parked = append(parked, l)
		}
	}
	return parked
}
