package natsjs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/internal/pause"
)

// maxPull is how long one pull request waits for messages. A pinned puller shows
// with each that it is alive.
const maxPull = 5 * time.Second

// maxPullBytes bounds what one request brings. It is more than any server takes as
// one message, which would otherwise never be delivered.
const maxPullBytes = 80 << 20

// A puller takes messages from the consumer until something fails, and stores
// and acknowledges them. It is used by one goroutine.
type puller struct {
	source   *Source
	link     *link
	receiver *inbox.Receiver

	stream   jetstream.Stream
	consumer jetstream.Consumer
	ackWait  time.Duration
	log      string          // the stream, as messages without an id name it
	gate     *gate           // nil unless ordered
	pin      string          // the last pin that the server gave
	session  context.Context // the connection of the last request

	// started says that stream and consumer were found good, progress that messages
	// were stored.
	started, progress bool

	batch []item // what the next transaction stores
	bytes int    // of their payloads

	mu    sync.Mutex
	queue []jetstream.Msg // delivered and not yet in batch
	open  <-chan jetstream.Msg
}

// An item is a message of a transaction. delivery is nil if it was read from the
// stream instead.
type item struct {
	incoming inbox.Incoming
	delivery jetstream.Msg
}

// run pulls until ctx ends or something fails.
func (p *puller) run(ctx context.Context) error {
	if err := p.link.waitConnected(ctx); err != nil {
		return err
	}
	if err := p.prepare(ctx); err != nil {
		return err
	}
	p.started = true
	defer p.leave(ctx)
	for ctx.Err() == nil {
		if err := p.pull(ctx); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// prepare finds stream and consumer, and how far the source has come.
func (p *puller) prepare(ctx context.Context) error {
	s := p.source
	ctx, cancel := p.link.bound(ctx, s.config.Timeout)
	defer cancel()
	var err error
	p.stream, err = p.link.js.Stream(ctx, s.topology.Stream)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return fmt.Errorf("stream %s does not exist yet; a destination that declares it makes it with its first message: %w", s.topology.Stream, err)
	case err != nil:
		return fmt.Errorf("stream %s: %w", s.topology.Stream, err)
	}
	p.log = logName(p.stream.CachedInfo())
	from := start{after: s.resume, known: s.resumeLog == p.log}
	if s.topology.Ordered {
		p.gate = &gate{link: p.link, topology: s.topology, receiver: p.receiver, api: s.config.api(), timeout: s.config.Timeout}
		offset, ok, err := p.receiver.Position(ctx, p.log)
		if err != nil {
			return err
		}
		from = start{after: uint64(offset), known: ok}
	}
	if p.consumer, err = ensureConsumer(ctx, p.stream, s.config, s.topology, from); err != nil {
		return err
	}
	p.ackWait = p.consumer.CachedInfo().Config.AckWait
	if p.gate == nil {
		s.resume, s.resumeLog = p.consumer.CachedInfo().AckFloor.Stream, p.log
		return nil
	}
	return p.openGate(ctx, p.stream.CachedInfo())
}

// openGate finds out anew which stream this is and how far the source has come.
func (p *puller) openGate(ctx context.Context, info *jetstream.StreamInfo) error {
	err := p.gate.open(ctx, info, func(ctx context.Context) (uint64, error) {
		info, err := p.consumer.Info(ctx)
		if err != nil {
			return 0, fmt.Errorf("consumer %s: %w", p.source.topology.Durable, err)
		}
		return info.AckFloor.Stream, nil
	})
	if err != nil {
		return err
	}
	p.log = p.gate.log
	if last := info.State.LastSeq; p.gate.position > last {
		p.source.config.Logger.ErrorContext(ctx, "the stream ends before what was stored from it; it lost messages, and until it has as many again their order is that of delivery",
			"source", p.source.topology.Name, "stream", p.gate.log, "last", last, "position", p.gate.position)
	}
	return nil
}

// pull makes one request and stores what it brings.
func (p *puller) pull(ctx context.Context) error {
	session := p.link.current()
	if p.gate != nil && p.session != nil && p.session != session {
		p.gate.doubt()
	}
	p.session = session
	expiry := maxPull
	options := []jetstream.FetchOpt{jetstream.FetchMaxBytes(maxPullBytes)}
	if p.gate != nil {
		expiry = min(maxPull, p.consumer.CachedInfo().Config.PinnedTTL/3)
		options = append(options, jetstream.FetchPriorityGroup(pinGroup))
	}
	request, cancel := newPullContext(session, expiry)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	fetched, err := p.consumer.Fetch(p.source.config.Batch, append(options, jetstream.FetchContext(request))...)
	if err != nil {
		return fmt.Errorf("pull: %w", err)
	}
	p.mu.Lock()
	p.open = fetched.Messages()
	p.mu.Unlock()
	if err := p.drain(ctx); err != nil {
		return err
	}
	if session.Err() != nil && p.link.current().Err() != nil {
		return p.link.state()
	}
	return p.verdict(ctx, fetched.Error())
}

// A pullContext lets the client ask the server to end a request after expiry, and
// withdraw it at once when it is canceled. It does not end at its deadline: what is
// delivered at the last moment must not be thrown away.
type pullContext struct {
	context.Context
	deadline time.Time
}

func newPullContext(parent context.Context, expiry time.Duration) (pullContext, context.CancelFunc) {
	ctx, cancel := context.WithCancel(parent)
	// The client asks for nine tenths of the time until the deadline.
	return pullContext{ctx, time.Now().Add(expiry * 10 / 9)}, cancel
}

func (c pullContext) Deadline() (time.Time, bool) { return c.deadline, true }

// verdict says whether the end of a request is the end of the puller.
func (p *puller) verdict(ctx context.Context, err error) error {
	switch {
	case err == nil, errors.Is(err, nats.ErrTimeout), errors.Is(err, context.Canceled), errors.Is(err, jetstream.ErrPinIDMismatch):
		return nil
	case errors.Is(err, jetstream.ErrConsumerLeadershipChanged):
		pause.For(ctx, backoff(0, time.Second))
		return nil
	}
	return fmt.Errorf("pull: %w", err)
}

// drain stores what a request brings until it is over: as many messages at a time
// as there are, without waiting for more.
func (p *puller) drain(ctx context.Context) error {
	for ctx.Err() == nil {
		m := p.head()
		switch {
		case m != nil:
			if err := p.add(ctx, m); err != nil {
				return err
			}
		case len(p.batch) > 0:
			if err := p.store(ctx); err != nil {
				return err
			}
		case !p.more(ctx):
			return nil
		}
	}
	return ctx.Err()
}

// head returns the first message of the queue and leaves it there; nil when there
// is none.
func (p *puller) head() jetstream.Msg {
	p.fill()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) == 0 {
		return nil
	}
	return p.queue[0]
}

