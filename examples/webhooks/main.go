// Webhooks are two services in one program: a hub that takes the webhook
// deliveries of GitHub, and an audit service that handles them, one of a
// repository at a time. Both use PostgreSQL.
//
//	DATABASE_URL=postgres://… GITHUB_SECRET=… go run ./examples/webhooks
//
// Point a webhook of GitHub (content type application/json) at /github.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lanebox/lanebox/examples/webhooks/audit"
	"github.com/lanebox/lanebox/examples/webhooks/hub"
)

// auditSecret signs what the hub sends to the audit service.
const auditSecret = "an example secret of hub and audit"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "webhooks:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	database, secret := os.Getenv("DATABASE_URL"), os.Getenv("GITHUB_SECRET")
	if database == "" || secret == "" {
		return errors.New("set DATABASE_URL to a PostgreSQL database and GITHUB_SECRET to the webhook's secret")
	}
	pool, err := pgxpool.New(ctx, database)
	if err != nil {
		return err
	}
	defer pool.Close()
	hubAddress, auditAddress := cmp.Or(os.Getenv("HUB_ADDRESS"), "127.0.0.1:8080"), cmp.Or(os.Getenv("AUDIT_ADDRESS"), "127.0.0.1:8081")

	a, err := audit.New(ctx, pool, slog.Default(), auditSecret)
	if err != nil {
		return err
	}
	h, err := hub.New(ctx, pool, hub.Config{
		GitHubSecrets: []string{secret}, AuditURL: "http://" + auditAddress + "/events", AuditSecret: auditSecret, Logger: slog.Default(),
	})
	if err != nil {
		return err
	}
	slog.Info("the hub listens", "url", "http://"+hubAddress+"/github")
	return together(ctx,
		serve(auditAddress, a), a.Run,
		serve(hubAddress, h), h.Run)
}

// serve returns a task that serves HTTP until its context ends.
func serve(address string, h http.Handler) func(context.Context) error {
	return func(ctx context.Context) error {
		server := &http.Server{Addr: address, Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second}
		go func() {
			<-ctx.Done()
			drain, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			server.Shutdown(drain)
		}()
		if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	}
}

// together runs tasks until ctx ends or one of them fails, and waits for all.
func together(ctx context.Context, tasks ...func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	results := make(chan error)
	for _, task := range tasks {
		go func() {
			err := task(ctx)
			if err != nil {
				cancel(err)
			}
			results <- err
		}()
	}
	var errs []error
	for range tasks {
		errs = append(errs, <-results)
	}
	return errors.Join(errs...)
}
