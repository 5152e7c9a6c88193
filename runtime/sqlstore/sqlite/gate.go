package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
)

// patience is how long Write waits for its turn inside the process.
const patience = 10 * time.Second

// gates let one Write at a time of each pool go to the database. Without them
// every waiting writer would hold a connection of the pool, so that readers and
// the writer's own queries found none, and would poll for the lock. An entry
// lives only while somebody uses it.
var gates = struct {
	sync.Mutex
	byDB map[*sql.DB]*gate
}{byDB: map[*sql.DB]*gate{}}

type gate struct {
	users int
	turn  chan struct{} // holds one element while a writer is inside
}

// enter waits for the turn of a writer; leave ends it.
func enter(ctx context.Context, db *sql.DB) (leave func(), err error) {
	gates.Lock()
	g := gates.byDB[db]
	if g == nil {
		g = &gate{turn: make(chan struct{}, 1)}
		gates.byDB[db] = g
	}
	g.users++
	gates.Unlock()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case g.turn <- struct{}{}:
		return func() {
			<-g.turn
			g.quit(db)
		}, nil
	case <-ctx.Done():
		g.quit(db)
		return nil, ctx.Err()
	case <-timer.C:
		g.quit(db)
		return nil, &event.RetryableError{Op: "begin", Err: fmt.Errorf("another transaction of this process has been writing for %v", patience)}
	}
}

// quit removes the gate with its last user.
func (g *gate) quit(db *sql.DB) {
	gates.Lock()
	defer gates.Unlock()
	if g.users--; g.users == 0 {
		delete(gates.byDB, db)
	}
}
