//go:build !race

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lanebox/lanebox/examples/fulfilment/internal/database"
	"github.com/lanebox/lanebox/examples/fulfilment/orders"
	"github.com/lanebox/lanebox/examples/fulfilment/warehouse"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/topology"
	"github.com/lanebox/lanebox/runtime/transport/kafka"
)

// The test binary plays several parts: a process that finds a part in its
// environment plays it instead of running tests.
const partEnv = "LANEBOX_FULFILMENT_PART"

// logEnv has all processes log to the standard error output, if it is set.
const logEnv = "LANEBOX_TEST_LOG"

// A part is what a process is told.
type part struct {
	Role string
	// Database is that of the service.
	Database string `json:",omitempty"`
	// Carrier is how the services reach the broker.
	Carrier carrier
	// Dir is where a broker keeps its files, or a warehouse its notes. Port is that
	// of a broker; 0 means any.
	Dir  string `json:",omitempty"`
	Port int    `json:",omitempty"`
}

// A carrier is a Carrier in a form that other processes can be told; one of its
// fields is set.
type carrier struct {
	RabbitMQ *RabbitMQ
	NATS     *NATS
	Kafka    *kafkaCarrier
}

func (c carrier) Carrier() Carrier {
	switch {
	case c.RabbitMQ != nil:
		return c.RabbitMQ
	case c.NATS != nil:
		return c.NATS
	default:
		return c.Kafka
	}
}

// kafkaCarrier carries messages over a topic of Kafka.
type kafkaCarrier struct{ Broker, Topic string }

func (k *kafkaCarrier) Destination(l *slog.Logger) (Destination, error) {
	return kafka.NewDestination(kafka.Config{Brokers: []string{k.Broker}, Source: "/examples/orders", Timeout: 2 * time.Second, Logger: l},
		topology.KafkaDestination{Name: orders.Warehouse.Name, Topic: k.Topic})
}

func (k *kafkaCarrier) Source(l *slog.Logger) (inbox.Source, error) {
	// A killed member keeps its partitions until its session ends.
	session := []kgo.Opt{kgo.SessionTimeout(6 * time.Second), kgo.HeartbeatInterval(time.Second)}
	return kafka.NewSource(kafka.Config{Brokers: []string{k.Broker}, Options: session, Logger: l},
		topology.KafkaSource{Name: warehouse.Orders.Name, Topics: []string{k.Topic}, Group: "warehouse", Start: "first"})
}

