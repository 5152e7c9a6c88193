package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/schedule"
)

// A Config describes one loop.
type Config struct {
	// Name is the destination's or source's name, for logs and observers.
	Name string
	// Scope is its stable number; no two loops of a process may share one.
	Scope lane.Scope
	Store lane.Store
	// Deliverer takes the messages. When it is a lane.BatchDeliverer too, runs
	// that start at the same time are handed over in one call.
	Deliverer lane.Deliverer
	Policy    schedule.Policy
}

// A Loop delivers the messages of one scope while its process runs. It runs at
// most once.
type Loop struct {
	config Config
	policy schedule.Policy
	batch  lane.BatchDeliverer // nil: one call per run

	process *Process
	ctx     context.Context // of database calls and deliveries; ends with Run

	inbox inbox

	// mu guards machine, which the loop steps and others look at.
	mu      sync.Mutex
	machine *schedule.Machine

	cancels   map[uint64]context.CancelFunc // used by the loop's goroutine alone
	waiting   context.Context               // of idle goroutines; ends with the loop
	jobs      chan job                      // takes a job only while a worker is idle
	stop      context.CancelFunc
	abandoned []event.Message
}

// NewLoop returns a loop for NewProcess.
func NewLoop(c Config) *Loop {
	l := &Loop{config: c, policy: c.Policy.WithDefaults(), cancels: map[uint64]context.CancelFunc{}, jobs: make(chan job)}
	l.inbox.signal = make(chan struct{}, 1)
	l.batch, _ = c.Deliverer.(lane.BatchDeliverer)
	return l
}

// Name returns the name of the destination or source.
func (l *Loop) Name() string { return l.config.Name }

// Nudge nudges the loop's process. A deliverer calls it when it has stored
// messages for other loops.
func (l *Loop) Nudge() {
	if l.process != nil {
		l.process.Nudge()
	}
}

// Stats returns the loop's counters and gauges; zero before it runs.
func (l *Loop) Stats() schedule.Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.machine == nil {
		return schedule.Stats{}
	}
	return l.machine.Stats()
}

// check reports what is missing in the configuration.
func (l *Loop) check() error {
	switch {
	case l.config.Name == "":
		return errors.New("a loop has no name")
	case l.config.Store == nil:
		return fmt.Errorf("loop %s has no store", l.config.Name)
	case l.config.Deliverer == nil:
		return fmt.Errorf("loop %s has nothing to deliver to", l.config.Name)
	}
	return nil
}

// leases returns what is to be renewed.
func (l *Loop) leases() []lane.Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.machine.Leases()
}

// prepare makes the machine.
func (l *Loop) prepare(ctx context.Context, p *Process) {
	l.process, l.ctx = p, ctx
	l.waiting, l.stop = context.WithCancel(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.machine = schedule.New(schedule.Config{
		Owner: p.owner, Policy: l.policy, Verbose: p.config.Observer != nil || p.debug,
		Rand: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())),
	})
}

// run feeds the machine until it has drained.
func (l *Loop) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	defer l.end()
	var inputs []schedule.Input
	for {
		inputs = l.inbox.take(inputs[:0])
		if len(inputs) == 0 {
			inputs = append(inputs, schedule.Tick{})
		}
		done, next := l.step(inputs)
		if done {
			return
		}
		wait := time.Hour
		if !next.IsZero() {
			wait = time.Until(next)
		}
		timer.Reset(max(wait, 0))
		select {
		case <-l.inbox.signal:
		case <-timer.C:
		}
	}
}

// step feeds inputs to the machine and carries out what it asks for.
func (l *Loop) step(inputs []schedule.Input) (done bool, next time.Time) {
	var runs []schedule.Deliver
	for i, in := range inputs {
		if done {
			l.inbox.post(inputs[i]) // for end
			continue
		}
		if answers, ok := in.(schedule.Answered); ok {
			l.landed(answers)
		}
		l.mu.Lock()
		effects := l.machine.Step(time.Now(), in)
		l.mu.Unlock()
		for _, e := range effects {
			switch e := e.(type) {
			case schedule.Deliver:
				runs = append(runs, e)
			case schedule.Cancel:
				runs = l.cancel(e, runs)
			case schedule.Drained:
				l.abandoned, done = e.Abandoned, true
			default:
				l.perform(e)
			}
		}
	}
	l.deliver(runs)
	l.mu.Lock()
	defer l.mu.Unlock()
	return done, l.machine.Next()
}

