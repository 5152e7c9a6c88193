package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/lanebox/lanebox/examples/orders/internal/events/sqlite"
	"github.com/lanebox/lanebox/runtime/engine"
	"github.com/lanebox/lanebox/runtime/schedule"
	sqlitestore "github.com/lanebox/lanebox/runtime/sqlstore/sqlite"
	"github.com/lanebox/lanebox/runtime/transport/webhook"
)

// replicaEnv holds a replica's settings; a process that finds it is a replica.
const replicaEnv = "LANEBOX_EXAMPLE_REPLICA"

type replicaSettings struct{ DB, URL string }

// A note is one line that a replica tells its parent.
type note struct {
	Replica int           `json:"-"`
	Kind    string        // "leased", "retry", "ended"
	Key     string        `json:",omitempty"`
	Attempt int           `json:",omitempty"`
	Delay   time.Duration `json:",omitempty"`
	Error   string        `json:",omitempty"`
}

// serveReplica runs the service's pollers in this process until its standard
// input ends. It is all that a service has to write.
func serveReplica(settings string) error {
	var s replicaSettings
	if err := json.Unmarshal([]byte(settings), &s); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		io.Copy(io.Discard, os.Stdin) // ends with the parent
		cancel()
	}()
	db, err := sqlitestore.Open(s.DB)
	if err != nil {
		return err
	}
	defer db.Close()
	warehouse, err := webhook.NewDestination(nil, webhook.Options{URL: s.URL, Source: "/examples/orders"})
	if err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	box, err := sqlite.New(db, sqlite.Config{
		Warehouse:    warehouse,
		Logger:       slog.New(slog.DiscardHandler),
		Observer:     func(e engine.Event) { tell(out, e) },
		PollInterval: 100 * time.Millisecond, // the shop publishes in another process, and SQLite cannot notify
	})
	if err != nil {
		return err
	}
	return box.Run(ctx)
}

// tell passes on what the demonstration shows.
func tell(out *json.Encoder, e engine.Event) {
	switch d := e.Detail.(type) {
	case schedule.LeasesAcquired:
		out.Encode(note{Kind: "leased"})
	case schedule.Retried:
		out.Encode(note{Kind: "retry", Key: d.Message.Key, Attempt: d.Message.Attempt, Delay: d.Delay, Error: d.Err.Error()})
	}
}

// A Replica is a running child process.
type Replica struct {
	number int
	cmd    *exec.Cmd
	stdin  io.Closer
	exited chan struct{}
	once   sync.Once
}

// startReplica starts another process of this program and passes its notes on.
func startReplica(number int, s replicaSettings, notes chan<- note) (*Replica, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	settings, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), replicaEnv+"="+string(settings))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start replica %d: %w", number, err)
	}
	r := &Replica{number: number, cmd: cmd, stdin: stdin, exited: make(chan struct{})}
	go func() {
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			var n note
			if json.Unmarshal(lines.Bytes(), &n) == nil {
				n.Replica = number
				notes <- n
			}
		}
		cmd.Wait()
		notes <- note{Replica: number, Kind: "ended"}
		close(r.exited)
	}()
	return r, nil
}

// Kill ends the process at once, as a power failure would.
func (r *Replica) Kill() { r.cmd.Process.Kill() }

// Stop lets the process drain and waits for it.
func (r *Replica) Stop() {
	r.once.Do(func() { r.stdin.Close() })
	<-r.exited
}
