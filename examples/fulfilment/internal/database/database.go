// Package database lets the two services of the example write their business once
// for PostgreSQL and SQLite.
package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	sqlitestore "github.com/lanebox/lanebox/runtime/sqlstore/sqlite"
)

// A DB is a database; one of its fields is set.
type DB struct {
	Postgres *pgxpool.Pool
	SQLite   *sql.DB
}

// Open opens a database: a URL of PostgreSQL, or a file of SQLite.
func Open(ctx context.Context, name string) (DB, error) {
	if !strings.HasPrefix(name, "postgres:") && !strings.HasPrefix(name, "postgresql:") {
		db, err := sqlitestore.Open(name)
		return DB{SQLite: db}, err
	}
	pool, err := pgxpool.New(ctx, name)
	if err != nil {
		return DB{}, err
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return DB{}, err
	}
	return DB{Postgres: pool}, nil
}

// Close closes the database.
func (db DB) Close() {
	if db.Postgres != nil {
		db.Postgres.Close()
	}
	if db.SQLite != nil {
		db.SQLite.Close()
	}
}

// Exec runs statements that have no arguments.
func (db DB) Exec(ctx context.Context, query string) error {
	if db.Postgres != nil {
		_, err := db.Postgres.Exec(ctx, query)
		return err
	}
	_, err := db.SQLite.ExecContext(ctx, query)
	return err
}

// Scan reads the only row of a query.
func (db DB) Scan(ctx context.Context, query string, into ...any) error {
	if db.Postgres != nil {
		return db.Postgres.QueryRow(ctx, query).Scan(into...)
	}
	return db.SQLite.QueryRowContext(ctx, query).Scan(into...)
}

// Each calls row for each row of a query; row reads it with scan.
func (db DB) Each(ctx context.Context, query string, row func(scan func(into ...any) error) error) error {
	if db.Postgres != nil {
		rows, err := db.Postgres.Query(ctx, query)
		if err != nil {
			return err
		}
		defer rows.Close()
		return each(rows, row)
	}
	rows, err := db.SQLite.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer rows.Close()
	return each(rows, row)
}

func each(rows interface {
	Next() bool
	Scan(into ...any) error
	Err() error
}, row func(scan func(into ...any) error) error) error {
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// A Tx is what the services need of a transaction.
type Tx interface {
	// Exec returns the number of rows that were changed.
	Exec(ctx context.Context, query string, args ...any) (int64, error)
	// Find reads the only row of a query; ok is false when there is none.
	Find(ctx context.Context, query string, args []any, into ...any) (ok bool, err error)
}

// Postgres returns a transaction of PostgreSQL as a Tx.
func Postgres(tx pgx.Tx) Tx { return postgres{tx} }

type postgres struct{ tx pgx.Tx }

func (p postgres) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	tag, err := p.tx.Exec(ctx, query, args...)
	return tag.RowsAffected(), err
}

func (p postgres) Find(ctx context.Context, query string, args []any, into ...any) (bool, error) {
	return found(p.tx.QueryRow(ctx, query, args...).Scan(into...))
}

// SQLite returns a transaction of SQLite as a Tx.
func SQLite(tx *sql.Tx) Tx { return sqlite{tx} }

type sqlite struct{ tx *sql.Tx }

func (s sqlite) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	result, err := s.tx.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (s sqlite) Find(ctx context.Context, query string, args []any, into ...any) (bool, error) {
	return found(s.tx.QueryRowContext(ctx, query, args...).Scan(into...))
}

func found(err error) (bool, error) {
	if errors.Is(err, sql.ErrNoRows) { // pgx.ErrNoRows is one
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read: %w", err)
	}
	return true, nil
}
