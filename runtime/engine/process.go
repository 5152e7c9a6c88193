// Package engine runs loops that deliver messages: one goroutine per scope that
// feeds a schedule.Machine and carries out its effects, and one process around
// them that keeps their leases, wakes them and shuts them down.
package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/internal/pause"
	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/schedule"
)

// A ProcessConfig describes what the loops of a process share.
type ProcessConfig struct {
	// Keeper renews the leases. It should have a connection of its own.
	Keeper lane.Keeper
	// Waker carries wake-ups between processes; nil means polling only.
	Waker lane.Waker
	// Logger receives what an operator should know; nil means slog.Default.
	Logger *slog.Logger
	// Observer is told everything that happens; nil means nobody. It is called
	// from the loops' goroutines, one call at a time per loop, and must not block.
	Observer func(Event)
	// PollInterval is the longest time without a look for messages; default 1 s.
	PollInterval time.Duration
	// Grace is how long a shutdown waits for deliveries in flight; default 20 s.
	Grace time.Duration
}

// A Process runs loops. Its owner id is random, so that a restarted process is
// never taken for its former life.
type Process struct {
	config ProcessConfig
	owner  string
	loops  []*Loop
	groups []*group
	debug  bool
	logger *slog.Logger

	gate    chan struct{} // holds a token while a suspect has the gate
	nudged  chan struct{}
	started atomic.Bool
}

// A group is the loops whose leases are equally long; they are kept together.
type group struct {
	ttl   time.Duration
	loops []*Loop
}

// NewProcess returns a process that has not started. It refuses a configuration
// with something missing, or two loops of one scope.
func NewProcess(c ProcessConfig, loops ...*Loop) (*Process, error) {
	if c.Keeper == nil {
		return nil, errors.New("the process has no keeper")
	}
	if c.PollInterval <= 0 {
		c.PollInterval = time.Second
	}
	if c.Grace <= 0 {
		c.Grace = 20 * time.Second
	}
	p := &Process{
		config: c, owner: event.NewUUID().String(), loops: loops, logger: c.Logger,
		gate: make(chan struct{}, 1), nudged: make(chan struct{}, 1),
	}
	if p.logger == nil {
		p.logger = slog.Default()
	}
	p.debug = p.logger.Enabled(context.Background(), slog.LevelDebug)
	names := map[lane.Scope]string{}
	for _, l := range loops {
		if err := l.check(); err != nil {
			return nil, err
		}
		if other, taken := names[l.config.Scope]; taken {
			return nil, fmt.Errorf("loops %s and %s have the same scope %d", other, l.config.Name, l.config.Scope)
		}
		names[l.config.Scope] = l.config.Name
		p.join(l)
	}
	return p, nil
}

// join puts a loop into the group of its lease.
func (p *Process) join(l *Loop) {
	for _, g := range p.groups {
		if g.ttl == l.policy.Lease {
			g.loops = append(g.loops, l)
			return
		}
	}
	p.groups = append(p.groups, &group{ttl: l.policy.Lease, loops: []*Loop{l}})
}

// Owner returns the random id under which the process holds leases.
func (p *Process) Owner() string { return p.owner }

// Stats returns the counters and gauges of every loop by its name. It may be
// called at any time.
func (p *Process) Stats() map[string]schedule.Stats {
	stats := make(map[string]schedule.Stats, len(p.loops))
	for _, l := range p.loops {
		stats[l.config.Name] = l.Stats()
	}
	return stats
}

// An AbandonedError says that a shutdown's grace time was over before some
// deliveries returned. Their buckets were not given back: they expire, so that
// no peer starts their lanes beside a request that still runs.
type AbandonedError struct {
	Messages []AbandonedMessage
}

// An AbandonedMessage is a message whose delivery was given up.
type AbandonedMessage struct {
	Scope   string
	Message event.Message
}

func (e *AbandonedError) Error() string {
	first := e.Messages[0]
	return fmt.Sprintf("%d deliveries were abandoned when the grace time was over, first %s %s (key %q) of %s",
		len(e.Messages), first.Message.Topic, first.Message.ID, first.Message.Key, first.Scope)
}

