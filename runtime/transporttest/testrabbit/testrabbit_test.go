//go:build unix

package testrabbit

import (
	"net"
	"os"
	"strings"
	"testing"
)

// TestNode takes a node through what tests do with it.
func TestNode(t *testing.T) {
	n := Private(t)
	if out, err := n.Control(t.Context(), "list_vhosts"); err != nil || out != "/" {
		t.Errorf("vhosts %q, %v", out, err)
	}
	if _, err := n.Control(t.Context(), "no_such_command"); err == nil || !strings.Contains(err.Error(), "no_such_command") {
		t.Errorf("a wrong command gives %v", err)
	}
	for name, end := range map[string]func(){"stop": n.Stop, "kill": n.Kill} {
		end()
		if conn, err := net.Dial("tcp", n.Address()); err == nil {
			conn.Close()
			t.Errorf("%s: the node still runs", name)
		}
		if err := n.Start(t.Context()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	n.Close()
	if _, err := os.Stat(n.dir); !os.IsNotExist(err) {
		t.Errorf("the folder is still there: %v", err)
	}
	if conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", n.epmd)); err == nil {
		conn.Close()
		t.Error("the port mapper still runs")
	}
}
