package kafka

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/internal/pause"
	"github.com/lanebox/lanebox/runtime/topology"
)

// A Destination writes messages to one topic. It is safe for concurrent use.
//
// Failures are classified: a record that the broker refuses for itself (too
// large, invalid) is permanent, and only after it was sent alone, since a broker
// refuses whole batches; what the client could take back unsent, or found no broker
// to write to, a topic that does not exist and missing rights are unavailable; throttling is back-pressure;
// what was sent without an answer is transient.
type Destination struct {
	config Config
	topic  string
	slots  chan struct{} // one at a time for the lone producer
	open   atomic.Int64  // records without an answer
	// How long a partition may owe an answer before the client is replaced, and how
	// old a client gets if it is ever idle.
	maxBlocked, maxAge time.Duration

	batchBytes atomic.Int64 // of shared
	closed     atomic.Bool

	mu     sync.Mutex
	ending sync.WaitGroup
	shared *producer // nil until it is needed
	lone   *producer // for records that are sent alone; nil until it is needed
}

// Times in the life of a producer. A broker forgets an idempotent producer that
// was silent for a day; a new one begins with one batch at a time.
const (
	maxBlocked = time.Minute
	maxAge     = 6 * time.Hour
)

// NewDestination returns a destination for d.Topic. It does not connect before
// the first message. It returns an error when the configuration cannot work.
func NewDestination(c Config, d topology.KafkaDestination) (*Destination, error) {
	err := c.complete()
	if err == nil {
		err = checkTopic(d.Topic)
	}
	to := &Destination{config: c, topic: d.Topic, slots: make(chan struct{}, 1), maxBlocked: maxBlocked, maxAge: maxAge}
	to.batchBytes.Store(int64(c.BatchBytes))
	if err == nil {
		to.shared, err = to.newProducer(true) // finds wrong options
	}
	if err != nil {
		return nil, fmt.Errorf("kafka destination %s: %w", d.Name, err)
	}
	return to, nil
}

// Address returns the cluster's seeds and the topic.
func (d *Destination) Address() string { return address(d.config.Brokers, d.topic) }

// MaxRun returns the longest run that SendRun takes.
func (d *Destination) MaxRun() int { return d.config.MaxRun }

// Close ends the connections; later calls of Send fail with ErrClosed. What is on
// its way fails as unanswered.
func (d *Destination) Close() error {
	d.mu.Lock()
	d.closed.Store(true)
	d.drop(&d.shared, false)
	d.drop(&d.lone, false)
	d.mu.Unlock()
	d.ending.Wait()
	return nil
}

// Send writes m and returns nil when all in-sync replicas have it.
func (d *Destination) Send(ctx context.Context, m event.Message) error {
	_, err := d.SendRun(ctx, []event.Message{m})
	return err
}

// SendRun writes the messages of one lane in order. One batch of them is on its
// way at a time. After a refusal the batches are small and grow again, so that a
// bad message is found without sending each one before it alone.
func (d *Destination) SendRun(ctx context.Context, run []event.Message) (accepted int, err error) {
	records, unfit := d.encode(run)
	if err := d.admit(len(records)); err != nil {
		return 0, d.failure(err)
	}
	defer d.open.Add(-int64(len(records)))
	for most := len(records); accepted < len(records); most *= 2 {
		if err := ctx.Err(); err != nil {
			return accepted, d.failure(event.AsUnavailable(err))
		}
		n, refused, err := d.next(ctx, records[accepted:min(accepted+most, len(records))])
		if accepted += n; err != nil {
			return accepted, d.failure(err)
		}
		if refused {
			most = 1
		}
	}
	if unfit != nil {
		return accepted, d.failure(event.AsPermanent(unfit))
	}
	return accepted, nil
}

func (d *Destination) failure(err error) error {
	class, wait := event.Classify(err)
	return &event.DeliveryError{Class: class, RetryAfter: wait, Err: fmt.Errorf("topic %s: %w", d.topic, err)}
}

// encode returns the records of a run up to the first message that cannot be
// sent, and what is wrong with that one.
func (d *Destination) encode(run []event.Message) (records []*kgo.Record, unfit error) {
	records = make([]*kgo.Record, 0, len(run))
	e := newEncoder(d.topic, d.config.Source, len(run))
	for _, m := range run {
		r, err := e.encode(m)
		if err != nil {
			return records, err
		}
		if limit := d.config.MaxBytes; limit > 0 && len(m.Payload) > limit {
			return records, fmt.Errorf("the payload has %d bytes; the limit is %d", len(m.Payload), limit)
		}
		if size := encodedSize(r); size > d.config.BatchBytes {
			return records, fmt.Errorf("the record has %d bytes with its headers; a batch takes %d", size, d.config.BatchBytes)
		}
		records = append(records, r)
	}
	return records, nil
}

// admit counts n records in, unless there are too many already.
func (d *Destination) admit(n int) error {
	if d.closed.Load() {
		return event.AsUnavailable(ErrClosed)
	}
	if open := d.open.Add(int64(n)); open > int64(n) && open > int64(d.config.MaxBuffered) {
		d.open.Add(-int64(n))
		return classify(errFull)
	}
	return nil
}

