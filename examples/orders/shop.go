package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/lanebox/lanebox/examples/orders/internal/events"
	"github.com/lanebox/lanebox/examples/orders/internal/events/sqlite"
	"github.com/lanebox/lanebox/runtime/event"
)

// A Shop is the service's business: a table of orders, each with a status that
// only moves along allowed transitions. Every change and the event that tells
// of it are committed together.
type Shop struct{ db *sql.DB }

// ErrTooLate says that an order is not in a status that allows the change:
// somebody else was first. Nothing was changed and no event was published.
var ErrTooLate = errors.New("the order has moved on")

// NewShop makes the table of orders.
func NewShop(ctx context.Context, db *sql.DB) (*Shop, error) {
	_, err := db.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS orders (
		id TEXT PRIMARY KEY, status TEXT NOT NULL, version INTEGER NOT NULL) STRICT`)
	return &Shop{db}, err
}

// Place opens an order.
func (s *Shop) Place(ctx context.Context, id string, total event.Decimal) error {
	return sqlite.InTx(ctx, s.db, func(tx *sql.Tx, pub *events.Publisher) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO orders (id, status, version) VALUES (?, 'placed', 1)`, id); err != nil {
			return err
		}
		return pub.OrderPlaced(ctx, events.OrderPlaced{OrderID: events.NewOrderID(id), Total: total})
	})
}

// Pay, Pack, Ship and Deliver move an order one step on.

func (s *Shop) Pay(ctx context.Context, id string, amount event.Decimal) error {
	return s.move(ctx, id, "placed", "paid", events.OrderPaid{OrderID: events.NewOrderID(id), Amount: amount})
}

func (s *Shop) Pack(ctx context.Context, id string, parcels int32) error {
	return s.move(ctx, id, "paid", "packed", events.OrderPacked{OrderID: events.NewOrderID(id), Parcels: parcels})
}

func (s *Shop) Ship(ctx context.Context, id, tracking string) error {
	return s.move(ctx, id, "packed", "shipped", events.OrderShipped{OrderID: events.NewOrderID(id), Tracking: tracking})
}

func (s *Shop) Deliver(ctx context.Context, id string) error {
	return s.move(ctx, id, "shipped", "delivered", events.OrderDelivered{OrderID: events.NewOrderID(id)})
}

// Cancel ends an order that is not yet packed. Packing and cancelling may race:
// whoever commits first wins, the other one gets ErrTooLate and publishes
// nothing, so the warehouse never hears of both.
func (s *Shop) Cancel(ctx context.Context, id, reason string) error {
	cancelled := events.OrderCancelled{OrderID: events.NewOrderID(id), Reason: reason}
	if err := s.move(ctx, id, "placed", "cancelled", cancelled); !errors.Is(err, ErrTooLate) {
		return err
	}
	return s.move(ctx, id, "paid", "cancelled", cancelled)
}

// move makes one guarded transition and publishes e with it. The guard is the
// WHERE of the update: it decides in the database, under the row's lock.
func (s *Shop) move(ctx context.Context, id, from, to string, e events.Event) error {
	return sqlite.InTx(ctx, s.db, func(tx *sql.Tx, pub *events.Publisher) error {
		r, err := tx.ExecContext(ctx,
			`UPDATE orders SET status = ?, version = version + 1 WHERE id = ? AND status = ?`, to, id, from)
		if err != nil {
			return err
		}
		if n, err := r.RowsAffected(); err != nil || n == 0 {
			return errors.Join(err, fmt.Errorf("%s to %s: %w", id, to, ErrTooLate))
		}
		return pub.All(ctx, e)
	})
}
