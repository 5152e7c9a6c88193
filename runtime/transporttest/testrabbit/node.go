//go:build unix

package testrabbit

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// BinVariable names the folder of rabbitmq-server and rabbitmqctl, for nodes of
// another version than the installed one.
const BinVariable = "LANEBOX_TEST_RABBITMQ_BIN"

// bin returns where the scripts are. Packages put those that run as any user there;
// those of /usr/sbin change to the user of the system's own node.
func bin() string { return cmp.Or(os.Getenv(BinVariable), "/usr/lib/rabbitmq/bin") }

// Installed returns an error that says what is missing when no node can be
// started.
func Installed() error {
	for _, name := range []string{"rabbitmq-server", "rabbitmqctl"} {
		if _, err := os.Stat(filepath.Join(bin(), name)); err != nil {
			return fmt.Errorf("RabbitMQ is not installed in %s; install rabbitmq-server, or set %s", bin(), Variable)
		}
	}
	return nil
}

// A Node is a RabbitMQ server with its data in a temporary folder. It shares
// nothing with a server of the system: its name, ports, cookie and Erlang port
// mapper are its own. It ends with this process, however that ends.
type Node struct {
	dir              string
	port, dist, epmd string
	server           *exec.Cmd
	exited           chan struct{}
	release          func()
}

// config makes a node small, and quick to write: its data is thrown away.
const config = `listeners.tcp.1 = 127.0.0.1:%s
vm_memory_high_watermark.absolute = 2GB
disk_free_limit.absolute = 20MB
log.file.level = warning
log.console = false
`

const advanced = `[{ra, [{wal_sync_method, none}, {wal_max_size_bytes, 33554432}]},
 {rabbit, [{tcp_listen_options, [{backlog, 128}, {nodelay, true}, {reuseaddr, true}, {linger, {true, 0}}, {exit_on_close, false}]}]}].
`

// Start starts a node and returns when it takes connections.
func Start(ctx context.Context) (*Node, error) {
	if err := Installed(); err != nil {
		return nil, err
	}
	var errs []error
	for range 3 { // somebody may take a port between its choice and its use
		n, err := newNode()
		if err == nil {
			err = n.Start(ctx)
		}
		if err == nil {
			return n, nil
		}
		errs = append(errs, err)
		if n != nil {
			n.Close()
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, fmt.Errorf("start RabbitMQ: %w", errors.Join(errs...))
}

func newNode() (*Node, error) {
	dir, err := os.MkdirTemp("", "lanebox-rabbitmq-")
	if err != nil {
		return nil, err
	}
	n := &Node{dir: dir}
	for _, port := range []*string{&n.port, &n.dist, &n.epmd} {
		if *port, err = freePort(); err != nil {
			return n, err
		}
	}
	if err := n.write("rabbitmq.conf", fmt.Sprintf(config, n.port)); err != nil {
		return n, err
	}
	if err := n.write("advanced.config", advanced); err != nil {
		return n, err
	}
	if err := n.write("enabled_plugins", "[].\n"); err != nil {
		return n, err
	}
	n.release, err = watchdog(n.dir, n.epmd)
	return n, err
}

func (n *Node) write(name, text string) error {
	return os.WriteFile(filepath.Join(n.dir, name), []byte(text), 0o600)
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port), nil
}

// watchdog starts a shell that waits for the end of its input, then stops the
// node of the folder, and its port mapper, and removes the folder.
func watchdog(dir, epmd string) (release func(), err error) {
	const script = `cat >/dev/null
pid=$(cat "$1/group" 2>/dev/null)
if [ -n "$pid" ]; then
	kill -TERM -"$pid" 2>/dev/null
	n=0
	while kill -0 -"$pid" 2>/dev/null && [ $n -lt 100 ]; do sleep 0.1; n=$((n+1)); done
	kill -KILL -"$pid" 2>/dev/null
fi
n=0
until epmd -port "$2" -kill >/dev/null 2>&1 || [ $n -ge 20 ]; do sleep 0.1; n=$((n+1)); done
rm -rf "$1"`
	cmd := exec.Command("/bin/sh", "-c", script, "watchdog", dir, epmd)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return func() {
		in.Close()
		cmd.Wait()
	}, nil
}

// environment returns the variables of the node's processes.
func (n *Node) environment() []string {
	env := []string{
		"PATH=" + os.Getenv("PATH"),
		"LANG=C.UTF-8",
		"HOME=" + n.dir,
		"RABBITMQ_NODENAME=lanebox-" + n.port + "@localhost",
		"RABBITMQ_DIST_PORT=" + n.dist,
		"ERL_EPMD_PORT=" + n.epmd,
		"ERL_EPMD_ADDRESS=127.0.0.1",
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1}",
	}
	for name, file := range map[string]string{
		"MNESIA_BASE": "mnesia", "LOG_BASE": "log", "CONFIG_FILE": "rabbitmq.conf", "ADVANCED_CONFIG_FILE": "advanced.config",
		"ENABLED_PLUGINS_FILE": "enabled_plugins", "PID_FILE": "pid", "CONF_ENV_FILE": "none", "GENERATED_CONFIG_DIR": "config",
	} {
		env = append(env, "RABBITMQ_"+name+"="+filepath.Join(n.dir, file))
	}
	return env
}