func TestMain(m *testing.M) {
	text, ok := os.LookupEnv(partEnv)
	if !ok {
		os.Exit(m.Run())
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		io.Copy(io.Discard, os.Stdin) // ends with the parent
		cancel()
	}()
	if err := playPart(ctx, text); err != nil {
		fmt.Fprintln(os.Stderr, text+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func playPart(ctx context.Context, text string) error {
	var p part
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return err
	}
	switch p.Role {
	case "orders":
		return playOrders(ctx, p)
	case "warehouse":
		return playWarehouse(ctx, p)
	case "nats":
		return playNATS(ctx, p)
	case "kafka":
		return playKafka(ctx, p)
	}
	return fmt.Errorf("no part %q", p.Role)
}

// quiet returns a logger for services whose brokers and peers are killed all the
// time.
func quiet() *slog.Logger {
	if os.Getenv(logEnv) != "" {
		return slog.New(slog.NewTextHandler(os.Stderr, nil)).With("pid", os.Getpid())
	}
	return slog.New(slog.DiscardHandler)
}

func playOrders(ctx context.Context, p part) error {
	db, err := database.Open(ctx, p.Database)
	if err != nil {
		return err
	}
	defer db.Close()
	to, err := p.Carrier.Carrier().Destination(quiet())
	if err != nil {
		return err
	}
	defer to.Close()
	s, err := orders.New(ctx, db, orders.Config{Warehouse: to, Logger: quiet(), PollInterval: 100 * time.Millisecond})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	return s.Run(ctx)
}

// playWarehouse runs the warehouse. It notes what its handler refuses, and what
// its source has counted, in files.
func playWarehouse(ctx context.Context, p part) error {
	db, err := database.Open(ctx, p.Database)
	if err != nil {
		return err
	}
	defer db.Close()
	from, err := p.Carrier.Carrier().Source(quiet())
	if err != nil {
		return err
	}
	refusals, err := os.OpenFile(filepath.Join(p.Dir, refusalsFile), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	s, err := warehouse.New(ctx, db, warehouse.Config{
		Orders: from, Logger: quiet(), PollInterval: 100 * time.Millisecond,
		Refused: func(m inbox.Raw, reason error) {
			fmt.Fprintf(refusals, "version %d of %s: %v\n", m.Version, m.Key, reason)
		},
	})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	count := start(ctx, func(ctx context.Context) error { return keepCounts(ctx, p.Dir, from) })
	return errors.Join(s.Run(ctx), count.stop(), writeCounts(p.Dir, from))
}

// Files in the folder of the warehouse's notes.
const (
	refusalsFile = "refused"
	countsFiles  = "counts-"
)

// keepCounts writes what a source has counted, again and again, so that most of it
// is known of a process that was killed.
func keepCounts(ctx context.Context, dir string, from inbox.Source) error {
	for {
		if err := writeCounts(dir, from); err != nil {
			return err
		}
		if sleep(ctx, 100*time.Millisecond) != nil {
			return nil
		}
	}
}

func writeCounts(dir string, from inbox.Source) error {
	counter, ok := from.(interface{ Stats() inbox.SourceStats })
	if !ok {
		return fmt.Errorf("%T counts nothing", from)
	}
	text, err := json.Marshal(counter.Stats())
	if err != nil {
		return err
	}
	name := filepath.Join(dir, countsFiles+strconv.Itoa(os.Getpid()))
	if err := os.WriteFile(name+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}

func playNATS(ctx context.Context, p part) error {
	address, stop, err := embedNATS(p.Dir, p.Port)
	if err != nil {
		return err
	}
	defer stop()
	fmt.Println(address)
	<-ctx.Done()
	return nil
}

// playKafka runs one node of kfake that keeps its data in files.
func playKafka(ctx context.Context, p part) error {
	options := []kfake.Opt{kfake.NumBrokers(1), kfake.DataDir(p.Dir), kfake.SyncWrites()}
	if p.Port != 0 {
		options = append(options, kfake.Ports(p.Port))
	}
	options = append(options, kfake.SeedTopics(kafkaPartitions, kafkaTopic))
	cluster, err := kfake.NewCluster(options...)
	if err != nil {
		return err
	}
	defer cluster.Close()
	fmt.Println("kafka://" + cluster.ListenAddrs()[0])
	<-ctx.Done()
	return nil
}

const (
	kafkaTopic      = "orders"
	kafkaPartitions = 8
)

// A child is a process that plays a part.
type child struct {
	role   string
	cmd    *exec.Cmd
	stdin  io.Closer
	stderr bytes.Buffer // may be read after exited is closed
	exited chan struct{}
	once   sync.Once
}

// play starts a process and waits for the line it prints when it is ready. It is
// stopped when the test ends.
func play(t testing.TB, p part) (*child, string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), partEnv+"="+string(text))
	c := &child{role: p.Role, cmd: cmd, exited: make(chan struct{})}
	cmd.Stderr = &c.stderr
	if os.Getenv(logEnv) != "" {
		cmd.Stderr = io.MultiWriter(os.Stderr, &c.stderr)
	}
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
	c.stdin = stdin
	t.Cleanup(c.kill)
	out := bufio.NewReader(stdout)
	line, err := out.ReadString('\n')
	go func() {
		io.Copy(io.Discard, out)
		cmd.Wait()
		close(c.exited)
	}()
	if err != nil {
		c.kill()
		t.Fatalf("%s did not start: %v\n%s", p.Role, err, c.stderr.Bytes())
	}
	return c, strings.TrimSpace(line)
}

// stop lets the process drain and returns how it ended.
func (c *child) stop() error {
	c.once.Do(func() { c.stdin.Close() })
	<-c.exited
	return c.failure()
}

// failure says how the process ended by itself; nil while it runs, and after a
// clean end.
func (c *child) failure() error {
	select {
	case <-c.exited:
		if code := c.cmd.ProcessState.ExitCode(); code != 0 {
			return fmt.Errorf("%s %d: exit status %d\n%s", c.role, c.cmd.Process.Pid, code, c.stderr.Bytes())
		}
	default:
	}
	return nil
}

// kill ends the process at once.
func (c *child) kill() {
	c.cmd.Process.Kill()
	<-c.exited
}

// A node is a broker in a process of its own.
type node struct {
	part  part
	child *child
	// address is its host:port.
	address string
}

// startNode starts a broker with its files in a new folder.
func startNode(t testing.TB, role string) *node {
	t.Helper()
	s := &node{part: part{Role: role, Dir: t.TempDir()}}
	s.start(t)
	return s
}

// start starts it, again on the same port.
func (s *node) start(t testing.TB) {
	t.Helper()
	var line string
	s.child, line = play(t, s.part)
	u, err := url.Parse(line)
	if err != nil {
		t.Fatal(err)
	}
	s.address = u.Host
	_, port, err := net.SplitHostPort(s.address)
	if err != nil {
		t.Fatal(err)
	}
	if s.part.Port, err = strconv.Atoi(port); err != nil {
		t.Fatal(err)
	}
}
