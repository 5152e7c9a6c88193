// Package pause waits in a way that a context ends.
package pause

import (
	"context"
	"sync"
	"time"
)

// For waits for d. It returns false as soon as ctx ends before that.
func For(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// stopped are timers to be used again.
var stopped = sync.Pool{New: func() any { return time.NewTimer(time.Hour) }}

// Timer returns a timer that ends after d, for waits so frequent that a timer for
// each would cost. Give it back with Stop.
func Timer(d time.Duration) *time.Timer {
	t := stopped.Get().(*time.Timer)
	t.Reset(d)
	return t
}

// Stop stops a timer of Timer, which is not to be used any more. From Go 1.23 on,
// nothing stale comes from its channel later.
func Stop(t *time.Timer) {
	t.Stop()
	stopped.Put(t)
}
