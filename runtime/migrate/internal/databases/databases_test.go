package databases_test

import (
	"database/sql"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/lanebox/lanebox/runtime/migrate"
	"github.com/lanebox/lanebox/runtime/storetest/testmssql"
	"github.com/lanebox/lanebox/runtime/storetest/testpg"
	_ "modernc.org/sqlite"
)

// newSQLite returns a fresh file, opened without any setting.
func newSQLite(t *testing.T) *target {
	t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(t.TempDir(), "x.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return &target{
		T: t, dialect: "sqlite",
		migrate: func(s migrate.Set) (migrate.Report, error) { return migrate.SQLite(t.Context(), db, s) },
		run: func(text string) error {
			_, err := db.Exec(text)
			return err
		},
		count: func(query string) (n int64) {
			t.Helper()
			if err := db.QueryRow(query).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		},
	}
}

// newPostgres returns a database of its own, and a schema that does not exist yet.
func newPostgres(t *testing.T) *target {
	t.Helper()
	pool := testpg.Pool(t, testpg.URL(t), nil)
	const schema = "migrate"
	ensure := func() error { // other tools need the schema
		_, err := pool.Exec(t.Context(), `CREATE SCHEMA IF NOT EXISTS `+schema)
		return err
	}
	return &target{
		T: t, dialect: "postgres", schema: schema,
		migrate: func(s migrate.Set) (migrate.Report, error) { return migrate.Postgres(t.Context(), pool, s) },
		run: func(text string) error {
			if err := ensure(); err != nil {
				return err
			}
			return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return tx.Conn().PgConn().Exec(t.Context(), text).Close() })
		},
		count: func(query string) (n int64) {
			t.Helper()
			if err := pool.QueryRow(t.Context(), query).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		},
	}
}

// newSQLServer returns a database of its own, and a schema that does not exist
// yet.
func newSQLServer(t *testing.T) *target {
	t.Helper()
	db := testmssql.DB(t, testmssql.URL(t))
	const schema = "migrate"
	return &target{
		T: t, dialect: "sqlserver", schema: schema,
		migrate: func(s migrate.Set) (migrate.Report, error) { return migrate.SQLServer(t.Context(), db, s) },
		run: func(text string) error {
			// Other tools need the schema; CREATE SCHEMA must be alone in its batch.
			if _, err := db.ExecContext(t.Context(), `IF SCHEMA_ID('`+schema+`') IS NULL EXEC('CREATE SCHEMA `+schema+`')`); err != nil {
				return err
			}
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				return err
			}
			defer tx.Rollback()
			for _, batch := range separator.Split(text, -1) {
				if strings.TrimSpace(batch) == "" {
					continue
				}
				if _, err := tx.ExecContext(t.Context(), batch); err != nil {
					return err
				}
			}
			return tx.Commit()
		},
		count: func(query string) (n int64) {
			t.Helper()
			if err := db.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		},
	}
}

// separator is how a simple tool finds the end of a batch.
var separator = regexp.MustCompile(`(?im)^GO\s*$`)

func TestSQLiteNeedsUTF8(t *testing.T) {
	d := newSQLite(t)
	db, err := sql.Open("sqlite", filepath.Join(t.TempDir(), "utf16.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	if _, err := db.Exec(`PRAGMA encoding = 'UTF-16'; CREATE TABLE t (x)`); err != nil {
		t.Fatal(err)
	}
	if _, err := migrate.SQLite(t.Context(), db, d.set()); err == nil {
		t.Error("a database in UTF-16 was accepted")
	}
}
