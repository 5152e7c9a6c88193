package main

import (
	"context"
	"fmt"
	"io"
	"sync"

	"github.com/lanebox/lanebox/runtime/event"
)

// Mail tells customers of their invoices, and knows when those that it was made
// for are settled.
type Mail struct {
	out  io.Writer
	done chan struct{} // closed when nothing is open any more

	mu     sync.Mutex
	issued map[string]bool
	open   map[string]bool // invoices that are not settled
}

// NewMail returns a Mail that writes to out and waits for the invoices with the
// given numbers.
func NewMail(out io.Writer, numbers []string) *Mail {
	m := &Mail{out: out, done: make(chan struct{}), issued: map[string]bool{}, open: map[string]bool{}}
	for _, number := range numbers {
		m.open[number] = true
	}
	return m
}

// Issued and Settled send a mail. Those of one invoice come in the order of their
// events, so that nobody is told of a settlement before the invoice.

func (m *Mail) Issued(_ context.Context, msg event.Message) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.issued[msg.Key] = true
	fmt.Fprintf(m.out, "mail: invoice %s is issued\n", msg.Key)
	return nil
}

func (m *Mail) Settled(_ context.Context, msg event.Message) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.open[msg.Key] {
		if !m.issued[msg.Key] {
			return event.AsPermanent(fmt.Errorf("invoice %s is settled before it was issued", msg.Key))
		}
		delete(m.open, msg.Key)
		if len(m.open) == 0 {
			close(m.done)
		}
	}
	fmt.Fprintf(m.out, "mail: invoice %s is settled\n", msg.Key)
	return nil
}
