package natsjs

import (
	"log/slog"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// A testServer is a NATS server with JetStream inside this process.
type testServer struct {
	t       testing.TB
	options server.Options
	s       *server.Server
}

// startServer starts a server that keeps its files and its port over restarts.
func startServer(t testing.TB, change ...func(*server.Options)) *testServer {
	t.Helper()
	s := &testServer{t: t, options: server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoLog: true, NoSigs: true,
		MaxPayload: 2 << 20, WriteDeadline: 10 * time.Second,
	}}
	for _, f := range change {
		f(&s.options)
	}
	s.start()
	t.Cleanup(s.stop)
	_, port, err := net.SplitHostPort(s.s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s.options.Port, err = strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *testServer) start() {
	s.t.Helper()
	options := s.options
	var err error
	if s.s, err = server.NewServer(&options); err != nil {
		s.t.Fatal(err)
	}
	go s.s.Start()
	if !s.s.ReadyForConnections(time.Minute) {
		s.t.Fatal("the NATS server does not start")
	}
}

func (s *testServer) stop() {
	s.s.Shutdown()
	s.s.WaitForShutdown()
}

func (s *testServer) restart() {
	s.stop()
	s.start()
}

func (s *testServer) address() string {
	return net.JoinHostPort(s.options.Host, strconv.Itoa(s.options.Port))
}

func (s *testServer) url() string { return "nats://" + s.address() }

// jetStream returns a client of the test's own.
func (s *testServer) jetStream(t testing.TB) jetstream.JetStream {
	t.Helper()
	conn, err := nats.Connect(s.url(), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// addStream makes a stream.
func (s *testServer) addStream(t testing.TB, c jetstream.StreamConfig) jetstream.Stream {
	t.Helper()
	stream, err := s.jetStream(t).CreateStream(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

var quiet = slog.New(slog.DiscardHandler)
