package postgres

import (
	"context"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// maxReserve is the largest number of connections of a reserve; one is used
// unless leases of several lengths are renewed at the same moment.
const maxReserve = 4

// A reserve is connections beside a pool, for what must not wait until the
// service gives one back: a pool that is used up must not cost leases. They are
// opened when they are first needed.
type reserve struct {
	of *pgxpool.Pool

	mu   sync.Mutex
	pool *pgxpool.Pool
}

// open returns the connections. They have the settings and hooks of the pool.
func (r *reserve) open(ctx context.Context) (*pgxpool.Pool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pool == nil {
		c := r.of.Config()
		c.MaxConns, c.MinConns, c.MinIdleConns = maxReserve, 0, 0
		pool, err := pgxpool.NewWithConfig(context.WithoutCancel(ctx), c)
		if err != nil {
			return nil, Classify("open reserved connections", err)
		}
		r.pool = pool
	}
	return r.pool, nil
}

// close closes the connections; open may open new ones.
func (r *reserve) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pool != nil {
		r.pool.Close()
		r.pool = nil
	}
}

// connect opens one more connection with the settings and hooks of a pool.
func connect(ctx context.Context, pool *pgxpool.Pool) (*pgx.Conn, error) {
	c := pool.Config()
	if c.BeforeConnect != nil { // it may fetch a password
		if err := c.BeforeConnect(ctx, c.ConnConfig); err != nil {
			return nil, err
		}
	}
	conn, err := pgx.ConnectConfig(ctx, c.ConnConfig)
	if err != nil {
		return nil, err
	}
	if c.AfterConnect != nil {
		if err := c.AfterConnect(ctx, conn); err != nil {
			conn.Close(ctx)
			return nil, err
		}
	}
	return conn, nil
}
