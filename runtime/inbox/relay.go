package inbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/lanebox/lanebox/runtime/engine"
	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/outbox"
	"github.com/lanebox/lanebox/runtime/schedule"
)

// A RelayConfig describes the relay of a service: it moves the messages of all
// push sources to the outbox.
type RelayConfig[Tx any] struct {
	// Name stands in logs and events; empty means "relay".
	Name  string
	Scope lane.Scope
	Store lane.Store
	Push  PushStore[Tx]
	// Remap holds the mapping hooks by source name. A source without one keeps
	// event type, aggregate id and body.
	Remap map[string]Remap[Tx]
	// Routed reports whether a topic has a route; nil leaves it to the database.
	// A message without a route goes to the dead letters.
	Routed func(topic string) bool
	// Binary says that the outbox takes any bytes. Otherwise a body that is not
	// UTF-8 text goes to the dead letters.
	Binary bool
	// Logger receives the stacks of panics; nil means slog.Default().
	Logger *slog.Logger
	Policy schedule.Policy
}

// A PatientPushStore can wait for a key. It is optional: a store without it
// only ever tries.
type PatientPushStore[Tx any] interface {
	PushStore[Tx]
	// MoveWaiting is Move for one run whose key was locked again and again: it
	// waits for the locks of the target keys, at most for wait and before it
	// locks the bucket, and then does what Move does.
	MoveWaiting(ctx context.Context, owner string, run lane.Run, remap Remap[Tx], wait time.Duration) (lane.Verdict, error)
}

const (
	// busyRounds is how often a run is only tried. After that one such run per
	// round waits for its key's lock, so that publishers who follow each other
	// closely do not starve it.
	busyRounds = 3
	// busyWait bounds that wait.
	busyWait = 250 * time.Millisecond
	// maxBusyLanes bounds the memory of lanes that were busy.
	maxBusyLanes = 10_000
)

// relayRun is how many messages of an aggregate are moved together by default.
const relayRun = 64

// NewRelay returns the loop that moves the messages of all push sources to the
// outbox. It runs as part of an engine.Process.
func NewRelay[Tx any](c RelayConfig[Tx]) *engine.Loop {
	setDefault(&c.Name, "relay")
	setDefault(&c.Policy.MaxRun, relayRun)
	config := engine.Config{Name: c.Name, Scope: c.Scope, Store: c.Store, Policy: c.Policy}
	if c.Push == nil { // the process refuses to start
		return engine.NewLoop(config)
	}
	r := newRelay(c)
	config.Deliverer = r
	loop := engine.NewLoop(config)
	r.moved = loop.Nudge
	return loop
}

// relay is the BatchDeliverer of the push scope.
type relay[Tx any] struct {
	c     RelayConfig[Tx]
	remap Remap[Tx] // nil when no source has a hook
	moved func()    // wakes the pollers; may be nil

	mu   sync.Mutex
	busy map[int64]int // rounds in which a lane's key was locked
}

func newRelay[Tx any](c RelayConfig[Tx]) *relay[Tx] {
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	r := &relay[Tx]{c: c, busy: map[int64]int{}}
	if len(c.Remap) > 0 {
		r.remap = r.mapMessage
	}
	return r
}

// mapMessage runs the hook of the message's source.
func (r *relay[Tx]) mapMessage(ctx context.Context, tx Tx, m Raw) (records []outbox.Record, err error) {
	hook := r.c.Remap[m.Source]
	if hook == nil {
		return []outbox.Record{{
			ID: m.ID, Topic: m.Topic, Key: m.Key, Payload: m.Payload, Headers: m.Headers, Version: m.Version,
		}}, nil
	}
	defer func() {
		if p := recover(); p != nil {
			records, err = nil, panicked(ctx, r.c.Logger, "mapping hook panicked", m, p)
		}
	}()
	records, err = hook(event.WithHandled(ctx, m), tx, m)
	if err != nil {
		return nil, err
	}
	for i := range records {
		if err := r.checkRecord(records[i].Topic, records[i].Payload); err != nil {
			return nil, err
		}
	}
	return records, nil
}

// Deliver implements lane.Deliverer.
func (r *relay[Tx]) Deliver(ctx context.Context, owner string, run lane.Run) lane.Verdict {
	return r.DeliverBatch(ctx, owner, []lane.Run{run})[0]
}

// DeliverBatch implements lane.BatchDeliverer: it moves all runs in one
// transaction.
func (r *relay[Tx]) DeliverBatch(ctx context.Context, owner string, runs []lane.Run) []lane.Verdict {
	verdicts := make([]lane.Verdict, len(runs))
	var try []lane.Run
	var index []int // of try in runs
	patient, waits := r.patient(runs)
	for i, run := range runs {
		run.Rows = run.Rows[:r.sound(run.Rows)]
		if len(run.Rows) > 0 && !(waits && i == patient) {
			try, index = append(try, run), append(index, i)
		}
	}
	for j, v := range r.move(ctx, owner, try) {
		verdicts[index[j]] = v
	}
	if waits {
		run := runs[patient]
		if run.Rows = run.Rows[:r.sound(run.Rows)]; len(run.Rows) > 0 {
			verdicts[patient] = r.moveWaiting(ctx, owner, run)
		}
	}
	moved := false
	for i, run := range runs {
		verdicts[i] = r.finish(run, verdicts[i])
		r.remember(run.Lane, verdicts[i])
		moved = moved || verdicts[i].Accepted > 0
	}
	if moved && r.moved != nil {
		r.moved()
	}
	return verdicts
}

