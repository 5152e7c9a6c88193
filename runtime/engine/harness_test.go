package engine_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lanebox/lanebox/runtime/engine"
	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/memstore"
	"github.com/lanebox/lanebox/runtime/ordertest"
	"github.com/lanebox/lanebox/runtime/outbox"
	"github.com/lanebox/lanebox/runtime/schedule"
)

const shop lane.Scope = 7

// A world is a database, what was published into it and who delivers from it.
// It is used inside a synctest bubble.
type world struct {
	t     testing.TB
	db    *memstore.DB
	check *ordertest.Checker

	running []*replica

	mu     sync.Mutex
	dead   map[string]bool // owners whose process was killed
	events []engine.Event
	calls  map[memstore.Op]int
	fault  func(memstore.Call) memstore.Fault
}

func newWorld(t testing.TB, scopes ...memstore.Scope) *world {
	if scopes == nil {
		scopes = []memstore.Scope{{Number: shop, Name: "shop"}}
	}
	routes := make([]memstore.Route, len(scopes))
	for i, s := range scopes {
		routes[i] = memstore.Route{Globs: []string{s.Name + ".*"}, To: []lane.Scope{s.Number}}
	}
	db, err := memstore.New(memstore.Config{Scopes: scopes, Routes: routes})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, db: db, check: ordertest.New(), dead: map[string]bool{}, calls: map[memstore.Op]int{}}
	db.Intercept(w.intercept)
	return w
}

var errPulled = errors.New("the plug was pulled")

func (w *world) intercept(c memstore.Call) memstore.Fault {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls[c.Op]++
	if w.dead[c.Owner] {
		return memstore.Fault{Err: errPulled}
	}
	if w.fault != nil {
		return w.fault(c)
	}
	return memstore.Fault{}
}

// onCall sets what goes wrong.
func (w *world) onCall(f func(memstore.Call) memstore.Fault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fault = f
}

func (w *world) count(op memstore.Op) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calls[op]
}

// publish commits one message per key, each in a transaction of its own.
func (w *world) publish(keys ...string) []event.UUID {
	w.t.Helper()
	return w.publishTopic("shop.sold", keys...)
}

func (w *world) publishTopic(topic string, keys ...string) []event.UUID {
	w.t.Helper()
	ids := make([]event.UUID, len(keys))
	for i, key := range keys {
		ids[i] = event.NewUUID()
		tx := w.db.Begin()
		if err := tx.Append(context.Background(), []outbox.Record{{ID: ids[i], Topic: topic, Key: key, Payload: []byte("{}")}}); err != nil {
			w.t.Fatal(err)
		}
		if err := tx.Commit(context.Background()); err != nil {
			w.t.Fatal(err)
		}
		w.check.Published(key, ids[i])
	}
	return ids
}

// publishMany commits n messages in one transaction; key gives each its key.
func (w *world) publishMany(n int, key func(i int) string) {
	w.t.Helper()
	records := make([]outbox.Record, n)
	for i := range records {
		records[i] = outbox.Record{ID: event.NewUUID(), Topic: "shop.sold", Key: key(i), Payload: []byte("{}")}
	}
	tx := w.db.Begin()
	if err := tx.Append(context.Background(), records); err != nil {
		w.t.Fatal(err)
	}
	if err := tx.Commit(context.Background()); err != nil {
		w.t.Fatal(err)
	}
	for _, r := range records {
		w.check.Published(r.Key, r.ID)
	}
}

// A replica is one process.
type replica struct {
	w       *world
	name    string
	process *engine.Process
	loops   []*engine.Loop
	stop    context.CancelFunc
	ended   chan error

	config engine.ProcessConfig

	mu     sync.Mutex
	isDead bool
}

type sendFunc func(ctx context.Context, m event.Message) error

func (f sendFunc) Send(ctx context.Context, m event.Message) error { return f(ctx, m) }

// replica starts a process with one poller of the shop.
func (w *world) replica(name string, policy schedule.Policy, send sendFunc) *replica {
	w.t.Helper()
	r := w.prepare(name, engine.ProcessConfig{})
	r.add("shop", shop, policy, send)
	r.start()
	return r
}

func (w *world) prepare(name string, c engine.ProcessConfig) *replica {
	return &replica{w: w, name: name, config: c, ended: make(chan error, 1)}
}

func (r *replica) add(name string, scope lane.Scope, policy schedule.Policy, send sendFunc) {
	r.loops = append(r.loops, outbox.NewPoller(outbox.PollerConfig{
		Name: name, Scope: scope, Store: r.w.db.Outbox(scope), Destination: r.destination(send), Policy: policy,
	}))
}