// Run runs the loops until ctx ends, then drains them: nothing is claimed any
// more, what is in flight is finished within the grace time and settled, and
// the buckets are given back. It returns nil after a clean drain and an
// *AbandonedError otherwise. A process runs once.
func (p *Process) Run(ctx context.Context) error {
	if p.started.Swap(true) {
		return errors.New("the process was started before")
	}
	inner, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	for _, l := range p.loops {
		l.prepare(inner, p)
	}
	var helpers, loops sync.WaitGroup
	helping, stopHelping := context.WithCancel(inner)
	for _, g := range p.groups {
		helpers.Go(func() { p.keep(helping, g) })
	}
	waking, stopWaking := context.WithCancel(inner)
	helpers.Go(func() { p.passNudges(waking) })
	if p.config.Waker != nil {
		helpers.Go(func() { p.listen(waking) })
	}
	for _, l := range p.loops {
		loops.Go(l.run)
	}
	<-ctx.Done()
	stopWaking()
	p.drain(&loops)
	stopHelping()
	helpers.Wait()
	p.leave(inner)
	return p.abandoned()
}

// drain ends the loops.
func (p *Process) drain(loops *sync.WaitGroup) {
	for _, l := range p.loops {
		l.inbox.post(schedule.Drain{})
	}
	grace := time.AfterFunc(p.config.Grace, func() {
		for _, l := range p.loops {
			l.inbox.post(schedule.GiveUp{})
		}
	})
	defer grace.Stop()
	loops.Wait()
}

// leave removes the heartbeats, so that peers take their share at once.
func (p *Process) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err := p.config.Keeper.Leave(ctx, p.owner); err != nil {
		p.logger.Warn("lanebox: leaving failed; peers wait until the heartbeat is old", "worker", p.owner, "error", err)
	}
}

// abandoned returns the error of Run.
func (p *Process) abandoned() error {
	var e AbandonedError
	for _, l := range p.loops {
		for _, m := range l.abandoned {
			e.Messages = append(e.Messages, AbandonedMessage{l.config.Name, m})
		}
	}
	if len(e.Messages) == 0 {
		return nil
	}
	return &e
}

// keep calls the keeper for a group: every PollInterval to look for messages,
// and with the leases at least every third of their length.
func (p *Process) keep(ctx context.Context, g *group) {
	third := g.ttl / 3
	interval := min(p.config.PollInterval, third)
	var renewed time.Time
	fails := 0
	for {
		asked := time.Now()
		renew := asked.Sub(renewed) >= third-interval
		err := p.keepOnce(ctx, g, renew)
		switch {
		case err == nil:
			fails = 0
			if renew {
				renewed = asked
			}
		case ctx.Err() != nil:
			return
		default:
			fails++
			for _, l := range g.loops {
				p.observe(l, schedule.DatabaseFailed{Op: "keep", Err: err, InARow: fails})
			}
		}
		// Up to a fifth is taken off, so that processes that were started
		// together spread, and nothing is late.
		wait := interval - rand.N(interval/5+1)
		if err != nil {
			wait = min(wait, 50*time.Millisecond<<min(fails, 10))
		}
		if !pause.For(ctx, wait) {
			return
		}
	}
}

// keepOnce makes one call and hands out the answers.
func (p *Process) keepOnce(ctx context.Context, g *group, renew bool) error {
	params := lane.KeepParams{Owner: p.owner, TTL: g.ttl, Scopes: make([]lane.ScopeLeases, len(g.loops))}
	for i, l := range g.loops {
		params.Scopes[i].Scope = l.config.Scope
		if renew {
			params.Scopes[i].Leases = l.leases()
		}
	}
	asked := time.Now()
	call, cancel := context.WithTimeout(ctx, callTimeout(g.ttl))
	defer cancel()
	kept, err := p.config.Keeper.Keep(call, params)
	if err != nil {
		return err
	}
	for i, l := range g.loops {
		for _, k := range kept {
			if k.Scope == l.config.Scope {
				l.inbox.post(schedule.Kept{Asked: asked, TTL: g.ttl, Sent: params.Scopes[i].Leases, Answer: k})
			}
		}
	}
	return nil
}

