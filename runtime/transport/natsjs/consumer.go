package natsjs

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/lanebox/lanebox/runtime/topology"
)

// pinGroup is the priority group in which the pullers of an ordered source take
// turns.
const pinGroup = "lanebox"

// A start says where a consumer that is made now begins.
type start struct {
	// after is the stream sequence behind which it begins.
	after uint64
	// known says that after is how far the source has come before; otherwise the
	// schema's Start decides.
	known bool
}

// ensureConsumer returns the durable consumer of a source, and makes it if it is
// missing.
func ensureConsumer(ctx context.Context, stream jetstream.Stream, c Config, t topology.NATSSource, from start) (jetstream.Consumer, error) {
	consumer, err := stream.Consumer(ctx, t.Durable)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		consumer, err = stream.CreateConsumer(ctx, consumerConfig(c, t, from, stream.CachedInfo()))
		if errors.Is(err, jetstream.ErrConsumerExists) { // another replica was faster
			consumer, err = stream.Consumer(ctx, t.Durable)
		}
	}
	if errors.Is(err, jetstream.ErrNotPullConsumer) {
		return nil, wrongTopology("consumer "+t.Durable, "is a push consumer; a source pulls")
	}
	if err != nil {
		return nil, fmt.Errorf("consumer %s: %w", t.Durable, err)
	}
	return consumer, checkConsumer(t, consumer.CachedInfo().Config)
}

func consumerConfig(c Config, t topology.NATSSource, from start, stream *jetstream.StreamInfo) jetstream.ConsumerConfig {
	config := jetstream.ConsumerConfig{
		Durable: t.Durable, Description: "declared by lanebox for source " + t.Name,
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: c.AckWait, MaxDeliver: -1, MaxAckPending: c.MaxAckPending,
		DeliverPolicy: jetstream.DeliverAllPolicy,
	}
	switch len(t.Subjects) {
	case 0:
	case 1:
		config.FilterSubject = t.Subjects[0]
	default:
		config.FilterSubjects = slices.Clone(t.Subjects)
	}
	if !from.known && t.Start == "last" {
		from.after = stream.State.LastSeq
	}
	// A work queue forgets what was acknowledged, and lets consumers begin at its
	// beginning only.
	if from.after > 0 && stream.Config.Retention != jetstream.WorkQueuePolicy {
		// By its number and not as "new": what is published from now on belongs to it,
		// however long making the consumer takes.
		config.DeliverPolicy, config.OptStartSeq = jetstream.DeliverByStartSequencePolicy, from.after+1
	}
	if t.Ordered {
		config.PriorityPolicy, config.PriorityGroups, config.PinnedTTL = jetstream.PriorityPolicyPinned, []string{pinGroup}, c.Takeover
		if config.MaxAckPending == 0 {
			config.MaxAckPending = 4 * c.Batch
		}
	}
	return config
}

// checkConsumer says what is wrong with a consumer, whoever made it.
func checkConsumer(t topology.NATSSource, c jetstream.ConsumerConfig) error {
	what := "consumer " + t.Durable
	switch {
	case c.DeliverSubject != "":
		return wrongTopology(what, "is a push consumer; a source pulls")
	case c.AckPolicy != jetstream.AckExplicitPolicy:
		return wrongTopology(what, "has the acknowledgement policy %v; a source needs explicit", c.AckPolicy)
	case c.MaxDeliver > 0:
		return wrongTopology(what, "gives a message up after %d deliveries (max_deliver); while the database is down that loses it", c.MaxDeliver)
	case c.HeadersOnly:
		return wrongTopology(what, "delivers headers only")
	case c.InactiveThreshold > 0:
		return wrongTopology(what, "is deleted when nobody pulls for %v (inactive_threshold)", c.InactiveThreshold)
	case !sameSubjects(t.Subjects, filters(c)):
		return wrongTopology(what, "has the filter %q; the schema says %q", filters(c), t.Subjects)
	case t.Ordered && (c.PriorityPolicy != jetstream.PriorityPolicyPinned || !slices.Contains(c.PriorityGroups, pinGroup)):
		return wrongTopology(what, "does not pin one puller at a time (priority_policy pinned_client with the group %q, from nats-server 2.11 on); without it say ordered: false", pinGroup)
	case !t.Ordered && c.PriorityPolicy != jetstream.PriorityPolicyNone:
		return wrongTopology(what, "has a priority policy; it belongs to an ordered source")
	}
	return nil
}

func filters(c jetstream.ConsumerConfig) []string {
	if c.FilterSubject != "" {
		return []string{c.FilterSubject}
	}
	return c.FilterSubjects
}

func sameSubjects(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}
