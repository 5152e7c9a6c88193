// Package ordertest judges whether deliveries kept their promise. Tests record
// what was published and delivered, in one process or, through a file, in
// several, some of which may be killed; a Report then lists every inversion,
// overlap, overtaking and loss. It knows nothing of how lanebox works.
package ordertest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/outbox"
)

// A Recorder takes down what happens. Its methods are safe for concurrent use;
// the order of calls is the order of events.
type Recorder interface {
	// Published notes a committed message. Messages of one key are recorded in
	// the order in which their transactions committed. Without a key order does
	// not matter.
	Published(key string, id event.UUID)
	// Begin notes that process hands over a run of consecutive messages, and
	// returns what to call when the run was answered, with the number of messages
	// that were accepted.
	Begin(process string, run ...event.Message) (end func(accepted int))
	// Died notes that a message went to the dead letters or was parked: what is
	// behind it may be delivered.
	Died(id event.UUID)
	// Killed notes that a process is dead: its deliveries have ended, nobody
	// knows how.
	Killed(process string)
}

// A Checker is a Recorder that judges at once. The zero value is ready.
type Checker struct {
	mu        sync.Mutex
	messages  map[event.UUID]*message
	lanes     map[string]*laneLog
	flights   map[int]*flight
	last      int
	published int
	report    Report
}

type message struct {
	id       event.UUID
	key      string
	position int   // among the published messages of its key, from 1; 0 unknown
	sequence int64 // 0 until it was delivered
	starts   int
	accepted int
	dead     bool
}

type laneLog struct {
	published int
	started   []*message // in order of first delivery
	flight    *flight
}

type flight struct {
	process string
	run     []*message
	key     string
}

// A Report is the judgement.
type Report struct {
	// Published and Delivered count messages, Starts deliveries, Repeats the
	// deliveries of messages that had been accepted before.
	Published, Delivered, Starts, Repeats int
	// Inversions are first deliveries after that of a later message of the lane;
	// Overlaps are deliveries beside another one of the lane; Overtakings are
	// deliveries while an earlier message of the lane was neither accepted nor
	// dead.
	Inversions, Overlaps, Overtakings []string
	// Lost are published messages that were neither accepted nor declared dead,
	// Unknown delivered ones that were never published (only when any was).
	Lost, Unknown []string
}

// Err returns nil when nothing was broken, and an error that lists the first
// breaches of each kind otherwise.
func (r Report) Err() error {
	var b strings.Builder
	for _, x := range []struct {
		what string
		list []string
	}{{"out of order", r.Inversions}, {"overlapping", r.Overlaps}, {"overtaking", r.Overtakings}, {"lost", r.Lost}, {"unknown", r.Unknown}} {
		if len(x.list) > 0 {
			fmt.Fprintf(&b, "%d %s, first: %s\n", len(x.list), x.what, strings.Join(x.list[:min(3, len(x.list))], "; "))
		}
	}
	if b.Len() == 0 {
		return nil
	}
	return fmt.Errorf("%s(%d published, %d delivered in %d deliveries, %d repeats)", b.String(), r.Published, r.Delivered, r.Starts, r.Repeats)
}

// New returns an empty checker.
func New() *Checker {
	return &Checker{messages: map[event.UUID]*message{}, lanes: map[string]*laneLog{}, flights: map[int]*flight{}}
}

func (c *Checker) message(id event.UUID, key string) *message {
	m := c.messages[id]
	if m == nil {
		m = &message{id: id, key: key}
		c.messages[id] = m
	}
	return m
}

func (c *Checker) lane(key string) *laneLog {
	l := c.lanes[key]
	if l == nil {
		l = &laneLog{}
		c.lanes[key] = l
	}
	return l
}

// Published implements Recorder.
func (c *Checker) Published(key string, id event.UUID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.lane(key)
	l.published++
	c.message(id, key).position = l.published
	c.published++
}

// Begin implements Recorder.
func (c *Checker) Begin(process string, run ...event.Message) (end func(accepted int)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	number := c.last
	c.begin(number, process, run)
	return func(accepted int) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.end(number, accepted)
	}
}