// wakeAll has every loop look for messages.
func (p *Process) wakeAll() {
	for _, l := range p.loops {
		l.inbox.wake()
	}
}

// listen passes on the wake-ups of other processes, for as long as the waker
// works, and again after it failed.
func (p *Process) listen(ctx context.Context) {
	for fails := 0; ; fails++ {
		err := p.config.Waker.Listen(ctx, func() { fails = 0; p.wakeAll() })
		if ctx.Err() != nil {
			return
		}
		level := slog.LevelWarn
		if fails > 0 { // said before; behind some poolers it never works
			level = slog.LevelDebug
		}
		p.logger.Log(ctx, level, "lanebox: listening for wake-ups failed; polling goes on", "worker", p.owner, "error", err)
		wait := min(10*time.Second, 100*time.Millisecond<<min(fails, 10))
		if !pause.For(ctx, wait/2+rand.N(wait/2)) {
			return
		}
	}
}

// Nudge says that messages were, or are about to be, committed. The loops of
// this process look at once and, since the caller's commit may come a little
// later, several times in the next moments; other processes are told as well.
// It never blocks, and may be called at any time and as often as one likes.
func (p *Process) Nudge() {
	select {
	case p.nudged <- struct{}{}:
	default:
	}
}

// cadence are the times after a nudge at which the loops look.
var cadence = [...]time.Duration{0, 5 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond}

// announceEvery is the shortest time between two announcements.
const announceEvery = 50 * time.Millisecond

// passNudges turns nudges into looks and announcements.
func (p *Process) passNudges(ctx context.Context) {
	n := nudges{step: len(cadence)}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(n.wait(time.Now()))
		select {
		case <-ctx.Done():
			return
		case <-p.nudged:
			n.nudge(time.Now())
		case <-timer.C:
		}
		look, announce := n.due(time.Now())
		if look {
			p.wakeAll()
		}
		if announce && p.config.Waker != nil {
			go p.announce(ctx)
		}
	}
}

func (p *Process) announce(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err := p.config.Waker.Announce(ctx); err != nil && ctx.Err() == nil {
		p.logger.Debug("lanebox: announcing failed; other processes poll", "worker", p.owner, "error", err)
	}
}

// nudges says when to look and when to announce. Its zero value is not idle:
// step must be len(cadence).
type nudges struct {
	from     time.Time // the last nudge
	step     int       // of the cadence, next to do
	announce time.Time // when the next announcement is due; zero: none
	last     time.Time // the last announcement
}

// nudge starts the cadence again. An announcement that is due is not put off.
func (n *nudges) nudge(now time.Time) {
	n.from, n.step = now, 0
	if n.announce.IsZero() {
		n.announce = now.Add(cadence[1])
		if earliest := n.last.Add(announceEvery); n.announce.Before(earliest) {
			n.announce = earliest
		}
	}
}

// wait returns the time until something is due.
func (n *nudges) wait(now time.Time) time.Duration {
	wait := time.Hour
	if n.step < len(cadence) {
		wait = n.from.Add(cadence[n.step]).Sub(now)
	}
	if !n.announce.IsZero() {
		wait = min(wait, n.announce.Sub(now))
	}
	return max(wait, 0)
}

// due returns what is to be done now. The end of the cadence announces once
// more, for commits that came after the first announcement.
func (n *nudges) due(now time.Time) (look, announce bool) {
	for n.step < len(cadence) && !now.Before(n.from.Add(cadence[n.step])) {
		look = true
		if n.step++; n.step == len(cadence) {
			n.announce = now
		}
	}
	if !n.announce.IsZero() && !now.Before(n.announce) {
		n.announce, n.last, announce = time.Time{}, now, true
	}
	return look, announce
}
