package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A Batcher sends several statements in one round trip: *pgxpool.Pool, *pgx.Conn
// and pgx.Tx do.
type Batcher interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// planClaims makes the planner use the primary keys, whatever it believes about
// the size of the tables: a plan that was made while a table was empty reads it
// from end to end, and may be kept while the table grows.
const planClaims = `SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('jit', 'off', true)`

// Claims returns a DBTX that sends every statement together with its planner
// settings, in one round trip and one transaction. The settings end with the
// transaction, so that nothing is left in a session that somebody else uses
// next, for example behind PgBouncer in transaction mode. With a pgx.Tx the
// settings stay until that transaction ends.
func Claims(db Batcher) DBTX { return claims{db} }

type claims struct{ db Batcher }

func (c claims) send(ctx context.Context, sql string, args []any) (pgx.BatchResults, error) {
	var b pgx.Batch
	b.Queue(planClaims)
	b.Queue(sql, args...)
	results := c.db.SendBatch(ctx, &b)
	if _, err := results.Exec(); err != nil {
		results.Close()
		return nil, err
	}
	return results, nil
}

func (c claims) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	results, err := c.send(ctx, sql, args)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	tag, err := results.Exec()
	if closed := results.Close(); err == nil {
		err = closed
	}
	return tag, err
}

func (c claims) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	results, err := c.send(ctx, sql, args)
	if err != nil {
		return nil, err
	}
	rows, err := results.Query()
	if err != nil {
		results.Close()
		return nil, err
	}
	return &batchRows{Rows: rows, results: results}, nil
}

func (c claims) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, err := c.Query(ctx, sql, args...)
	return row{rows, err}
}

// batchRows are the rows of a statement in a batch. The transaction of the batch
// ends with the last row, so its error is that of the rows.
type batchRows struct {
	pgx.Rows
	results pgx.BatchResults
	closed  bool
	err     error
}

func (r *batchRows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

func (r *batchRows) Close() {
	if r.closed {
		return
	}
	r.closed = true
	r.Rows.Close()
	r.err = r.Rows.Err()
	if err := r.results.Close(); r.err == nil {
		r.err = err
	}
}

func (r *batchRows) Err() error {
	if r.closed {
		return r.err
	}
	return r.Rows.Err()
}

// row is the first of some rows.
type row struct {
	rows pgx.Rows
	err  error
}

func (r row) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	defer r.rows.Close()
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	if err := r.rows.Scan(dest...); err != nil {
		return err
	}
	r.rows.Close()
	return r.rows.Err()
}