func (c *Checker) begin(number int, process string, run []event.Message) {
	f := &flight{process: process, key: run[0].Key}
	c.flights[number] = f
	l := c.lane(f.key)
	if f.key != "" {
		if l.flight != nil {
			c.breach(&c.report.Overlaps, "key %q: %s starts %s beside %s of %s", f.key, process, run[0].ID, l.flight.run[0].id, l.flight.process)
		}
		l.flight = f
	}
	for i := range run {
		m := c.message(run[i].ID, f.key)
		f.run = append(f.run, m)
		c.start(l, m, run[i].Sequence, f, process)
	}
}

// start judges one delivery at its beginning.
func (c *Checker) start(l *laneLog, m *message, sequence int64, f *flight, process string) {
	c.report.Starts++
	m.starts++
	m.sequence = sequence
	if m.accepted > 0 {
		c.report.Repeats++
	}
	if f.key == "" {
		for _, other := range c.flights {
			if other != f && slices.Contains(other.run, m) {
				c.breach(&c.report.Overlaps, "message %s without key: %s starts it beside %s", m.id, process, other.process)
			}
		}
		return
	}
	if m.starts > 1 {
		return
	}
	if n := len(l.started); n > 0 {
		if last := l.started[n-1]; last.sequence > sequence || last.position > m.position && m.position > 0 {
			c.breach(&c.report.Inversions, "key %q: %s (sequence %d, position %d) first delivered after %s (sequence %d, position %d)",
				f.key, m.id, sequence, m.position, last.id, last.sequence, last.position)
		}
	}
	for _, earlier := range l.started {
		if earlier.accepted == 0 && !earlier.dead && !slices.Contains(f.run, earlier) {
			c.breach(&c.report.Overtakings, "key %q: %s starts while %s was neither accepted nor dead", f.key, m.id, earlier.id)
		}
	}
	l.started = append(l.started, m)
	// What is settled for good needs no second look.
	for len(l.started) > 1 && (l.started[0].accepted > 0 || l.started[0].dead) {
		l.started = l.started[1:]
	}
}

func (c *Checker) end(number, accepted int) {
	f := c.flights[number]
	if f == nil {
		return // its process was killed
	}
	delete(c.flights, number)
	if l := c.lane(f.key); l.flight == f {
		l.flight = nil
	}
	for _, m := range f.run[:accepted] {
		m.accepted++
	}
}

// Died implements Recorder.
func (c *Checker) Died(id event.UUID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.message(id, "").dead = true
}

// Killed implements Recorder.
func (c *Checker) Killed(process string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for n, f := range c.flights {
		if f.process == process {
			c.end(n, 0)
		}
	}
}

func (c *Checker) breach(list *[]string, format string, args ...any) {
	*list = append(*list, fmt.Sprintf(format, args...))
}

// Report judges what was recorded so far.
func (c *Checker) Report() Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.report
	r.Inversions, r.Overlaps, r.Overtakings = slices.Clone(r.Inversions), slices.Clone(r.Overlaps), slices.Clone(r.Overtakings)
	r.Published = c.published
	for _, m := range c.messages {
		switch {
		case m.accepted > 0:
			r.Delivered++
		case m.position > 0 && !m.dead:
			r.Lost = append(r.Lost, fmt.Sprintf("%s of key %q, number %d of its lane", m.id, m.key, m.position))
		}
		if c.published > 0 && m.position == 0 && m.starts > 0 {
			r.Unknown = append(r.Unknown, m.id.String())
		}
	}
	slices.Sort(r.Lost)
	slices.Sort(r.Unknown)
	return r
}

// Delivered returns the number of messages that were accepted at least once.
func (c *Checker) Delivered() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, m := range c.messages {
		if m.accepted > 0 {
			n++
		}
	}
	return n
}

// Destination returns a destination that records every delivery of process to r
// and leaves the rest to next; nil accepts everything.
func Destination(r Recorder, process string, next outbox.Destination) outbox.Destination {
	return &destination{r, process, next}
}

type destination struct {
	recorder Recorder
	process  string
	next     outbox.Destination
}

// Send implements outbox.Destination.
func (d *destination) Send(ctx context.Context, m event.Message) error {
	accepted := 0
	end := d.recorder.Begin(d.process, m)
	defer func() { end(accepted) }()
	if d.next != nil {
		if err := d.next.Send(ctx, m); err != nil {
			return err
		}
	}
	accepted = 1
	return nil
}
