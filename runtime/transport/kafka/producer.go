package kafka

import (
	"context"
	"log/slog"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A producer is one idempotent client for one topic.
type producer struct {
	client *kgo.Client
	hash   kgo.TopicPartitioner // by key, as all Kafka clients do
	topic  string
	log    *slog.Logger
	made   time.Time

	// pick guards what the partitioner knows, which the client calls when a record
	// is handed over, or later for a record that waited for metadata.
	pick    sync.Mutex
	count   int          // partitions of the topic; 0 until it is known
	fresh   bool         // the record that is asked about next begins a batch
	batches []int        // how many batches the client began, by partition
	robin   uint32       // for records without a key
	open    map[int]int  // attempts without an answer that were given up, by partition
	since   time.Time    // when open became non-empty
	owing   atomic.Int64 // the sum of open, for those that need no more than "none"

	users  sync.WaitGroup // sends that use it
	writes atomic.Int64   // requests with records that were written

	conn      sync.Mutex
	dialError error     // of the last try to connect, if it failed
	throttled time.Time // until then
}

// newProducer returns a producer with batches of at most batchBytes.
func newProducer(c Config, topic string, batchBytes int) (*producer, error) {
	p := &producer{topic: topic, log: c.Logger, open: map[int]int{}, made: time.Now()}
	p.hash = kgo.StickyKeyPartitioner(nil).ForTopic(topic)
	options := append(c.connection(),
		kgo.RecordPartitioner(p),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerBatchMaxBytes(int32(batchBytes)),
		kgo.BrokerMaxWriteBytes(int32(max(batchBytes+1<<20, 100<<20))),
		kgo.MaxBufferedRecords(math.MaxInt32), // the destination counts: the client would break a run
		kgo.MaxBufferedBytes(0),
		kgo.RecordRetries(math.MaxInt32),
		kgo.RecordDeliveryTimeout(0),
		kgo.UnknownTopicRetries(2),
		kgo.ProduceRequestTimeout(max(time.Second, c.Timeout)),
		kgo.ProducerLinger(c.Linger),
		kgo.ProducerOnDataLossDetected(func(topic string, partition int32) {
			p.log.Warn("the broker does not know what this producer sent before: it may have lost acknowledged records", "topic", topic, "partition", partition)
		}),
		kgo.WithHooks(p),
	)
	client, err := newClient(options)
	p.client = client
	return p, err
}

// An attempt is a part of a run on its way: all of it in one batch, which the
// broker takes whole or not at all. It is the context of its records, by which the
// partitioner finds it.
type attempt struct {
	withdrawn chan struct{} // closed when the records shall not be sent any more
	done      chan struct{} // closed when all are answered
	first     *kgo.Record
	// writes is the producer's count before the attempt.
	writes int64
	owed   int // the partition as it is counted in producer.open

	mu        sync.Mutex
	partition int // -1 until it is chosen
	count     int // of the partitions, when it was chosen
	batch     int // that the first record went into, by its number
	// record is being handed over; seen says that it was given a partition.
	record   *kgo.Record
	seen     bool
	handed   int // -1 until all records are handed over
	answered int
	err      error
	refused  *kgo.Record // it would have come into another batch; nil if all fit
}

// send hands records, which have one key, to the client: as many, from the first
// on, as go into one batch, and at least one. Others may send meanwhile, even into
// the same batch. It fails when the partition has not answered yet.
func (p *producer) send(records []*kgo.Record) (*attempt, error) {
	if p.isBlocked(records[0]) {
		return nil, errBlocked
	}
	for i, r := range records {
		if r.Context != nil { // it was sent before, in an attempt that has ended
			records[i] = again(r)
		}
	}
	a := &attempt{
		withdrawn: make(chan struct{}), done: make(chan struct{}),
		first: records[0], record: records[0], partition: -1, handed: -1, writes: p.writes.Load(),
	}
	promise := a.promise
	for i, r := range records {
		p.client.Produce(a, r, promise)
		if !a.next(records, i) {
			break
		}
	}
	return a, nil
}

// Deadline implements context.Context.
func (*attempt) Deadline() (deadline time.Time, ok bool) { return }

// Done implements context.Context.
func (a *attempt) Done() <-chan struct{} { return a.withdrawn }

// Err implements context.Context.
func (a *attempt) Err() error {
	select {
	case <-a.withdrawn:
		return context.Canceled
	default:
		return nil
	}
}

// Value implements context.Context.
func (a *attempt) Value(key any) any {
	if key == (attemptKey{}) {
		return a
	}
	return nil
}

// attemptKey finds an attempt in the context of its records, which hooks of the
// service may have derived another one from.
type attemptKey struct{}

// attemptOf returns the attempt that r belongs to; nil if a hook took its context
// away.
func attemptOf(r *kgo.Record) *attempt {
	if r.Context == nil {
		return nil
	}
	a, _ := r.Context.Value(attemptKey{}).(*attempt)
	return a
}

// again returns a record like r, in which a client has left something.
func again(r *kgo.Record) *kgo.Record {
	return &kgo.Record{Topic: r.Topic, Key: r.Key, Value: r.Value, Headers: r.Headers}
}

// next reports whether another record is to be handed over, behind the one at i.
// Nothing may follow a record that waits for metadata or has failed.
func (a *attempt) next(records []*kgo.Record, i int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.refused != nil:
		a.handed = i
	case a.seen && i+1 < len(records):
		a.record, a.seen = records[i+1], false
		return true
	default:
		a.handed = i + 1
	}
	a.record = nil
	a.finish()
	return false
}

// promise is called by the client with the fate of each record.
func (a *attempt) promise(r *kgo.Record, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r == a.refused {
		return
	}
	a.answered++
	if a.err == nil {
		a.err = err
	}
	a.finish()
}

