package transporttest

import (
	"net"
	"sync"
	"testing"
)

// A Mode is what a Proxy does with traffic.
type Mode uint8

const (
	// Pass forwards everything.
	Pass Mode = iota
	// Refuse closes the port and all connections: dialing fails.
	Refuse
	// CutRequests resets a connection as soon as a request arrives on it;
	// nothing of it is forwarded.
	CutRequests
	// CutAnswers forwards requests and resets the connection instead of
	// forwarding the answer.
	CutAnswers
	// Stall forwards requests and keeps answers back until the mode changes.
	Stall
	// BlackHole accepts connections and swallows what is sent.
	BlackHole
)

// A Proxy forwards TCP connections to a target and can be told to fail.
type Proxy struct {
	target, address string

	mu       sync.Mutex
	changed  sync.Cond
	mode     Mode
	closed   bool
	listener net.Listener
	links    map[*link]struct{}
	running  sync.WaitGroup
}

// link is one forwarded connection.
type link struct {
	client, server *net.TCPConn
	swallowed      bool // bytes are missing: it cannot go on
}

// NewProxy returns a proxy on a loopback port that forwards to target
// (host:port). It ends with the test.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{target: target, address: l.Addr().String(), links: map[*link]struct{}{}}
	p.changed.L = &p.mu
	p.listen(l)
	t.Cleanup(p.close)
	return p
}

// Address returns the proxy's host:port.
func (p *Proxy) Address() string { return p.address }

// Set changes the mode, for connections that are open as well.
func (p *Proxy) Set(t testing.TB, mode Mode) {
	t.Helper()
	p.mu.Lock()
	was := p.mode
	p.mode = mode
	p.changed.Broadcast()
	if mode == Refuse {
		p.listener.Close()
	}
	for l := range p.links {
		if mode == Refuse || l.swallowed {
			l.reset()
		}
	}
	p.mu.Unlock()
	if was == Refuse && mode != Refuse {
		p.reopen(t)
	}
}

// reopen listens again on the same port, which may take a moment to be free.
func (p *Proxy) reopen(t testing.TB) {
	t.Helper()
	Eventually(t, "the proxy's port "+p.address+" is free again", func() bool {
		l, err := net.Listen("tcp", p.address)
		if err == nil {
			p.listen(l)
		}
		return err == nil
	})
}

func (p *Proxy) listen(l net.Listener) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listener = l
	p.running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.running.Go(func() { p.serve(c.(*net.TCPConn)) })
		}
	})
}

func (p *Proxy) serve(client *net.TCPConn) {
	s, err := net.Dial("tcp", p.target)
	if err != nil {
		client.Close()
		return
	}
	l := &link{client: client, server: s.(*net.TCPConn)}
	p.mu.Lock()
	if p.closed || p.mode == Refuse {
		l.reset()
	}
	p.links[l] = struct{}{}
	p.mu.Unlock()
	p.running.Go(func() { p.copy(l, l.server, l.client, p.answer) })
	p.copy(l, l.client, l.server, p.request)
}

// copy forwards until one side ends; allow decides about each piece.
func (p *Proxy) copy(l *link, from, to *net.TCPConn, allow func(*link) bool) {
	defer func() {
		l.client.Close()
		l.server.Close()
		p.mu.Lock()
		delete(p.links, l)
		p.mu.Unlock()
	}()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 && allow(l) {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (p *Proxy) request(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch p.mode {
	case CutRequests:
		l.reset()
		return false
	case BlackHole:
		l.swallowed = true
		return false
	}
	return true
}

func (p *Proxy) answer(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.mode == Stall && !p.closed {
		p.changed.Wait()
	}
	switch p.mode {
	case CutAnswers:
		l.reset()
		return false
	case BlackHole:
		l.swallowed = true
		return false
	}
	return true
}

// reset drops the connection the hard way: the client sees a reset.
func (l *link) reset() {
	l.client.SetLinger(0)
	l.client.Close()
	l.server.Close()
}

func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	p.changed.Broadcast()
	p.listener.Close()
	for l := range p.links {
		l.reset()
	}
	p.mu.Unlock()
	p.running.Wait()
}

// swallows reports whether a connection has lost bytes in a black hole.
func (p *Proxy) swallows() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		if l.swallowed {
			return true
		}
	}
	return false
}
