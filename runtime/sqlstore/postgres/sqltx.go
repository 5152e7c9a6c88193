package postgres

import (
	"context"
	"database/sql"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// SQLTx returns a DBTX for publishing inside a transaction of database/sql. The
// transaction must come from pgx's standard-library driver, which hands arrays
// on as they are. Only Exec works: publishing reads nothing.
func SQLTx(tx *sql.Tx) DBTX { return sqlTx{tx} }

type sqlTx struct{ tx *sql.Tx }

// errOnlyPublish is what reading through a database/sql transaction gives.
var errOnlyPublish = errors.New("a database/sql transaction is only for publishing")

func (t sqlTx) Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error) {
	_, err := t.tx.ExecContext(ctx, query, args...)
	return pgconn.CommandTag{}, err
}

func (t sqlTx) Query(context.Context, string, ...any) (pgx.Rows, error) { return nil, errOnlyPublish }

func (t sqlTx) QueryRow(context.Context, string, ...any) pgx.Row { return row{err: errOnlyPublish} }
