// Orders is the demonstration: a shop publishes the events of forty orders into
// an embedded SQLite file, and replicas of the service deliver them to a
// warehouse over HTTP. The warehouse refuses one order for a while, and one
// replica is killed half-way. At the end the warehouse's own ledger is judged.
//
//	go run ./examples/orders            ends by itself with a verdict
//	go run ./examples/orders --serve    keeps going until interrupted
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/lanebox/lanebox/examples/orders/internal/events/sqlite"
	"github.com/lanebox/lanebox/runtime/event"
	sqlitestore "github.com/lanebox/lanebox/runtime/sqlstore/sqlite"
)

const (
	orders   = 40
	clerks   = 8
	replicas = 4
	stubborn = "order-17"
	refusal  = 3 * time.Second
)

func main() {
	if settings := os.Getenv(replicaEnv); settings != "" {
		exit(serveReplica(settings))
	}
	serve := flag.Bool("serve", false, "keep taking orders until interrupted")
	file := flag.String("db", "", "the SQLite file; default is a new one in the temporary folder")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	exit(run(ctx, os.Stdout, *file, *serve))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "orders:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// run is the whole demonstration.
func run(ctx context.Context, out *os.File, file string, serve bool) error {
	if file == "" {
		dir, err := os.MkdirTemp("", "lanebox-orders-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		file = filepath.Join(dir, "orders.db")
	}
	db, err := sqlitestore.Open(file)
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := sqlite.Migrate(ctx, db); err != nil {
		return err
	}
	shop, err := NewShop(ctx, db)
	if err != nil {
		return err
	}

	warehouse := NewWarehouse(stubborn, refusal)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: warehouse}
	go server.Serve(listener)
	defer server.Close()

	d := &demo{shop: shop, warehouse: warehouse, screen: NewScreen(out), notes: make(chan note, 64), serve: serve}
	return d.run(ctx, replicaSettings{DB: file, URL: "http://" + listener.Addr().String() + "/events"})
}

// A demo is the demonstration while it runs.
type demo struct {
	shop      *Shop
	warehouse *Warehouse
	screen    *Screen
	notes     chan note
	serve     bool

	replicas []*Replica
	ended    int
	active   int // the replica that holds the lease, 0 if none
	killed   int
	killedAt time.Time
	retries  int
}

func (d *demo) run(ctx context.Context, s replicaSettings) error {
	d.screen.Line("lanebox demo: SQLite file, %d replicas, %d orders × %d events, the warehouse refuses %s for %v",
		replicas, orders, len(steps), stubborn, refusal)
	for i := range replicas {
		r, err := startReplica(i+1, s, d.notes)
		if err != nil {
			return err
		}
		d.replicas = append(d.replicas, r)
	}
	ctx, cancel := context.WithCancel(ctx)
	published := make(chan error, 1)
	go func() { published <- d.trade(ctx) }()
	err := d.watch(ctx, published)
	cancel()
	d.drain()
	return err
}

// trade lets the clerks move every order through its steps.
func (d *demo) trade(ctx context.Context) error {
	errs := make([]error, clerks)
	var all sync.WaitGroup
	for c := range clerks {
		all.Go(func() { errs[c] = d.clerk(ctx, c) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// clerk serves each clerks-th order, one step after the other.
func (d *demo) clerk(ctx context.Context, c int) error {
	for round := 0; round == 0 || d.serve; round++ {
		for step := range steps {
			for n := c + 1; n <= orders; n += clerks {
				id := fmt.Sprintf("order-%d", n+round*orders)
				if err := d.advance(ctx, id, step); err != nil {
					return err
				}
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(80 * time.Millisecond): // customers take their time
				}
			}
		}
	}
	return nil
}

func (d *demo) advance(ctx context.Context, id string, step int) error {
	switch step {
	case 0:
		return d.shop.Place(ctx, id, event.MustDecimal("49.90"))
	case 1:
		return d.shop.Pay(ctx, id, event.MustDecimal("49.90"))
	case 2:
		return d.shop.Pack(ctx, id, 2)
	case 3:
		return d.shop.Ship(ctx, id, "T-"+id)
	default:
		return d.shop.Deliver(ctx, id)
	}
}

// watch shows what happens, kills the active replica half-way, and ends when
// every event has arrived.
func (d *demo) watch(ctx context.Context, published <-chan error) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	patience := time.NewTimer(50 * time.Second)
	defer patience.Stop()
	for {
		select {
		case n := <-d.notes:
			if err := d.heard(n); err != nil {
				return err
			}
		case err := <-published:
			if err != nil && ctx.Err() == nil {
				return fmt.Errorf("publish: %w", err)
			}
		case <-tick.C:
			c := d.warehouse.Count()
			d.screen.Progress(c, orders*len(steps))
			d.killHalfWay(c)
			if !d.serve && c.Delivered == orders*len(steps) && c.InFlight == 0 {
				return d.verdict(c)
			}
		case <-patience.C:
			if !d.serve {
				return d.verdict(d.warehouse.Count())
			}
		case <-ctx.Done():
			if d.serve {
				return nil
			}
			return errors.New("interrupted")
		}
	}
}

// heard takes a note of a replica.
func (d *demo) heard(n note) error {
	switch n.Kind {
	case "leased":
		d.active = n.Replica
		if d.killed != 0 && n.Replica != d.killed {
			d.screen.Line("replica-%d took over %.1f s after replica-%d was killed", n.Replica, time.Since(d.killedAt).Seconds(), d.killed)
			return nil
		}
		d.screen.Line("replica-%d delivers, the others stand by", n.Replica)
	case "retry":
		d.retries++
		d.screen.Held(n.Key, n.Attempt, n.Delay, n.Error)
	case "ended":
		d.ended++
		if n.Replica != d.killed {
			return fmt.Errorf("replica-%d ended by itself", n.Replica)
		}
	}
	return nil
}

func (d *demo) killHalfWay(c Count) {
	if d.killed != 0 || d.active == 0 || c.Delivered < orders*len(steps)/2 {
		return
	}
	d.killed, d.killedAt = d.active, time.Now()
	d.replicas[d.killed-1].Kill()
	d.screen.Line("replica-%d is killed with messages in flight", d.killed)
}

// verdict says how it went; anything but perfect is an error.
func (d *demo) verdict(c Count) error {
	total := orders * len(steps)
	lost := total - c.Delivered
	d.screen.Done()
	d.screen.Line("%d events, %d lanes, %d retries, 1 crash: %d lost, %d out of order, %d overlapping, %d repeated (marked by their id)",
		total, c.Lanes, d.retries, lost, c.OutOfOrder, c.Overlaps, c.Repeated)
	if lost != 0 || c.OutOfOrder != 0 || c.Overlaps != 0 || c.Lanes != orders {
		return errors.New("the promise was broken")
	}
	d.screen.Line("OK")
	return nil
}

// drain stops the replicas that still run and hears them out.
func (d *demo) drain() {
	stopped := make(chan struct{})
	go func() {
		for _, r := range d.replicas {
			r.Stop()
		}
		close(stopped)
	}()
	for {
		select {
		case <-d.notes:
		case <-stopped:
			return
		}
	}
}
