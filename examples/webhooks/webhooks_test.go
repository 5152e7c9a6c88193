package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/lanebox/lanebox/examples/webhooks/audit"
	"github.com/lanebox/lanebox/examples/webhooks/hub"
	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/storetest/testpg"
)

// payloadPackage is an npm package of real payloads of GitHub.
const payloadPackage = "@octokit/webhooks-examples@7.6.1"

const (
	newSecret = "the new secret"
	oldSecret = "the old secret"
)

// A delivery is one webhook call as GitHub makes it.
type delivery struct {
	id, event, repository string
	body                  []byte
}

// TestGitHubDeliveries sends every payload through both services, some twice,
// some with a wrong signature, and compares what the audit service logged.
func TestGitHubDeliveries(t *testing.T) {
	deliveries := payloads(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	pool := testpg.Pool(t, testpg.URL(t), nil)
	quiet := slog.New(slog.DiscardHandler)

	a, err := audit.New(ctx, pool, quiet, auditSecret)
	if err != nil {
		t.Fatal(err)
	}
	auditServer := httptest.NewServer(a)
	defer auditServer.Close()
	h, err := hub.New(ctx, pool, hub.Config{
		GitHubSecrets: []string{newSecret, oldSecret}, AuditURL: auditServer.URL + "/events", AuditSecret: auditSecret, Logger: quiet,
	})
	if err != nil {
		t.Fatal(err)
	}
	hubServer := httptest.NewServer(h)
	defer hubServer.Close()
	done := make(chan error, 1)
	go func() { done <- together(ctx, a.Run, h.Run) }()

	// Deliveries of one repository are sent one after the other, others beside them.
	byRepository := map[string][]delivery{}
	for _, d := range deliveries {
		byRepository[d.repository] = append(byRepository[d.repository], d)
	}
	var senders sync.WaitGroup
	limit := make(chan struct{}, 8)
	for _, list := range byRepository {
		senders.Go(func() {
			limit <- struct{}{}
			defer func() { <-limit }()
			for i, d := range list {
				sendOne(t, hubServer.URL+"/github", i, d)
			}
		})
	}
	senders.Wait()

	waitFor(t, func() bool {
		var n int
		if err := pool.QueryRow(ctx, `SELECT count(*) FROM audit_log`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n >= len(deliveries)
	})
	cancel()
	if err := <-done; err != nil {
		t.Errorf("the services ended with %v", err)
	}

	rows, err := pool.Query(t.Context(), `SELECT repository, event, body, pushed_ref FROM audit_log ORDER BY position`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	logged := map[string]int{}
	unordered := map[string]bool{}
	total := 0
	for ; rows.Next(); total++ {
		var repository, name string
		var body []byte
		var ref *string
		if err := rows.Scan(&repository, &name, &body, &ref); err != nil {
			t.Fatal(err)
		}
		if (name == "push") != (ref != nil) {
			t.Errorf("a %s was handled by the wrong method", name)
		}
		if repository == "" {
			unordered[name+string(body)] = true
			continue
		}
		i := logged[repository]
		logged[repository]++
		if i >= len(byRepository[repository]) {
			t.Fatalf("%s: more was logged than sent", repository)
		}
		if want := byRepository[repository][i]; name != want.event || !bytes.Equal(body, want.body) {
			t.Fatalf("%s: delivery %d is a %s with another body, want the %s that was sent at that place", repository, i, name, want.event)
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	if total != len(deliveries) {
		t.Errorf("%d deliveries were logged, %d sent", total, len(deliveries))
	}
	for _, d := range byRepository[""] {
		if !unordered[d.event+string(d.body)] {
			t.Errorf("an unordered %s is missing or changed", d.event)
		}
	}
	t.Logf("%d deliveries of %d event types over %d repositories", total, eventTypes(deliveries), len(byRepository))
}

// sendOne sends a delivery; every third one is first sent with a wrong
// signature, every second one again, and every fifth once more with another body.
func sendOne(t *testing.T, url string, i int, d delivery) {
	secret := newSecret
	if i%4 == 1 {
		secret = oldSecret // secrets are being changed
	}
	if i%3 == 0 {
		post(t, url, d, d.body, "wrong", http.StatusUnauthorized)
	}
	post(t, url, d, d.body, secret, http.StatusAccepted)
	if i%2 == 0 {
		post(t, url, d, d.body, secret, http.StatusOK)
	}
	if i%5 == 0 {
		post(t, url, d, append(d.body[:len(d.body):len(d.body)], ' '), secret, http.StatusUnprocessableEntity)
	}
}

func post(t *testing.T, url string, d delivery, body []byte, secret string, want int) {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write(body)
	r, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		t.Error(err)
		return
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-GitHub-Event", d.event)
	r.Header.Set("X-GitHub-Delivery", d.id)
	r.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Error(err)
		return
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	if answer.StatusCode != want {
		t.Errorf("%s of %s: status %d, want %d: %s", d.event, d.repository, answer.StatusCode, want, text)
	}
}

// payloads fetches the package and returns its payloads as deliveries.
func payloads(t *testing.T) []delivery {
	t.Helper()
	if _, err := exec.LookPath("npm"); err != nil {
		if os.Getenv("LANEBOX_TEST_REQUIRE") == "all" {
			t.Fatal("npm is not installed; it fetches the payloads")
		}
		t.Skip("npm is not installed; it fetches the payloads")
	}
	dir := t.TempDir()
	install := exec.Command("npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", dir, payloadPackage)
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("npm install: %v\n%s", err, out)
	}
	files, err := filepath.Glob(filepath.Join(dir, "node_modules/@octokit/webhooks-examples/*/index.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no payloads in the package: %v", err)
	}
	var list []delivery
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var groups []struct {
			Name     string
			Examples []json.RawMessage
		}
		if err := json.Unmarshal(text, &groups); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, g := range groups {
			for _, body := range g.Examples {
				list = append(list, delivery{id: event.NewUUID().String(), event: g.Name, repository: repository(t, body), body: body})
			}
		}
	}
	return list
}

// repository says which lane a payload belongs to, as the schema declares it.
func repository(t *testing.T, body []byte) string {
	var p struct {
		Repository   struct{ Full_name string }
		Organization struct{ Login string }
		Sender       struct{ Login string }
	}
	if err := json.Unmarshal(body, &p); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{p.Repository.Full_name, p.Organization.Login, p.Sender.Login} {
		if name != "" {
			return name
		}
	}
	return ""
}

func eventTypes(list []delivery) int {
	seen := map[string]bool{}
	for _, d := range list {
		seen[d.event] = true
	}
	return len(seen)
}

func waitFor(t *testing.T, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("waited 2 minutes for the audit log")
		}
	}
}