// sound returns how many rows, from the first on, can be stored in the outbox.
func (r *relay[Tx]) sound(rows []lane.Row) int {
	for i := range rows {
		if r.checkMessage(rows[i].Message) != nil {
			return i
		}
	}
	return len(rows)
}

// finish gives the verdict of a whole run its class: of the rows that were
// tried, and of the first row that could not be tried.
func (r *relay[Tx]) finish(run lane.Run, v lane.Verdict) lane.Verdict {
	if v.Err == nil && v.Accepted < len(run.Rows) {
		v.Completed = true
		if v.Err = r.checkMessage(run.Rows[v.Accepted].Message); v.Err == nil {
			v.Err = errors.New("the store moved only a part of the run")
		}
	}
	var refused *event.ConfigurationError
	var invalid *event.ValidationError
	if errors.As(v.Err, &refused) || errors.As(v.Err, &invalid) {
		v.Err = event.AsPermanent(v.Err)
	}
	return v
}

// checkMessage reports why a message can never be moved as it is. A mapped
// message is judged by what the hook makes of it.
func (r *relay[Tx]) checkMessage(m Raw) error {
	if r.c.Remap[m.Source] != nil {
		return nil
	}
	return r.checkRecord(m.Topic, m.Payload)
}

func (r *relay[Tx]) checkRecord(topic string, payload []byte) error {
	switch {
	case r.c.Routed != nil && !r.c.Routed(topic):
		return event.AsPermanent(&event.ConfigurationError{Topic: topic, Reason: "no route matches the topic"})
	case r.c.Binary:
		return nil
	case !utf8.Valid(payload):
		return event.AsPermanent(fmt.Errorf("the body of %s is not valid UTF-8", topic))
	case bytes.IndexByte(payload, 0) >= 0:
		return event.AsPermanent(fmt.Errorf("the body of %s contains a zero byte", topic))
	}
	return nil
}

// move moves runs in one transaction. When the database refuses it for what is
// in it, the runs are moved one by one, and the messages of the run that was
// refused too, so that only the culprit is charged.
func (r *relay[Tx]) move(ctx context.Context, owner string, runs []lane.Run) []lane.Verdict {
	if len(runs) == 0 {
		return nil
	}
	verdicts, err := r.c.Push.Move(ctx, owner, runs, r.remap)
	if err == nil && len(verdicts) != len(runs) {
		err = fmt.Errorf("the store answered %d verdicts for %d runs", len(verdicts), len(runs))
	}
	if err == nil {
		return verdicts
	}
	verdicts = make([]lane.Verdict, len(runs))
	switch {
	case !isFatal(err):
		for i := range verdicts {
			verdicts[i].Err = event.AsUnavailable(err)
		}
	case len(runs) > 1:
		for i := range runs {
			verdicts[i] = r.move(ctx, owner, runs[i:i+1])[0]
		}
	case len(runs[0].Rows) > 1:
		verdicts[0] = r.moveEach(ctx, owner, runs[0])
	default:
		verdicts[0].Err = err
	}
	return verdicts
}

// moveEach moves the messages of a run in a transaction each, up to the first
// that is refused.
func (r *relay[Tx]) moveEach(ctx context.Context, owner string, run lane.Run) lane.Verdict {
	for i := range run.Rows {
		one := run
		one.Rows = run.Rows[i : i+1]
		if v := r.move(ctx, owner, []lane.Run{one})[0]; v.Accepted == 0 {
			return lane.Verdict{Accepted: i, Completed: true, Err: v.Err}
		}
	}
	return lane.Verdict{Accepted: len(run.Rows), Completed: true}
}

// isFatal reports whether trying the same messages again fails again.
func isFatal(err error) bool {
	var refused *event.ConfigurationError
	var invalid *event.ValidationError
	class, _ := event.Classify(err)
	return errors.As(err, &refused) || errors.As(err, &invalid) || errors.Is(err, lane.ErrLeaseLost) || class == event.Permanent
}

// patient returns the index of the run that has been busy most often, and
// whether it is to wait for its key.
func (r *relay[Tx]) patient(runs []lane.Run) (int, bool) {
	if _, can := r.c.Push.(PatientPushStore[Tx]); !can {
		return 0, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	most, found := 0, false
	for i, run := range runs {
		if n := r.busy[run.Lane]; n >= busyRounds && (!found || n > r.busy[runs[most].Lane]) {
			most, found = i, true
		}
	}
	return most, found
}

func (r *relay[Tx]) moveWaiting(ctx context.Context, owner string, run lane.Run) lane.Verdict {
	v, err := r.c.Push.(PatientPushStore[Tx]).MoveWaiting(ctx, owner, run, r.remap, busyWait)
	switch {
	case err == nil:
		return v
	case isFatal(err):
		return r.moveEach(ctx, owner, run)
	}
	return lane.Verdict{Err: event.AsUnavailable(err)}
}

// remember counts the rounds in which a lane was busy.
func (r *relay[Tx]) remember(n int64, v lane.Verdict) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !errors.Is(v.Err, lane.ErrBusy) {
		delete(r.busy, n)
		return
	}
	if len(r.busy) >= maxBusyLanes {
		clear(r.busy) // lanes that another process took over are never seen again
	}
	r.busy[n]++
}
