package kafka

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/internal/pause"
	"github.com/lanebox/lanebox/runtime/topology"
	"github.com/lanebox/lanebox/runtime/transport/internal/envelope"
	"github.com/lanebox/lanebox/runtime/transport/internal/tally"
)

// A Source brings the records of topics to a receiver, as a member of a consumer
// group. Its methods are safe for concurrent use; each Run is a member of its own.
type Source struct {
	config  Config
	from    topology.KafkaSource
	decoder *envelope.Decoder
	log     *slog.Logger
	storing chan struct{} // limits concurrent transactions
	counts  tally.Tally
	seen    wanderers
	// leaveTimeout is what the constant says, but for tests.
	leaveTimeout time.Duration
}

// NewSource returns a source. It does not connect before Run. It returns an error
// when the configuration cannot work.
func NewSource(c Config, from topology.KafkaSource) (*Source, error) {
	fail := func(err error) (*Source, error) { return nil, fmt.Errorf("kafka source %s: %w", from.Name, err) }
	if err := c.complete(); err != nil {
		return fail(err)
	}
	if err := checkSource(from); err != nil {
		return fail(err)
	}
	decoder, err := envelope.NewDecoder(from.Extract)
	if err != nil {
		return fail(err)
	}
	s := &Source{
		config: c, from: from, decoder: decoder, log: c.Logger.With("source", from.Name),
		storing: make(chan struct{}, c.MaxStoring), leaveTimeout: leaveTimeout,
	}
	if err := kgo.ValidateOpts(s.options(nil)...); err != nil {
		return fail(err)
	}
	client, err := newClient(c.connection()) // finds options that are refused; it connects to nothing
	if err != nil {
		return fail(err)
	}
	client.Close()
	return s, nil
}

func checkSource(from topology.KafkaSource) error {
	switch {
	case len(from.Topics) == 0:
		return errors.New("no topic is named")
	case from.Group == "":
		return errors.New("no consumer group is named")
	case from.Start != "" && from.Start != "first" && from.Start != "last":
		return fmt.Errorf("the start is %q; write \"first\" or \"last\"", from.Start)
	}
	for _, topic := range from.Topics {
		if err := checkTopic(topic); err != nil {
			return err
		}
	}
	return nil
}

// Stats returns what the source has counted.
func (s *Source) Stats() inbox.SourceStats { return s.counts.Stats() }

// Times of a member of the group.
const (
	// rebalanceTimeout is how long the group waits for a member that stores.
	rebalanceTimeout = time.Minute
	commitEvery      = time.Second
)

// options returns those of a member; m may be nil to see whether they work.
func (s *Source) options(m *member) []kgo.Opt {
	options := append(s.config.connection(),
		kgo.ConsumerGroup(s.from.Group),
		kgo.ConsumeTopics(s.from.Topics...),
		kgo.Balancers(kgo.CooperativeStickyBalancer()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RebalanceTimeout(rebalanceTimeout),
		kgo.BlockRebalanceOnPoll(),
		kgo.AutoCommitMarks(),
		kgo.AutoCommitInterval(commitEvery),
		// A partition that was added later is read from its start, whatever Start
		// says, and so is one whose committed place is gone.
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	if m != nil {
		options = append(options, kgo.OnPartitionsRevoked(m.revoked), kgo.OnPartitionsLost(m.lost), kgo.WithHooks(m), kgo.WithContext(m.life))
	}
	return options
}

// Run receives until ctx ends and returns nil then. Before it returns it finishes
// the transactions in hand, commits what was stored and leaves the group; for the
// latter two it waits at most 5 s, since nothing is lost without them. The client
// reconnects by itself, for ever.
func (s *Source) Run(ctx context.Context, r *inbox.Receiver) error {
	if s.from.Start == "last" && s.begin(ctx) != nil {
		return nil // ctx ended
	}
	m := &member{source: s, receiver: r, workers: map[place]*worker{}}
	m.life, m.end = context.WithCancel(context.WithoutCancel(ctx))
	defer m.end()
	running, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	m.fail = fail
	client, err := newClient(s.options(m)) // joins the group
	if err != nil {
		return fmt.Errorf("kafka source %s: %w", s.from.Name, err)
	}
	m.client = client
	polled := make(chan struct{})
	go func() {
		defer close(polled)
		if err := m.poll(running); err != nil {
			fail(err)
		}
	}()
	<-running.Done()
	m.close() // poll may wait for a rebalance, which waits for the cluster
	<-polled
	if err := context.Cause(running); err != nil && ctx.Err() == nil {
		return fmt.Errorf("kafka source %s: %w", s.from.Name, err)
	}
	return nil
}

// begin commits the ends of all partitions as the place of a group that has none,
// so that "last" means now, once, and nothing that comes later is passed over. It
// tries until ctx ends.
func (s *Source) begin(ctx context.Context) error {
	for try := 0; ; try++ {
		err := s.tryBegin(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.log.WarnContext(ctx, "the group's place cannot be set", "group", s.from.Group, "error", err)
		if !pause.For(ctx, backoff(try, s.config.RetryBackoff)) {
			return ctx.Err()
		}
	}
}

func (s *Source) tryBegin(ctx context.Context) error {
	client, err := newClient(s.config.connection())
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	admin := kadm.NewClient(client)
	committed, err := admin.FetchOffsetsForTopics(ctx, s.from.Group, s.from.Topics...)
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
		return err
	}
	found := false
	committed.Each(func(o kadm.OffsetResponse) { found = found || o.Err == nil && o.At >= 0 })
	if found {
		return nil
	}
	ends, err := admin.ListEndOffsets(ctx, s.from.Topics...)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return err
	}
	return admin.CommitAllOffsets(ctx, s.from.Group, ends.Offsets())
}

// wanderers remember in which partition an aggregate was seen last.
type wanderers struct {
	mu   sync.Mutex
	seed maphash.Seed
	last map[uint64]int32
}

// maxWanderers bounds the memory of wanderers.
const maxWanderers = 100_000

// moved notes that an aggregate came from a partition and reports whether it came
// from another one before.
func (w *wanderers) moved(topic, aggregate string, partition int32) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last == nil {
		w.seed, w.last = maphash.MakeSeed(), map[uint64]int32{}
	}
	id := maphash.String(w.seed, topic+"\x00"+aggregate)
	before, known := w.last[id]
	if !known && len(w.last) >= maxWanderers {
		clear(w.last)
	}
	w.last[id] = partition
	return known && before != partition
}
