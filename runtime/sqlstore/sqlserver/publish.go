package sqlserver

import (
	"context"
	"database/sql"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/internal/rowtext"
	"github.com/lanebox/lanebox/runtime/outbox"
)

// NewAppender returns an appender that publishes in tx with the queries that bind
// returns. binary says that the outbox stores bytes. It waits up to ten seconds
// for the locks of keys, less when the context ends earlier; the transaction keeps
// its isolation level.
//
// When the database refuses to publish, or the context ends meanwhile, the whole
// transaction is lost: SQL Server rolls it back, and the appender ends tx, so that
// nothing can be committed and no later statement runs outside of a transaction
// unnoticed. Begin again with a new transaction. An event that was refused before
// anything was sent (*event.ValidationError) costs nothing.
func NewAppender(tx *sql.Tx, bind func(DBTX) Queries, binary bool) outbox.Appender {
	return appender{tx, bind(tx), binary}
}

type appender struct {
	tx     *sql.Tx
	q      Queries
	binary bool
}

// Append implements outbox.Appender.
func (a appender) Append(ctx context.Context, records []outbox.Record) error {
	for i := range records {
		if err := checkRecord(&records[i], a.binary); err != nil {
			return err
		}
	}
	if len(records) == 0 {
		return nil
	}
	if err := a.publish(ctx, records); err != nil {
		err = Classify("publish", err)
		fail(a.tx, err)
		return err
	}
	return nil
}

func (a appender) publish(ctx context.Context, records []outbox.Record) error {
	wait, err := lockTimeout(ctx, "publish")
	if err != nil {
		return err
	}
	if len(records) == 1 && !a.binary { // bytes would be declared with their length; see padded
		r := &records[0]
		return a.q.PublishOne(ctx, PublishOneParams{
			ID: messageID(r.ID).String(), Key: r.Key, Topic: r.Topic, Payload: notNil(r.Payload),
			Headers: rowtext.EncodeHeaders(r.Headers), Version: r.Version, LockTimeout: wait,
		})
	}
	messages, payloads := publishList(records, a.binary)
	return a.q.Publish(ctx, PublishParams{Messages: messages, Payloads: payloads, LockTimeout: wait})
}

// checkRecord reports why a record can never be stored, or nil.
func checkRecord(r *outbox.Record, binary bool) error {
	if !binary {
		if err := rowtext.CheckText(r.Payload); err != nil {
			return &event.ValidationError{Topic: r.Topic, Err: err}
		}
	}
	if r.Key != "" { // an empty one is the trigger's to judge
		if err := event.CheckKey(r.Key); err != nil {
			return &event.ConfigurationError{Topic: r.Topic, Reason: err.Error()}
		}
	}
	return nil
}
