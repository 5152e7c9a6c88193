package natsjs

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/internal/pause"
	"github.com/lanebox/lanebox/runtime/topology"
	"github.com/lanebox/lanebox/runtime/transport/internal/envelope"
	"github.com/lanebox/lanebox/runtime/transport/internal/tally"
)

// A Source brings the messages of a stream to a receiver. Stats may be called at
// any time; Run is for one goroutine at a time.
type Source struct {
	config   Config
	topology topology.NATSSource
	decoder  *envelope.Decoder
	counts   tally.Tally
	// resume is how far an unordered source was acknowledged when it last looked, in
	// the stream resumeLog.
	resume    uint64
	resumeLog string
}

// NewSource returns a source for a durable consumer of a stream. It connects when
// it runs. It returns an error when the configuration cannot work.
func NewSource(c Config, t topology.NATSSource) (*Source, error) {
	fail := func(err error) (*Source, error) { return nil, fmt.Errorf("nats source %s: %w", t.Name, err) }
	if err := c.complete(); err != nil {
		return fail(err)
	}
	if err := checkName("stream", t.Stream); err != nil {
		return fail(err)
	}
	if err := checkName("consumer", t.Durable); err != nil {
		return fail(err)
	}
	if t.Start != "" && t.Start != "first" && t.Start != "last" {
		return fail(fmt.Errorf("the start is %q; write \"first\" or \"last\"", t.Start))
	}
	decoder, err := envelope.NewDecoder(t.Extract)
	if err != nil {
		return fail(err)
	}
	return &Source{config: c, topology: t, decoder: decoder}, nil
}

// Stats returns what the source counted since it was made. Reordered are the
// messages that a newer one was held back for.
func (s *Source) Stats() inbox.SourceStats { return s.counts.Stats() }

// Run receives until ctx ends and returns nil then, after what was being stored is
// stored and acknowledged; a server that does not answer then is waited for no
// longer than 4 s, since nothing is lost without it. It waits for a server, a
// stream and a consumer that are not there; an error wraps an
// *event.ConfigurationError and says that the consumer, as it was found at the
// beginning, cannot keep what the schema promises.
func (s *Source) Run(ctx context.Context, r *inbox.Receiver) error {
	l, err := newLink(&s.config, s.topology.Name, &s.counts.Reconnects)
	if err != nil {
		return fmt.Errorf("nats source %s: %w", s.topology.Name, err)
	}
	defer l.close()
	started := false
	for failures := 0; ctx.Err() == nil; failures++ {
		p := &puller{source: s, link: l, receiver: r}
		err := p.run(ctx)
		started = started || p.started
		switch {
		case ctx.Err() != nil:
			return nil
		case isWrongTopology(err) && !started:
			return fmt.Errorf("nats source %s: %w", s.topology.Name, err)
		case p.progress:
			failures = 0
		}
		s.config.Logger.WarnContext(ctx, "source interrupted; it begins again", "source", s.topology.Name, "stream", s.topology.Stream, "consumer", s.topology.Durable, "error", err)
		pause.For(ctx, backoff(failures, 5*time.Second))
	}
	return nil
}

// delivered turns a delivery into what the inbox stores.
func (s *Source) delivered(log string, m jetstream.Msg, meta *jetstream.MsgMetadata) inbox.Incoming {
	r := envelope.Received{
		Fields: fields(m.Headers()), Body: m.Data(), MessageID: messageID(log, m.Headers(), meta.Sequence.Stream),
	}
	if meta.NumDelivered > 1 {
		s.counts.Redelivered.Add(1)
		r.Redelivered, r.DeliveryCount = true, int64(meta.NumDelivered)
	}
	return s.decoder.Incoming(r)
}

// read turns a message that was read from the stream into what the inbox stores.
// It had been delivered to another puller, or a delivery got lost.
func (s *Source) read(log string, m *logged) inbox.Incoming {
	s.counts.Reordered.Add(1)
	return s.decoder.Incoming(envelope.Received{
		Fields: fields(m.header), Body: m.data, MessageID: messageID(log, m.header, m.sequence), Redelivered: true,
	})
}
