// Billing issues invoices, has a bank collect the money, takes the bank's webhooks
// in, and settles every invoice exactly once, on SQL Server or SQLite.
//
//	go run ./examples/billing                                       on a new SQLite file
//	go run ./examples/billing --db 'sqlserver://…?database=billing' on SQL Server
//
// It ends by itself when all invoices are settled. compose.yaml starts a SQL
// Server with a database for it.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/lanebox/lanebox/examples/billing/internal/events"
	"github.com/lanebox/lanebox/runtime/transport/handler"
	"github.com/lanebox/lanebox/runtime/transport/webhook"
)

func main() {
	address := flag.String("db", os.Getenv("LANEBOX_DB"), "a `URL` sqlserver://… or an SQLite file; default: $LANEBOX_DB, or a new file in the temporary folder")
	invoices := flag.Int("invoices", 20, "how many invoices to issue")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := demonstrate(ctx, os.Stdout, *address, *invoices); err != nil {
		fmt.Fprintln(os.Stderr, "billing:", err)
		os.Exit(1)
	}
}

// demonstrate is the whole demonstration. The numbers of its invoices are new in
// every run, so that a database can be used again.
func demonstrate(ctx context.Context, out io.Writer, address string, invoices int) error {
	if invoices < 1 {
		return errors.New("issue at least one invoice")
	}
	if address == "" {
		dir, err := os.MkdirTemp("", "lanebox-billing-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		address = filepath.Join(dir, "billing.db")
	}
	on := databaseOf(address)
	db, err := on.open(address)
	if err != nil {
		return err
	}
	defer db.Close()
	billing, err := NewBilling(ctx, db, on)
	if err != nil {
		return err
	}
	run := rand.Text()[:6]
	numbers := make([]string, invoices)
	for i := range numbers {
		numbers[i] = fmt.Sprintf("%s-%04d", run, i+1)
	}
	mail := NewMail(out, numbers)
	if err := serve(ctx, billing, mail, numbers); err != nil {
		return err
	}
	return billing.judge(ctx, out, numbers)
}

// serve issues the invoices and runs the service until all of them are settled.
func serve(ctx context.Context, b *Billing, mail *Mail, numbers []string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	token := rand.Text()
	bank := &Bank{client: &http.Client{Timeout: 30 * time.Second}, url: "http://" + listener.Addr().String() + "/payments", token: token}
	box, err := b.on.box(b.db, Parts{
		Bank: handler.NewDestination(handler.On(events.DecodeInvoiceIssued, bank.Collect)),
		Mail: handler.NewDestination(handler.Topics(map[string]handler.Func{
			events.TopicInvoiceIssued:  mail.Issued,
			events.TopicInvoiceSettled: mail.Settled,
		})),
		Payments: b,
		Verifier: webhook.Bearer(token),
	})
	if err != nil {
		listener.Close()
		return err
	}
	server := &http.Server{Handler: box.Receiver(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second}
	var running sync.WaitGroup
	defer running.Wait()
	defer server.Close()
	defer cancel(nil)
	running.Go(func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			cancel(err)
		}
	})
	running.Go(func() { cancel(box.Run(ctx)) })
	for i, number := range numbers {
		if err := b.Issue(ctx, number, fmt.Sprintf("customer %d", i%7), 1000+int64(i)); err != nil {
			return fmt.Errorf("issue %s: %w", number, err)
		}
	}
	select {
	case <-mail.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// judge compares what the invoices of a run say with what they should.
func (b *Billing) judge(ctx context.Context, out io.Writer, numbers []string) error {
	all, err := b.Invoices(ctx)
	if err != nil {
		return err
	}
	paid := map[string]Invoice{}
	for _, i := range all {
		paid[i.Number] = i
	}
	var errs []error
	for _, number := range numbers {
		if i := paid[number]; i.Cents == 0 || i.Paid != i.Cents {
			errs = append(errs, fmt.Errorf("invoice %s: %d of %d cents are paid", number, i.Paid, i.Cents))
		}
	}
	if len(errs) == 0 {
		fmt.Fprintf(out, "OK: %d invoices, each paid to the cent although the bank told of every payment twice\n", len(numbers))
	}
	return errors.Join(errs...)
}
