package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/internal/rescue"
	"github.com/lanebox/lanebox/runtime/topology"
	"github.com/lanebox/lanebox/runtime/transport/internal/envelope"
	"github.com/lanebox/lanebox/runtime/transport/internal/tally"
)

// DefaultPrefetch bounds the unacknowledged messages of a queue.
const DefaultPrefetch = 256

// A Source brings the messages of its queues to the inbox, each queue by one
// goroutine and in the order of its deliveries. See the package documentation for
// what it promises.
type Source struct {
	config  Config
	t       topology.RabbitMQSource
	start   any // where a new stream begins, as the broker takes it
	decoder *envelope.Decoder
	tracker *tracker
	counts  tally.Tally
	// idle is after which time without a message a queue is looked at.
	idle time.Duration
}

// NewSource returns a source as the schema describes it. It returns an error when
// c or t cannot work; it does not connect.
func NewSource(c Config, t topology.RabbitMQSource) (*Source, error) {
	fail := func(err error) (*Source, error) { return nil, fmt.Errorf("rabbitmq source %s: %w", t.Name, err) }
	if err := c.complete(); err != nil {
		return fail(err)
	}
	if err := checkSource(t); err != nil {
		return fail(err)
	}
	decoder, err := envelope.NewDecoder(t.Extract)
	if err != nil {
		return fail(err)
	}
	start, err := streamStart(t.Offset)
	if err != nil {
		return fail(err)
	}
	t.Queues = slices.Clone(t.Queues)
	if t.Prefetch == 0 {
		t.Prefetch = DefaultPrefetch
	}
	s := &Source{config: c, t: t, start: start, decoder: decoder, idle: 5 * time.Second}
	s.tracker = newTracker(&s.counts, c.Logger.With("source", t.Name))
	return s, nil
}

func checkSource(t topology.RabbitMQSource) error {
	switch {
	case len(t.Queues) == 0:
		return errors.New("there is no queue")
	case slices.Contains(t.Queues, ""):
		return errors.New("a queue has no name")
	case len(slices.Compact(slices.Sorted(slices.Values(t.Queues)))) != len(t.Queues):
		return errors.New("a queue is named twice")
	case t.Prefetch < 0 || t.Prefetch > 65535:
		return errors.New("the prefetch must be between 0 and 65535")
	case t.Offset != "" && !t.Stream:
		return errors.New("only streams have an offset")
	case t.Stream:
		return checkNames(t.Queues)
	}
	return nil
}

// Stats returns what the source counted since it was made.
func (s *Source) Stats() inbox.SourceStats { return s.counts.Stats() }

// Run receives until ctx ends and returns nil then, after what was being stored is
// stored and acknowledged; a broker that does not answer then is waited for no
// longer than 4 s, since nothing is lost without it. It connects again for ever. A
// queue that does not keep the order which the schema wants is an error, a
// *TopologyError; a queue that does not exist is waited for.
func (s *Source) Run(ctx context.Context, r *inbox.Receiver) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := &connector{config: s.config, prepare: func(*link) error { return nil }}
	storing := &sync.RWMutex{}
	errs := make(chan error, len(s.t.Queues))
	var all sync.WaitGroup
	for _, name := range s.t.Queues {
		all.Go(func() {
			q := &consumer{source: s, connector: c, receiver: r, storing: storing, queue: name, log: s.config.Logger.With("source", s.t.Name, "queue", name)}
			if err := q.run(ctx); err != nil {
				errs <- err
				cancel()
			}
		})
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		all.Wait()
	}()
	waitUntil(ctx, ended, storing)
	c.close() // whoever still waits for an answer waits no more
	<-ended
	close(errs)
	return <-errs
}

// waitUntil returns when the consumers have ended or, after ctx ended and what was
// being stored is stored, have had time enough to say so to the broker. Once ctx has
// ended no transaction begins any more.
func waitUntil(ctx context.Context, ended <-chan struct{}, storing *sync.RWMutex) {
	select {
	case <-ended:
		return
	case <-ctx.Done():
	}
	awaitReaders(storing)
	timer := time.NewTimer(closeTime)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
	}
}

// awaitReaders returns when those who hold m now have let it go.
func awaitReaders(m *sync.RWMutex) {
	m.Lock()
	defer m.Unlock()
}

// A consumer takes the messages of one queue.
type consumer struct {
	source    *Source
	connector *connector
	receiver  *inbox.Receiver
	storing   *sync.RWMutex // read-locked while a transaction is under way
	queue     string
	log       *slog.Logger
	sessions  int
	moved     bool   // this session has brought a message
	stream    stream // what is recorded of it, if the queue is one
}

