package sqlserver

import (
	"context"
	"database/sql"
	"database/sql/driver"
)

// leastForReserve is the size of the smallest pool that can spare a connection
// for renewals alone.
const leastForReserve = 3

// A reserve keeps one connection of a pool to itself, for what must not wait
// until the service gives one back: a pool that is used up must not cost leases.
// It takes the connection when it is first needed, and a new one when it breaks.
type reserve struct {
	db   *sql.DB
	turn chan struct{} // holds an element while the connection is in use
	conn *sql.Conn     // nil when there is none; belongs to whoever has the turn
}

func newReserve(db *sql.DB) reserve { return reserve{db: db, turn: make(chan struct{}, 1)} }

// use calls fn with the connection, one call at a time. A pool of one or two
// connections has none to spare: fn gets the pool then.
func (r *reserve) use(ctx context.Context, fn func(db DBTX) error) error {
	if most := r.db.Stats().MaxOpenConnections; most > 0 && most < leastForReserve {
		return fn(r.db)
	}
	if err := r.enter(ctx); err != nil {
		return err
	}
	defer r.leave()
	kept := r.conn != nil
	err := r.with(ctx, fn)
	if err != nil && kept && r.conn == nil && ctx.Err() == nil {
		err = r.with(ctx, fn) // the connection broke since the last call
	}
	return err
}

// with calls fn and gives up the connection if it is broken afterwards.
func (r *reserve) with(ctx context.Context, fn func(db DBTX) error) error {
	if r.conn == nil {
		conn, err := r.db.Conn(ctx)
		if err != nil {
			return err
		}
		r.conn = conn
	}
	err := fn(r.conn)
	if err != nil && !sound(r.conn) {
		r.drop()
	}
	return err
}

// sound reports whether a connection can be used again.
func sound(conn *sql.Conn) bool {
	return conn.Raw(func(c any) error {
		if v, ok := c.(driver.Validator); ok && !v.IsValid() {
			return driver.ErrBadConn
		}
		return nil
	}) == nil
}

// close gives the connection back to the pool; use may take a new one.
func (r *reserve) close(ctx context.Context) {
	if r.enter(ctx) != nil {
		return // its user is still busy
	}
	defer r.leave()
	r.drop()
}

func (r *reserve) drop() {
	if r.conn != nil {
		_ = r.conn.Close() // it is closed already if it is broken
		r.conn = nil
	}
}

// enter waits for the turn.
func (r *reserve) enter(ctx context.Context) error {
	select {
	case r.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *reserve) leave() { <-r.turn }
