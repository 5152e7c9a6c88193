// Package warehouse is the service that packs what was ordered. It takes the order
// service's messages from a broker into its inbox, and handles each of them in the
// transaction that completes it.
package warehouse

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lanebox/lanebox/examples/fulfilment/internal/database"
	"github.com/lanebox/lanebox/examples/fulfilment/warehouse/internal/events"
	"github.com/lanebox/lanebox/examples/fulfilment/warehouse/internal/events/postgres"
	"github.com/lanebox/lanebox/examples/fulfilment/warehouse/internal/events/sqlite"
	"github.com/lanebox/lanebox/runtime/engine"
	"github.com/lanebox/lanebox/runtime/inbox"
)

// Orders is what the schema says about the order service's side at RabbitMQ.
var Orders = events.OrdersTopology

// Config is what the service is told from outside.
type Config struct {
	// Orders brings the order service's messages.
	Orders inbox.Source
	// Refused hears of messages that the handler does not apply, and why; nil means
	// nobody.
	Refused  func(m inbox.Raw, reason error)
	Logger   *slog.Logger
	Observer func(engine.Event)
	// PollInterval is for messages that other processes received; 0 means 1 s.
	PollInterval time.Duration
}

// A Service receives and handles messages.
type Service struct{ run func(context.Context) error }

// schema is what the warehouse knows: each parcel with the version of its order
// that it has seen, and a journal of what was done, in the order of each parcel.
// Two transactions cannot write the same position of the journal, and one that
// writes a position has seen all before it committed.
const schema = `
CREATE TABLE IF NOT EXISTS parcel (
  order_id TEXT    PRIMARY KEY,
  version  INTEGER NOT NULL,
  status   TEXT    NOT NULL,
  quantity INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS journal (
  order_id TEXT    NOT NULL,
  position INTEGER NOT NULL,
  version  INTEGER NOT NULL,
  what     TEXT    NOT NULL,
  message  TEXT    NOT NULL,
  PRIMARY KEY (order_id, position)
)`

// New migrates the database and returns the service.
func New(ctx context.Context, db database.DB, c Config) (*Service, error) {
	if c.Refused == nil {
		c.Refused = func(inbox.Raw, error) {}
	}
	s := &Service{}
	if db.Postgres != nil {
		if _, err := postgres.Migrate(ctx, db.Postgres); err != nil {
			return nil, err
		}
		box, err := postgres.New(db.Postgres, postgres.Config{
			Orders: handlers[pgx.Tx]{database.Postgres, c.Refused}, OrdersFrom: c.Orders,
			Logger: c.Logger, Observer: c.Observer, PollInterval: c.PollInterval,
		})
		if err != nil {
			return nil, err
		}
		s.run = box.Run
	} else {
		if _, err := sqlite.Migrate(ctx, db.SQLite); err != nil {
			return nil, err
		}
		box, err := sqlite.New(db.SQLite, sqlite.Config{
			Orders: handlers[*sql.Tx]{database.SQLite, c.Refused}, OrdersFrom: c.Orders,
			Logger: c.Logger, Observer: c.Observer, PollInterval: c.PollInterval,
		})
		if err != nil {
			return nil, err
		}
		s.run = box.Run
	}
	return s, db.Exec(ctx, schema)
}

// Run receives and handles messages until ctx ends.
func (s *Service) Run(ctx context.Context) error { return s.run(ctx) }

// handlers implements the handler interface of source orders for transactions of
// either database.
type handlers[Tx any] struct {
	in      func(Tx) database.Tx
	refused func(inbox.Raw, error)
}

// OrderPlaced opens a parcel.
func (h handlers[Tx]) OrderPlaced(ctx context.Context, tx Tx, m inbox.Message[events.OrderPlaced]) error {
	return h.apply(ctx, tx, m.Raw, fmt.Sprint("placed ", m.Event.Quantity), func(p *parcel) error {
		p.status, p.quantity = "open", m.Event.Quantity
		return nil
	})
}

// OrderChanged sets the quantity of an open parcel.
func (h handlers[Tx]) OrderChanged(ctx context.Context, tx Tx, m inbox.Message[events.OrderChanged]) error {
	return h.apply(ctx, tx, m.Raw, fmt.Sprint("changed ", m.Event.Quantity), func(p *parcel) error {
		p.quantity = m.Event.Quantity
		return p.moves("open", "open")
	})
}

// OrderCancelled puts back what was reserved.
func (h handlers[Tx]) OrderCancelled(ctx context.Context, tx Tx, m inbox.Message[events.OrderCancelled]) error {
	return h.apply(ctx, tx, m.Raw, "cancelled "+m.Event.Reason, func(p *parcel) error { return p.moves("open", "returned") })
}

// OrderShipped sends the parcel away.
func (h handlers[Tx]) OrderShipped(ctx context.Context, tx Tx, m inbox.Message[events.OrderShipped]) error {
	return h.apply(ctx, tx, m.Raw, "shipped "+m.Event.Tracking, func(p *parcel) error { return p.moves("open", "sent") })
}

// apply applies a message if it is the next one of its order, and says what it is
// otherwise: the inbox drops duplicates and stale messages, and makes those that
// come too early wait.
func (h handlers[Tx]) apply(ctx context.Context, tx Tx, m inbox.Raw, what string, change func(*parcel) error) error {
	db := h.in(tx)
	p, err := find(ctx, db, m.Key)
	if err != nil {
		return err
	}
	seen := p.version
	if err := p.expect(m.Version); err != nil {
		h.refused(m, err)
		return err
	}
	if err := change(&p); err != nil {
		h.refused(m, err)
		return err
	}
	if err := p.save(ctx, db, seen); err != nil {
		return err
	}
	_, err = db.Exec(ctx, `INSERT INTO journal (order_id, position, version, what, message)
		SELECT $1, coalesce(max(position), 0) + 1, $2, $3, $4 FROM journal WHERE order_id = $1`,
		m.Key, m.Version, what, m.IdempotencyKey)
	return err
}
