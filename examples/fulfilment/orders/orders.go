// Package orders is the service that takes orders. It keeps them in a table of its
// own, and what it changes there it tells the warehouse in the same transaction.
package orders

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lanebox/lanebox/examples/fulfilment/internal/database"
	"github.com/lanebox/lanebox/examples/fulfilment/orders/internal/events"
	"github.com/lanebox/lanebox/examples/fulfilment/orders/internal/events/postgres"
	"github.com/lanebox/lanebox/examples/fulfilment/orders/internal/events/sqlite"
	"github.com/lanebox/lanebox/runtime/engine"
	"github.com/lanebox/lanebox/runtime/outbox"
)

// Warehouse is what the schema says about the warehouse's side at RabbitMQ.
var Warehouse = events.WarehouseTopology

// ErrTooLate says that an order is no longer in a state that allows the change.
// Nothing was changed and nobody was told.
var ErrTooLate = errors.New("the order has moved on")

// Config is what the service is told from outside.
type Config struct {
	// Warehouse is where the warehouse's messages go.
	Warehouse outbox.Destination
	Logger    *slog.Logger
	// Observer hears of deliveries; nil means nobody.
	Observer func(engine.Event)
	// PollInterval is for orders that other processes take; 0 means 1 s.
	PollInterval time.Duration
}

// A Service takes orders and runs the poller.
type Service struct {
	inTx func(context.Context, func(database.Tx, *events.Publisher) error) error
	run  func(context.Context) error
}

const schema = `CREATE TABLE IF NOT EXISTS orders (
  id       TEXT    PRIMARY KEY,
  status   TEXT    NOT NULL,
  quantity INTEGER NOT NULL
)`

// New migrates the database and returns the service.
func New(ctx context.Context, db database.DB, c Config) (*Service, error) {
	s := &Service{}
	if db.Postgres != nil {
		if _, err := postgres.Migrate(ctx, db.Postgres); err != nil {
			return nil, err
		}
		box, err := postgres.New(db.Postgres, postgres.Config{Warehouse: c.Warehouse, Logger: c.Logger, Observer: c.Observer, PollInterval: c.PollInterval})
		if err != nil {
			return nil, err
		}
		s.run = box.Run
		s.inTx = func(ctx context.Context, fn func(database.Tx, *events.Publisher) error) error {
			return box.InTx(ctx, func(tx pgx.Tx, pub *events.Publisher) error { return fn(database.Postgres(tx), pub) })
		}
	} else {
		if _, err := sqlite.Migrate(ctx, db.SQLite); err != nil {
			return nil, err
		}
		box, err := sqlite.New(db.SQLite, sqlite.Config{Warehouse: c.Warehouse, Logger: c.Logger, Observer: c.Observer, PollInterval: c.PollInterval})
		if err != nil {
			return nil, err
		}
		s.run = box.Run
		s.inTx = func(ctx context.Context, fn func(database.Tx, *events.Publisher) error) error {
			return box.InTx(ctx, func(tx *sql.Tx, pub *events.Publisher) error { return fn(database.SQLite(tx), pub) })
		}
	}
	return s, db.Exec(ctx, schema)
}

// Run tells the warehouse what happened until ctx ends.
func (s *Service) Run(ctx context.Context) error { return s.run(ctx) }

// Place opens an order.
func (s *Service) Place(ctx context.Context, id string, quantity int32) error {
	return s.inTx(ctx, func(tx database.Tx, pub *events.Publisher) error {
		_, err := tx.Exec(ctx, `INSERT INTO orders (id, status, quantity) VALUES ($1, 'placed', $2)`, id, quantity)
		if err != nil {
			return err
		}
		return pub.OrderPlaced(ctx, events.OrderPlaced{OrderID: events.NewOrderID(id), Quantity: quantity})
	})
}

// Change sets the quantity of an order that is neither shipped nor cancelled.
func (s *Service) Change(ctx context.Context, id string, quantity int32) error {
	return s.update(ctx, `UPDATE orders SET quantity = $2 WHERE id = $1 AND status = 'placed'`, id, quantity,
		events.OrderChanged{OrderID: events.NewOrderID(id), Quantity: quantity})
}

// Cancel ends an order that is not shipped.
func (s *Service) Cancel(ctx context.Context, id, reason string) error {
	return s.update(ctx, `UPDATE orders SET status = $2 WHERE id = $1 AND status = 'placed'`, id, "cancelled",
		events.OrderCancelled{OrderID: events.NewOrderID(id), Reason: reason})
}

// Ship ends an order that is not cancelled.
func (s *Service) Ship(ctx context.Context, id, tracking string) error {
	return s.update(ctx, `UPDATE orders SET status = $2 WHERE id = $1 AND status = 'placed'`, id, "shipped",
		events.OrderShipped{OrderID: events.NewOrderID(id), Tracking: tracking})
}

// update changes one order, if its state allows it, and publishes e with it. The
// condition of the statement decides: whoever commits first wins.
func (s *Service) update(ctx context.Context, query, id string, value any, e events.Event) error {
	return s.inTx(ctx, func(tx database.Tx, pub *events.Publisher) error {
		n, err := tx.Exec(ctx, query, id, value)
		if err != nil {
			return err
		}
		if n == 0 {
			return fmt.Errorf("%s: %w", id, ErrTooLate)
		}
		return pub.All(ctx, e)
	})
}