// landed frees what deliveries that returned have used.
func (l *Loop) landed(answers schedule.Answered) {
	for _, a := range answers {
		if cancel := l.cancels[a.Flight]; cancel != nil {
			cancel()
			delete(l.cancels, a.Flight)
		}
	}
}

// perform carries out one effect; whatever waits does so in a goroutine.
func (l *Loop) perform(e schedule.Effect) {
	switch e := e.(type) {
	case schedule.Report:
		l.process.observe(l, e.Event)
	case schedule.AskGate:
		go l.awaitGate()
	case schedule.FreeGate:
		<-l.process.gate
	default:
		go l.call(e)
	}
}

// cancel ends deliveries. Those among runs, which an earlier input of the same
// step asked for, are answered without being started; the others are returned.
func (l *Loop) cancel(e schedule.Cancel, runs []schedule.Deliver) []schedule.Deliver {
	for _, id := range e.Flights {
		if cancel := l.cancels[id]; cancel != nil {
			cancel()
		}
	}
	return slices.DeleteFunc(runs, func(d schedule.Deliver) bool {
		canceled := slices.Contains(e.Flights, d.Flight)
		if canceled {
			l.inbox.answer(schedule.Answer{Flight: d.Flight, Verdict: lane.Verdict{Err: context.Canceled}})
		}
		return canceled
	})
}

// awaitGate waits for the process-wide gate.
func (l *Loop) awaitGate() {
	select {
	case l.process.gate <- struct{}{}:
		if !l.inbox.post(schedule.GateOpened{}) {
			<-l.process.gate // the loop has ended
		}
	case <-l.waiting.Done():
	}
}

// end closes the inbox and gives back what arrived too late.
func (l *Loop) end() {
	l.stop()
	for _, in := range l.inbox.close() {
		if _, ok := in.(schedule.GateOpened); ok {
			<-l.process.gate
		}
	}
}

// call makes one database call within its time and posts the answer.
func (l *Loop) call(e schedule.Effect) {
	ctx, cancel := context.WithTimeout(l.ctx, callTimeout(l.policy.Lease))
	defer cancel()
	asked, owner, store := time.Now(), l.process.owner, l.config.Store
	switch e := e.(type) {
	case schedule.Acquire:
		leases, err := store.Acquire(ctx, e.Params)
		l.inbox.post(schedule.Acquired{Asked: asked, Leases: leases, Err: err})
	case schedule.Release:
		l.inbox.post(schedule.Released{Err: store.Release(ctx, owner, e.Leases)})
	case schedule.Fetch:
		page, err := store.Fetch(ctx, e.Params)
		l.inbox.post(schedule.Fetched{Page: page, Err: err})
	case schedule.Settle:
		result, err := store.Settle(ctx, owner, e.Leases, e.Settlements)
		l.inbox.post(schedule.Settled{Asked: asked, Result: result, Err: err})
	}
}

// callTimeout bounds a database call: there must be time for another one before
// trust in a lease ends.
func callTimeout(lease time.Duration) time.Duration {
	return min(5*time.Second, lease/3)
}

// deliver starts deliveries, as few calls as the deliverer allows.
func (l *Loop) deliver(runs []schedule.Deliver) {
	var together []schedule.Deliver
	for _, d := range runs {
		if l.batch == nil || d.Alone {
			l.launch(d)
		} else {
			together = append(together, d)
		}
	}
	if len(together) == 0 {
		return
	}
	ctx, shared := newShared(l.ctx, l.policy.Timeout, len(together))
	for _, d := range together {
		l.cancels[d.Flight] = sync.OnceFunc(shared.leave)
	}
	go l.sendBatch(ctx, together)
}

// A shared context is canceled when all of its users have left.
type shared struct {
	left   int
	cancel context.CancelFunc
}

func newShared(parent context.Context, timeout time.Duration, users int) (context.Context, *shared) {
	ctx, cancel := context.WithTimeout(parent, timeout)
	return ctx, &shared{users, cancel}
}

func (s *shared) leave() {
	if s.left--; s.left == 0 {
		s.cancel()
	}
}

