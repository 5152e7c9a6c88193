// Package seats keeps handlers from using up a pool of connections: a handler
// keeps its connection for as long as it likes, and leases are renewed, messages
// fetched and outcomes recorded over the same pool.
package seats

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/lanebox/lanebox/runtime/lane"
)

// rooms hold the handlers by pool. An entry lives only while somebody uses it.
var rooms = struct {
	sync.Mutex
	byPool map[any]*room
}{byPool: map[any]*room{}}

type room struct {
	users int
	seats chan struct{} // holds an element for every handler inside
}

// Take waits for one of size seats of pool, which is at least one, for at most
// half of the time that ctx leaves, since the handler needs some too. When there
// is none the error is lane.ErrBusy: the message waits its turn. leave gives the
// seat back.
func Take(ctx context.Context, pool any, size int) (leave func(), err error) {
	rooms.Lock()
	r := rooms.byPool[pool]
	if r == nil {
		r = &room{seats: make(chan struct{}, max(1, size))}
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
func (r *room) quit(pool any) {
	rooms.Lock()
	defer rooms.Unlock()
	if r.users--; r.users == 0 {
		delete(rooms.byPool, pool)
	}
}
