package webhook

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"

	"github.com/lanebox/lanebox/runtime/transport/internal/extract"
)

// encodings of a body that a source reads.
const (
	identity = "identity"
	gzipped  = "gzip"
)

// checkEncoding returns the content encoding. Several encodings, one over the
// other, are refused like unknown ones.
func checkEncoding(h http.Header) (string, *problem) {
	values := h.Values("Content-Encoding")
	switch {
	case len(values) == 0:
		return identity, nil
	case len(values) == 1:
		switch encoding := strings.ToLower(strings.TrimSpace(values[0])); encoding {
		case "", identity:
			return identity, nil
		case gzipped, "x-gzip":
			return gzipped, nil
		}
	}
	return "", newProblem(http.StatusUnsupportedMediaType, "content-encoding",
		"Send the body as it is, or with Content-Encoding: gzip, once.").with("Accept-Encoding", "gzip, identity")
}

// checkType refuses bodies that cannot be read as JSON in UTF-8 when rules look
// into them, and JSON in another charset in any case. A request without a
// Content-Type is taken for JSON.
func checkType(h http.Header, needsBody bool) *problem {
	values := h.Values("Content-Type")
	if len(values) > 1 {
		return unsupportedType("Content-Type occurs more than once.")
	}
	if len(values) == 0 || values[0] == "" {
		return nil
	}
	media, params, err := mime.ParseMediaType(values[0])
	if err != nil {
		return unsupportedType("Content-Type is not a media type.")
	}
	if !isJSON(media) {
		if needsBody {
			return unsupportedType("This source reads fields of the body: send JSON with Content-Type: application/json.")
		}
		return nil
	}
	switch strings.ToLower(params["charset"]) {
	case "", "utf-8", "utf8", "us-ascii":
		return nil
	}
	return unsupportedType("JSON is UTF-8: send it in UTF-8, without charset or with charset=utf-8.")
}

func isJSON(media string) bool {
	return media == jsonType || strings.HasSuffix(media, "+json")
}

func unsupportedType(detail string) *problem {
	return newProblem(http.StatusUnsupportedMediaType, "content-type", "%s", detail).
		with("Accept-Post", jsonType)
}

func tooLarge(limit int64) *problem {
	return newProblem(http.StatusRequestEntityTooLarge, "too-large",
		"The body is too large, as sent or decompressed (%d bytes are accepted): send less, or raise the source's limit.", limit)
}

// maxDrain is how much of a body that is too large is read and thrown away, in
// bytes: closing the connection of a sender that still writes would reset it
// before the sender has read why it was refused.
const maxDrain = 4 << 20

// drain throws away the rest of a body, unless the sender waits to be asked for it.
func drain(r *http.Request) {
	if r.Header.Get("Expect") == "" {
		io.CopyN(io.Discard, r.Body, maxDrain)
	}
}

// readBody reads the body as it was sent, at most limit bytes.
func readBody(r *http.Request, limit int64) ([]byte, *problem) {
	if r.ContentLength > limit {
		drain(r)
		return nil, tooLarge(limit)
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, limit+1))
	switch {
	case err == nil && int64(len(body)) > limit:
		drain(r)
		return nil, tooLarge(limit)
	case err == nil:
		return body, nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, newProblem(http.StatusRequestTimeout, "timeout", "The body did not arrive in time: send it again.")
	}
	return nil, newProblem(http.StatusBadRequest, "body", "The body ended early: send it again.")
}

// decompress returns the payload of a body, at most limit bytes. It is called
// only for verified bodies.
func decompress(body []byte, encoding string, limit int64) ([]byte, *problem) {
	if encoding == identity {
		return body, nil
	}
	broken := newProblem(http.StatusBadRequest, "gzip", "The body is not valid gzip, as its Content-Encoding says.")
	zip, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return nil, broken
	}
	payload, err := io.ReadAll(io.LimitReader(zip, limit+1))
	switch {
	case int64(len(payload)) > limit:
		return nil, tooLarge(limit)
	case err != nil:
		return nil, broken
	}
	return payload, nil
}

// parseBody parses the payload for rules that look into it.
func parseBody(payload []byte) (extract.Document, *problem) {
	document, err := extract.ParseDocument(payload)
	if err != nil {
		return document, newProblem(http.StatusBadRequest, "json", "The body cannot be read: %v.", err)
	}
	return document, nil
}
