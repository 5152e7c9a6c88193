package kafka

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lanebox/lanebox/runtime/transporttest"
)

// batches are the produced batches, by what their records hold.
type batches struct {
	mu sync.Mutex
	n  int
	of map[string]int // the batch of a value
}

// watch notes every batch that the broker is sent. The client must not compress.
func watch(b *broker) *batches {
	seen := &batches{of: map[string]int{}}
	b.ControlKey(produceKey, func(r kmsg.Request) (kmsg.Response, error, bool) {
		b.KeepControl()
		for _, topic := range r.(*kmsg.ProduceRequest).Topics {
			for _, p := range topic.Partitions {
				if err := seen.note(p.Records); err != nil {
					return nil, err, true
				}
			}
		}
		return nil, nil, false
	})
	return seen
}

func (s *batches) note(raw []byte) error {
	var batch kmsg.RecordBatch
	if err := batch.ReadFrom(raw); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n++
	for rest := batch.Records; len(rest) > 0; {
		var r kmsg.Record
		if err := r.ReadFrom(rest); err != nil {
			return err
		}
		s.of[string(r.Value)] = s.n
		size, width := binary.Varint(rest)
		rest = rest[width+int(size):]
	}
	return nil
}

// TestAnAttemptIsOneBatch: many lanes hand runs to one partition, in batches that
// are always full, and what one of them handed over is in one batch.
func TestAnAttemptIsOneBatch(t *testing.T) {
	const lanes, rounds, length = 12, 25, 40
	b := startBroker(t)
	topic := newTopic(t, []string{b.address}, 1, nil)
	d := newDestination(t, Config{Brokers: []string{b.address}, BatchBytes: minBatchBytes, Options: []kgo.Opt{kgo.ProducerBatchCompression(kgo.NoCompression())}}, topic)
	if err := d.Send(t.Context(), newMessage("first", 0)); err != nil {
		t.Fatal(err)
	}
	seen := watch(b)
	var all sync.WaitGroup
	for lane := range lanes {
		all.Go(func() {
			key := fmt.Sprintf("key-%d", lane)
			for n := int64(0); n < rounds; {
				records, err := d.encode(run(key, n*length, (n+1)*length))
				if err != nil {
					t.Error(err)
					return
				}
				for len(records) > 0 {
					a, err := d.shared.send(records)
					if err != nil {
						t.Error(err)
						return
					}
					<-a.done
					handed, err := a.result()
					if err != nil {
						t.Error(err)
						return
					}
					seen.checkTogether(t, records[:handed])
					records = records[handed:]
				}
				n++
			}
		})
	}
	all.Wait()
	if seen.n < lanes*rounds {
		t.Errorf("%d batches: they were not full", seen.n)
	}
}

func (s *batches) checkTogether(t *testing.T, records []*kgo.Record) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	first := s.of[string(records[0].Value)]
	for _, r := range records {
		if got := s.of[string(r.Value)]; got == 0 || got != first {
			t.Errorf("%s is in batch %d, the attempt began in %d", r.Value, got, first)
		}
	}
}

// TestPartitionerKeepsBatchesApart asks the partitioner as the client does, in
// orders that lanes side by side come to only now and then.
func TestPartitionerKeepsBatchesApart(t *testing.T) {
	p := &producer{log: slog.New(slog.DiscardHandler), hash: kgo.StickyKeyPartitioner(nil).ForTopic("t")}
	client := p.ForTopic("t").(*topicPartitioner)
	begin := func() (*attempt, *kgo.Record) {
		a := &attempt{partition: -1, handed: -1, done: make(chan struct{}), withdrawn: make(chan struct{})}
		a.first = &kgo.Record{Key: []byte("k"), Context: a}
		a.record = a.first
		return a, a.first
	}
	another := func(a *attempt) *kgo.Record {
		a.record = &kgo.Record{Key: []byte("k"), Context: a}
		return a.record
	}
	ask := func(r *kgo.Record) bool { return client.Partition(r, 1) == 0 }
	newBatch := func(r *kgo.Record) bool { // r does not fit into the last batch
		client.Partition(r, 1)
		client.OnNewBatch()
		return ask(r)
	}
	a, r := begin()
	if !newBatch(r) || !ask(another(a)) {
		t.Error("a run without others is refused")
	}
	c, r := begin()
	if !ask(r) || !ask(another(a)) || !ask(another(c)) {
		t.Error("runs that share a batch are refused")
	}
	if newBatch(another(c)) {
		t.Error("a record that continues a run begins a batch")
	}
	if !ask(another(a)) {
		t.Error("a run is refused because of a batch that was not begun")
	}
	_, r = begin()
	if !newBatch(r) {
		t.Error("a run cannot begin a batch")
	}
	if ask(another(a)) {
		t.Error("a run goes on in another batch than it began in")
	}
	d, r := begin()
	if !ask(r) || client.Partition(another(d), 2) != noPartition {
		t.Error("a run goes on although the number of partitions has changed")
	}
}

// A deriver gives records a context of its own, as tracers do, and a thief takes it
// away.
type (
	deriver struct{}
	thief   struct{}
)

func (deriver) OnProduceRecordBuffered(r *kgo.Record) {
	r.Context = context.WithValue(r.Context, deriver{}, "span")
}

func (thief) OnProduceRecordBuffered(r *kgo.Record) { r.Context = context.Background() }

// TestHooksMayDeriveContexts: hooks of the service do what they like with the
// context of a record.
func TestHooksMayDeriveContexts(t *testing.T) {
	b := startBroker(t)
	topic := newTopic(t, []string{b.address}, 2, nil)
	d := newDestination(t, Config{Brokers: []string{b.address}, Options: []kgo.Opt{kgo.WithHooks(deriver{})}}, topic)
	for n := range 3 {
		if accepted, err := d.SendRun(t.Context(), run("k", int64(10*n), int64(10*n+10))); err != nil || accepted == 0 {
			t.Errorf("run %d: %d, %v", n, accepted, err)
		}
	}
	broken := newDestination(t, Config{Brokers: []string{b.address}, Options: []kgo.Opt{kgo.WithHooks(thief{})}}, topic)
	for range 2 {
		if err := broken.Send(t.Context(), newMessage("k", 100)); err == nil {
			t.Error("a record without its context was accepted")
		}
	}
	transporttest.Eventually(t, "nothing is left open", func() bool { return broken.open.Load() == 0 })
}
