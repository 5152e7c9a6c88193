// Package pause waits in a way that a context ends.
package pause

import (
	"context"
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
