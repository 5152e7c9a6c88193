package webhook

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// A problem is a refusal as the sender sees it (RFC 9457): what is wrong and
// what to do about it. It never holds secrets, nor values from the request.
type problem struct {
	// Type is a stable name for programs.
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`

	header http.Header // sent with it
}

func (p *problem) Error() string { return fmt.Sprintf("%d %s: %s", p.Status, p.Title, p.Detail) }

func newProblem(status int, name, format string, args ...any) *problem {
	return &problem{
		Type: "urn:lanebox:problem:" + name, Title: http.StatusText(status), Status: status,
		Detail: fmt.Sprintf(format, args...),
	}
}

// with adds a response header.
func (p *problem) with(name, value string) *problem {
	if p.header == nil {
		p.header = http.Header{}
	}
	p.header.Set(name, value)
	return p
}

// later adds Retry-After, rounded up to whole seconds.
func (p *problem) later(after time.Duration) *problem {
	seconds := max(1, int64((after+time.Second-1)/time.Second))
	return p.with("Retry-After", strconv.FormatInt(seconds, 10))
}

func (p *problem) write(w http.ResponseWriter) {
	for name, values := range p.header {
		w.Header()[name] = values
	}
	body, _ := json.Marshal(p) // strings and numbers only: cannot fail
	writeJSON(w, p.Status, "application/problem+json", body)
}

func writeJSON(w http.ResponseWriter, status int, contentType string, body []byte) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)+1))
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	w.Write(append(body, '\n'))
}
