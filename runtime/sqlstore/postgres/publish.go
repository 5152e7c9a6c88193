package postgres

import (
	"context"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/internal/rowtext"
	"github.com/lanebox/lanebox/runtime/outbox"
)

// NewAppender returns an appender that publishes with q, which is bound to the
// caller's transaction. binary says that the outbox stores bytes. The waits for
// locks end with the caller's context alone: a deadline of its own would end
// the caller's transaction.
func NewAppender(q Queries, binary bool) outbox.Appender { return appender{q, binary} }

type appender struct {
	q      Queries
	binary bool
}

// Append implements outbox.Appender.
func (a appender) Append(ctx context.Context, records []outbox.Record) error {
	if !a.binary {
		for i := range records {
			if err := rowtext.CheckText(records[i].Payload); err != nil {
				return &event.ValidationError{Topic: records[i].Topic, Err: err}
			}
		}
	}
	switch len(records) {
	case 0:
		return nil
	case 1:
		return Classify("publish", a.q.PublishOne(ctx, publishOne(&records[0])))
	default:
		return Classify("publish", a.q.Publish(ctx, publishAll(records)))
	}
}

func publishOne(r *outbox.Record) PublishOneParams {
	return PublishOneParams{ID: messageID(r.ID), Key: r.Key, Topic: r.Topic, Payload: notNil(r.Payload),
		Headers: rowtext.EncodeHeaders(r.Headers), Version: r.Version}
}

func publishAll(records []outbox.Record) PublishParams {
	n := len(records)
	p := PublishParams{
		Keys: make([]string, n), IDs: make([]pgtype.UUID, n), Topics: make([]string, n), Payloads: make([][]byte, n),
		Headers: make([]string, n), Versions: make([]int64, n),
	}
	for i := range records {
		r := publishOne(&records[i])
		p.Keys[i], p.IDs[i], p.Topics[i], p.Payloads[i], p.Headers[i], p.Versions[i] = r.Key, r.ID, r.Topic, r.Payload, r.Headers, r.Version
	}
	return p
}

// messageID returns id, or a new one for the zero UUID.
func messageID(id event.UUID) pgtype.UUID {
	if id.IsZero() {
		id = event.NewUUID()
	}
	return uuid(id)
}

// notNil keeps an empty payload from becoming NULL.
func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}