func (a *attempt) finish() {
	if a.answered == a.handed {
		close(a.done)
	}
}

// result returns how many records are safe: all that were handed over, or none,
// and why. It is called when done is closed.
func (a *attempt) result() (int, error) {
	if a.err != nil {
		return 0, a.err
	}
	return a.handed, nil
}

// withdraw is called for an attempt without an answer. The client drops its
// records if no broker can have taken them; withdraw reports whether that, or the
// answer, came before ctx ended. Otherwise nothing more is sent to the partition
// until the answer comes.
func (p *producer) withdraw(ctx context.Context, a *attempt) bool {
	close(a.withdrawn)
	select {
	case <-a.done:
		return true
	case <-ctx.Done():
	}
	p.pick.Lock()
	defer p.pick.Unlock()
	if len(p.open) == 0 {
		p.since = time.Now()
	}
	a.owed = a.place()
	p.open[a.owed]++
	p.owing.Add(1)
	go p.reopen(a)
	return false
}

// place returns the partition, -1 if the client did not know the topic yet.
func (a *attempt) place() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.partition
}

// reopen waits for the answer to an attempt that was given up.
func (p *producer) reopen(a *attempt) {
	<-a.done
	p.pick.Lock()
	defer p.pick.Unlock()
	p.owing.Add(-1)
	if p.open[a.owed]--; p.open[a.owed] == 0 {
		delete(p.open, a.owed)
	}
}

// isBlocked reports whether the partition of r has not answered yet.
func (p *producer) isBlocked(r *kgo.Record) bool {
	if p.owing.Load() == 0 {
		return false
	}
	p.pick.Lock()
	defer p.pick.Unlock()
	switch {
	case p.count == 0 || p.open[-1] > 0 || r.Key == nil:
		return p.open[-1] > 0 || r.Key == nil && len(p.open) >= p.count
	}
	return p.open[p.hash.Partition(r, p.count)] > 0
}

// blockedSince returns since when some partition has not answered; ok is false
// when none is waited for.
func (p *producer) blockedSince() (since time.Time, ok bool) {
	p.pick.Lock()
	defer p.pick.Unlock()
	return p.since, len(p.open) > 0
}

// close ends the client; what it still holds fails. With drain it first waits for
// the sends that use it, none of which lasts for ever.
func (p *producer) close(drain bool) {
	if drain {
		p.users.Wait()
	}
	p.client.Close()
}

// ForTopic implements kgo.Partitioner; the client has one topic.
func (p *producer) ForTopic(string) kgo.TopicPartitioner { return (*topicPartitioner)(p) }

// A topicPartitioner chooses partitions and keeps the records of a run in one
// batch.
type topicPartitioner producer

// RequiresConsistency implements kgo.TopicPartitioner.
func (*topicPartitioner) RequiresConsistency(*kgo.Record) bool { return true }

// OnNewBatch implements kgo.TopicPartitionerOnNewBatch: the client is about to
// begin a new batch for the record that it last asked about, and asks again.
func (t *topicPartitioner) OnNewBatch() {
	p := (*producer)(t)
	p.pick.Lock()
	defer p.pick.Unlock()
	p.fresh = true
}

// noPartition makes the client refuse a record.
const noPartition = -1

// Partition implements kgo.TopicPartitioner. A record that continues a run is
// refused unless it goes into the batch of the record before: no other may have
// been begun for the partition, by whomever.
func (t *topicPartitioner) Partition(r *kgo.Record, n int) int {
	p, a := (*producer)(t), attemptOf(r)
	if a == nil {
		return noPartition
	}
	p.pick.Lock()
	defer p.pick.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	p.notice(n)
	fresh := p.fresh
	p.fresh = false
	switch {
	case r == a.first:
		if a.partition < 0 {
			a.partition, a.count = p.choose(r, n), n
		}
	case r != a.record: // it waited for metadata and cannot be refused any more
	case fresh, p.batches[a.partition] != a.batch, n != a.count:
		a.refused = r
		return noPartition
	}
	if fresh {
		p.batches[a.partition]++
	}
	if r == a.first {
		a.batch = p.batches[a.partition]
	}
	a.seen = true
	return a.partition
}

// notice keeps the number of partitions.
func (p *producer) notice(n int) {
	if p.count != 0 && p.count != n {
		p.log.Warn("the number of partitions changed: the messages of a key that moved may be out of order around now",
			"topic", p.topic, "before", p.count, "now", n)
	}
	p.count = n
	for len(p.batches) < n {
		p.batches = append(p.batches, 0)
	}
}

func (p *producer) choose(r *kgo.Record, n int) int {
	if r.Key != nil {
		return p.hash.Partition(r, n)
	}
	for range n {
		p.robin++
		if p.open[int(p.robin)%n] == 0 {
			break
		}
	}
	return int(p.robin) % n
}

// OnBrokerConnect implements kgo.HookBrokerConnect.
func (p *producer) OnBrokerConnect(_ kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	p.conn.Lock()
	defer p.conn.Unlock()
	p.dialError = err
}

// produceKey is the number of the requests that carry records.
const produceKey = 0

// OnBrokerWrite implements kgo.HookBrokerWrite.
func (p *producer) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, written int, _, _ time.Duration, _ error) {
	if key == produceKey && written > 0 {
		p.writes.Add(1)
	}
}

// OnBrokerThrottle implements kgo.HookBrokerThrottle.
func (p *producer) OnBrokerThrottle(_ kgo.BrokerMetadata, interval time.Duration, _ bool) {
	p.conn.Lock()
	defer p.conn.Unlock()
	p.throttled = time.Now().Add(interval)
}
