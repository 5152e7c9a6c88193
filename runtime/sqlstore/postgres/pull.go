package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/internal/seats"
	"github.com/lanebox/lanebox/runtime/lane"
)

// spared is how many connections of a pool handlers leave to everything else.
const spared = 2

// errEnded says that a handler or a mapping hook ended the transaction that it
// was given. Returning nil commits it, an error rolls it back.
var errEnded = errors.New("the transaction was ended by the code it was given to; return nil to commit it, an error to roll it back")

// beginHandler begins the transaction of a handler. It runs a statement, so that
// PostgreSQL refuses to change the isolation level afterwards: the fence needs
// READ COMMITTED.
var beginHandler = pgx.TxOptions{BeginQuery: "BEGIN ISOLATION LEVEL READ COMMITTED; SELECT 1"}

// Handle implements inbox.PullStore. It waits until the pool has a connection to
// spare: two are left to everything else, if it has more than two. The context bounds everything, the handler
// included. A panic of fn rolls back and goes on. fn cannot end its transaction:
// when it tries, nothing of it is committed. (Of what a COMMIT in plain SQL left
// behind nothing can be taken back, and the message is handled again.)
func (s *InboxScope) Handle(ctx context.Context, owner string, row lane.Row, lease lane.Lease, fn func(ctx context.Context, tx pgx.Tx) error) error {
	leave, err := s.store.takeSeat(ctx)
	if err != nil {
		return Classify("wait for another handler to end", err)
	}
	defer leave()
	tx, err := s.store.c.Pool.BeginTx(ctx, beginHandler)
	if err != nil {
		return Classify("begin the handler's transaction", err)
	}
	defer rollback(ctx, tx)
	lent := &lentTx{Tx: tx}
	if err := fn(ctx, lent); err != nil {
		return err
	}
	if lent.ended || outside(tx) {
		return errEnded
	}
	done, err := s.store.c.Bind(Claims(tx)).Complete(ctx, CompleteParams{
		Scope: int32(s.scope), Bucket: int16(lease.Bucket), Token: lease.Token, Owner: owner,
		Lane: row.Lane, Sequence: row.Message.Sequence,
	})
	switch {
	case err != nil:
		return Classify("complete the message", err)
	case !done.Leased:
		return lane.ErrLeaseLost
	case !done.Removed:
		return inbox.ErrGone
	}
	return Classify("commit the handler's transaction", tx.Commit(ctx))
}

// takeSeat waits until a handler may take a connection; see seats.Take.
func (s *Store) takeSeat(ctx context.Context) (leave func(), err error) {
	pool := s.c.Pool
	return seats.Take(ctx, pool, int(pool.Stat().MaxConns())-spared)
}

// outside reports whether the connection of tx is no longer in a transaction.
func outside(tx pgx.Tx) bool {
	conn := tx.Conn().PgConn()
	return !conn.IsClosed() && conn.TxStatus() == 'I'
}

// A lentTx is a transaction in the hands of somebody who must not end it.
type lentTx struct {
	pgx.Tx
	ended bool
}

func (t *lentTx) Commit(context.Context) error {
	t.ended = true
	return errEnded
}

func (t *lentTx) Rollback(context.Context) error {
	t.ended = true
	return errEnded
}

// rollback ends a transaction that was not committed, also when its context has
// ended. It does nothing after a commit.
func rollback(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := bounded(context.WithoutCancel(ctx))
	defer cancel()
	tx.Rollback(ctx) // a connection that cannot roll back is closed by the pool
}
