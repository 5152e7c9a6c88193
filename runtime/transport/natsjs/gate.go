package natsjs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/topology"
)

// A gate knows how far the messages of an ordered source are stored without a
// gap, and whether a delivery is the next one. See the package's documentation.
// It is not safe for concurrent use.
type gate struct {
	link     *link
	topology topology.NATSSource
	receiver *inbox.Receiver
	api      string // what the subjects of JetStream's requests begin with
	timeout  time.Duration

	// log names the stream in this life of it.
	log string
	// position is the stream sequence up to which everything is stored or in the
	// transaction that is being made.
	position uint64
	// chained says that the last first delivery of the consumer is at or before
	// position; expected is then the number of the delivery that may follow.
	chained  bool
	expected uint64
	// reads is how many messages are asked for at a time.
	reads int
}

// open finds out which stream this is and how far the source has come in it.
func (g *gate) open(ctx context.Context, stream *jetstream.StreamInfo, floor func(context.Context) (uint64, error)) error {
	g.chained, g.expected, g.reads = false, 0, 1
	g.log = logName(stream)
	offset, ok, err := g.receiver.Position(ctx, g.log)
	if err != nil {
		return err
	}
	g.position = uint64(offset)
	if !ok {
		// Nothing is recorded: what the consumer's acknowledgements say counts.
		g.position, err = floor(ctx)
	}
	return err
}

// logName names a stream so that one that was deleted and made again under the
// same name is another one.
func logName(stream *jetstream.StreamInfo) string {
	return stream.Config.Name + "@" + stream.Created.UTC().Format(time.RFC3339Nano)
}

// known reports whether a delivery is behind the position; it is a repeat then,
// unless the stream lost its end and counts again.
func (g *gate) known(m *jetstream.MsgMetadata) bool { return m.Sequence.Stream <= g.position }

// jumped reports whether deliveries before this one went elsewhere: to another
// puller, or nowhere.
func (g *gate) jumped(m *jetstream.MsgMetadata) bool {
	return g.expected != 0 && m.Sequence.Consumer != g.expected
}

// doubt makes the next delivery count as one that jumped: the connection was lost,
// and nobody told what happened meanwhile.
func (g *gate) doubt() { g.chained, g.expected = false, math.MaxUint64 }

// follows reports whether a delivery is the next message, as far as its numbers
// tell: nothing is between a sequence and the next.
func (g *gate) follows(m *jetstream.MsgMetadata) bool {
	return m.Sequence.Stream == g.position+1 || g.unbroken(m) && m.NumDelivered == 1
}

// unbroken reports whether no delivery is missing before this one.
func (g *gate) unbroken(m *jetstream.MsgMetadata) bool {
	return g.chained && m.Sequence.Consumer == g.expected
}

// pass records a delivery whose message is stored or in the transaction now.
func (g *gate) pass(m *jetstream.MsgMetadata) {
	// A repeat says nothing about what the consumer delivers next, but it breaks no
	// chain either. One from behind the position contradicts the chain.
	g.chained = m.NumDelivered == 1 || g.unbroken(m) && g.known(m)
	g.expected = m.Sequence.Consumer + 1
	g.position = max(g.position, m.Sequence.Stream)
}

// at returns the position as it is recorded.
func (g *gate) at() inbox.Position {
	return inbox.Position{Log: g.log, Offset: int64(min(g.position, math.MaxInt64))}
}

// A logged is a message as the stream keeps it.
type logged struct {
	sequence uint64
	header   nats.Header
	data     []byte
	subject  string
}

// maxReads is how many messages are read from the stream at a time.
const maxReads = 64

// behind returns the messages behind the position that the consumer would
// deliver: the next one, and perhaps some that follow it without a gap, none from
// until on. It returns none when there is none.
func (g *gate) behind(ctx context.Context, until uint64) ([]*logged, error) {
	// What comes at or behind position+1, position+2 and so on: every message of that
	// range is the answer to one of these questions.
	count := int(min(uint64(g.reads), until-g.position))
	answers := make([]*logged, count)
	errs := make([]error, count)
	var reading sync.WaitGroup
	for i := range count {
		reading.Go(func() { answers[i], errs[i] = g.next(ctx, g.position+1+uint64(i)) })
	}
	reading.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	var found []*logged
	for _, m := range answers {
		if m != nil && m.sequence < until && (len(found) == 0 || m.sequence > found[len(found)-1].sequence) {
			found = append(found, m)
		}
	}
	g.adapt(count, len(found))
	return found, nil
}

// adapt asks more at a time while every answer is another message, and less where
// the filter or deleted messages leave wide gaps.
func (g *gate) adapt(asked, found int) {
	if found == asked {
		g.reads = min(2*g.reads, maxReads)
	} else {
		g.reads = max(g.reads/2, 1)
	}
}

// next returns the first message from a sequence on that the consumer would
// deliver; nil when there is none.
func (g *gate) next(ctx context.Context, from uint64) (*logged, error) {
	subjects := g.topology.Subjects
	if len(subjects) == 0 {
		subjects = []string{">"}
	}
	var first *logged
	for _, subject := range subjects {
		m, err := g.read(ctx, from, subject)
		if err != nil {
			return nil, err
		}
		if m != nil && (first == nil || m.sequence < first.sequence) {
			first = m
		}
	}
	return first, nil
}

// read asks the stream's leader. The direct read of the client may be answered by
// a replica that is behind.
func (g *gate) read(ctx context.Context, from uint64, subject string) (*logged, error) {
	request, err := json.Marshal(map[string]any{"seq": from, "next_by_subj": subject})
	if err != nil {
		return nil, err
	}
	ctx, cancel := g.link.bound(ctx, g.timeout)
	defer cancel()
	response, err := g.link.conn.RequestWithContext(ctx, g.api+"STREAM.MSG.GET."+g.topology.Stream, request)
	if err != nil {
		return nil, fmt.Errorf("read stream %s from %d on: %w", g.topology.Stream, from, err)
	}
	return parseLogged(response.Data)
}

func parseLogged(data []byte) (*logged, error) {
	var answer struct {
		Error   *jetstream.APIError
		Message *struct {
			Subject string
			Seq     uint64
			Hdrs    []byte
			Data    []byte
		}
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		return nil, fmt.Errorf("a message of the stream cannot be read: %w", err)
	}
	switch {
	case answer.Error != nil && answer.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return nil, nil
	case answer.Error != nil:
		return nil, answer.Error
	case answer.Message == nil:
		return nil, errors.New("the server answers without a message")
	}
	m := &logged{sequence: answer.Message.Seq, data: answer.Message.Data, subject: answer.Message.Subject}
	if len(answer.Message.Hdrs) > 0 {
		var err error
		if m.header, err = nats.DecodeHeadersMsg(answer.Message.Hdrs); err != nil {
			return nil, fmt.Errorf("headers of message %d: %w", m.sequence, err)
		}
	}
	return m, nil
}