// launch starts one delivery.
func (l *Loop) launch(d schedule.Deliver) {
	ctx, cancel := context.WithTimeout(l.ctx, l.policy.Timeout)
	l.cancels[d.Flight] = cancel
	if l.batch != nil {
		go l.sendBatch(ctx, []schedule.Deliver{d})
		return
	}
	select {
	case l.jobs <- job{ctx, d}: // a worker is idle
	default:
		go l.work(job{ctx, d})
	}
}

// A job is one delivery for a worker.
type job struct {
	ctx context.Context
	d   schedule.Deliver
}

// work delivers one run after the other: a goroutine whose stack has grown is
// worth keeping. There are never more than lanes in flight.
func (l *Loop) work(j job) {
	for {
		l.send(j.ctx, j.d)
		select {
		case j = <-l.jobs:
		case <-l.waiting.Done():
			return
		}
	}
}

// send delivers one run and posts the answer.
func (l *Loop) send(ctx context.Context, d schedule.Deliver) {
	start := time.Now()
	answer := schedule.Answer{Flight: d.Flight, Verdict: lane.Verdict{Err: errExited}}
	defer func() { // also after a panic or runtime.Goexit
		if v := recover(); v != nil {
			answer.Verdict = lane.Verdict{Err: &PanicError{Value: v, Stack: debug.Stack()}}
		}
		answer.Took = time.Since(start)
		l.inbox.answer(answer)
	}()
	answer.Verdict = l.config.Deliverer.Deliver(ctx, l.process.owner, d.Run)
}

// sendBatch delivers several runs in one call and posts the answers. When the
// call panics each run is tried by itself, so that one message is blamed.
func (l *Loop) sendBatch(ctx context.Context, batch []schedule.Deliver) {
	start := time.Now()
	runs := make([]lane.Run, len(batch))
	for i, d := range batch {
		runs[i] = d.Run
	}
	verdicts, err := l.batchVerdicts(ctx, runs)
	if err != nil && len(batch) > 1 {
		for _, d := range batch {
			l.sendBatch(ctx, []schedule.Deliver{d})
		}
		return
	}
	for i, d := range batch {
		a := schedule.Answer{Flight: d.Flight, Took: time.Since(start)}
		switch {
		case err != nil:
			a.Verdict = lane.Verdict{Err: err}
		case i < len(verdicts):
			a.Verdict = verdicts[i]
		default:
			a.Verdict = lane.Verdict{Err: errExited}
		}
		l.inbox.answer(a)
	}
}

// batchVerdicts calls the batch deliverer; err is not nil when it panicked.
func (l *Loop) batchVerdicts(ctx context.Context, runs []lane.Run) (verdicts []lane.Verdict, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return l.batch.DeliverBatch(ctx, l.process.owner, runs), nil
}

var errExited = errors.New("the delivery ended without an answer")

// A PanicError is the failure of a delivery that panicked.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Unwrap returns the value when it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// An inbox collects what happened until the loop takes it. Answers of deliveries
// are taken together, however many there are.
type inbox struct {
	signal chan struct{} // holds one token while there is something to take

	mu      sync.Mutex
	closed  bool
	woken   bool
	answers []schedule.Answer
	spare   []schedule.Answer
	others  []schedule.Input
}

func (b *inbox) ring() {
	select {
	case b.signal <- struct{}{}:
	default:
	}
}

// post reports whether the loop still takes inputs.
func (b *inbox) post(in schedule.Input) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.others = append(b.others, in)
		b.ring()
	}
	return !b.closed
}

// close refuses what comes from now on and returns what was not taken.
func (b *inbox) close() []schedule.Input {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return b.others
}

func (b *inbox) answer(a schedule.Answer) {
	b.mu.Lock()
	b.answers = append(b.answers, a)
	first := len(b.answers) == 1
	b.mu.Unlock()
	if first {
		b.ring()
	}
}

func (b *inbox) wake() {
	b.mu.Lock()
	b.woken = true
	b.mu.Unlock()
	b.ring()
}

// take moves everything to inputs. The answers are valid until the next take.
func (b *inbox) take(inputs []schedule.Input) []schedule.Input {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.answers) > 0 {
		inputs = append(inputs, schedule.Answered(b.answers))
		clear(b.spare)
		b.answers, b.spare = b.spare[:0], b.answers
	}
	inputs = append(inputs, b.others...)
	clear(b.others)
	b.others = b.others[:0]
	if b.woken {
		b.woken = false
		inputs = append(inputs, schedule.Wake{})
	}
	return inputs
}