// run consumes until ctx ends; it returns an error when the queue cannot be used,
// or after a panic.
func (q *consumer) run(ctx context.Context) (err error) {
	defer rescue.Panic(&err)
	wait := backoff{first: 50 * time.Millisecond, last: 5 * time.Second}
	for {
		q.moved = false
		err := q.session(ctx)
		if ctx.Err() != nil {
			return nil
		}
		var wrong *TopologyError
		if errors.As(err, &wrong) {
			return err
		}
		q.log.WarnContext(ctx, "consuming was interrupted; it goes on with a new channel", "error", err)
		if q.moved {
			wait.reset()
		}
		if !wait.pause(ctx) {
			return nil
		}
	}
}

// session consumes over one channel until that ends, or ctx does.
func (q *consumer) session(ctx context.Context) error {
	l, err := q.connector.get(ctx)
	if err != nil {
		return err
	}
	release, err := q.source.occupy(ctx, l, q.queue)
	if err != nil {
		return err
	}
	defer release()
	_, missing := l.find(q.queue)
	if err := q.recall(ctx, missing); err != nil {
		return err
	}
	if err := q.source.checkQueue(l, q.queue, missing); err != nil {
		return err
	}
	ch, err := l.conn.Channel()
	if err != nil {
		return err
	}
	// Closing the channel gives back what is not acknowledged, behind the
	// acknowledgements on it.
	defer ch.Close()
	if q.sessions++; q.sessions > 1 {
		q.source.counts.Reconnects.Add(1)
	}
	closes := ch.NotifyClose(make(chan *amqp.Error, 1))
	if err := ch.Qos(q.source.t.Prefetch, 0, false); err != nil {
		return err
	}
	deliveries, err := ch.Consume(q.queue, "", false, false, false, false, q.begin())
	if err != nil {
		return q.source.wrong(q.queue, err)
	}
	err = q.consume(ctx, l, &intake{deliveries: buffered(deliveries, q.source.t.Prefetch), ack: ch.Ack, ended: ch.IsClosed, position: q.stream.read.Offset})
	select {
	case why := <-closes:
		return errors.Join(err, orNil(why))
	default:
		return err
	}
}

// orNil keeps a nil pointer from becoming an error.
func orNil(err *amqp.Error) error {
	if err == nil {
		return nil
	}
	return err
}

// buffered moves deliveries into a channel that takes as many as can be unacknowledged,
// so that a batch finds all that have come.
func buffered(in <-chan amqp.Delivery, n int) <-chan amqp.Delivery {
	out := make(chan amqp.Delivery, n)
	go func() {
		defer close(out)
		for d := range in {
			out <- d
		}
	}()
	return out
}

// An intake is what one channel brings.
type intake struct {
	deliveries <-chan amqp.Delivery
	ack        func(tag uint64, multiple bool) error
	ended      func() bool
	position   int64 // of the last message of a stream that is stored; -1 if none is
	began      bool  // something has come
}

// errCancelled is why deliveries ended when nobody said.
var errCancelled = errors.New("the broker ended the consumer: its queue was deleted or moved")

func (q *consumer) consume(ctx context.Context, l *link, in *intake) error {
	idle := time.NewTimer(q.source.idle)
	defer idle.Stop()
	for {
		idle.Reset(q.source.idle)
		select {
		case <-ctx.Done():
			return nil
		case <-idle.C:
			if err := q.look(l); err != nil {
				return err
			}
		case first, ok := <-in.deliveries:
			if !ok {
				return errCancelled
			}
			if ctx.Err() != nil {
				return nil
			}
			if err := q.take(ctx, in, gather(first, in.deliveries, q.source.t.Prefetch)); err != nil {
				return err
			}
		}
	}
}

// look checks that the queue still has a consumer. When a quorum queue is deleted
// and declared again at once, the broker may forget its consumers without a word.
// Of a stream it does not always know how many there are.
func (q *consumer) look(l *link) error {
	found, err := l.find(q.queue)
	if err == nil && found.Consumers == 0 && !q.source.t.Stream {
		err = errCancelled
	}
	return err
}

// batchBytes bounds the bodies of one transaction, unless a single one is larger.
const batchBytes = 4 << 20

// gather returns first and what has come behind it.
func gather(first amqp.Delivery, more <-chan amqp.Delivery, limit int) []amqp.Delivery {
	batch, size := []amqp.Delivery{first}, len(first.Body)
	for len(batch) < limit && size < batchBytes {
		select {
		case d, ok := <-more:
			if !ok {
				return batch // its end is found by the next look
			}
			batch, size = append(batch, d), size+len(d.Body)
		default:
			return batch
		}
	}
	return batch
}

// take stores a batch and acknowledges it. The batch is an unbroken piece of what
// the channel delivered, and all before it is acknowledged.
func (q *consumer) take(ctx context.Context, in *intake, batch []amqp.Delivery) error {
	last := batch[len(batch)-1].DeliveryTag
	if !in.began {
		in.began = true
		q.lookForGap(batch[0], in.position)
	}
	messages, at := q.decode(batch, in.position)
	if len(messages) == 0 {
		return in.ack(last, true)
	}
	q.source.tracker.putRight(messages)
	dispositions, err := q.store(ctx, in, messages, at)
	if err != nil {
		return err
	}
	q.source.counts.Count(dispositions)
	q.source.tracker.note(q.queue, messages, dispositions)
	in.position, q.moved = at, true
	return in.ack(last, true)
}

