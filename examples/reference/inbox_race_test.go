package reference

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/lanebox/lanebox/examples/reference/internal/events/postgres"
)

// Equal requests that race are all accepted and stored once; another body under
// the same key is refused.
func TestEqualRequestsThatRaceAreStoredOnce(t *testing.T) {
	_, pool := database(t)
	var c postgres.Config
	fillIn(&c)
	box, err := postgres.New(pool, c)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(box.Receiver())
	defer server.Close()
	post := func(body string) int {
		response, err := http.Post(server.URL+"/payments", "application/json", strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return 0
		}
		response.Body.Close()
		return response.StatusCode
	}
	const body = `{"id": "1", "type": "order.cancelled.v1", "payment_id": "A", "order_id": "A", "reason": "r"}`
	var stored, repeated atomic.Int32
	var senders sync.WaitGroup
	start := make(chan struct{})
	for range 50 {
		senders.Go(func() {
			<-start
			switch status := post(body); status {
			case http.StatusAccepted:
				stored.Add(1)
			case http.StatusOK:
				repeated.Add(1)
			default:
				t.Errorf("status %d", status)
			}
		})
	}
	close(start)
	senders.Wait()
	if stored.Load() != 1 || repeated.Load() != 49 {
		t.Errorf("%d requests stored the message and %d found it, want 1 and 49", stored.Load(), repeated.Load())
	}
	if status := post(strings.Replace(body, `"r"`, `"s"`, 1)); status != http.StatusUnprocessableEntity {
		t.Errorf("another body: status %d, want 422", status)
	}
	var n int
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM inbox`).Scan(&n); err != nil || n != 1 {
		t.Errorf("%d messages in the inbox, want 1: %v", n, err)
	}
}
