package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/lanebox/lanebox/runtime/lane"
)

// errRemoved says that somebody else removed a message while it was handled.
var errRemoved = errors.New("the message was removed while it was handled; its transaction was rolled back")

// Handle implements inbox.PullStore. The context bounds everything, the handler
// included. A panic of fn rolls back and goes on.
func (s *InboxScope) Handle(ctx context.Context, owner string, row lane.Row, lease lane.Lease, fn func(ctx context.Context, tx pgx.Tx) error) error {
	tx, err := s.store.c.Pool.BeginTx(ctx, readCommitted)
	if err != nil {
		return Classify("begin the handler's transaction", err)
	}
	defer rollback(ctx, tx)
	if err := fn(ctx, tx); err != nil {
		return err
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
		return errRemoved
	}
	return Classify("commit the handler's transaction", tx.Commit(ctx))
}

// rollback ends a transaction that was not committed, also when its context has
// ended. It does nothing after a commit.
func rollback(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := bounded(context.WithoutCancel(ctx))
	defer cancel()
	tx.Rollback(ctx) // a connection that cannot roll back is closed by the pool
}
