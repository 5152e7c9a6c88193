package engine

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/schedule"
)

var errDown = errors.New("the database is down")

// down is a store that never answers anything but an error.
type down struct{}

func (down) Acquire(context.Context, lane.AcquireParams) ([]lane.Lease, error) { return nil, errDown }
func (down) Release(context.Context, string, []lane.Lease) error               { return errDown }
func (down) Fetch(context.Context, lane.FetchParams) (lane.Page, error) {
	return lane.Page{}, errDown
}
func (down) Settle(context.Context, string, []lane.Lease, []lane.Settlement) (lane.SettleResult, error) {
	return lane.SettleResult{}, errDown
}
func (down) Keep(context.Context, lane.KeepParams) ([]lane.Kept, error) { return nil, errDown }
func (down) Leave(context.Context, string) error                        { return errDown }

// refuser must not be called.
type refuser struct{ t *testing.T }

func (r refuser) Deliver(context.Context, string, lane.Run) lane.Verdict {
	r.t.Error("delivered after the lease was lost")
	return lane.Verdict{}
}

// A message becomes due, and in the same batch of inputs the lease turns out to
// be lost: the delivery must not start at all.
func TestACanceledDeliveryIsNotStarted(t *testing.T) {
	for name, deliverer := range map[string]lane.Deliverer{"alone": refuser{t}, "in a batch": batchRefuser{refuser{t}}} {
		t.Run(name, func(t *testing.T) {
			l := NewLoop(Config{Name: "shop", Scope: 1, Store: down{}, Deliverer: deliverer})
			p, err := NewProcess(ProcessConfig{Keeper: down{}, Logger: slog.New(slog.DiscardHandler)}, l)
			if err != nil {
				t.Fatal(err)
			}
			l.prepare(t.Context(), p)
			lease := lane.Lease{Bucket: 0, Token: 1, Lo: 0, Hi: 99}
			row := lane.Row{Lane: 7, Message: event.Message{Sequence: 1, Key: "k"}}
			l.step([]schedule.Input{
				schedule.Kept{Answer: lane.Kept{Owners: 1, Buckets: 1, Free: 1}},
				schedule.Acquired{Asked: time.Now(), Leases: []lane.Lease{lease}},
				schedule.Fetched{Page: lane.Page{Rows: []lane.Row{row}, Next: []lane.Cursor{{Lease: lease}}, Wrapped: []lane.Bucket{0}}},
				schedule.Kept{Sent: []lane.Lease{lease}, Answer: lane.Kept{Owners: 1, Buckets: 1, Free: 1}},
			})
			if len(l.cancels) != 0 {
				t.Errorf("%d deliveries were started", len(l.cancels))
			}
			answers := 0
			for _, in := range l.inbox.take(nil) {
				if a, ok := in.(schedule.Answered); ok {
					answers += len(a)
				}
			}
			if answers != 1 {
				t.Errorf("%d answers, want 1: the lane would stay closed", answers)
			}
		})
	}
}

type batchRefuser struct{ refuser }

func (r batchRefuser) DeliverBatch(_ context.Context, _ string, runs []lane.Run) []lane.Verdict {
	r.Deliver(context.Background(), "", runs[0])
	return make([]lane.Verdict, len(runs))
}