// next sends records, from the first on: as many as go into one batch, at least
// one. It returns how many are safe, and whether their batch was refused first.
func (d *Destination) next(ctx context.Context, records []*kgo.Record) (safe int, refused bool, err error) {
	fitting := d.fitting(records)
	if fitting == 0 {
		safe, err = d.alone(ctx, records[0])
		return safe, false, err
	}
	p, err := d.producer(&d.shared)
	if err != nil {
		return 0, false, err
	}
	defer p.users.Done()
	a, err := p.send(records[:fitting])
	if err != nil {
		d.giveUpBlocked(p)
		return 0, false, p.aware(classify(err))
	}
	safe, err = d.await(ctx, p, a)
	switch {
	case err == nil:
		return safe, false, nil
	case blames(err):
		safe, blamed := d.alone(ctx, records[0])
		if blamed == nil && isTooLarge(err) {
			d.shrink(p)
		}
		return safe, true, blamed
	case isFatal(err):
		d.replace(&d.shared, p, false)
	}
	return 0, false, p.aware(classify(err))
}

// await waits for the answer to a, at most until ctx ends or the time is over,
// and a little more to take back what was not written.
func (d *Destination) await(ctx context.Context, p *producer, a *attempt) (int, error) {
	timer := pause.Timer(d.config.Timeout)
	defer pause.Stop(timer)
	select {
	case <-a.done:
		return a.result()
	case <-ctx.Done():
	case <-timer.C:
	}
	grace, cancel := context.WithTimeout(context.Background(), d.grace())
	defer cancel()
	if p.withdraw(grace, a) {
		return a.result()
	}
	if p.writes.Load() == a.writes {
		return 0, errUnwritten
	}
	return 0, errUnanswered
}

// grace is how long a send may last after its context ended.
func (d *Destination) grace() time.Duration { return min(2*time.Second, d.config.Timeout/2) }

// fitting returns how many records, from the first on, fit into a batch of the
// shared producer each.
func (d *Destination) fitting(records []*kgo.Record) int {
	limit := int(d.batchBytes.Load())
	if limit == d.config.BatchBytes {
		return len(records)
	}
	for i, r := range records {
		if encodedSize(r) > limit {
			return i
		}
	}
	return len(records)
}

// alone sends one record with nothing else in its batch: the answer is about this
// record. It returns 1 when it is safe.
func (d *Destination) alone(ctx context.Context, r *kgo.Record) (int, error) {
	select {
	case d.slots <- struct{}{}:
		defer func() { <-d.slots }()
	case <-ctx.Done():
		return 0, event.AsUnavailable(ctx.Err())
	}
	p, err := d.producer(&d.lone)
	if err != nil {
		return 0, err
	}
	defer p.users.Done()
	a, err := p.send([]*kgo.Record{r})
	if err != nil {
		d.replace(&d.lone, p, false)
		return 0, p.aware(classify(err))
	}
	n, err := d.await(ctx, p, a)
	switch {
	case err == nil:
		return n, nil
	case blames(err):
		return 0, event.AsPermanent(err)
	}
	d.replace(&d.lone, p, false)
	return 0, p.aware(classify(err))
}

// shrink halves the batches: the topic takes less than they held, though it takes
// their records.
func (d *Destination) shrink(p *producer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	size := d.batchBytes.Load()
	if d.shared != p || size <= minBatchBytes {
		return
	}
	size = max(size/2, minBatchBytes)
	d.batchBytes.Store(size)
	d.config.Logger.Warn("the topic takes smaller batches than are sent: set BatchBytes to its max.message.bytes",
		"topic", d.topic, "batch_bytes", size)
	d.drop(&d.shared, true)
}

// giveUpBlocked replaces a producer that has owed an answer for too long.
func (d *Destination) giveUpBlocked(p *producer) {
	if since, ok := p.blockedSince(); ok && time.Since(since) > d.maxBlocked {
		d.config.Logger.Warn("the broker owes an answer for too long: connecting anew", "topic", d.topic, "since", since)
		d.replace(&d.shared, p, false)
	}
}

// producer returns the producer of a slot, a new one if there is none or it is
// old and idle. The caller says users.Done when it needs it no more.
func (d *Destination) producer(slot **producer) (*producer, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed.Load() {
		return nil, event.AsUnavailable(ErrClosed)
	}
	if p := *slot; p != nil && time.Since(p.made) > d.maxAge && p.client.BufferedProduceRecords() == 0 {
		d.drop(slot, true)
	}
	if *slot == nil {
		p, err := d.newProducer(slot == &d.shared)
		if err != nil {
			return nil, event.AsUnavailable(err)
		}
		*slot = p
	}
	(*slot).users.Add(1)
	return *slot, nil
}

func (d *Destination) newProducer(shared bool) (*producer, error) {
	if shared {
		return newProducer(d.config, d.topic, int(d.batchBytes.Load()))
	}
	return newProducer(d.config, d.topic, d.config.BatchBytes)
}

// replace makes the next send use a new producer, unless it does already.
func (d *Destination) replace(slot **producer, p *producer, drain bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if *slot == p {
		d.drop(slot, drain)
	}
}

// drop empties a slot and ends its producer, after what it still holds is
// answered if drain is set. It is called with d.mu held.
func (d *Destination) drop(slot **producer, drain bool) {
	p := *slot
	if p == nil {
		return
	}
	*slot = nil
	d.ending.Go(func() { p.close(drain) })
}
