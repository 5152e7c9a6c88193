package engine

import (
	"context"
	"log/slog"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/schedule"
)

// An Event is something that happened in one loop.
type Event struct {
	Time time.Time
	// Scope is the name of the destination or source, Owner the process.
	Scope, Owner string
	// Detail says what happened; switch over its type. The set is closed: see
	// package schedule.
	Detail schedule.Event
}

// observe passes an event on to the observer and the log.
func (p *Process) observe(l *Loop, e schedule.Event) {
	if p.config.Observer != nil {
		p.config.Observer(Event{Time: time.Now(), Scope: l.config.Name, Owner: p.owner, Detail: e})
	}
	level, text, attrs := describe(e)
	if !p.logger.Enabled(context.Background(), level) {
		return
	}
	attrs = append(attrs, slog.String("scope", l.config.Name), slog.String("worker", p.owner))
	p.logger.LogAttrs(context.Background(), level, "lanebox: "+text, attrs...)
}

// describe returns how an event is logged.
func describe(e schedule.Event) (slog.Level, string, []slog.Attr) {
	switch e := e.(type) {
	case schedule.Delivered:
		return slog.LevelDebug, "delivered", append(message(e.Message, "delivered", nil, e.Took), slog.Bool("redelivered", e.Redelivered))
	case schedule.Retried:
		return slog.LevelInfo, "delivery failed; it will be tried again",
			append(message(e.Message, "retry", e.Err, e.Took), slog.String("class", e.Class.String()), slog.Bool("spent", e.Spent), slog.Duration("delay", e.Delay))
	case schedule.Died:
		return slog.LevelWarn, "message is dead", append(message(e.Message, "dead", e.Err, e.Took), slog.String("reason", e.Reason), slog.Int("attempts", e.Attempts))
	case schedule.Parked:
		return slog.LevelWarn, "message is parked", append(message(e.Message, "parked", e.Err, e.Took), slog.String("reason", e.Reason), slog.Int("attempts", e.Attempts))
	case schedule.LanesParked:
		return slog.LevelInfo, "an operator parked lanes", []slog.Attr{slog.Int("lanes", len(e.Lanes))}
	case schedule.LeasesAcquired:
		return slog.LevelInfo, "buckets leased", []slog.Attr{slog.Int("buckets", len(e.Leases))}
	case schedule.LeasesReleased:
		return slog.LevelInfo, "buckets given back", []slog.Attr{slog.Int("buckets", len(e.Leases))}
	case schedule.LeaseLost:
		return slog.LevelWarn, "lease lost", []slog.Attr{slog.Int("bucket", int(e.Lease.Bucket)), slog.Int64("token", e.Lease.Token),
			slog.String("reason", e.Reason), slog.Int("canceled", e.Canceled), slog.Int("dropped", e.Dropped)}
	case schedule.Fenced:
		return slog.LevelWarn, "outcomes refused: another owner has the bucket", []slog.Attr{slog.Int("bucket", int(e.Lease.Bucket)),
			slog.Int64("token", e.Lease.Token), slog.Int("outcomes", e.Outcomes), slog.String("outcome", "fenced")}
	case schedule.Gone:
		return slog.LevelInfo, "messages were removed before their outcome was recorded", []slog.Attr{slog.Int("messages", len(e.Refs))}
	case schedule.ProbationStarted:
		return slog.LevelWarn, "the former owner of a bucket died; its messages are suspects", []slog.Attr{slog.Int("bucket", int(e.Lease.Bucket))}
	case schedule.ProbationEnded:
		return slog.LevelInfo, "all suspects of a bucket have moved", []slog.Attr{slog.Int("bucket", int(e.Lease.Bucket))}
	case schedule.CircuitOpened:
		return slog.LevelWarn, "circuit open: nothing gets through", []slog.Attr{slog.Duration("pause", e.Pause), slog.Any("error", e.Err)}
	case schedule.CircuitClosed:
		return slog.LevelInfo, "circuit closed", nil
	case schedule.DatabaseFailed:
		return slog.LevelWarn, "database call failed; it will be tried again", []slog.Attr{slog.String("op", e.Op), slog.Any("error", e.Err), slog.Int("in_a_row", e.InARow)}
	case schedule.Abandoned:
		return slog.LevelError, "delivery abandoned by the shutdown", message(e.Message, "abandoned", nil, 0)
	default:
		return slog.LevelDebug, "unknown event", nil
	}
}

// message returns the attributes that name a message. A field that is empty is
// left out.
func message(m event.Message, outcome string, err error, took time.Duration) []slog.Attr {
	attrs := make([]slog.Attr, 0, 16)
	attrs = append(attrs, slog.String("message_id", m.ID.String()), slog.String("type", m.Topic), slog.String("key", m.Key),
		slog.Int64("sequence", m.Sequence), slog.Int("attempt", m.Attempt), slog.String("outcome", outcome))
	if m.Version != 0 {
		attrs = append(attrs, slog.Int64("version", m.Version))
	}
	for _, h := range [...][2]string{{"correlation_id", m.Headers[event.HeaderCorrelationID]}, {"causation_id", m.Headers[event.HeaderCausationID]}} {
		if h[1] != "" {
			attrs = append(attrs, slog.String(h[0], h[1]))
		}
	}
	if err != nil {
		attrs = append(attrs, slog.Any("error", err))
	}
	if took > 0 {
		attrs = append(attrs, slog.Duration("took", took))
	}
	return attrs
}
