package webhook_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/transport/webhook"
	"github.com/lanebox/lanebox/runtime/transporttest"
)

func ExampleNewDestination() {
	warehouse := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Println(r.Header.Get("ce-type"), r.Header.Get("ce-partitionkey"), string(body))
	}))
	defer warehouse.Close()

	d, err := webhook.NewDestination(nil, webhook.Options{URL: warehouse.URL, Secret: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer d.Close()
	err = d.Send(context.Background(), event.Message{
		ID: event.NewUUID(), Topic: "order.placed.v1", Key: "order-17", Payload: []byte(`{"total":"9.90"}`),
	})
	fmt.Println(err)
	// Output:
	// order.placed.v1 order-17 {"total":"9.90"}
	// <nil>
}

func ExampleNewSource() {
	receiver := transporttest.NewReceiver(&transporttest.Ledger{}, 0) // a service has one from its generated code
	source, err := webhook.NewSource(receiver, webhook.SourceConfig{
		Name:           "github",
		Path:           "/webhooks/github",
		IdempotencyKey: [][]string{{"header:x-github-delivery"}},
		EventType:      []string{"header:x-github-event"},
		AggregateID:    []string{"$.repository.full_name"},
	}, webhook.GitHub("new secret", "old secret"))
	if err != nil {
		fmt.Println(err)
		return
	}
	mux, err := webhook.NewMux(source)
	if err != nil {
		fmt.Println(err)
		return
	}

	body := `{"repository":{"full_name":"octo/hello"}}`
	mac := hmac.New(sha256.New, []byte("old secret"))
	io.WriteString(mac, body)
	for _, signature := range []string{hex.EncodeToString(mac.Sum(nil)), strings.Repeat("0", 64)} {
		r := httptest.NewRequest(http.MethodPost, "/webhooks/github", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("X-GitHub-Delivery", "72d3162e-cc78-11e3-81ab-4c9367dc0958")
		r.Header.Set("X-GitHub-Event", "push")
		r.Header.Set("X-Hub-Signature-256", "sha256="+signature)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		fmt.Println(w.Code)
	}
	// Output:
	// 202
	// 401
}

var _ webhook.Receiver = (*inbox.Receiver)(nil)
