package engine_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/lanebox/lanebox/runtime/engine"
	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/outbox"
	"github.com/lanebox/lanebox/runtime/schedule"
)

// BenchmarkDeliver measures the loop alone: the store is a list in memory that
// costs next to nothing, and the destination does nothing.
func BenchmarkDeliver(b *testing.B) {
	for _, c := range []struct {
		name string
		keys int // 0: no keys
	}{{"10000keys", 10000}, {"1key", 1}, {"unordered", 0}} {
		b.Run(c.name, func(b *testing.B) { benchmarkDeliver(b, c.keys) })
	}
}

func benchmarkDeliver(b *testing.B, keys int) {
	store := newListStore(b.N, keys)
	var delivered atomic.Int64
	ctx, stop := context.WithCancel(context.Background())
	poller := outbox.NewPoller(outbox.PollerConfig{
		Name: "list", Scope: shop, Store: store, Policy: schedule.Policy{Concurrency: 128, MaxUnsettled: 2048},
		Destination: sendFunc(func(context.Context, event.Message) error {
			if delivered.Add(1) == int64(b.N) {
				stop()
			}
			return nil
		}),
	})
	p, err := engine.NewProcess(engine.ProcessConfig{Keeper: store, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}, poller)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	if err := p.Run(ctx); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
	if left := store.left.Load(); left != 0 {
		b.Fatalf("%d messages were not settled", left)
	}
}

// A listStore is one bucket whose lanes are slices that are only ever cut.
type listStore struct {
	lanes [][]lane.Row // by lane number
	left  atomic.Int64
	taken bool
}

func newListStore(n, keys int) *listStore {
	s := &listStore{lanes: make([][]lane.Row, max(1, keys)+1)}
	s.left.Store(int64(n))
	for i := range n {
		l, key := int64(0), ""
		if keys > 0 {
			l = 1 + int64(i%keys)
			key = fmt.Sprint(l)
		}
		s.lanes[l] = append(s.lanes[l], lane.Row{Lane: l, Message: event.Message{Sequence: int64(i) + 1, Key: key}})
	}
	return s
}

func (s *listStore) Acquire(context.Context, lane.AcquireParams) ([]lane.Lease, error) {
	if s.taken {
		return nil, nil
	}
	s.taken = true
	return []lane.Lease{{Token: 1, Hi: int64(len(s.lanes)) - 1}}, nil
}

func (s *listStore) Release(context.Context, string, []lane.Lease) error { return nil }

func (s *listStore) Keep(_ context.Context, p lane.KeepParams) ([]lane.Kept, error) {
	k := lane.Kept{Scope: shop, Owners: 1, Buckets: 1, Waiting: s.left.Load() > 0}
	if !s.taken {
		k.Free = 1
	}
	for _, l := range p.Scopes[0].Leases {
		k.Renewed = append(k.Renewed, l.Bucket)
	}
	return []lane.Kept{k}, nil
}

func (s *listStore) Leave(context.Context, string) error { return nil }

// Fetch cuts off what it returns: the benchmark never fails a delivery.
func (s *listStore) Fetch(_ context.Context, p lane.FetchParams) (lane.Page, error) {
	c := p.Cursors[0]
	busy := make(map[int64]bool, len(p.Busy))
	for _, l := range p.Busy {
		busy[l] = true
	}
	var rows []lane.Row
	found := 0
	for l := c.Lane; l <= c.Lease.Hi && found < p.MaxLanes && len(rows) < p.MaxRows; l++ {
		if busy[l] || len(s.lanes[l]) == 0 {
			continue
		}
		found++
		n := min(len(s.lanes[l]), p.MaxRun, p.MaxRows-len(rows))
		if l == 0 {
			n = min(len(s.lanes[l]), p.MaxRows-len(rows))
		}
		rows = append(rows, s.lanes[l][:n]...)
		s.lanes[l] = s.lanes[l][n:]
	}
	var stops []lane.Stop
	if found < p.MaxLanes {
		stops = append(stops, lane.Stop{End: true})
	}
	return lane.Advance(p, rows, stops), nil
}

func (s *listStore) Settle(_ context.Context, _ string, _ []lane.Lease, settlements []lane.Settlement) (lane.SettleResult, error) {
	s.left.Add(-int64(len(settlements)))
	return lane.SettleResult{}, nil
}
