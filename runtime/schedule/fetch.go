package schedule

import (
	"slices"

	"github.com/lanebox/lanebox/runtime/lane"
)

// wake has a bucket looked through. A look that began before may have missed
// what the wake-up is about, so it does not count.
func (m *Machine) wake(b *bucket) {
	rounds := 1
	if m.fetchCall.busy || b.cursor.Lane != b.lease.Lo || b.cursor.After != 0 {
		rounds = 2
	}
	b.need = max(b.need, rounds)
}

func (m *Machine) wakeAll() {
	for _, b := range m.order {
		m.wake(b)
	}
}

// look fetches when lanes are free to be delivered and something may wait.
func (m *Machine) look() {
	if m.draining || !m.fetchCall.free(m.now) {
		return
	}
	if m.circuit.open && (m.fresh() || m.ready.len() >= maxPage) || !m.circuit.open && m.ready.len() >= m.policy.Concurrency {
		return // enough to go on with
	}
	cursors := m.cursors[:0]
	for _, b := range m.order {
		if b.need > 0 && !b.leaving && !(b.first() && m.suspectRows >= m.policy.MaxUnsettled) {
			cursors = append(cursors, b.cursor)
		}
	}
	if m.cursors = cursors; len(cursors) == 0 {
		return
	}
	if m.buffered >= pagesInMem*m.pageRows {
		m.trim()
	}
	m.fetchCall.busy = true
	clear(m.passed)
	lanes := min(m.pageRows, max(minRunRows, 2*m.pageRows/len(cursors)))
	m.emit(Fetch{lane.FetchParams{
		Owner: m.owner, Cursors: slices.Clone(cursors), Busy: m.busyLanes(),
		MaxLanes: lanes, MaxRun: min(m.runRows, m.pageRows), MaxRows: m.pageRows, ScanLanes: max(maxScanLanes, lanes),
	}})
}

// trim shortens long runs when memory is full although few lanes can go on:
// slow lanes must not keep the others out.
func (m *Machine) trim() {
	m.runRows = minRunRows
	for _, l := range m.lanes {
		if over := l.left() - minRunRows; over > 0 && l.suspects == 0 {
			m.count(l, -over)
			l.rows = l.rows[:len(l.rows)-over]
			l.more = true
		}
	}
}

// busyLanes lists the keyed lanes that a fetch steps over.
func (m *Machine) busyLanes() []int64 {
	busy := make([]int64, 0, len(m.lanes)+len(m.closed))
	for r, l := range m.lanes {
		if r.sequence == 0 {
			busy = append(busy, r.lane)
			l.skipped = l.skipped || !l.parked
		}
	}
	for r := range m.closed {
		if r.sequence == 0 && m.lanes[r] == nil {
			busy = append(busy, r.lane)
		}
	}
	slices.Sort(busy)
	return busy
}

// fetched takes in a page.
func (m *Machine) fetched(in Fetched) {
	if !m.done(&m.fetchCall, "fetch", in.Err) {
		return
	}
	m.stats.Fetches++
	m.stats.FetchedRows += uint64(len(in.Page.Rows))
	asked := make(map[lane.Bucket]lane.Cursor, len(m.cursors))
	for _, c := range m.cursors {
		asked[c.Lease.Bucket] = c
	}
	cut := m.takeRows(in.Page, asked)
	m.advance(in.Page, asked, cut)
	clear(m.passed)
}

// owned returns a bucket that is still leased as it was when c was sent, or nil.
func (m *Machine) owned(c lane.Cursor) *bucket {
	if b := m.buckets[c.Lease.Bucket]; b != nil && b.lease.Token == c.Lease.Token {
		return b
	}
	return nil
}

// takeRows puts the rows of a page in line. It reports whether a lane was cut
// at the length of a run.
func (m *Machine) takeRows(p lane.Page, asked map[lane.Bucket]lane.Cursor) (cut bool) {
	bytes := 0
	for i := 0; i < len(p.Rows); {
		r := &p.Rows[i]
		b := m.owned(asked[r.Bucket])
		n := 1
		bytes += len(r.Message.Payload)
		if b == nil || !r.Unordered(b.lease) {
			for i+n < len(p.Rows) && p.Rows[i+n].Lane == r.Lane {
				bytes += len(p.Rows[i+n].Message.Payload)
				n++
			}
		}
		rows := p.Rows[i : i+n : i+n]
		i += n
		if b == nil || b.leaving {
			continue
		}
		full := n >= min(m.runRows, m.pageRows)
		cut = cut || full
		m.admit(b, rows, full || p.Full && i == len(p.Rows))
	}
	m.resize(p, bytes)
	return cut
}

// admit puts the messages of one lane into memory.
func (m *Machine) admit(b *bucket, rows []lane.Row, more bool) {
	r := ref{lane: rows[0].Lane}
	if rows[0].Unordered(b.lease) {
		r.sequence = rows[0].Message.Sequence
		more = false
	}
	if known := m.lanes[r]; known != nil {
		known.skipped = true // what this look would have found may be found later
		return
	}
	if m.closed[r] || m.passed[r] || rows[0].DueIn > 0 {
		return
	}
	l := &laneState{ref: r, b: b, rows: rows, more: more, fetched: m.now}
	m.lanes[r] = l
	b.lanes++
	m.suspect(l)
	m.count(l, len(rows))
	m.enqueue(l)
}

// resize adapts the page to what the last one held.
func (m *Machine) resize(p lane.Page, bytes int) {
	switch {
	case bytes > bigPage:
		m.pageRows = max(1, int(int64(len(p.Rows))*bigPage/int64(bytes)))
	case p.Full && bytes < smallPage:
		m.pageRows = min(maxPage, 2*m.pageRows)
	}
}

// advance moves the cursors, and loses the buckets that gave no answer.
func (m *Machine) advance(p lane.Page, asked map[lane.Bucket]lane.Cursor, cut bool) {
	served := make(map[lane.Bucket]bool, len(p.Next))
	for _, next := range p.Next {
		n := next.Lease.Bucket
		served[n] = true
		if b := m.owned(asked[n]); b != nil {
			b.seen(asked[n], next, m.policy.MaxUnsettled)
			b.cursor.Lane, b.cursor.After = next.Lane, next.After
		}
	}
	for _, n := range p.Wrapped {
		if b := m.owned(asked[n]); b != nil {
			b.need = max(0, b.need-1)
		}
	}
	for _, c := range m.cursors {
		b := m.owned(c)
		if b == nil {
			continue
		}
		m.acquit(b)
		switch {
		case served[c.Lease.Bucket]:
		case p.Full:
			m.rotate(b)
			m.runRows = max(minRunRows, m.runRows/2)
			return
		default:
			m.lose(b, "not served")
		}
	}
	switch {
	case p.Full:
		m.runRows = max(minRunRows, m.runRows/2)
	case cut && len(p.Wrapped) == len(m.cursors):
		m.runRows = min(m.pageRows, 2*m.runRows)
	}
}

// rotate serves b first in the next fetch.
func (m *Machine) rotate(b *bucket) {
	i := slices.Index(m.order, b)
	m.order = slices.Concat(m.order[i:], m.order[:i])
}
