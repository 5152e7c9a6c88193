package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/lanebox/lanebox/examples/fulfilment/internal/database"
	"github.com/lanebox/lanebox/examples/fulfilment/orders"
	"github.com/lanebox/lanebox/examples/fulfilment/warehouse"
	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/outbox"
)

const (
	customers    = 60 // one order each
	clerks       = 6
	steps        = 4 // events of an order
	patience     = 40 * time.Second
	pollInterval = 200 * time.Millisecond
)

// A story is the demonstration while it runs.
type story struct {
	out     io.Writer
	carrier Carrier
	tag     string // begins the ids of this run's orders
	logger  *slog.Logger
	orders  *orders.Service
	stock   database.DB // the warehouse's
	sent    *sent

	mu      sync.Mutex
	told    map[string][]string // what was committed, by order
	refused chan refusal
}

type refusal struct {
	message inbox.Raw
	reason  error
}

// tell runs the whole demonstration. The names of databases are as for
// database.Open.
func tell(ctx context.Context, out io.Writer, carrier Carrier, ordersDB, warehouseDB string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	db, err := database.Open(ctx, ordersDB)
	if err != nil {
		return err
	}
	defer db.Close()
	stock, err := database.Open(ctx, warehouseDB)
	if err != nil {
		return err
	}
	defer stock.Close()
	s := &story{
		out: out, carrier: carrier, tag: tag(), logger: slog.New(slog.DiscardHandler), stock: stock,
		told: map[string][]string{}, refused: make(chan refusal, customers*steps),
	}
	destination, err := carrier.Destination(s.logger)
	if err != nil {
		return err
	}
	defer destination.Close()
	s.sent = &sent{Destination: destination, of: s.id(1)}
	if s.orders, err = orders.New(ctx, db, orders.Config{Warehouse: s.sent, Logger: s.logger, PollInterval: pollInterval}); err != nil {
		return err
	}
	selling := start(ctx, s.orders.Run)
	err = s.play(ctx)
	return errors.Join(err, selling.stop())
}

// play is what happens.
func (s *story) play(ctx context.Context) error {
	working, err := s.openWarehouse(ctx)
	if err != nil {
		return err
	}
	defer func() { working.stop() }()
	const half = customers * steps / 2
	sold := start(ctx, s.trade)
	defer sold.stop()
	if err := s.wait(ctx, "the first half", func() bool { return s.journal(ctx) >= half }); err != nil {
		return err
	}
	if err := working.stop(); err != nil {
		return err
	}
	left := s.journal(ctx)
	s.say("the warehouse closes after %d messages; orders are still taken", left)
	if err := sold.wait(); err != nil {
		return fmt.Errorf("take orders: %w", err)
	}
	s.say("%d events were committed, the warehouse has handled %d; it opens again", s.committed(), s.journal(ctx))
	if working, err = s.openWarehouse(ctx); err != nil {
		return err
	}
	if err := s.wait(ctx, "the rest", func() bool { return s.journal(ctx) >= s.committed() }); err != nil {
		return err
	}
	if err := s.repeat(ctx); err != nil {
		return err
	}
	if err := working.stop(); err != nil {
		return err
	}
	return s.judge(ctx)
}

// openWarehouse starts the warehouse as a new process would: it knows what its
// database knows.
func (s *story) openWarehouse(ctx context.Context) (*task, error) {
	source, err := s.carrier.Source(s.logger)
	if err != nil {
		return nil, err
	}
	w, err := warehouse.New(ctx, s.stock, warehouse.Config{
		Orders: source, Logger: s.logger, PollInterval: pollInterval,
		Refused: func(m inbox.Raw, reason error) { s.refused <- refusal{m, reason} },
	})
	if err != nil {
		return nil, err
	}
	return start(ctx, w.Run), nil
}

