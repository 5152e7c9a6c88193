package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// InTx runs fn in a READ COMMITTED transaction and commits it when fn returns
// nil. An error of fn rolls back and is returned as it is; so does a panic, which
// goes on. Errors of the transaction itself are classified.
func InTx(ctx context.Context, pool *pgxpool.Pool, fn func(tx pgx.Tx) error) error {
	tx, err := pool.BeginTx(ctx, readCommitted)
	if err != nil {
		return Classify("begin", err)
	}
	defer rollback(ctx, tx)
	if err := fn(tx); err != nil {
		return err
	}
	return Classify("commit", tx.Commit(ctx))
}