// decode returns what a batch holds, and the offset of its last message. Messages
// of a stream that are stored already are left out: the broker may begin earlier
// than it was asked to.
func (q *consumer) decode(batch []amqp.Delivery, position int64) ([]inbox.Incoming, int64) {
	messages := make([]inbox.Incoming, 0, len(batch))
	at := position
	for _, d := range batch {
		r := received(d)
		if q.source.t.Stream {
			offset, _ := integer(d.Headers[offsetHeader])
			if offset <= position {
				continue
			}
			at = offset
			if r.MessageID == "" {
				r.MessageID = q.stream.read.Log + "/" + strconv.FormatInt(offset, 10)
			}
		}
		if d.Redelivered {
			q.source.counts.Redelivered.Add(1)
		}
		messages = append(messages, q.source.decoder.Incoming(r))
	}
	return messages, at
}

// store stores messages, as often as it takes while their channel lives. A
// transaction in hand is finished when ctx ends.
func (q *consumer) store(ctx context.Context, in *intake, messages []inbox.Incoming, at int64) ([]inbox.Disposition, error) {
	wait := backoff{first: 50 * time.Millisecond, last: 10 * time.Second}
	for {
		dispositions, err := q.storeOnce(ctx, messages, at)
		if err == nil {
			return dispositions, nil
		}
		if errors.Is(err, errEnded) {
			return nil, err
		}
		q.source.counts.Failures.Add(1)
		q.log.WarnContext(ctx, "messages could not be stored; they are kept and tried again", "count", len(messages), "error", err)
		if !wait.pause(ctx) {
			return nil, ctx.Err()
		}
		if in.ended() {
			return nil, errLost // they will be delivered again
		}
	}
}

// errEnded says that the source ended before a transaction began.
var errEnded = errors.New("the source ends")

// storeOnce tries once. A transaction that has begun does not end with ctx.
func (q *consumer) storeOnce(ctx context.Context, messages []inbox.Incoming, at int64) ([]inbox.Disposition, error) {
	q.storing.RLock()
	defer q.storing.RUnlock()
	if ctx.Err() != nil { // nobody may wait for it any more
		return nil, errEnded
	}
	ctx = context.WithoutCancel(ctx)
	if q.source.t.Stream {
		return q.receiver.ReceiveAt(ctx, inbox.Position{Log: q.stream.read.Log, Offset: at}, messages...)
	}
	return q.receiver.ReceiveAll(ctx, messages...)
}

// checkQueue declares a queue, or checks the one that exists; err is why it was not
// found.
func (s *Source) checkQueue(l *link, name string, err error) error {
	if code(err) == amqp.NotFound && !s.t.Declare {
		return fmt.Errorf("queue %s does not exist yet, and this source does not declare it: %w", name, err)
	}
	if err != nil && code(err) != amqp.NotFound {
		return s.wrong(name, err)
	}
	if err == nil && !s.t.Ordered && !s.t.Stream {
		return nil
	}
	found, err := l.declare(workQueue(name, s.t.Ordered, s.t.Stream, s.t.DeliveryLimit, s.t.DeadLetterExchange))
	if err != nil {
		return s.wrong(name, err)
	}
	return s.checkFound(found)
}

// checkFound refuses a queue that cannot keep what the schema promises.
func (s *Source) checkFound(q queue) error {
	stream := q.text(argType) == "stream"
	if stream != s.t.Stream {
		return misconfigured(s.t.Name, q.name, "the schema wants stream: %t, and the queue is of type %q; change the schema", s.t.Stream, q.text(argType))
	}
	if !s.t.Ordered {
		return nil
	}
	if err := q.cannotOrder(); err != nil {
		return misconfigured(s.t.Name, q.name,
			"%v; declare it anew with x-single-active-consumer: true and without priorities and a TTL, or write ordered: false for this source if its messages need no order", err)
	}
	return nil
}

// wrong explains an error about a queue. One that an operator has to put right is
// a *TopologyError.
func (s *Source) wrong(name string, err error) error {
	switch {
	case errors.Is(err, errUnknowable):
		return misconfigured(s.t.Name, name, "whether it keeps the order cannot be found out: %v; write ordered: false for this source if its messages need no order", err)
	case code(err) == amqp.AccessRefused && s.t.Ordered:
		return misconfigured(s.t.Name, name, "the user may not read or declare it: %v; an ordered source needs the configure permission to check the queue, or write ordered: false", err)
	case code(err) == amqp.AccessRefused:
		return misconfigured(s.t.Name, name, "the user may not read it: %v", err)
	}
	return fmt.Errorf("queue %s: %w", name, err)
}