// trade lets the clerks serve all customers, side by side.
func (s *story) trade(ctx context.Context) error {
	errs := make([]error, clerks)
	var all sync.WaitGroup
	for c := range clerks {
		all.Go(func() {
			for step := range steps {
				for n := c + 1; n <= customers && errs[c] == nil; n += clerks {
					errs[c] = s.serve(ctx, n, step)
				}
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// serve takes one order one step on, and notes what was committed.
func (s *story) serve(ctx context.Context, n, step int) error {
	id, what := s.id(n), ""
	var err error
	switch {
	case step == 0:
		what, err = "placed 2", s.orders.Place(ctx, id, 2)
	case step < steps-1:
		what, err = fmt.Sprint("changed ", step+2), s.orders.Change(ctx, id, int32(step+2))
	case n%3 == 0:
		what, err = "cancelled found it cheaper", s.orders.Cancel(ctx, id, "found it cheaper")
	default:
		what, err = "shipped T-"+id, s.orders.Ship(ctx, id, "T-"+id)
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.told[id] = append(s.told[id], what)
	s.mu.Unlock()
	return sleep(ctx, 20*time.Millisecond) // customers take their time
}

// repeat sends an order's first message again, under a new id, so that the inbox
// cannot know it. The version tells the handler.
func (s *story) repeat(ctx context.Context) error {
	m := s.sent.message()
	m.ID = event.NewUUID()
	if err := s.sent.Send(ctx, m); err != nil {
		return err
	}
	for {
		select {
		case r := <-s.refused:
			if r.message.IdempotencyKey == m.ID.String() && errors.Is(r.reason, inbox.ErrStale) {
				s.say("an old message of %s comes again under another id: version %d, dropped (%v)", m.Key, m.Version, r.reason)
				return nil
			}
			return fmt.Errorf("the warehouse refused version %d of %s: %w", r.message.Version, r.message.Key, r.reason)
		case <-ctx.Done():
			return fmt.Errorf("the repeated message: %w", ctx.Err())
		}
	}
}

// judge compares the warehouse's journal with what was committed.
func (s *story) judge(ctx context.Context) error {
	done := map[string][]string{}
	err := s.stock.Each(ctx, `SELECT order_id, what FROM journal ORDER BY order_id, position`, func(scan func(...any) error) error {
		var id, what string
		err := scan(&id, &what)
		done[id] = append(done[id], what)
		return err
	})
	if err != nil {
		return err
	}
	wrong := 0
	for id, want := range s.told {
		if !slices.Equal(done[id], want) {
			wrong++
			s.say("%s: the warehouse did %v, want %v", id, done[id], want)
		}
	}
	var sent, returned int
	if err := s.stock.Scan(ctx, `SELECT sum(CASE status WHEN 'sent' THEN 1 ELSE 0 END), sum(CASE status WHEN 'returned' THEN 1 ELSE 0 END) FROM parcel`, &sent, &returned); err != nil {
		return err
	}
	s.say("%s: %v", s.id(1), done[s.id(1)])
	s.say("%d events of %d orders, 1 restart: %d orders wrong; %d parcels sent, %d returned", s.committed(), len(s.told), wrong, sent, returned)
	if wrong != 0 || len(s.told) != customers || s.committed() != customers*steps {
		return errors.New("the promise was broken")
	}
	s.say("OK")
	return nil
}

// id names the order of a customer. A broker or database may hold orders of other
// runs.
func (s *story) id(n int) string { return fmt.Sprintf("order-%s-%d", s.tag, n) }

func (s *story) say(format string, args ...any) { fmt.Fprintf(s.out, format+"\n", args...) }

func (s *story) committed() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, list := range s.told {
		n += len(list)
	}
	return n
}

// journal counts what the warehouse has done for orders of this run.
func (s *story) journal(ctx context.Context) (n int) {
	err := s.stock.Scan(ctx, `SELECT count(*) FROM journal WHERE order_id LIKE 'order-`+s.tag+`-%'`, &n)
	if err != nil {
		return -1 // asked again, until ctx ends
	}
	return n
}

func (s *story) wait(ctx context.Context, what string, done func() bool) error {
	for !done() {
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("waiting for %s: %w", what, err)
		}
	}
	return nil
}

// sent is a destination that keeps the first message of one order.
type sent struct {
	outbox.Destination
	of    string
	mu    sync.Mutex
	first event.Message
}

// Send implements outbox.Destination.
func (d *sent) Send(ctx context.Context, m event.Message) error {
	if d.mu.Lock(); m.Key == d.of && d.first.Key == "" {
		d.first = m
	}
	d.mu.Unlock()
	return d.Destination.Send(ctx, m)
}

func (d *sent) message() event.Message {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.first
}

// A task is a function that runs until it is stopped.
type task struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

func start(ctx context.Context, run func(context.Context) error) *task {
	t := &task{done: make(chan struct{})}
	ctx, t.cancel = context.WithCancel(ctx)
	go func() {
		defer close(t.done)
		t.err = run(ctx)
	}()
	return t
}

// wait waits for the task's own end.
func (t *task) wait() error {
	<-t.done
	t.cancel()
	return t.err
}

// stop ends the task and waits for it.
func (t *task) stop() error {
	t.cancel()
	return t.wait()
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func tag() string {
	var b [3]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}
