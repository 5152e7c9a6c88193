package rabbitmq

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/lanebox/lanebox/runtime/inbox"
)

// streamStart reads an offset: "first", "last" or a time.
func streamStart(text string) (any, error) {
	switch text {
	case "", "first":
		return "first", nil
	case "last":
		return text, nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return nil, fmt.Errorf("the offset is %q; write first, last or a time such as 2026-01-02T15:04:05Z", text)
	}
	return at, nil
}

// A stream is what the inbox knows of a stream. One that was deleted and made again
// has another life: its offsets begin anew, and it is recorded as another log.
type stream struct {
	life int
	// read is how far it is stored: the offset is -1 before the first message.
	read  inbox.Position
	known bool // something is recorded
}

// logName returns the name under which a life of a queue is recorded.
func logName(queue string, life int) string {
	if life == 1 {
		return queue
	}
	return fmt.Sprintf("%s#%d", queue, life)
}

// checkNames refuses queues of which one has the name under which a later life of
// another is recorded.
func checkNames(queues []string) error {
	for _, q := range queues {
		mark := max(0, strings.LastIndexByte(q, '#'))
		name := q[:mark]
		life, err := strconv.Atoi(strings.TrimPrefix(q[mark:], "#"))
		if err == nil && slices.Contains(queues, name) && logName(name, life) == q {
			return fmt.Errorf("queues %q and %q cannot be streams of one source: once %[1]q is deleted, the next one of its name is recorded as %[2]q", name, q)
		}
	}
	return nil
}

// recall finds what is recorded of a stream; missing is why it was not found. If it
// does not exist any more, the next one of its name has a life of its own.
func (q *consumer) recall(ctx context.Context, missing error) error {
	if !q.source.t.Stream {
		return nil
	}
	if err := q.recorded(ctx); err != nil || q.stream.read.Offset < 0 {
		return err
	}
	if code(missing) == amqp.NotFound && strings.Contains(missing.Error(), "no queue") {
		return q.beginAgain(ctx)
	}
	return nil
}

func (q *consumer) recorded(ctx context.Context) error {
	q.stream = stream{life: 1, read: inbox.Position{Log: logName(q.queue, 1), Offset: -1}}
	for life := 1; ; life++ {
		at := inbox.Position{Log: logName(q.queue, life)}
		var known bool
		var err error
		if at.Offset, known, err = q.receiver.Position(ctx, at.Log); err != nil || !known {
			return err
		}
		q.stream = stream{life: life, read: at, known: true}
	}
}

// begin returns where the broker shall begin: in a stream with the last message
// that is stored, so that it shows whether one behind it is missing.
func (q *consumer) begin() amqp.Table {
	switch {
	case !q.source.t.Stream:
		return nil
	case !q.stream.known:
		return amqp.Table{offsetHeader: q.source.start}
	case q.stream.read.Offset < 0:
		return amqp.Table{offsetHeader: "first"}
	}
	return amqp.Table{offsetHeader: q.stream.read.Offset}
}

// lookForGap warns when a stream that was asked for the last message that is stored
// answers with one further behind: it has dropped what is between. Within a session
// an offset may be missing without that, where the broker began another segment.
func (q *consumer) lookForGap(first amqp.Delivery, stored int64) {
	offset, ok := integer(first.Headers[offsetHeader])
	if q.source.t.Stream && ok && stored >= 0 && offset > stored+1 {
		q.log.Warn("the stream has dropped messages that were not read", "from", stored+1, "to", offset-1)
	}
}

// beginAgain records that the stream has another life.
func (q *consumer) beginAgain(ctx context.Context) error {
	q.log.ErrorContext(ctx, "the stream was deleted; the next one of its name will be read from its beginning", "stored_up_to", q.stream.read.Offset)
	next := stream{life: q.stream.life + 1, read: inbox.Position{Log: logName(q.queue, q.stream.life+1), Offset: -1}, known: true}
	if _, err := q.receiver.ReceiveAt(ctx, next.read); err != nil {
		return err
	}
	q.stream = next
	return nil
}

// occupy keeps other processes from reading the same stream beside this one: they
// would store nothing new. It waits until ctx or the link ends. The order does not
// depend on it. The lock is an exclusive queue, which ends with its connection.
func (s *Source) occupy(ctx context.Context, l *link, name string) (release func(), err error) {
	if !s.t.Stream {
		return func() {}, nil
	}
	lock := "lanebox." + s.t.Name + "." + name + ".reader"
	if len(lock) > maxShort {
		return func() {}, nil
	}
	wait := backoff{first: 500 * time.Millisecond, last: 2 * time.Second}
	for {
		err := l.onChannel(func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare(lock, false, true, true, false, nil)
			return err
		})
		switch {
		case err == nil:
			return func() { s.vacate(l, lock) }, nil
		case code(err) == amqp.AccessRefused:
			return func() {}, nil // it has to do without
		case code(err) != amqp.ResourceLocked:
			return nil, err
		case !wait.pause(ctx):
			return nil, ctx.Err()
		}
	}
}

func (s *Source) vacate(l *link, lock string) {
	l.onChannel(func(ch *amqp.Channel) error {
		_, err := ch.QueueDelete(lock, false, false, false)
		return err
	})
}
