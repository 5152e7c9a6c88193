//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const urlVariable = "LANEBOX_TEST_POSTGRES_URL"

// providePostgres sees to it that the tests find a PostgreSQL server, in this
// order: the one they were given, installed binaries, binaries installed with
// apt-get, a container. The function it returns stops what it started.
func (s *suite) providePostgres(ctx context.Context) (stop func(), err error) {
	if url := os.Getenv(urlVariable); url != "" {
		fmt.Println("using", urlVariable)
		return func() {}, nil
	}
	bin, err := postgresBinaries()
	if err != nil && os.Getuid() == 0 && onPath("apt-get") {
		fmt.Println(err)
		if err := s.installPostgres(ctx); err != nil {
			fmt.Println("apt-get:", err)
		}
		bin, err = postgresBinaries()
	}
	if err == nil {
		return s.startPostgres(ctx, bin)
	}
	fmt.Println(err)
	if !onPath("docker") {
		return nil, fmt.Errorf("%w; install PostgreSQL or Docker, or set %s", err, urlVariable)
	}
	return s.composePostgres(ctx)
}

func onPath(name string) bool {
	_, err := exec.LookPath(name)
	return err == nil
}

// postgresBinaries returns the folder that holds initdb and postgres.
func postgresBinaries() (string, error) {
	var dirs []string
	if initdb, err := exec.LookPath("initdb"); err == nil {
		if real, err := filepath.EvalSymlinks(initdb); err == nil {
			dirs = append(dirs, filepath.Dir(real))
		}
	}
	for _, glob := range []string{
		"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/local/pgsql/bin",
		"/opt/homebrew/opt/postgresql*/bin", "/usr/local/opt/postgresql*/bin",
		"/Applications/Postgres.app/Contents/Versions/*/bin",
	} {
		found, _ := filepath.Glob(glob)
		slices.Reverse(found) // newest last in name order, wanted first
		dirs = append(dirs, found...)
	}
	for _, dir := range dirs {
		if isFile(filepath.Join(dir, "initdb")) && isFile(filepath.Join(dir, "postgres")) {
			return dir, nil
		}
	}
	return "", errors.New("PostgreSQL is not installed")
}

// installPostgres installs the distribution's server without creating or
// starting a cluster.
func (s *suite) installPostgres(ctx context.Context) error {
	if err := s.install(ctx, "postgresql-common"); err != nil {
		return err
	}
	conf := "/etc/postgresql-common/createcluster.conf"
	if text, err := os.ReadFile(conf); err == nil {
		off := strings.Replace(string(text), "#create_main_cluster = true", "create_main_cluster = false", 1)
		if err := os.WriteFile(conf, []byte(off), 0o644); err != nil {
			return err
		}
	}
	return s.install(ctx, "postgresql")
}

// install installs a package of the distribution.
func (s *suite) install(ctx context.Context, name string) error {
	env := s.env
	s.env = append(slices.Clone(env), "DEBIAN_FRONTEND=noninteractive")
	defer func() { s.env = env }()
	if err := s.do(ctx, "apt-get", "update", "-qq"); err != nil {
		return err
	}
	return s.do(ctx, "apt-get", "install", "-y", "-qq", "--no-install-recommends", name)
}

// provideNPM sees to it that the test of examples/webhooks can fetch its
// payloads. Without npm that test fails and says so.
func (s *suite) provideNPM(ctx context.Context) {
	if onPath("npm") || os.Getuid() != 0 || !onPath("apt-get") {
		return
	}
	if err := s.install(ctx, "npm"); err != nil {
		fmt.Println("apt-get:", err)
	}
}

