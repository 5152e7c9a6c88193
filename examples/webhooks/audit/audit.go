// Package audit is the service that keeps a log of what happened in each
// repository. It stores what it receives in its inbox and handles it from there,
// one delivery of a repository at a time.
package audit

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lanebox/lanebox/examples/webhooks/audit/internal/events"
	"github.com/lanebox/lanebox/examples/webhooks/audit/internal/events/postgres"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/transport/webhook"
)

// schema is the service's own table. Its rows are written in the transaction
// that completes the message, so each delivery is logged exactly once.
const schema = `
CREATE TABLE IF NOT EXISTS audit_log (
  position   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  repository text   NOT NULL,
  event      text   NOT NULL,
  delivery   text   NOT NULL UNIQUE,
  body       bytea  NOT NULL,
  pushed_ref text
)`

// An Audit serves the hub's deliveries and runs the worker.
type Audit struct{ box *postgres.Box }

// New migrates the database and returns an audit service that accepts requests
// signed with one of the secrets.
func New(ctx context.Context, pool *pgxpool.Pool, logger *slog.Logger, secrets ...string) (*Audit, error) {
	if _, err := postgres.Migrate(ctx, pool); err != nil {
		return nil, err
	}
	if _, err := pool.Exec(ctx, schema); err != nil {
		return nil, err
	}
	box, err := postgres.New(pool, postgres.Config{
		Hub:         handlers{},
		HubVerifier: webhook.StandardWebhooks(secrets...),
		Logger:      logger,
	})
	if err != nil {
		return nil, err
	}
	return &Audit{box}, nil
}

// ServeHTTP takes deliveries at /events.
func (a *Audit) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.box.Receiver().ServeHTTP(w, r) }

// Run handles what was received until ctx ends.
func (a *Audit) Run(ctx context.Context) error { return a.box.Run(ctx) }

// handlers implements the handler interface of source hub.
type handlers struct{}

// Push logs a push with the ref that moved.
func (handlers) Push(ctx context.Context, tx pgx.Tx, m inbox.Message[events.Push]) error {
	return log(ctx, tx, m.Raw, &m.Event.Ref)
}

// Other logs everything else as it is.
func (handlers) Other(ctx context.Context, tx pgx.Tx, m inbox.Raw) error {
	return log(ctx, tx, m, nil)
}

func log(ctx context.Context, tx pgx.Tx, m inbox.Raw, ref *string) error {
	_, err := tx.Exec(ctx, `INSERT INTO audit_log (repository, event, delivery, body, pushed_ref) VALUES ($1, $2, $3, $4, $5)`,
		m.Key, m.Topic, m.IdempotencyKey, m.Payload, ref)
	return err
}
