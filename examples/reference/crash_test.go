package reference

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lanebox/lanebox/examples/reference/internal/events"
	"github.com/lanebox/lanebox/examples/reference/internal/events/postgres"
	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/ordertest"
	"github.com/lanebox/lanebox/runtime/outbox"
	"github.com/lanebox/lanebox/runtime/storetest/testpg"
)

const (
	crashKeys    = 500
	crashWriters = 8
	crashPollers = 4
	// unsettled bounds what one crash may repeat: max_unsettled of the warehouse.
	unsettled = 256
)

// crashKills is the number of processes that are killed; make crash kills more.
func crashKills() int {
	if os.Getenv("LANEBOX_TEST_FULL") != "" {
		return 400
	}
	return 50
}

// Processes are killed with SIGKILL while messages flow to an HTTP sink in
// another process: nothing is lost, first deliveries of a key come in commit
// order, never two of a lane at the same time, and what is repeated is bounded.
// The killer waits for progress, not for time: each kill lets the writers
// publish some more, and the next one comes when most of that has arrived.
func TestKilledProcessesKeepThePromise(t *testing.T) {
	ctx := t.Context()
	url, pool := database(t)
	kills := crashKills()
	total := 400 * kills

	file := filepath.Join(t.TempDir(), "ledger")
	target := play(t, "sink", url, file).line(t)
	accepted := func() int {
		r, err := http.Get(target)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		body, _ := io.ReadAll(r.Body)
		n, err := strconv.Atoi(string(body))
		if err != nil {
			t.Fatalf("the sink says %q: %v", body, err)
		}
		return n
	}

	allowance := make(chan struct{}, total)
	grant := func(n int) {
		for range n {
			allowance <- struct{}{}
		}
	}
	var writers sync.WaitGroup
	published := make([]string, crashWriters) // each writer's ledger
	for w := range crashWriters {
		writers.Go(func() { published[w] = writeWith(t, ctx, pool, w, total/crashWriters, allowance) })
	}

	var pollers [crashPollers]*child
	for i := range pollers {
		pollers[i] = play(t, "poller", url, target)
	}
	granted := 400
	grant(granted)
	for k := range kills {
		before := accepted()
		eventually(t, 2*time.Minute, "progress after a kill", func() bool {
			n := accepted()
			return n >= before+200 || n >= granted
		})
		victim := k % crashPollers
		pollers[victim].kill()
		pollers[victim] = play(t, "poller", url, target)
		if k+1 < kills {
			granted += 400
			grant(400)
		}
	}
	writers.Wait()
	eventually(t, 2*time.Minute, "the outbox to be empty", func() bool { return waiting(t, ctx, pool) == 0 })
	for _, p := range pollers {
		p.stop()
	}

	ledger, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer ledger.Close()
	checker, err := ordertest.Read(io.MultiReader(strings.NewReader(strings.Join(published, "")), ledger))
	if err != nil {
		t.Fatal(err)
	}
	report := checker.Report()
	if err := report.Err(); err != nil {
		t.Error(err)
	}
	if report.Published != total || report.Delivered != total {
		t.Errorf("%d published, %d delivered, want %d", report.Published, report.Delivered, total)
	}
	if limit := kills * unsettled; report.Repeats > limit {
		t.Errorf("%d repeats after %d kills; at most %d were in flight or unsettled", report.Repeats, kills, limit)
	}
	t.Logf("%d messages over %d keys, %d kills: %d deliveries, %d repeats", total, crashKeys, kills, report.Starts, report.Repeats)
}