// startPostgres starts a server with a fresh cluster in a temporary folder. A
// watchdog stops the server when its pipe closes, which happens even if this
// process is killed.
func (s *suite) startPostgres(ctx context.Context, bin string) (stop func(), err error) {
	dir, err := os.MkdirTemp("", "lanebox-postgres-")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(dir)
		}
	}()
	attr, err := unprivileged(dir)
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	initdb := s.command(ctx, filepath.Join(bin, "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
	initdb.Dir, initdb.SysProcAttr, initdb.Stdout = dir, attr, nil
	if err := initdb.Run(); err != nil {
		return nil, fmt.Errorf("initdb: %w", err)
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	// The data is thrown away and nobody pulls the plug, so nothing waits for
	// the disk.
	server := exec.Command(filepath.Join(bin, "postgres"), "-D", data, "-p", port,
		"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=",
		"-c", "fsync=off", "-c", "full_page_writes=off", "-c", "max_connections=300",
		"-c", "shared_buffers=256MB", "-c", "max_wal_size=2GB")
	server.Dir, server.SysProcAttr = dir, attr
	server.Stdout, server.Stderr = log, log
	if err := server.Start(); err != nil {
		return nil, err
	}
	exited := make(chan error, 1)
	go func() { exited <- server.Wait() }()
	release, err := watchdog(server.Process.Pid, dir)
	if err != nil {
		server.Process.Signal(syscall.SIGINT)
		<-exited
		return nil, err
	}
	stop = func() {
		release()
		os.RemoveAll(dir)
	}
	if err := waitForPort(ctx, port, exited); err != nil {
		text, _ := os.ReadFile(log.Name())
		stop()
		return nil, fmt.Errorf("%w\n%s", err, text)
	}
	s.env = append(s.env, urlVariable+"=postgres://postgres@127.0.0.1:"+port+"/postgres?sslmode=disable")
	fmt.Printf("started %s on port %s\n", filepath.Join(bin, "postgres"), port)
	return stop, nil
}

// unprivileged prepares dir for the user that runs the server, and returns how
// to start processes as that user: PostgreSQL refuses to run as root.
func unprivileged(dir string) (*syscall.SysProcAttr, error) {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if os.Getuid() != 0 {
		return attr, nil
	}
	var u *user.User
	var err error
	for _, name := range []string{"postgres", "nobody"} {
		if u, err = user.Lookup(name); err == nil {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL refuses to run as root: %w", err)
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return attr, os.Chown(dir, uid, gid)
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
// process and removes the folder. Calling release ends the input and waits.
func watchdog(pid int, dir string) (release func(), err error) {
	const script = `cat >/dev/null
kill -INT "$1" 2>/dev/null
n=0
while kill -0 "$1" 2>/dev/null && [ $n -lt 100 ]; do sleep 0.1; n=$((n+1)); done
kill -0 "$1" 2>/dev/null && kill -QUIT "$1"
rm -rf "$2"`
	cmd := exec.Command("/bin/sh", "-c", script, "watchdog", strconv.Itoa(pid), dir)
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

// waitForPort waits until the server takes queries; exited tells that it never
// will. PostgreSQL listens a moment before it is ready, and then answers a
// startup packet with an error; the tests would see that as a failure.
func waitForPort(ctx context.Context, port string, exited <-chan error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-exited:
			return fmt.Errorf("postgres ended: %v", err)
		case <-ctx.Done():
			return fmt.Errorf("postgres does not take connections: %w", ctx.Err())
		case <-tick.C:
			if ready(ctx, port) {
				return nil
			}
		}
	}
}

// ready sends a startup packet for user postgres and expects an answer of kind
// R (authentication), not E (error: the database system is starting up).
func ready(ctx context.Context, port string) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", "127.0.0.1:"+port)
	if err != nil {
		return false
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	conn.SetDeadline(deadline)
	body := "\x00\x03\x00\x00user\x00postgres\x00database\x00postgres\x00\x00"
	packet := []byte{0, 0, 0, byte(4 + len(body))}
	if _, err := conn.Write(append(packet, body...)); err != nil {
		return false
	}
	kind := make([]byte, 1)
	_, err = conn.Read(kind)
	return err == nil && kind[0] == 'R'
}

// composePostgres starts the server of compose.yaml.
func (s *suite) composePostgres(ctx context.Context) (stop func(), err error) {
	project := fmt.Sprintf("lanebox-test-%d", os.Getpid())
	compose := []string{"compose", "-p", project, "-f", filepath.Join(s.root, "compose.yaml")}
	stop = func() {
		// The context may have ended, which is no reason to leave it running.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if err := s.do(ctx, "docker", append(compose, "down", "--volumes")...); err != nil {
			fmt.Println("docker compose down:", err)
		}
	}
	if err := s.do(ctx, "docker", append(compose, "up", "--detach", "--wait", "postgres")...); err != nil {
		stop()
		return nil, fmt.Errorf("docker compose: %w", err)
	}
	address, err := s.output(ctx, "docker", append(compose, "port", "postgres", "5432")...)
	if err != nil {
		stop()
		return nil, fmt.Errorf("docker compose port: %w", err)
	}
	_, port, err := net.SplitHostPort(strings.TrimSpace(address))
	if err != nil {
		stop()
		return nil, err
	}
	s.env = append(s.env, urlVariable+"=postgres://postgres@127.0.0.1:"+port+"/postgres?sslmode=disable")
	return stop, nil
}
