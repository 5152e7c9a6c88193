package main

import (
	"context"
	"database/sql"
	"net/http"
	"strings"

	"github.com/lanebox/lanebox/examples/billing/internal/events"
	"github.com/lanebox/lanebox/examples/billing/internal/events/sqlite"
	"github.com/lanebox/lanebox/examples/billing/internal/events/sqlserver"
	"github.com/lanebox/lanebox/runtime/migrate"
	"github.com/lanebox/lanebox/runtime/outbox"
	sqlitestore "github.com/lanebox/lanebox/runtime/sqlstore/sqlite"
	"github.com/lanebox/lanebox/runtime/transport/webhook"
)

// A Database is everything in which the two databases differ. The business in
// billing.go is the same for both: transactions are those of database/sql.
type Database struct {
	open    func(address string) (*sql.DB, error)
	migrate func(ctx context.Context, db *sql.DB) (migrate.Report, error)
	inTx    func(ctx context.Context, db *sql.DB, fn func(tx *sql.Tx, pub *events.Publisher) error) error
	in      func(tx *sql.Tx) *events.Publisher
	box     func(db *sql.DB, p Parts) (Box, error)
	// invoices makes the table of invoices, unless it exists.
	invoices string
}

// Parts are what the service gives to its box, on either database.
type Parts struct {
	Bank, Mail outbox.Destination
	Payments   events.PaymentsHandler[*sql.Tx]
	Verifier   webhook.Verifier
}

// A Box is what both generated packages have.
type Box interface {
	Run(ctx context.Context) error
	Receiver() http.Handler
}

// databaseOf returns the database of an address: a URL of SQL Server, or the path
// of an SQLite file.
func databaseOf(address string) Database {
	if strings.HasPrefix(address, "sqlserver://") {
		return onSQLServer
	}
	return onSQLite
}

var onSQLite = Database{
	open:    sqlitestore.Open,
	migrate: sqlite.Migrate,
	inTx:    sqlite.InTx,
	in:      sqlite.In,
	box: func(db *sql.DB, p Parts) (Box, error) {
		return sqlite.New(db, sqlite.Config{Bank: p.Bank, Mail: p.Mail, Payments: p.Payments, PaymentsVerifier: p.Verifier})
	},
	invoices: `CREATE TABLE IF NOT EXISTS invoices (
		number TEXT PRIMARY KEY, customer TEXT NOT NULL, cents INTEGER NOT NULL, paid INTEGER NOT NULL DEFAULT 0) STRICT`,
}

var onSQLServer = Database{
	open:    openSQLServer,
	migrate: sqlserver.Migrate,
	inTx:    sqlserver.InTx,
	in:      sqlserver.In,
	box: func(db *sql.DB, p Parts) (Box, error) {
		return sqlserver.New(db, sqlserver.Config{Bank: p.Bank, Mail: p.Mail, Payments: p.Payments, PaymentsVerifier: p.Verifier})
	},
	// The collation compares numbers of invoices byte for byte, as SQLite does.
	invoices: `IF OBJECT_ID(N'invoices') IS NULL CREATE TABLE invoices (
		number nvarchar(64) COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY, customer nvarchar(200) NOT NULL,
		cents bigint NOT NULL, paid bigint NOT NULL DEFAULT 0)`,
}

// openSQLServer opens a pool that keeps its connections: database/sql would keep
// two, and connect again all the time under load. The driver's name comes with the
// generated package, which imports it.
func openSQLServer(address string) (*sql.DB, error) {
	db, err := sql.Open("sqlserver", address)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(8)
	db.SetMaxIdleConns(8)
	return db, nil
}
