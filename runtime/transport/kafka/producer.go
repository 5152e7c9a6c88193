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

	// hand is held while a run is handed to the client, so that nothing else comes
	// between its records.
	hand sync.Mutex

	// pick guards what the partitioner knows. It is called by the client, for the
	// record that is handed over, or later for records that waited for metadata.
	pick  sync.Mutex
	now   handover
	count int   // partitions of the topic; 0 until it is known
	late  int64 // records that waited for metadata
	// placed are the partitions of records that wait for metadata; -1 until then.
	placed map[*kgo.Record]int
	robin  uint32 // for records without a key
	open   map[int]int
	since  time.Time // when open became non-empty

	users  sync.WaitGroup // sends that use it
	writes atomic.Int64   // requests with records that were written

	conn      sync.Mutex
	dialError error     // of the last try to connect, if it failed
	throttled time.Time // until then
}

// A handover is the record that hand is about.
type handover struct {
	attempt   *attempt
	record    *kgo.Record
	first     bool // of its run
	partition int
	late      int64
	// seen says that the record was given a partition, newBatch that it needs a new
	// batch, and cut that it was refused for this reason.
	seen, newBatch, cut bool
}

// newProducer returns a producer with batches of at most batchBytes.
func newProducer(c Config, topic string, batchBytes int) (*producer, error) {
	p := &producer{topic: topic, log: c.Logger, open: map[int]int{}, placed: map[*kgo.Record]int{}, made: time.Now()}
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
// broker takes whole or not at all.
type attempt struct {
	cancel context.CancelFunc
	// partition is -1 if the client did not know the topic yet; waits is the record
	// then.
	partition int
	waits     *kgo.Record
	done      chan struct{}
	// writes is the producer's count before the attempt.
	writes int64

	mu       sync.Mutex
	handed   int // -1 until all records are handed over
	answered int
	err      error
	refused  *kgo.Record // the record that did not go into the batch; nil if all did
}

// send hands records, which have one key, to the client: as many, from the first
// on, as go into one batch, and at least one. It fails when the partition has not
// answered yet.
func (p *producer) send(records []*kgo.Record) (*attempt, error) {
	p.hand.Lock()
	defer p.hand.Unlock()
	if p.isBlocked(records[0]) {
		return nil, errBlocked
	}
	ctx, cancel := context.WithCancel(context.Background())
	a := &attempt{cancel: cancel, handed: -1, done: make(chan struct{}), writes: p.writes.Load()}
	promise := a.promise
	handed := 0
	for handed < len(records) {
		r := records[handed]
		if r.Context != nil { // it was sent before, with a context that has ended
			r = again(r)
		}
		p.begin(a, r, handed == 0)
		p.client.Produce(ctx, r, promise)
		seen, cut := p.end()
		if cut {
			records[handed] = again(r)
			break
		}
		handed++
		if !seen {
			a.waits = r // or it failed: nothing may follow it
			break
		}
	}
	a.partition = p.chosen()
	a.hand(handed)
	return a, nil
}

// again returns a record like r, in which a client has left something.
func again(r *kgo.Record) *kgo.Record {
	return &kgo.Record{Topic: r.Topic, Key: r.Key, Value: r.Value, Headers: r.Headers}
}

func (p *producer) begin(a *attempt, r *kgo.Record, first bool) {
	p.pick.Lock()
	defer p.pick.Unlock()
	p.now.attempt, p.now.record, p.now.first = a, r, first
	p.now.seen, p.now.newBatch, p.now.cut = false, false, false
	if first {
		p.now.late, p.now.partition = p.late, -1
	}
}

func (p *producer) end() (seen, cut bool) {
	p.pick.Lock()
	defer p.pick.Unlock()
	if !p.now.seen {
		p.placed[p.now.record] = -1
	}
	p.now.attempt, p.now.record = nil, nil
	return p.now.seen, p.now.cut
}

// chosen returns the partition of what was just handed over.
func (p *producer) chosen() int {
	p.pick.Lock()
	defer p.pick.Unlock()
	return p.now.partition
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

// refuse says that r does not belong to the attempt.
func (a *attempt) refuse(r *kgo.Record) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refused = r
}

// hand says how many records were handed over.
func (a *attempt) hand(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.handed = n
	a.finish()
}

func (a *attempt) finish() {
	if a.answered == a.handed {
		a.cancel()
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
	a.cancel()
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
	if a.waits != nil {
		a.partition = p.placed[a.waits]
	}
	p.open[a.partition]++
	go p.reopen(a)
	return false
}

// reopen waits for the answer to an attempt that was given up.
func (p *producer) reopen(a *attempt) {
	<-a.done
	p.pick.Lock()
	defer p.pick.Unlock()
	delete(p.placed, a.waits)
	if p.open[a.partition]--; p.open[a.partition] == 0 {
		delete(p.open, a.partition)
	}
}

// forget drops what is kept about an attempt that was answered.
func (p *producer) forget(a *attempt) {
	if a.waits != nil {
		p.pick.Lock()
		defer p.pick.Unlock()
		delete(p.placed, a.waits)
	}
}

// isBlocked reports whether the partition of r has not answered yet.
func (p *producer) isBlocked(r *kgo.Record) bool {
	p.pick.Lock()
	defer p.pick.Unlock()
	switch {
	case len(p.open) == 0:
		return false
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
// begin a new batch for the record that it last asked about.
func (t *topicPartitioner) OnNewBatch() {
	p := (*producer)(t)
	p.pick.Lock()
	defer p.pick.Unlock()
	p.now.newBatch = true
}

// noPartition makes the client refuse a record.
const noPartition = -1

// Partition implements kgo.TopicPartitioner. A record that continues a run is
// refused unless it goes into the batch of the record before.
func (t *topicPartitioner) Partition(r *kgo.Record, n int) int {
	p := (*producer)(t)
	p.pick.Lock()
	defer p.pick.Unlock()
	p.notice(n)
	now := &p.now
	if now.record != r {
		p.late++ // perhaps into a batch between two records of a run
		choice := p.choose(r, n)
		if _, waits := p.placed[r]; waits {
			p.placed[r] = choice
		}
		return choice
	}
	now.seen = true
	switch {
	case now.first && now.partition < 0:
		now.partition = p.choose(r, n)
	case now.first:
	case now.newBatch, now.late != p.late, p.choose(r, n) != now.partition && r.Key != nil:
		now.cut = true
		now.attempt.refuse(r)
		return noPartition
	}
	return now.partition
}

// notice keeps the number of partitions.
func (p *producer) notice(n int) {
	if p.count != 0 && p.count != n {
		p.log.Warn("the number of partitions changed: the messages of a key that moved may be out of order around now",
			"topic", p.topic, "before", p.count, "now", n)
	}
	p.count = n
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
