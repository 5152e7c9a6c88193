package rabbitmq

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/topology"
)

// Arguments of queues.
const (
	argType         = "x-queue-type"
	argSingleActive = "x-single-active-consumer"
	argPriority     = "x-max-priority"
	argTTL          = "x-message-ttl"
	argDeadLetter   = "x-dead-letter-exchange"
	argDeadStrategy = "x-dead-letter-strategy"
	argOverflow     = "x-overflow"
	argLimit        = "x-delivery-limit"
)

// A queue is what is declared, or found, under a queue's name.
type queue struct {
	name       string
	durable    bool
	autoDelete bool
	args       amqp.Table
}

// workQueue returns a quorum queue, or a stream, as lanebox declares it.
func workQueue(name string, single, stream bool, limit int, deadLetters string) queue {
	q := queue{name: name, durable: true, args: amqp.Table{argType: "quorum"}}
	if stream {
		q.args[argType] = "stream"
		return q
	}
	if single {
		q.args[argSingleActive] = true
	}
	if limit > 0 {
		q.args[argLimit] = int64(limit)
	}
	if deadLetters != "" {
		// At least once: a message leaves the queue when the dead letters have it.
		q.args[argDeadLetter] = deadLetters
		q.args[argDeadStrategy] = "at-least-once"
		q.args[argOverflow] = "reject-publish"
	}
	return q
}

// unlimited returns q with its lack of a delivery limit said, if it is a quorum
// queue: from version 4 on, a broker that is not told otherwise drops messages that
// were returned 20 times, and every consumer that ends returns what it has.
func (q queue) unlimited(version any) queue {
	text, _ := version.(string)
	digits, _, _ := strings.Cut(text, ".")
	major, err := strconv.Atoi(digits)
	if err != nil || major < 4 || q.text(argType) != "quorum" || q.args[argLimit] != nil {
		return q
	}
	return q.with(misfit{property: argLimit, current: int64(-1)})
}

// plainQueue returns the one queue of an unordered destination. Quorum queues
// have no priorities of the kind that x-max-priority asks for.
func plainQueue(t topology.RabbitMQDestination) queue {
	q := workQueue(t.Queue, false, t.Stream, t.DeliveryLimit, t.DeadLetterExchange)
	if t.MaxPriority > 0 {
		q.args[argType], q.args[argPriority] = "classic", int64(t.MaxPriority)
		delete(q.args, argLimit)
		delete(q.args, argDeadStrategy)
	}
	if t.MessageTTL > 0 {
		q.args[argTTL] = t.MessageTTL.Milliseconds()
	}
	return q
}

// A misfit is a difference between a queue that is declared and the one that
// exists under its name.
type misfit struct {
	property string
	// current is the value of the existing queue; nil means none.
	current any
}

// inequivalent is how the broker says that a queue exists with other properties.
var inequivalent = regexp.MustCompile(`inequivalent arg '([^']*)' for .*: received .* but (?:current is|current) (none|the value '(.*)' of type '([a-z_]+)'|'(.*)')`)

// parseMisfit reads what the broker says; ok is false when it says something
// else.
func parseMisfit(reason string) (m misfit, ok bool) {
	found := inequivalent.FindStringSubmatch(reason)
	if found == nil {
		return m, false
	}
	m.property = found[1]
	text, kind := found[3], found[4]
	switch {
	case found[2] == "none":
	case kind == "":
		m.current = bare(m.property, found[5])
	case kind == "bool" || kind == "boolean":
		m.current = text == "true"
	case kind == "longstr" || kind == "shortstr":
		m.current = text
	default:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return m, false
		}
		m.current = n
	}
	return m, true
}

// texts are the arguments whose values are texts.
var texts = []string{argType, argDeadLetter, argDeadStrategy, argOverflow, "x-dead-letter-routing-key", "x-queue-mode",
	"x-queue-leader-locator", "x-queue-master-locator", "x-max-age"}

// bare returns a value that the broker tells without its type.
func bare(property, text string) any {
	if slices.Contains(texts, property) {
		return text
	}
	if b, err := strconv.ParseBool(text); err == nil && len(text) > 1 {
		return b
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n
	}
	return text
}