// destination records deliveries; after the replica was killed they never end
// before their context does, and are recorded no more.
func (r *replica) destination(send sendFunc) outbox.Destination {
	return sendFunc(func(ctx context.Context, m event.Message) error {
		if r.dead() {
			<-ctx.Done()
			return ctx.Err()
		}
		accepted := 0
		end := r.w.check.Begin(r.name, m)
		defer func() { end(accepted) }()
		if send != nil {
			if err := send(ctx, m); err != nil {
				return err
			}
		}
		if r.dead() {
			<-ctx.Done()
			return ctx.Err()
		}
		accepted = 1
		return nil
	})
}

func (r *replica) dead() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.isDead
}

func (r *replica) start() {
	r.w.t.Helper()
	c := r.config
	if c.Keeper == nil {
		c.Keeper = r.w.db
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	observe := c.Observer
	c.Observer = func(e engine.Event) {
		r.w.mu.Lock()
		if !r.w.dead[e.Owner] {
			r.w.events = append(r.w.events, e)
		}
		r.w.mu.Unlock()
		if d, ok := e.Detail.(schedule.Died); ok {
			r.w.check.Died(d.Message.ID)
		}
		if observe != nil {
			observe(e)
		}
	}
	var err error
	if r.process, err = engine.NewProcess(c, r.loops...); err != nil {
		r.w.t.Fatal(err)
	}
	var ctx context.Context
	ctx, r.stop = context.WithCancel(context.Background())
	go func() { r.ended <- r.process.Run(ctx) }()
	r.w.running = append(r.w.running, r)
}

// abort ends a test that has failed.
func (w *world) abort() {
	w.end()
	w.t.FailNow()
}

// end kills everybody; what still waits is of no interest.
func (w *world) end() {
	for _, r := range w.running {
		r.kill()
	}
	time.Sleep(time.Hour) // everything stops by itself
}

// shutdown stops the replica and returns what Run returned.
func (r *replica) shutdown() error {
	r.stop()
	return <-r.ended
}

// kill has the replica fall silent from one moment to the next: no call of it
// reaches the database any more and its deliveries are never answered.
func (r *replica) kill() {
	r.mu.Lock()
	r.isDead = true
	r.mu.Unlock()
	r.w.mu.Lock()
	r.w.dead[r.process.Owner()] = true
	r.w.mu.Unlock()
	r.w.check.Killed(r.name)
	r.stop()
}

// events of type E that were observed so far.
func seen[E schedule.Event](w *world) []E {
	w.mu.Lock()
	defer w.mu.Unlock()
	var found []E
	for _, e := range w.events {
		if d, ok := e.Detail.(E); ok {
			found = append(found, d)
		}
	}
	return found
}

// await lets (fake) time pass until done, and fails after limit.
func (w *world) await(limit time.Duration, what string, done func() bool) time.Duration {
	w.t.Helper()
	start, pause := time.Now(), time.Millisecond
	for !done() {
		if time.Since(start) > 100*time.Millisecond {
			pause = 10 * time.Millisecond
		}
		if time.Since(start) > limit {
			w.t.Errorf("not within %v: %s; %d waiting, %d delivered\n%v", limit, what, len(w.db.Waiting(shop)), w.check.Delivered(), w.check.Report().Err())
			w.abort()
		}
		time.Sleep(pause)
		synctest.Wait()
	}
	return time.Since(start)
}

// drained waits until nothing waits in the shop.
func (w *world) drained(limit time.Duration) time.Duration {
	w.t.Helper()
	return w.await(limit, "everything delivered", func() bool { return len(w.db.Waiting(shop)) == 0 })
}

// judge fails on any breach.
func (w *world) judge() ordertest.Report {
	w.t.Helper()
	r := w.check.Report()
	if err := r.Err(); err != nil {
		w.t.Error(err)
	}
	return r
}

// keys returns n keys, each times times, round by round.
func keys(n, times int) []string {
	var all []string
	for range times {
		for i := range n {
			all = append(all, fmt.Sprintf("key-%d", i))
		}
	}
	return all
}

// held returns the number of live leases by owner.
func (w *world) held() map[string]int {
	held := map[string]int{}
	for _, l := range w.db.Leases(shop) {
		if l.Owner != "" && l.Until.After(time.Now()) {
			held[l.Owner]++
		}
	}
	return held
}

func sorted[K comparable](m map[K]int) []int { return slices.Sorted(maps.Values(m)) }

// onAppend publishes n messages on few keys and without key.
func (w *world) onAppend(random *rand.Rand, n int) {
	w.mu.Lock()
	fault := w.fault
	w.fault = nil // publishing is not what is tested
	w.mu.Unlock()
	for range n {
		if k := random.IntN(25); k == 0 {
			w.publish("")
		} else {
			w.publish(fmt.Sprint("k", k))
		}
	}
	w.onCall(fault)
}

// acquireAll asks for every bucket.
func acquireAll(owner string) lane.AcquireParams {
	return lane.AcquireParams{Owner: owner, MaxFree: 1000, TTL: 15 * time.Second}
}
