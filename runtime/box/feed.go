package box

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lanebox/lanebox/runtime/internal/rescue"
)

// A feedEnd is what became of a feed.
type feedEnd struct {
	index int
	err   error
}

// feed runs the feeds until ctx ends, and has stop end it as soon as one of them
// fails. It returns when all have ended, or did not end in time.
func (b *Box) feed(ctx context.Context, stop func()) error {
	ended := make(chan feedEnd, len(b.c.Feeds))
	for i, f := range b.c.Feeds {
		go func() { ended <- feedEnd{i, b.runFeed(ctx, f)} }()
	}
	errs := make([]error, len(b.c.Feeds)+1)
	running := make([]bool, len(b.c.Feeds))
	for i := range running {
		running[i] = true
	}
	var late <-chan time.Time // nil until ctx has ended
	done := ctx.Done()
	for left := len(b.c.Feeds); left > 0 || done != nil; {
		select {
		case e := <-ended:
			left--
			running[e.index], errs[e.index] = false, e.err
			if e.err != nil {
				stop()
			}
		case <-done:
			done = nil
			timer := time.NewTimer(b.feedGrace())
			defer timer.Stop()
			late = timer.C
		case <-late:
			errs[len(errs)-1] = fmt.Errorf("not ended within %s: source %s", b.feedGrace(), strings.Join(b.stillRunning(running), ", source "))
			return errors.Join(errs...)
		}
	}
	return errors.Join(errs...)
}

// feedGrace is how long feeds may take to end.
func (b *Box) feedGrace() time.Duration {
	if b.c.Grace <= 0 {
		return 10 * time.Second
	}
	return b.c.Grace / 2
}

// stillRunning names the feeds that have not ended.
func (b *Box) stillRunning(running []bool) []string {
	var names []string
	for i, f := range b.c.Feeds {
		if running[i] {
			names = append(names, f.Name)
		}
	}
	return names
}

// runFeed runs one feed. A feed that ends although ctx goes on has failed, since
// its messages are received no more. A panic is an error too, so that the process
// drains.
func (b *Box) runFeed(ctx context.Context, f Feed) error {
	err := run(ctx, f)
	switch {
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return nil // it says why it ended
	case err != nil:
		return fmt.Errorf("source %s: %w", f.Name, err)
	case ctx.Err() == nil:
		return fmt.Errorf("source %s: ended by itself", f.Name)
	}
	return nil
}

func run(ctx context.Context, f Feed) (err error) {
	defer rescue.Panic(&err)
	return f.Source.Run(ctx, f.Receiver)
}
