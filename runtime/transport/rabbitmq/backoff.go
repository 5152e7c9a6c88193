package rabbitmq

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/lanebox/lanebox/runtime/internal/pause"
)

// A backoff waits longer each time, with jitter.
type backoff struct {
	first, last time.Duration
	now         time.Duration // 0: first
}

func (b *backoff) reset() { b.now = 0 }

// pause waits; it returns false when ctx ends before.
func (b *backoff) pause(ctx context.Context) bool {
	b.now = min(max(2*b.now, b.first), b.last)
	return pause.For(ctx, b.now/2+rand.N(b.now))
}
