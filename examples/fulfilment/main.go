// Fulfilment is two services in one program: an order service, and a warehouse that
// has to hear of each order in order. Orders are placed, changed, cancelled and
// shipped; the warehouse is away for a while in the middle of it; an old message
// comes again. At the end the warehouse's journal is compared with what the order
// service committed.
//
//	go run ./examples/fulfilment
//
// Between them is the RabbitMQ of LANEBOX_RABBITMQ_URL (default
// amqp://guest:guest@localhost:5672) or, when it cannot be reached, a NATS server
// inside the program. The order service uses the PostgreSQL of DATABASE_URL, or a
// file of SQLite when it is not set; the warehouse uses SQLite.
package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

// Variables of the environment that the program reads.
const (
	rabbitEnv   = "LANEBOX_RABBITMQ_URL"
	databaseEnv = "DATABASE_URL"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "fulfilment:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "lanebox-fulfilment-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	carrier, name, stop, err := choose(cmp.Or(os.Getenv(rabbitEnv), "amqp://guest:guest@localhost:5672"), filepath.Join(dir, "nats"))
	if err != nil {
		return err
	}
	defer stop()
	orders, kind := os.Getenv(databaseEnv), "PostgreSQL"
	if orders == "" {
		orders, kind = filepath.Join(dir, "orders.db"), "SQLite"
	}
	fmt.Printf("lanebox demo: orders (%s) → %s → warehouse (SQLite)\n", kind, name)
	return tell(ctx, os.Stdout, carrier, orders, filepath.Join(dir, "warehouse.db"))
}
