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

	"github.com/lanebox/lanebox/examples/reference/internal/events"
	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/ordertest"
	"github.com/lanebox/lanebox/runtime/outbox"
)

const (
	crashKeys    = 500
	crashWriters = 8
	crashPollers = 4
	// unsettled bounds what one crash may repeat: max_unsettled of the warehouse.
	unsettled = 256
)

// kills is the number of processes that are killed; make crash kills more.
func (d dialect) kills() int {
	if os.Getenv("LANEBOX_TEST_FULL") != "" {
		return 8 * d.crashes
	}
	return d.crashes
}

// Processes are killed with SIGKILL while messages flow to an HTTP sink in
// another process: nothing is lost, first deliveries of a key come in commit
// order, never two of a lane at the same time, and what is repeated is bounded.
// The killer waits for progress, not for time: each kill lets the writers
// publish some more, and the next one comes when most of that has arrived.
func TestKilledProcessesKeepThePromise(t *testing.T) {
	eachDialect(t, func(t *testing.T, d dialect) { crashPublishing(t, d.newTrader(t, crashWriters), d.kills()) })
}

func crashPublishing(t *testing.T, tr *trader, kills int) {
	ctx, url := t.Context(), tr.url
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
		writers.Go(func() { published[w] = writeWith(t, ctx, tr, w, total/crashWriters, allowance) })
	}

	var pollers [crashPollers]*child
	for i := range pollers {
		pollers[i] = play(t, "poller", url, target)
	}
	granted := 400
	grant(granted)
	for k := range kills {
		before := accepted()
		eventually(t, patience, "progress after a kill", func() bool {
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
	eventually(t, patience, "the outbox to be empty", func() bool { return tr.waiting(t) == 0 })
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
func writeWith(t *testing.T, ctx context.Context, tr *trader, writer, n int, allowance <-chan struct{}) string {
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
			tr.ownTx(ctx, func(_ execFunc, pub *events.Publisher) error {
				cancelled := events.OrderCancelled{OrderID: events.NewOrderID(key), Reason: "never committed"}
				if err := pub.OrderCancelled(ctx, cancelled); err != nil {
					t.Errorf("publish: %v", err)
				}
				return fmt.Errorf("roll back")
			})
		}
		err := tr.inTx(ctx, func(exec execFunc, pub *events.Publisher) error {
			if i%8 == 4 {
				return exec(ctx, tr.insertID, id.String(), "return.accepted", key)
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
	eachDialect(t, func(t *testing.T, d dialect) { killByMessage(t, d.newTrader(t, 4)) })
}

func killByMessage(t *testing.T, tr *trader) {
	ctx, url := t.Context(), tr.url
	const healthy, attempts = 500, 3
	err := tr.inTx(ctx, func(_ execFunc, pub *events.Publisher) error {
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
	eventually(t, patience, "everything to be delivered or dead", func() bool {
		select {
		case <-victim.exited:
			deaths++
			victim = play(t, "victim", url, file)
		default:
		}
		return tr.waiting(t) == 0
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
	if err := tr.db.QueryRowContext(ctx, `SELECT "key", attempts, reason FROM outbox_dead`).Scan(&key, &recorded, &reason); err != nil {
		t.Fatal(err)
	}
	if key != "poison" || recorded != attempts {
		t.Errorf("%s is dead after %d attempts (%s), want poison after %d", key, recorded, reason, attempts)
	}
	var dead, held int
	if err := tr.db.QueryRowContext(ctx, `SELECT (SELECT count(*) FROM outbox_dead), (SELECT count(*) FROM lane_hold)`).Scan(&dead, &held); err != nil {
		t.Fatal(err)
	}
	if dead != 1 || held != 0 {
		t.Errorf("%d dead letters and %d holds, want 1 and 0", dead, held)
	}
}
