package lane

import (
	"math"
	"reflect"
	"testing"

	"github.com/lanebox/lanebox/runtime/event"
)

var (
	testA = Lease{Bucket: 1, Lo: 100, Hi: 199}
	testB = Lease{Bucket: 2, Lo: 200, Hi: 299}
	testZ = Lease{Bucket: 63, Lo: 63 << 57, Hi: math.MaxInt64}
)

func testRow(l Lease, n, sequence int64) Row {
	return Row{Bucket: l.Bucket, Lane: n, Message: event.Message{Sequence: sequence}}
}

func TestAdvance(t *testing.T) {
	start := func(l Lease) Cursor { return Cursor{Lease: l, Lane: l.Lo} }
	tests := []struct {
		name    string
		maxRows int // 10 when 0
		cursors []Cursor
		rows    []Row
		stops   []Stop
		next    []Cursor
		wrapped []Bucket
		full    bool
		kept    int // number of rows left
	}{{
		name:    "a lost bucket is missing",
		cursors: []Cursor{start(testA), start(testB)},
		stops:   []Stop{{Bucket: 2, End: true}},
		next:    []Cursor{start(testB)}, wrapped: []Bucket{2},
	}, {
		name:    "after the last lane found",
		cursors: []Cursor{start(testA)},
		rows:    []Row{testRow(testA, 105, 1), testRow(testA, 111, 2)},
		next:    []Cursor{{Lease: testA, Lane: 112}}, kept: 2,
	}, {
		name:    "after the last lane looked at",
		cursors: []Cursor{start(testA)},
		rows:    []Row{testRow(testA, 105, 1)},
		stops:   []Stop{{Bucket: 1, Lane: 150}},
		next:    []Cursor{{Lease: testA, Lane: 151}}, kept: 1,
	}, {
		name:    "the end wraps",
		cursors: []Cursor{{Lease: testA, Lane: 150}},
		rows:    []Row{testRow(testA, 155, 1)},
		stops:   []Stop{{Bucket: 1, End: true}},
		next:    []Cursor{start(testA)}, wrapped: []Bucket{1}, kept: 1,
	}, {
		name:    "the last lane there can be wraps",
		cursors: []Cursor{start(testZ)},
		rows:    []Row{testRow(testZ, math.MaxInt64, 1)},
		next:    []Cursor{start(testZ)}, wrapped: []Bucket{63}, kept: 1,
	}, {
		name:    "a full page leaves the rest of its cut bucket and the later ones",
		maxRows: 2,
		cursors: []Cursor{start(testA), start(testB)},
		rows:    []Row{testRow(testA, 105, 1), testRow(testA, 111, 2), testRow(testA, 121, 3)},
		stops:   []Stop{{Bucket: 1, End: true}, {Bucket: 2, End: true}},
		next:    []Cursor{{Lease: testA, Lane: 112}}, full: true, kept: 2,
	}, {
		name:    "a full page that ends with a bucket believes its stop",
		maxRows: 1,
		cursors: []Cursor{start(testA), start(testB)},
		rows:    []Row{testRow(testA, 105, 1), testRow(testB, 205, 2)},
		stops:   []Stop{{Bucket: 1, End: true}, {Bucket: 2, End: true}},
		next:    []Cursor{start(testA)}, wrapped: []Bucket{1}, full: true, kept: 1,
	}, {
		name:    "an empty bucket in front of the cut is served",
		maxRows: 1,
		cursors: []Cursor{start(testA), start(testB)},
		rows:    []Row{testRow(testB, 205, 2)},
		stops:   []Stop{{Bucket: 1, End: true}},
		next:    []Cursor{start(testA), {Lease: testB, Lane: 206}}, wrapped: []Bucket{1}, full: true, kept: 1,
	}, {
		name:    "a cut unordered lane lets the keyed lanes come first",
		maxRows: 2,
		cursors: []Cursor{start(testA)},
		rows:    []Row{testRow(testA, 100, 7), testRow(testA, 100, 9)},
		next:    []Cursor{{Lease: testA, Lane: 101, After: 9}}, full: true, kept: 2,
	}, {
		name:    "even when the walk went on behind it and found nothing",
		maxRows: 2,
		cursors: []Cursor{start(testA)},
		rows:    []Row{testRow(testA, 100, 7), testRow(testA, 100, 9)},
		stops:   []Stop{{Bucket: 1, Lane: 130}},
		next:    []Cursor{{Lease: testA, Lane: 131, After: 9}}, full: true, kept: 2,
	}, {
		name:    "even to the end of the bucket",
		maxRows: 2,
		cursors: []Cursor{start(testA)},
		rows:    []Row{testRow(testA, 100, 7), testRow(testA, 100, 9)},
		stops:   []Stop{{Bucket: 1, End: true}},
		next:    []Cursor{{Lease: testA, Lane: 100, After: 9}}, full: true, kept: 2,
	}, {
		name:    "and is gone on with after the keyed lanes, which is no wrap",
		cursors: []Cursor{{Lease: testA, Lane: 101, After: 9}},
		rows:    []Row{testRow(testA, 105, 1)},
		stops:   []Stop{{Bucket: 1, End: true}},
		next:    []Cursor{{Lease: testA, Lane: 100, After: 9}}, kept: 1,
	}, {
		name:    "an unordered lane seen to its end starts again",
		cursors: []Cursor{{Lease: testA, Lane: 100, After: 9}},
		rows:    []Row{testRow(testA, 100, 12)},
		stops:   []Stop{{Bucket: 1, End: true}},
		next:    []Cursor{start(testA)}, wrapped: []Bucket{1}, kept: 1,
	}}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := FetchParams{Cursors: test.cursors, MaxRows: test.maxRows}
			if p.MaxRows == 0 {
				p.MaxRows = 10
			}
			page := Advance(p, test.rows, test.stops)
			if !reflect.DeepEqual(page.Next, test.next) {
				t.Errorf("next = %+v, want %+v", page.Next, test.next)
			}
			if !reflect.DeepEqual(page.Wrapped, test.wrapped) {
				t.Errorf("wrapped = %v, want %v", page.Wrapped, test.wrapped)
			}
			if page.Full != test.full || len(page.Rows) != test.kept {
				t.Errorf("full = %v with %d rows, want %v with %d", page.Full, len(page.Rows), test.full, test.kept)
			}
		})
	}
}
