// Package hub is the service that GitHub calls. It keeps deliveries in the order
// of their repository and passes them on to the audit service.
package hub

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lanebox/lanebox/examples/webhooks/hub/internal/events/postgres"
	"github.com/lanebox/lanebox/runtime/transport/webhook"
)

// Config is what the hub is told from outside.
type Config struct {
	// GitHubSecrets verify deliveries; several during a change of secrets.
	GitHubSecrets []string
	// AuditURL is where deliveries are passed on, AuditSecret signs them.
	AuditURL, AuditSecret string
	Logger                *slog.Logger
}

// A Hub serves GitHub's deliveries and runs the relay and the poller.
type Hub struct{ box *postgres.Box }

// New migrates the database and returns a hub.
func New(ctx context.Context, pool *pgxpool.Pool, c Config) (*Hub, error) {
	if _, err := postgres.Migrate(ctx, pool); err != nil {
		return nil, err
	}
	audit, err := webhook.NewDestination(nil, webhook.Options{URL: c.AuditURL, Secret: c.AuditSecret, Source: "/hub"})
	if err != nil {
		return nil, err
	}
	box, err := postgres.New(pool, postgres.Config{
		Audit:          audit,
		GithubVerifier: webhook.GitHub(c.GitHubSecrets...),
		Logger:         c.Logger,
	})
	if err != nil {
		return nil, err
	}
	return &Hub{box}, nil
}

// ServeHTTP takes deliveries at /github.
func (h *Hub) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.box.Receiver().ServeHTTP(w, r) }

// Run relays and passes on until ctx ends.
func (h *Hub) Run(ctx context.Context) error { return h.box.Run(ctx) }
