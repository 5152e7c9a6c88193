package rabbitmq

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"
)

// logger is what a consumer logs with.
type logger = *slog.Logger

// A backoff waits longer each time, with jitter.
type backoff struct {
	first, last time.Duration
	now         time.Duration // 0: first
}

func (b *backoff) reset() { b.now = 0 }

// pause waits; it returns false when ctx ends before.
func (b *backoff) pause(ctx context.Context) bool {
	b.now = min(max(2*b.now, b.first), b.last)
	timer := time.NewTimer(b.now/2 + rand.N(b.now))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
