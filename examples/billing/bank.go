package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/lanebox/lanebox/examples/billing/internal/events"
	"github.com/lanebox/lanebox/runtime/event"
)

// A Bank stands for one in the world outside: it collects what was invoiced, in
// two instalments, and tells of each with a webhook, twice, as webhooks come.
type Bank struct {
	client *http.Client
	url    string // of billing's source payments
	token  string
}

// Collect takes the money for an invoice. Called again, it tells of the same
// payments again: their ids come from the invoice.
func (b *Bank) Collect(ctx context.Context, e events.InvoiceIssued, _ event.Message) error {
	first := e.Cents / 3
	for i, cents := range []int64{first, first, e.Cents - first, e.Cents - first} {
		payment := events.PaymentCaptured{PaymentID: fmt.Sprintf("%s/%d", e.InvoiceNo.Value(), i/2+1), InvoiceNo: e.InvoiceNo.Value(), Cents: cents}
		if err := b.tell(ctx, payment); err != nil {
			return fmt.Errorf("payment %s: %w", payment.PaymentID, err)
		}
	}
	return nil
}

func (b *Bank) tell(ctx context.Context, p events.PaymentCaptured) error {
	body, err := json.Marshal(p)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, b.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+b.token)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Event-Type", events.TopicPaymentCaptured)
	answer, err := b.client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode/100 != 2 {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 500))
		return fmt.Errorf("%s: %s", answer.Status, bytes.TrimSpace(text))
	}
	return nil
}
