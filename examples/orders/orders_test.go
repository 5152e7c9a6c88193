package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lanebox/lanebox/examples/orders/internal/events/sqlite"
	"github.com/lanebox/lanebox/runtime/event"
	sqlitestore "github.com/lanebox/lanebox/runtime/sqlstore/sqlite"
	"github.com/lanebox/lanebox/runtime/transport/handler"
)

// TestMain lets the test binary be a replica, as the program itself is.
func TestMain(m *testing.M) {
	if settings := os.Getenv(replicaEnv); settings != "" {
		exit(serveReplica(settings))
	}
	os.Exit(m.Run())
}

// The whole demonstration, with real processes and a real kill.
func TestDemonstration(t *testing.T) {
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	err = run(t.Context(), out, filepath.Join(t.TempDir(), "orders.db"), false)
	text, _ := os.ReadFile(out.Name())
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	for _, want := range []string{"order-17 refused", "is killed", "took over", "0 lost, 0 out of order, 0 overlapping", "OK"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the output does not say %q:\n%s", want, text)
		}
	}
}

// Packing and cancelling an order race: exactly one of them wins, and the
// warehouse hears of that one alone, behind what was committed before.
func TestCancelRacesPack(t *testing.T) {
	ctx := t.Context()
	db, err := sqlitestore.Open(filepath.Join(t.TempDir(), "shop.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := sqlite.Migrate(ctx, db); err != nil {
		t.Fatal(err)
	}
	shop, err := NewShop(ctx, db)
	if err != nil {
		t.Fatal(err)
	}

	const races = 50
	won := map[string]string{}
	for i := range races {
		id := fmt.Sprintf("order-%d", i)
		if err := errors.Join(shop.Place(ctx, id, event.MustDecimal("1")), shop.Pay(ctx, id, event.MustDecimal("1"))); err != nil {
			t.Fatal(err)
		}
		var packed, cancelled error
		var both sync.WaitGroup
		both.Go(func() { packed = shop.Pack(ctx, id, 1) })
		both.Go(func() { cancelled = shop.Cancel(ctx, id, "found it cheaper") })
		both.Wait()
		switch {
		case packed == nil && errors.Is(cancelled, ErrTooLate):
			won[id] = "order.packed.v1"
		case cancelled == nil && errors.Is(packed, ErrTooLate):
			won[id] = "order.cancelled.v1"
		default:
			t.Fatalf("%s: pack: %v, cancel: %v; want exactly one winner", id, packed, cancelled)
		}
	}

	heard := deliverAll(t, ctx, db, 3*races)
	for id, winner := range won {
		if want := []string{"order.placed.v1", "order.paid.v1", winner}; !slices.Equal(heard[id], want) {
			t.Errorf("%s: the warehouse heard %v, want %v", id, heard[id], want)
		}
	}
}

// deliverAll runs the service until n messages have arrived and returns their
// topics by key.
func deliverAll(t *testing.T, ctx context.Context, db *sql.DB, n int) map[string][]string {
	t.Helper()
	ctx, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	var mu sync.Mutex
	heard, left := map[string][]string{}, n
	box, err := sqlite.New(db, sqlite.Config{
		Logger: slog.New(slog.DiscardHandler),
		Warehouse: handler.NewDestination(func(_ context.Context, m event.Message) error {
			mu.Lock()
			defer mu.Unlock()
			heard[m.Key] = append(heard[m.Key], m.Topic)
			if left--; left == 0 {
				stop()
			}
			return nil
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := box.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if left != 0 {
		t.Fatalf("%d of %d messages did not arrive", left, n)
	}
	return heard
}
