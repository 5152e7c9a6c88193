package sqlqueue

import (
	"reflect"
	"testing"

	"github.com/lanebox/lanebox/runtime/lane"
)

func TestSettledTellsFencedFromGone(t *testing.T) {
	settlements := []lane.Settlement{
		{Bucket: 1, Lane: 10, Sequence: 100},
		{Bucket: 1, Lane: 11, Sequence: 101},
		{Bucket: 2, Lane: 20, Sequence: 200},
		{Bucket: 2, Lane: 20, Sequence: 201},
	}
	got := Settled(settlements, map[lane.Bucket]bool{1: true}, map[int64]bool{100: true})
	want := lane.SettleResult{Fenced: []lane.Bucket{2}, Gone: []lane.Ref{{Lane: 11, Sequence: 101}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestUsedLeasesAreThoseOfTheSettlements(t *testing.T) {
	leases := []lane.Lease{{Bucket: 1, Token: 7}, {Bucket: 2, Token: 8}, {Bucket: 3, Token: 9}}
	got := UsedLeases(leases, []lane.Settlement{{Bucket: 3}, {Bucket: 1}, {Bucket: 3}})
	if want := []lane.Lease{leases[0], leases[2]}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// The message that is too much for a page is cut off, with what follows it.
func TestPageEndsAtItsBound(t *testing.T) {
	lease := lane.Lease{Bucket: 1, Lo: 0, Hi: 99}
	p := lane.FetchParams{Cursors: []lane.Cursor{{Lease: lease}}, MaxRows: 10, MaxLanes: 10, MaxRun: 10, ScanLanes: 10}
	fetched := []struct{ lane, stop int64 }{{5, 0}, {6, StopBytes}, {99, StopEnd}}
	got := Page(p, len(fetched), func(i int) (lane.Row, int64) {
		return lane.Row{Bucket: 1, Lane: fetched[i].lane}, fetched[i].stop
	})
	if len(got.Rows) != 1 || got.Rows[0].Lane != 5 {
		t.Errorf("got %+v, want the message of lane 5 alone", got.Rows)
	}
	p.MaxRows = 10
	fetched[1].stop = 0
	if got := Page(p, len(fetched), func(i int) (lane.Row, int64) {
		return lane.Row{Bucket: 1, Lane: fetched[i].lane}, fetched[i].stop
	}); len(got.Rows) != 2 {
		t.Errorf("got %+v, want both messages and not the stop", got.Rows)
	}
}

func TestUnknownOutcomesAreNotSent(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("an outcome without a code was accepted")
		}
	}()
	OutcomeCode(lane.Start + 100)
}