// more waits for a delivery. It reports whether there is one; otherwise the request
// is over, ctx has ended or the connection is lost.
func (p *puller) more(ctx context.Context) bool {
	p.mu.Lock()
	open := p.open
	p.mu.Unlock()
	if open == nil {
		return false
	}
	select {
	case m, ok := <-open: // closed when the request is over, for whatever reason
		if ok {
			p.mu.Lock()
			p.queue = append(p.queue, m)
			p.mu.Unlock()
		}
		return ok
	case <-p.session.Done():
	case <-ctx.Done():
	}
	return false
}

// fill moves to the queue what has been delivered.
func (p *puller) fill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.open != nil {
		select {
		case m, ok := <-p.open:
			if !ok {
				p.open = nil
				return
			}
			p.queue = append(p.queue, m)
		default:
			return
		}
	}
}

// add moves the head of the queue into the transaction, and before it what has to
// be stored before it.
func (p *puller) add(ctx context.Context, m jetstream.Msg) error {
	meta, err := m.Metadata()
	if err != nil {
		return fmt.Errorf("a delivery without metadata: %w", err)
	}
	if pin := m.Headers().Get("Nats-Pin-Id"); pin != "" {
		p.pin = pin
	}
	if p.gate != nil {
		if err := p.admit(ctx, meta); err != nil {
			return err
		}
		p.gate.pass(meta)
	}
	p.mu.Lock()
	p.queue = p.queue[1:]
	p.mu.Unlock()
	return p.append(ctx, item{p.source.delivered(p.log, m, meta), m})
}

// append adds to the transaction, and stores the one before if it is full.
func (p *puller) append(ctx context.Context, i item) error {
	p.batch = append(p.batch, i)
	p.bytes += len(i.incoming.Payload)
	if len(p.batch) < p.source.config.Batch && p.bytes < maxBatchBytes {
		return nil
	}
	return p.store(ctx)
}

// admit makes sure that everything before a delivery is stored or in the
// transaction.
func (p *puller) admit(ctx context.Context, meta *jetstream.MsgMetadata) error {
	g := p.gate
	if g.jumped(meta) {
		// Somebody else had deliveries, perhaps of another stream under this name.
		if err := p.store(ctx); err != nil {
			return err
		}
		if err := p.reopenGate(ctx); err != nil {
			return err
		}
	}
	if g.known(meta) || g.follows(meta) {
		return nil
	}
	return p.catchUp(ctx, meta.Sequence.Stream)
}

func (p *puller) reopenGate(ctx context.Context) error {
	ctx, cancel := p.link.bound(ctx, p.source.config.Timeout)
	defer cancel()
	info, err := p.stream.Info(ctx)
	if err != nil {
		return fmt.Errorf("stream %s: %w", p.source.topology.Stream, err)
	}
	return p.openGate(ctx, info)
}

