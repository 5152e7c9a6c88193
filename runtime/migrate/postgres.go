package migrate

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A Beginner starts transactions: *pgx.Conn and *pgxpool.Pool do.
type Beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// Postgres applies s to a PostgreSQL database. The migration lock is an
// advisory lock that belongs to the transaction, so that connection poolers of
// every mode can be used. The schema is created when it is missing.
func Postgres(ctx context.Context, db Beginner, s Set) (Report, error) {
	if s.Schema == "" {
		s.Schema = "public"
	}
	tx, err := db.Begin(ctx)
	if err != nil {
		return Report{}, fmt.Errorf("migrate: %w", err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) // does nothing after the commit
	r, err := s.apply(ctx, &postgresDB{tx: tx, schema: s.Schema, prefix: s.Prefix})
	if err == nil && !s.DryRun {
		err = tx.Commit(ctx)
	}
	if err != nil {
		return Report{}, fmt.Errorf("migrate: %w", err)
	}
	return r, nil
}

type postgresDB struct {
	tx             pgx.Tx
	schema, prefix string
}

// table returns the quoted name of a table, with its schema.
func (d *postgresDB) table(name string) string {
	return pgx.Identifier{d.schema, d.prefix + name}.Sanitize()
}

func (d *postgresDB) prepare(ctx context.Context) error {
	if _, err := d.tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended($1, 0))`, "lanebox migrate "+d.table("")); err != nil {
		return err
	}
	var found bool
	if err := d.tx.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = $1)`, d.schema).Scan(&found); err != nil {
		return err
	}
	if !found {
		if err := d.run(ctx, `CREATE SCHEMA `+quote(d.schema)); err != nil {
			return err
		}
	}
	return d.run(ctx, `CREATE TABLE IF NOT EXISTS `+d.table("lanebox_migration")+` (
  name       text        PRIMARY KEY,
  checksum   text        NOT NULL,
  applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
)`)
}

// run uses the simple protocol, which takes several statements and leaves the
// reading of function bodies and quotes to the server.
func (d *postgresDB) run(ctx context.Context, text string) error {
	return d.tx.Conn().PgConn().Exec(ctx, text).Close()
}

func (d *postgresDB) recorded(ctx context.Context) (map[string]string, error) {
	rows, err := d.tx.Query(ctx, `SELECT name::text, checksum::text FROM `+d.table("lanebox_migration"))
	if err != nil {
		return nil, d.foreign(err)
	}
	done := map[string]string{}
	var name, sum string
	_, err = pgx.ForEachRow(rows, []any{&name, &sum}, func() error {
		done[name] = sum
		return nil
	})
	return done, d.foreign(err)
}

// foreign turns "undefined column" of the migration table into a
// ForeignTableError.
func (d *postgresDB) foreign(err error) error {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == "42703" {
		return &ForeignTableError{Table: d.prefix + "lanebox_migration", Schema: d.schema}
	}
	return err
}

func (d *postgresDB) record(ctx context.Context, name, sum string) error {
	_, err := d.tx.Exec(ctx, `INSERT INTO `+d.table("lanebox_migration")+` (name, checksum) VALUES ($1, $2)
ON CONFLICT (name) DO UPDATE SET checksum = excluded.checksum, applied_at = excluded.applied_at`, name, sum)
	return err
}

func (d *postgresDB) columns(ctx context.Context, table string) ([]string, error) {
	rows, err := d.tx.Query(ctx, `SELECT a.attname::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
 JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped WHERE n.nspname = $1 AND c.relname = $2`, d.schema, table)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

func (d *postgresDB) scopes(ctx context.Context) ([]Scope, error) {
	rows, err := d.tx.Query(ctx, `SELECT scope::integer, kind::text, name::text FROM `+d.table("lane_scope")+` ORDER BY kind, name`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Scope])
}

func (d *postgresDB) load(ctx context.Context, s Scope) (Load, error) {
	var l Load
	err := d.tx.QueryRow(ctx, loadQuery(s, d.table, "$1::integer"), s.Number).Scan(&l.Waiting, &l.Held, &l.Dead)
	return l, err
}

func (d *postgresDB) drop(ctx context.Context, s Scope) error {
	for _, t := range scopeTables {
		if _, err := d.tx.Exec(ctx, `DELETE FROM `+d.table(t)+` WHERE scope = $1`, s.Number); err != nil {
			return err
		}
	}
	return nil
}
