package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/lanebox/lanebox/examples/billing/internal/events"
	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
)

// A Billing is the service's business: a table of invoices, each with what was
// paid of it. Every change and the event that tells of it are committed together.
type Billing struct {
	db *sql.DB
	on Database
}

// NewBilling brings the tables to the state that the service needs.
func NewBilling(ctx context.Context, db *sql.DB, on Database) (*Billing, error) {
	if _, err := on.migrate(ctx, db); err != nil {
		return nil, err
	}
	if _, err := db.ExecContext(ctx, on.invoices); err != nil {
		return nil, fmt.Errorf("make the table of invoices: %w", err)
	}
	return &Billing{db, on}, nil
}

// tries is how often a transaction is begun that the database gave up.
const tries = 5

// Issue issues an invoice. SQL Server gives up a whole transaction when it cannot
// publish in it, for example because another one holds the key for too long; so
// the transaction, and not the publishing, is what is tried again.
func (b *Billing) Issue(ctx context.Context, number, customer string, cents int64) error {
	var err error
	for range tries {
		err = b.on.inTx(ctx, b.db, func(tx *sql.Tx, pub *events.Publisher) error {
			if _, err := tx.ExecContext(ctx, `INSERT INTO invoices (number, customer, cents) VALUES (@number, @customer, @cents)`,
				sql.Named("number", number), sql.Named("customer", customer), sql.Named("cents", cents)); err != nil {
				return err
			}
			return pub.InvoiceIssued(ctx, events.InvoiceIssued{InvoiceNo: events.NewInvoiceNo(number), Customer: customer, Cents: cents})
		})
		var again *event.RetryableError
		if !errors.As(err, &again) {
			break
		}
	}
	return err
}

// PaymentCaptured implements events.PaymentsHandler. It runs once per payment,
// however often the bank tells of it, and one at a time per invoice. The event
// that an invoice is settled is published in the handler's transaction.
func (b *Billing) PaymentCaptured(ctx context.Context, tx *sql.Tx, m inbox.Message[events.PaymentCaptured]) error {
	number := sql.Named("number", m.Event.InvoiceNo)
	r, err := tx.ExecContext(ctx, `UPDATE invoices SET paid = paid + @cents WHERE number = @number`, sql.Named("cents", m.Event.Cents), number)
	if err != nil {
		return err
	}
	if n, err := r.RowsAffected(); err != nil || n == 0 {
		return errors.Join(err, event.AsPermanent(fmt.Errorf("payment %s: there is no invoice %q", m.Event.PaymentID, m.Event.InvoiceNo)))
	}
	var cents, paid int64
	if err := tx.QueryRowContext(ctx, `SELECT cents, paid FROM invoices WHERE number = @number`, number).Scan(&cents, &paid); err != nil {
		return err
	}
	if paid != cents {
		return nil
	}
	return b.on.in(tx).InvoiceSettled(ctx, events.InvoiceSettled{InvoiceNo: events.NewInvoiceNo(m.Event.InvoiceNo), Cents: cents})
}

// An Invoice is what is known of one.
type Invoice struct {
	Number      string
	Cents, Paid int64
}

// Invoices returns all invoices by number.
func (b *Billing) Invoices(ctx context.Context) ([]Invoice, error) {
	rows, err := b.db.QueryContext(ctx, `SELECT number, cents, paid FROM invoices ORDER BY number`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var list []Invoice
	for rows.Next() {
		var i Invoice
		if err := rows.Scan(&i.Number, &i.Cents, &i.Paid); err != nil {
			return nil, err
		}
		list = append(list, i)
	}
	return list, rows.Err()
}
