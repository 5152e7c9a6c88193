package lane

// A Stop says how the walk over one bucket's lanes ended. A store reports one
// for every bucket whose lease was good when the walk did not end because it
// had found MaxLanes lanes; in that case the rows alone say where to go on.
type Stop struct {
	Bucket Bucket
	// Lane is the last lane that the walk looked at; it has no meaning with End.
	Lane int64
	// End says that the walk came to the end of the bucket, or that the bucket
	// holds no message at all.
	End bool
}

// Advance makes the page of a fetch from the rows a store read and from the
// places where its walks ended. Rows must be in cursor order, then lane order,
// then sequence order; stops need no order and do not count against MaxRows. A
// store may hand over more than MaxRows rows: the rest is cut off here, so that
// a statement can limit rows and stops together to MaxRows plus the number of
// cursors.
//
// A walk that is cut inside the unordered lane goes on with the keyed lanes
// first and comes back to where it was cut, so that a long unordered lane
// delays no keyed one. Until then the cursor carries After, and the bucket does
// not count as wrapped. A store must list the unordered lane up to MaxRows rows:
// fewer than that mean that there are no more.
func Advance(p FetchParams, rows []Row, stops []Stop) Page {
	page := Page{Rows: rows}
	if len(rows) >= p.MaxRows {
		page.Full = true
		page.Rows = rows[:p.MaxRows]
	}
	last := lastRows(page.Rows)
	ends := make(map[Bucket]Stop, len(stops))
	for _, s := range stops {
		ends[s.Bucket] = s
	}
	if len(rows) > p.MaxRows { // the walk of the bucket that was cut says nothing
		if cut := rows[p.MaxRows].Bucket; cut == page.Rows[p.MaxRows-1].Bucket {
			delete(ends, cut)
		}
	}
	for _, c := range p.Cursors {
		b := c.Lease.Bucket
		row, listed := last[b]
		stop, stopped := ends[b]
		if !listed && !stopped {
			continue // lost, expired, or not reached
		}
		cut := !stopped || page.Full && row == &page.Rows[len(page.Rows)-1]
		next, wrapped := advance(c, row, stop, stopped, cut)
		page.Next = append(page.Next, next)
		if wrapped {
			page.Wrapped = append(page.Wrapped, b)
		}
		if page.Full && b == page.Rows[len(page.Rows)-1].Bucket {
			break // what follows was cut off, whatever the store saw of it
		}
	}
	return page
}

// lastRows returns the last row of each bucket.
func lastRows(rows []Row) map[Bucket]*Row {
	last := map[Bucket]*Row{}
	for i := range rows {
		last[rows[i].Bucket] = &rows[i]
	}
	return last
}

// advance returns the cursor that follows c, and whether the whole bucket has
// been seen. row is the last row of the bucket, or nil; cut says that there may
// be more of its lane.
func advance(c Cursor, row *Row, stop Stop, stopped, cut bool) (next Cursor, wrapped bool) {
	next = Cursor{Lease: c.Lease, After: c.After}
	if c.Lane <= c.Lease.Lo {
		next.After = 0 // the unordered lane was seen to its end, unless it was cut
	}
	if row != nil && cut && row.Unordered(c.Lease) {
		next.After = row.Message.Sequence
	}
	lane := c.Lease.Lo
	switch {
	case stopped && !stop.End:
		lane = stop.Lane
	case !stopped:
		lane = row.Lane
	}
	if stop.End || lane >= c.Lease.Hi {
		next.Lane = c.Lease.Lo
		return next, next.After == 0
	}
	next.Lane = lane + 1
	return next, false
}
