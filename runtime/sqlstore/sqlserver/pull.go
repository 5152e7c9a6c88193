package sqlserver

import (
	"context"
	"database/sql"

	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/internal/seats"
	"github.com/lanebox/lanebox/runtime/lane"
)

// spared is how many connections of a pool handlers leave to everything else:
// one that renews the leases, and two that fetch and settle.
const spared = 3

// Handle implements inbox.PullStore. It waits until the pool has a connection to
// spare: three are left to everything else, if its size is limited and above
// three. The context bounds everything, the handler included. A panic of fn
// rolls back and goes on.
//
// fn must not end its transaction. When it did, with tx.Commit or in plain SQL,
// or when a failed statement made SQL Server end it, the message is not completed,
// whatever fn returns. (Of what a COMMIT of fn left behind nothing can be taken
// back, and the message is handled again.)
func (s *InboxScope) Handle(ctx context.Context, owner string, row lane.Row, lease lane.Lease, fn func(ctx context.Context, tx *sql.Tx) error) error {
	leave, err := s.store.takeSeat(ctx)
	if err != nil {
		return Classify("wait for another handler to end", err)
	}
	defer leave()
	tx, err := beginMarked(ctx, s.store.c.DB)
	if err != nil {
		return Classify("begin the handler's transaction", err)
	}
	defer tx.end()
	if err := fn(ctx, tx.Tx); err != nil {
		return err
	}
	if err := tx.whole(ctx); err != nil {
		return Classify("complete the message", err)
	}
	done, err := s.store.c.Bind(tx).Complete(ctx, CompleteParams{
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
	return Classify("commit the handler's transaction", tx.commit(ctx))
}

// takeSeat waits until a handler may take a connection; see seats.Take. A pool
// without a limit has room for everybody.
func (s *Store) takeSeat(ctx context.Context) (leave func(), err error) {
	most := s.c.DB.Stats().MaxOpenConnections
	if most == 0 {
		return func() {}, nil
	}
	return seats.Take(ctx, s.c.DB, most-spared)
}
