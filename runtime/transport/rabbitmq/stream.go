package rabbitmq

import (
	"context"
	"errors"
	"fmt"
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

// logName returns the name under which a life of the queue is recorded.
func (q *consumer) logName(life int) string {
	if life == 1 {
		return q.queue
	}
	return fmt.Sprintf("%s#%d", q.queue, life)
}

// recall finds what is recorded of a stream. If it does not exist any more, the
// next one of its name has a life of its own.
func (q *consumer) recall(ctx context.Context, l *link) error {
	if !q.source.t.Stream {
		return nil
	}
	if err := q.recorded(ctx); err != nil || q.stream.read.Offset < 0 {
		return err
	}
	err := l.onChannel(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive(q.queue, true, false, false, false, nil)
		return err
	})
	var answer *amqp.Error
	if errors.As(err, &answer) && answer.Code == amqp.NotFound && strings.Contains(answer.Reason, "no queue") {
		return q.beginAgain(ctx, "the stream was deleted; the next one of its name will be read from its beginning")
	}
	return nil // another error is found again
}

func (q *consumer) recorded(ctx context.Context) error {
	q.stream = stream{life: 1, read: inbox.Position{Log: q.logName(1), Offset: -1}}
	for life := 1; ; life++ {
		at := inbox.Position{Log: q.logName(life)}
		var known bool
		var err error
		if at.Offset, known, err = q.receiver.Position(ctx, at.Log); err != nil || !known {
			return err
		}
		q.stream = stream{life: life, read: at, known: true}
	}
}

// begin returns where the broker shall begin: in a stream with the last message
// that is stored, so that something comes at once unless the stream ends before.
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

// errMadeAgain ends a session with a stream that is not the one that was read.
var errMadeAgain = errors.New("the stream was made again")

// checkEnd finds out whether a stream from which nothing comes ends before what is
// stored from it, as one does that was deleted and made again. For that it reads
// the stream's last chunk: a broker begins behind all when it is asked for more
// than there is.
func (q *consumer) checkEnd(ctx context.Context, l *link) error {
	if q.stream.read.Offset < 0 {
		return nil
	}
	intact := false
	err := l.onChannel(func(ch *amqp.Channel) error {
		if err := ch.Qos(q.source.t.Prefetch, 0, false); err != nil {
			return err
		}
		deliveries, err := ch.Consume(q.queue, "", false, false, false, false, amqp.Table{offsetHeader: "last"})
		if err != nil {
			return err
		}
		silence := time.NewTimer(q.source.idle)
		defer silence.Stop()
		for !intact {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-silence.C:
				return nil
			case d, ok := <-deliveries:
				if !ok {
					return errCancelled
				}
				offset, _ := integer(d.Headers[offsetHeader])
				intact = offset >= q.stream.read.Offset
				if err := d.Ack(false); err != nil {
					return err
				}
				silence.Reset(q.source.idle)
			}
		}
		return nil
	})
	if err != nil || intact {
		return err
	}
	if err := q.beginAgain(ctx, "the stream ends before what was stored from it, as one that was deleted and made again; it is read from its beginning"); err != nil {
		return err
	}
	return errMadeAgain
}

// beginAgain records that the stream has another life.
func (q *consumer) beginAgain(ctx context.Context, why string) error {
	q.log.ErrorContext(ctx, why, "stored_up_to", q.stream.read.Offset)
	next := stream{life: q.stream.life + 1, read: inbox.Position{Log: q.logName(q.stream.life + 1), Offset: -1}, known: true}
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
