package postgres_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	store "github.com/lanebox/lanebox/runtime/sqlstore/postgres"
	"github.com/lanebox/lanebox/runtime/storetest/testpg"
)

func TestInTx(t *testing.T) {
	ctx := t.Context()
	pool := testpg.Pool(t, testpg.URL(t), func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
	})
	if _, err := pool.Exec(ctx, `CREATE TABLE parent (id int PRIMARY KEY);
		CREATE TABLE child (id int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)`); err != nil {
		t.Fatal(err)
	}
	insert := func(id int) func(tx pgx.Tx) error {
		return func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO parent VALUES ($1)`, id)
			return err
		}
	}
	if err := store.InTx(ctx, pool, insert(1)); err != nil {
		t.Fatal(err)
	}
	bad := errors.New("bad")
	if err := store.InTx(ctx, pool, func(tx pgx.Tx) error { return errors.Join(insert(2)(tx), bad) }); !errors.Is(err, bad) {
		t.Errorf("error of fn: %v", err)
	}
	func() {
		defer func() {
			if recover() != "panic" {
				t.Error("the panic was swallowed")
			}
		}()
		store.InTx(ctx, pool, func(tx pgx.Tx) error { insert(3)(tx); panic("panic") })
	}()
	// A deferred constraint fails at commit.
	if err := store.InTx(ctx, pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO child VALUES (9)`)
		return err
	}); err == nil {
		t.Error("a commit that failed was reported as done")
	}
	if err := store.InTx(ctx, pool, func(tx pgx.Tx) error {
		var level string
		if err := tx.QueryRow(ctx, `SHOW transaction_isolation`).Scan(&level); err != nil || level != "read committed" {
			t.Errorf("isolation %q, %v", level, err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	var rows int
	if err := pool.QueryRow(ctx, `SELECT count(*) FROM parent`).Scan(&rows); err != nil || rows != 1 {
		t.Errorf("%d rows, %v; want the committed one", rows, err)
	}
}
