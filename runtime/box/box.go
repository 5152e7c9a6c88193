// Package box puts the parts of a service's outbox and inbox together. Generated
// code calls it; services use the Box that generated code returns.
package box

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/outbox"
)

// A Process runs loops; *engine.Process is one.
type Process interface {
	// Run returns nil after ctx has ended and what was in flight is finished.
	Run(ctx context.Context) error
	// Nudge says that messages may be waiting. It never blocks.
	Nudge()
}

// Config lists the parts of a Box.
type Config struct {
	Process Process
	// Receivers take the messages of all sources. They nudge the process.
	Receivers []*inbox.Receiver
	// Sources is the handler of all HTTP sources; nil means that there is none.
	Sources http.Handler
	// Running is where the Box is listed while it runs.
	Running *Running
	// Start is called first by Run, which returns its error; nil means that
	// nothing is to be checked.
	Start func(ctx context.Context) error
	// Feeds are the sources that Run runs, such as brokers.
	Feeds []Feed
	// Grace is how long the process waits for what is in flight; 0 means 20 s. Run
	// waits at most half as long for the feeds, before that.
	Grace time.Duration
}

// A Feed is a source that has to be run, and the receiver of its messages.
type Feed struct {
	// Name is the source's name in the schema.
	Name     string
	Source   inbox.Source
	Receiver *inbox.Receiver
}

// A Box runs the relay, the pollers and the workers of a service. It is safe for
// concurrent use, but runs once.
type Box struct {
	c       Config
	started atomic.Bool
}

// New returns a Box. All parts but the sources are needed.
func New(c Config) *Box {
	if c.Sources == nil {
		c.Sources = http.NotFoundHandler()
	}
	b := &Box{c: c}
	for _, r := range c.Receivers {
		r.OnStored(b.Nudge)
	}
	return b
}

// Run runs everything until ctx ends or a feed fails, then shuts down in order:
// first the feeds stop and finish what they have in hand, so that nothing is
// acknowledged that was not stored, then the process finishes what is in flight.
// It returns nil after a clean drain, and the error of a feed that cannot run. It
// may be called again only when the check at its beginning failed.
func (b *Box) Run(ctx context.Context) error {
	if b.c.Start != nil {
		if err := b.c.Start(ctx); err != nil {
			if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
				return nil // stopped before anything began
			}
			return fmt.Errorf("start: %w", err)
		}
	}
	if b.started.Swap(true) {
		return errors.New("the box was run before")
	}
	defer b.c.Running.add(b.c.Process)()
	// The process does not end with ctx, but after the feeds.
	inner, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	intake, stopIntake := context.WithCancel(ctx)
	defer stopIntake()
	var receivers sync.WaitGroup
	errs := make([]error, len(b.c.Receivers)+2)
	for i, r := range b.c.Receivers {
		receivers.Go(func() { errs[i+2] = r.Run(inner) })
	}
	process := make(chan error, 1)
	go func() {
		process <- b.c.Process.Run(inner)
		stopIntake() // a process that could not run
	}()
	errs[0] = b.feed(intake, stopIntake)
	stop()
	errs[1] = <-process
	receivers.Wait()
	return errors.Join(errs...)
}

// Receiver returns the handler of all HTTP sources, each at its path.
func (b *Box) Receiver() http.Handler { return b.c.Sources }

// Nudge says that messages may be waiting, for example after a commit. It never
// blocks, and calling it too often is harmless.
func (b *Box) Nudge() { b.c.Process.Nudge() }

// Running is the set of processes of one generated package that run now. The
// zero value is empty. It is safe for concurrent use.
type Running struct {
	mu        sync.Mutex
	processes map[Process]bool
}

// add lists p and returns the function that takes it off the list.
func (r *Running) add(p Process) (remove func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.processes == nil {
		r.processes = map[Process]bool{}
	}
	r.processes[p] = true
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.processes, p)
	}
}

// Nudge nudges every process of the set and reports whether there is any.
func (r *Running) Nudge() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for p := range r.processes {
		p.Nudge()
	}
	return len(r.processes) > 0
}

// Nudging returns an appender that nudges the processes of the set after each
// call of a that succeeded. The commit comes a little later; processes look
// again for a moment.
func (r *Running) Nudging(a outbox.Appender) outbox.Appender { return nudging{a, r} }

type nudging struct {
	outbox.Appender
	running *Running
}

func (n nudging) Append(ctx context.Context, records []outbox.Record) error {
	err := n.Appender.Append(ctx, records)
	if err == nil {
		n.running.Nudge()
	}
	return err
}
