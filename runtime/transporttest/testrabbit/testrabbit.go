// Package testrabbit gives tests a RabbitMQ server.
//
// Most tests share one: the server that LANEBOX_TEST_RABBITMQ_URL names, or a
// node that the test binary starts once. They are kept apart by the names of
// their exchanges and queues; see Name. A test that stops its server, or lets it
// run out of memory, takes a Private node. Without installed binaries tests are
// skipped, or fail when LANEBOX_TEST_REQUIRE is "all".
package testrabbit

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"os"
	"sync"
	"testing"
	"time"
)

// Variable names the server that tests share.
const Variable = "LANEBOX_TEST_RABBITMQ_URL"

// startTime bounds starting a node.
const startTime = 2 * time.Minute

// shared is the node that this process started for tests without a server. It
// ends with the process.
var shared = sync.OnceValues(start)

// URL returns the URL of the server that tests share.
func URL(t testing.TB) string {
	t.Helper()
	if url := os.Getenv(Variable); url != "" {
		return url
	}
	need(t)
	n, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	return n.URL()
}

// own is the node that Own returns.
var own = sync.OnceValues(start)

// Own returns a node of this test binary that a test may stop and alarm, alone and
// if it puts it right again. It ends with the process.
func Own(t testing.TB) *Node {
	t.Helper()
	need(t)
	n, err := own()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Private starts a node for one test, which may do with it what it wants. It
// ends with the test.
func Private(t testing.TB) *Node {
	t.Helper()
	need(t)
	n, err := start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	return n
}

// need skips or fails a test that has to start a node and cannot.
func need(t testing.TB) {
	t.Helper()
	err := Installed()
	if err == nil {
		return
	}
	if os.Getenv("LANEBOX_TEST_REQUIRE") == "all" {
		t.Fatalf("%v, and LANEBOX_TEST_REQUIRE=all", err)
	}
	t.Skip(err)
}

func start() (*Node, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTime)
	defer cancel()
	return Start(ctx)
}

// Name returns base with something random behind it, as the name of a queue or
// exchange of one test.
func Name(base string) string {
	var random [6]byte
	rand.Read(random[:])
	return base + "-" + hex.EncodeToString(random[:])
}