// Start starts the node's process again after Stop or Kill, and returns when it
// takes connections.
func (n *Node) Start(ctx context.Context) error {
	log, err := os.OpenFile(filepath.Join(n.dir, "output"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	n.server = exec.Command(filepath.Join(bin(), "rabbitmq-server"))
	n.server.Dir, n.server.Env = n.dir, n.environment()
	n.server.Stdout, n.server.Stderr = log, log
	n.server.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := n.server.Start(); err != nil {
		return err
	}
	server, exited := n.server, make(chan struct{})
	n.exited = exited
	go func() {
		server.Wait()
		close(exited)
	}()
	if err := n.write("group", strconv.Itoa(server.Process.Pid)); err != nil {
		return err
	}
	return n.wait(ctx)
}

// wait waits until the node answers; it says what the node printed if that ends
// before.
func (n *Node) wait(ctx context.Context) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-n.exited:
			text, _ := os.ReadFile(filepath.Join(n.dir, "output"))
			return fmt.Errorf("the node ended: %s", text)
		case <-ctx.Done():
			return fmt.Errorf("the node does not take connections: %w", ctx.Err())
		case <-tick.C:
			if n.ready() {
				return nil
			}
		}
	}
}

// ready reports whether the node answers a protocol header with a method frame.
func (n *Node) ready() bool {
	conn, err := net.DialTimeout("tcp", n.Address(), time.Second)
	if err != nil {
		return false
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(2 * time.Second))
	if _, err := io.WriteString(conn, "AMQP\x00\x00\x09\x01"); err != nil {
		return false
	}
	kind := make([]byte, 1)
	_, err = conn.Read(kind)
	return err == nil && kind[0] == 1
}

// Address returns the node's host:port.
func (n *Node) Address() string { return net.JoinHostPort("127.0.0.1", n.port) }

// URL returns the node's AMQP URL.
func (n *Node) URL() string { return "amqp://guest:guest@" + n.Address() + "/" }

// Stop ends the node's process as an operator would, and waits for its end.
func (n *Node) Stop() { n.end(syscall.SIGTERM) }

// Kill ends the node's process at once.
func (n *Node) Kill() { n.end(syscall.SIGKILL) }

func (n *Node) end(s syscall.Signal) {
	if n.server == nil {
		return
	}
	group := -n.server.Process.Pid
	syscall.Kill(group, s)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	patience := time.After(30 * time.Second)
	for syscall.Kill(group, 0) == nil {
		select {
		case <-tick.C:
		case <-patience:
			syscall.Kill(group, syscall.SIGKILL)
		}
	}
	<-n.exited
}

// Close ends the node and removes its data.
func (n *Node) Close() {
	if n.release != nil {
		n.release()
	}
	os.RemoveAll(n.dir)
}

// Control runs rabbitmqctl and returns what it prints.
func (n *Node) Control(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(bin(), "rabbitmqctl"), append([]string{"--silent"}, args...)...)
	cmd.Dir, cmd.Env = n.dir, n.environment()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	text := strings.TrimSpace(out.String())
	if err != nil {
		return text, fmt.Errorf("rabbitmqctl %s: %w: %s", strings.Join(args, " "), err, text)
	}
	return text, nil
}
