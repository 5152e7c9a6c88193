package databases_test

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lanebox/lanebox/runtime/migrate"
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

// newPostgres returns a schema of its own that does not exist yet.
func newPostgres(t *testing.T) *target {
	t.Helper()
	url := os.Getenv("LANEBOX_TEST_POSTGRES_URL")
	if url == "" {
		if os.Getenv("LANEBOX_TEST_REQUIRE") == "all" {
			t.Fatal("LANEBOX_TEST_POSTGRES_URL is not set")
		}
		t.Skip("LANEBOX_TEST_POSTGRES_URL is not set")
	}
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	schema := fmt.Sprintf("migrate_%x", rand.Uint64())
	t.Cleanup(func() {
		if _, err := pool.Exec(context.Background(), `DROP SCHEMA IF EXISTS `+schema+` CASCADE`); err != nil {
			t.Error(err)
		}
		pool.Close()
	})
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