// writeWith publishes n messages, one for each allowance, and returns a ledger
// of them. Every writer has keys of its own, so that the order in which it
// commits is the commit order of each key. One in eight transactions is plain
// SQL, one in eight rolls back first.
func writeWith(t *testing.T, ctx context.Context, pool *pgxpool.Pool, writer, n int, allowance <-chan struct{}) string {
	var text strings.Builder
	ledger := ordertest.NewWriter(&text)
	for i := range n {
		select {
		case <-allowance:
		case <-ctx.Done():
			return text.String()
		}
		key := fmt.Sprintf("key-%d", writer+crashWriters*(i%(crashKeys/crashWriters+1)))
		id := event.NewUUID()
		if i%8 == 0 {
			pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				cancelled := events.OrderCancelled{OrderID: events.NewOrderID(key), Reason: "never committed"}
				if err := postgres.In(tx).OrderCancelled(ctx, cancelled); err != nil {
					t.Errorf("publish: %v", err)
				}
				return fmt.Errorf("roll back")
			})
		}
		err := postgres.InTx(ctx, pool, func(tx pgx.Tx, pub *events.Publisher) error {
			if i%8 == 4 {
				_, err := tx.Exec(ctx, `INSERT INTO outbox (id, topic, key, payload) VALUES ($1, 'return.accepted', $2, '{}')`, id.String(), key)
				return err
			}
			return pub.OrderCancelled(ctx, events.OrderCancelled{OrderID: events.NewOrderID(key), Reason: "test"}, outbox.WithID[events.OrderID](id))
		})
		if err != nil {
			t.Errorf("publish: %v", err)
			return text.String()
		}
		ledger.Published(key, id)
	}
	return text.String()
}

// One message kills the process each time it is delivered. It ends in the dead
// letters after its attempts, plus one delivery before anybody suspected it, and
// none of its five hundred neighbours is charged.
func TestMessageThatKillsTheProcessDiesAlone(t *testing.T) {
	ctx := t.Context()
	url, pool := database(t)
	const healthy, attempts = 500, 3
	err := postgres.InTx(ctx, pool, func(tx pgx.Tx, pub *events.Publisher) error {
		var list []events.Event
		for i := range healthy {
			if i == healthy/2 {
				list = append(list, events.InvoiceRevised{InvoiceNumber: events.NewInvoiceNumber("poison"), Revision: 1})
			}
			list = append(list, events.InvoiceRevised{InvoiceNumber: events.NewInvoiceNumber(fmt.Sprintf("invoice-%d", i)), Revision: 1})
		}
		return pub.All(ctx, list...)
	})
	if err != nil {
		t.Fatal(err)
	}

	file := filepath.Join(t.TempDir(), "begun")
	deaths := 0
	victim := play(t, "victim", url, file)
	eventually(t, 2*time.Minute, "everything to be delivered or dead", func() bool {
		select {
		case <-victim.exited:
			deaths++
			victim = play(t, "victim", url, file)
		default:
		}
		return waiting(t, ctx, pool) == 0
	})
	victim.stop()

	if deaths < attempts || deaths > attempts+1 {
		t.Errorf("the process died %d times, want %d recorded attempts and at most one before", deaths, attempts)
	}
	begun, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(string(begun)) {
		var key string
		var attempt int
		if _, err := fmt.Sscan(line, &key, &attempt); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		seen[key] = true
		if key != "poison" && attempt != 1 {
			t.Errorf("%s was delivered as attempt %d: it was charged for its neighbour", key, attempt)
		}
	}
	if len(seen) != healthy+1 {
		t.Errorf("%d messages were delivered, want %d", len(seen), healthy+1)
	}
	var key, reason string
	var recorded int
	if err := pool.QueryRow(ctx, `SELECT key, attempts, reason FROM outbox_dead`).Scan(&key, &recorded, &reason); err != nil {
		t.Fatal(err)
	}
	if key != "poison" || recorded != attempts {
		t.Errorf("%s is dead after %d attempts (%s), want poison after %d", key, recorded, reason, attempts)
	}
	var dead, held int
	if err := pool.QueryRow(ctx, `SELECT (SELECT count(*) FROM outbox_dead), (SELECT count(*) FROM lane_hold)`).Scan(&dead, &held); err != nil {
		t.Fatal(err)
	}
	if dead != 1 || held != 0 {
		t.Errorf("%d dead letters and %d holds, want 1 and 0", dead, held)
	}
}

// database returns a migrated database and a pool on it.
func database(t *testing.T) (string, *pgxpool.Pool) {
	t.Helper()
	url := testpg.URL(t)
	pool := testpg.Pool(t, url, nil)
	if _, err := postgres.Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	return url, pool
}

// waiting counts the messages in the outbox.
func waiting(t *testing.T, ctx context.Context, pool *pgxpool.Pool) (n int) {
	t.Helper()
	if err := pool.QueryRow(ctx, `SELECT count(*) FROM outbox`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