// catchUp stores what the stream has between the position and a sequence.
func (p *puller) catchUp(ctx context.Context, until uint64) error {
	for ctx.Err() == nil {
		found, err := p.gate.behind(ctx, until)
		if err != nil || len(found) == 0 {
			return err
		}
		for _, m := range found {
			p.gate.position = m.sequence
			if err := p.append(ctx, item{incoming: p.source.read(p.log, m)}); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

// store commits the transaction, however often that takes, and acknowledges what
// was delivered. It gives up when ctx ends, between two tries.
func (p *puller) store(ctx context.Context) error {
	if len(p.batch) == 0 {
		return nil
	}
	if err := p.commit(ctx); err != nil {
		return err
	}
	p.progress = true
	p.acknowledge(ctx)
	p.batch, p.bytes = nil, 0
	return nil
}

// commit tries until the transaction is committed.
func (p *puller) commit(ctx context.Context) error {
	incoming := make([]inbox.Incoming, len(p.batch))
	for i := range p.batch {
		incoming[i] = p.batch[i].incoming
	}
	defer p.keepWorking()()
	for try := 0; ; try++ {
		dispositions, err := p.try(context.WithoutCancel(ctx), incoming)
		if err == nil {
			p.source.counts.Count(dispositions)
			return nil
		}
		p.source.counts.Failures.Add(1)
		p.source.config.Logger.WarnContext(ctx, "messages not stored", "source", p.source.topology.Name, "messages", len(incoming), "try", try+1, "error", err)
		if pause.For(ctx, backoff(try, 5*time.Second)); ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

func (p *puller) try(ctx context.Context, incoming []inbox.Incoming) ([]inbox.Disposition, error) {
	if p.gate == nil {
		return p.receiver.ReceiveAll(ctx, incoming...)
	}
	return p.receiver.ReceiveAt(ctx, p.gate.at(), incoming...)
}

// acknowledge acknowledges the transaction's deliveries and waits until the
// server confirms the last one. The server takes the acknowledgements of one
// connection in order, so that confirms all. One that is lost costs a repeat,
// which is found by its receipt.
func (p *puller) acknowledge(ctx context.Context) {
	var last jetstream.Msg
	for _, i := range p.batch {
		if i.delivery == nil {
			continue
		}
		if last != nil {
			last.Ack()
		}
		last = i.delivery
	}
	if last == nil {
		return
	}
	confirm, cancel := context.WithTimeout(p.link.current(), p.source.config.Timeout)
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		if pause.For(confirm, leaveTimeout) {
			cancel()
		}
	})()
	if err := last.DoubleAck(confirm); err != nil {
		p.source.config.Logger.InfoContext(ctx, "acknowledgement not confirmed; stored messages may be delivered again",
			"source", p.source.topology.Name, "messages", len(p.batch), "error", err)
	}
}

// keepWorking tells the server that messages are being worked on, until the
// returned function is called.
func (p *puller) keepWorking() (stop func()) {
	done := make(chan struct{})
	var working sync.WaitGroup
	working.Go(func() {
		ticker := time.NewTicker(max(p.ackWait/3, 10*time.Millisecond))
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
			}
			p.fill()
			for _, m := range p.inHand() {
				m.InProgress()
			}
		}
	})
	return func() {
		close(done)
		working.Wait()
	}
}

// inHand returns all deliveries that are neither stored nor given back.
func (p *puller) inHand() []jetstream.Msg {
	var messages []jetstream.Msg
	for _, i := range p.batch {
		if i.delivery != nil {
			messages = append(messages, i.delivery)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return append(messages, p.queue...)
}

// leave hands over to other replicas: another one may be pinned, and what was not
// stored is asked for again at once. No request of this puller is open any more,
// which would get it back.
func (p *puller) leave(ctx context.Context) {
	if p.open != nil {
		for m := range p.open { // closed by now, or soon
			p.queue = append(p.queue, m)
		}
	}
	p.unpin(ctx)
	for _, m := range p.inHand() {
		m.Nak()
	}
	p.batch = nil
}

// leaveTimeout is how long a source that ends waits for an answer of its server,
// once for the acknowledgement of what it has stored and once to give up its pin.
// Together that is shorter than what a box gives its feeds, so that a service ends
// well although the server does not answer.
const leaveTimeout = 2 * time.Second

// unpin gives up the pin, if the server still has it for this puller. If that
// fails it ends by itself.
func (p *puller) unpin(ctx context.Context) {
	if p.pin == "" || p.link.current().Err() != nil {
		return
	}
	ctx, cancel := p.link.bound(context.WithoutCancel(ctx), min(p.source.config.Timeout, leaveTimeout))
	defer cancel()
	info, err := p.consumer.Info(ctx)
	if err != nil {
		return
	}
	for _, g := range info.PriorityGroups {
		if g.Group == pinGroup && g.PinnedClientID == p.pin {
			p.stream.UnpinConsumer(ctx, p.source.topology.Durable, pinGroup)
		}
	}
}
