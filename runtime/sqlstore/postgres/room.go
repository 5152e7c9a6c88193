package postgres

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lanebox/lanebox/runtime/lane"
)

// spared is how many connections of a pool handlers leave to everything else.
const spared = 2

// rooms let only so many handlers at one time into a pool: a handler keeps its
// connection for as long as it likes, and leases are renewed, messages fetched
// and outcomes recorded over the same pool. An entry lives only while somebody
// uses it.
var rooms = struct {
	sync.Mutex
	byPool map[*pgxpool.Pool]*room
}{byPool: map[*pgxpool.Pool]*room{}}

type room struct {
	users int
	seats chan struct{} // holds an element for every handler inside
}

// takeSeat waits for a seat of pool, for at most half of the time that ctx leaves,
// since the handler needs some too. When there is none the error is lane.ErrBusy:
// the message waits its turn. leave gives the seat back.
func takeSeat(ctx context.Context, pool *pgxpool.Pool) (leave func(), err error) {
	rooms.Lock()
	r := rooms.byPool[pool]
	if r == nil {
		r = &room{seats: make(chan struct{}, max(1, int(pool.Config().MaxConns)-spared))}
		rooms.byPool[pool] = r
	}
	r.users++
	rooms.Unlock()
	waiting := ctx
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeout(ctx, time.Until(deadline)/2)
		defer cancel()
	}
	select {
	case r.seats <- struct{}{}:
		return func() {
			<-r.seats
			r.quit(pool)
		}, nil
	case <-waiting.Done():
		r.quit(pool)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("%w: all connections that handlers may use are in use", lane.ErrBusy)
	}
}

// quit removes the room with its last user.
func (r *room) quit(pool *pgxpool.Pool) {
	rooms.Lock()
	defer rooms.Unlock()
	if r.users--; r.users == 0 {
		delete(rooms.byPool, pool)
	}
}
