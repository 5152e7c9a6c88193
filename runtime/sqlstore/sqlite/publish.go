package sqlite

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/lanebox/lanebox/runtime/outbox"
)

// NewAppender returns an appender that publishes in tx with the service's
// queries. The transaction should begin IMMEDIATE: SQLite may refuse to write in
// one that has read.
func NewAppender(tx *sql.Tx, bind func(DBTX) Queries) outbox.Appender { return appender{tx, bind} }

type appender struct {
	tx   *sql.Tx
	bind func(DBTX) Queries
}

// Append implements outbox.Appender. Nothing is stored when it fails.
func (a appender) Append(ctx context.Context, records []outbox.Record) error {
	if len(records) == 1 { // one statement undoes itself
		return publish(ctx, a.bind(a.tx), records[0])
	}
	return Atomically(ctx, a.tx, func() error {
		prepared := Prepare(a.tx)
		defer prepared.Close()
		q := a.bind(prepared)
		for _, r := range records {
			if err := publish(ctx, q, r); err != nil {
				return err
			}
		}
		return nil
	})
}

// publish inserts one record; the trigger decides the rest.
func publish(ctx context.Context, q Queries, r outbox.Record) error {
	headers, err := EncodeHeaders(r.Headers)
	if err != nil {
		return fmt.Errorf("publish %s: headers: %w", r.Topic, err)
	}
	return Classify("publish "+r.Topic, q.Publish(ctx, PublishParams{
		ID: r.ID.String(), Topic: r.Topic, Key: r.Key, Payload: notNull(r.Payload), Headers: headers, Version: r.Version,
	}))
}

// notNull returns an empty payload for none: a nil slice would be stored as NULL.
func notNull(payload []byte) []byte {
	if payload == nil {
		return []byte{}
	}
	return payload
}