// with returns q with a property changed to what exists.
func (q queue) with(m misfit) queue {
	switch m.property {
	case "durable":
		q.durable = m.current == true
		return q
	case "auto_delete":
		q.autoDelete = m.current == true
		return q
	}
	q.args = maps.Clone(q.args)
	if m.current == nil {
		delete(q.args, m.property)
	} else {
		q.args[m.property] = m.current
	}
	return q
}

// maxProbes bounds how many differences of one queue are found out.
const maxProbes = 32

// errUnknowable says that the broker does not tell how an existing queue differs.
var errUnknowable = errors.New("the queue exists with other properties")

// declare declares a queue, or finds out how the one that exists under its name
// was declared, by trying: a passive declaration tells nothing about it. It
// returns the queue as it is. Every try that fails costs a channel.
func (l *link) declare(q queue) (queue, error) {
	q = q.unlimited(l.conn.Properties["version"])
	for range maxProbes {
		err := l.onChannel(func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare(q.name, q.durable, q.autoDelete, false, false, q.args)
			return err
		})
		var refused *amqp.Error
		if err == nil || !errors.As(err, &refused) || refused.Code != amqp.PreconditionFailed {
			return q, err
		}
		m, ok := parseMisfit(refused.Reason)
		if !ok || m.property == "exclusive" {
			return q, fmt.Errorf("%w: %w", errUnknowable, err)
		}
		q = q.with(m)
	}
	return q, errUnknowable
}

// find returns what the broker says of a queue. The code of its error is NotFound
// when there is none.
func (l *link) find(name string) (found amqp.Queue, err error) {
	err = l.onChannel(func(ch *amqp.Channel) error {
		found, err = ch.QueueDeclarePassive(name, true, false, false, false, nil)
		return err
	})
	return found, err
}

// onChannel runs f on a channel of its own.
func (l *link) onChannel(f func(*amqp.Channel) error) error {
	ch, err := l.conn.Channel()
	if err != nil {
		return err
	}
	err = f(ch)
	ch.Close()
	return err
}

// code returns what the broker answered; 0 if it did not.
func code(err error) int {
	var answer *amqp.Error
	if errors.As(err, &answer) && answer.Server {
		return answer.Code
	}
	return 0
}

// cannotOrder returns why the messages of an existing queue can change places;
// nil if they cannot.
func (q queue) cannotOrder() error {
	kind := cmp.Or(q.text(argType), "classic")
	switch {
	case kind != "stream" && q.args[argSingleActive] != true:
		return fmt.Errorf("the queue is a %s queue without %s: true, so that several consumers take its messages side by side", kind, argSingleActive)
	case q.args[argPriority] != nil:
		return fmt.Errorf("the queue has %s: messages of a higher priority overtake others", argPriority)
	case q.args[argTTL] != nil && q.args[argDeadLetter] != nil:
		return fmt.Errorf("the queue has %s and %s: messages that wait too long leave it and come back behind others", argTTL, argDeadLetter)
	}
	return nil
}

func (q queue) text(arg string) string {
	text, _ := q.args[arg].(string)
	return text
}

// misconfigured returns a *event.ConfigurationError.
func misconfigured(what, queue, format string, args ...any) error {
	return &TopologyError{Name: what, Object: queue, Err: &event.ConfigurationError{Topic: queue, Reason: fmt.Sprintf(format, args...)}}
}

// A TopologyError says that an exchange or queue cannot be used as the schema
// wants it, and what would. It wraps an *event.ConfigurationError.
type TopologyError struct {
	// Name is the destination or source, Object the exchange or queue.
	Name, Object string
	Err          *event.ConfigurationError
}

func (e *TopologyError) Error() string {
	return fmt.Sprintf("rabbitmq %s: %s: %s", e.Name, e.Object, e.Err.Reason)
}

// Unwrap returns the *event.ConfigurationError.
func (e *TopologyError) Unwrap() error { return e.Err }
