package reference

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lanebox/lanebox/examples/reference/internal/events"
	"github.com/lanebox/lanebox/examples/reference/internal/events/postgres"
	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/ordertest"
	"github.com/lanebox/lanebox/runtime/outbox"
	"github.com/lanebox/lanebox/runtime/transport/handler"
	"github.com/lanebox/lanebox/runtime/transport/webhook"
)

// The test binary plays several parts: a process that finds a role in its
// environment plays it instead of running tests.
const (
	roleEnv     = "LANEBOX_REFERENCE_ROLE"
	databaseEnv = "LANEBOX_REFERENCE_DATABASE"
	targetEnv   = "LANEBOX_REFERENCE_TARGET" // the sink's URL, or a ledger's file
)

func TestMain(m *testing.M) {
	roles := map[string]func(ctx context.Context) error{
		"sink": playSink, "poller": playPoller, "victim": playVictim, "inbox": playInbox, "holder": playHolder,
	}
	role, ok := roles[os.Getenv(roleEnv)]
	if !ok {
		os.Exit(m.Run())
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		io.Copy(io.Discard, os.Stdin) // ends with the parent
		cancel()
	}()
	if err := role(ctx); err != nil {
		fmt.Fprintln(os.Stderr, os.Getenv(roleEnv)+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// playSink is an HTTP receiver that keeps a ledger of its own. It prints its URL
// first; GET answers the number of messages accepted.
func playSink(ctx context.Context) error {
	file, err := os.OpenFile(os.Getenv(targetEnv), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	ledger := ordertest.NewWriter(file)
	var accepted atomic.Int64
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			fmt.Fprint(w, accepted.Load())
			return
		}
		id, err := event.ParseUUID(r.Header.Get("ce-id"))
		sequence, err2 := strconv.ParseInt(r.Header.Get("ce-sequence"), 10, 64)
		if err := errors.Join(err, err2); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		end := ledger.Begin("sink", event.Message{ID: id, Key: r.Header.Get("ce-partitionkey"), Sequence: sequence})
		io.Copy(io.Discard, r.Body)
		end(1)
		accepted.Add(1)
	}))
	fmt.Println("http://" + listener.Addr().String())
	<-ctx.Done()
	return nil
}

// playPoller runs the service with the sink as its warehouse.
func playPoller(ctx context.Context) error {
	warehouse, err := webhook.NewDestination(nil, webhook.Options{URL: os.Getenv(targetEnv)})
	if err != nil {
		return err
	}
	return runBox(ctx, parts{warehouse: warehouse})
}

// playVictim runs the service with a search index that is killed by one
// message. It notes every message it begins, with its attempt, in a file.
func playVictim(ctx context.Context) error {
	file, err := os.OpenFile(os.Getenv(targetEnv), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	search := handler.NewDestination(func(_ context.Context, m event.Message) error {
		if _, err := fmt.Fprintf(file, "%s %d\n", m.Key, m.Attempt); err != nil {
			return err
		}
		if m.Key == "poison" {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		return nil
	})
	return runBox(ctx, parts{search: search})
}

// runBox runs the service until ctx ends.
func runBox(ctx context.Context, p parts) error {
	url := os.Getenv(databaseEnv)
	box, closePool, err := dialectOf(url).service(ctx, url, p)
	if err != nil {
		return err
	}
	defer closePool()
	return box.Run(ctx)
}

// fillIn completes a configuration with destinations and handlers that do nothing.
func fillIn(c *postgres.Config) {
	for _, d := range []*outbox.Destination{&c.Warehouse, &c.Ledger, &c.Mail, &c.Search} {
		if *d == nil {
			*d = handler.NewDestination(func(context.Context, event.Message) error { return nil })
		}
	}
	c.OrdersVerifier, c.PaymentsVerifier, c.ReturnsVerifier = webhook.Unsigned(), webhook.Unsigned(), webhook.Unsigned()
	c.Stock = nothing[pgx.Tx]{}
	if c.Payments == nil {
		c.Payments = nothing[pgx.Tx]{}
	}
	if c.ReturnsMap == nil {
		c.ReturnsMap = func(context.Context, pgx.Tx, inbox.Raw) ([]events.Event, error) { return nil, nil }
	}
	c.Logger = slog.New(slog.DiscardHandler)
}

// nothing implements every handler of the schema by doing nothing.
type nothing[Tx any] struct{}

func (nothing[Tx]) OrderPlaced(context.Context, Tx, inbox.Message[events.OrderPlaced]) error {
	return nil
}

func (nothing[Tx]) OrderCancelled(context.Context, Tx, inbox.Message[events.OrderCancelled]) error {
	return nil
}

func (nothing[Tx]) PaymentCaptured(context.Context, Tx, inbox.Message[events.PaymentCaptured]) error {
	return nil
}

func (nothing[Tx]) Other(context.Context, Tx, inbox.Raw) error { return nil }

// A child is a process that plays a role.
type child struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	stdout *bufio.Reader
	exited chan struct{}
	once   sync.Once
}

// play starts a process with a role; it is stopped when the test ends.
func play(t *testing.T, role, database, target string) *child {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), roleEnv+"="+role, databaseEnv+"="+database, targetEnv+"="+target)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &child{cmd: cmd, stdin: stdin, stdout: bufio.NewReader(stdout), exited: make(chan struct{})}
	go func() {
		cmd.Process.Wait()
		close(c.exited)
	}()
	t.Cleanup(c.stop)
	return c
}

// stop lets the process drain.
func (c *child) stop() {
	c.once.Do(func() { c.stdin.Close() })
	<-c.exited
}

// kill ends the process at once.
func (c *child) kill() {
	c.cmd.Process.Kill()
	<-c.exited
}

// line returns the next line the process prints.
func (c *child) line(t *testing.T) string {
	t.Helper()
	line, err := c.stdout.ReadString('\n')
	if err != nil {
		t.Fatalf("read what the process prints: %v", err)
	}
	return strings.TrimSpace(line)
}

// eventually waits until done answers true.
func eventually(t *testing.T, patience time.Duration, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for %s", patience, what)
		}
	}
}
