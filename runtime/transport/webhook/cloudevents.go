package webhook

import (
	"errors"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/transport/internal/extract"
)

const (
	ceHeader  = "ce-"
	ownHeader = "lanebox-" // for header names that CloudEvents does not allow
	jsonType  = "application/json"
)

// attributes are the CloudEvents attribute names that a message's own fields
// take; a message header of such a name travels with ownHeader instead.
var attributes = map[string]bool{
	"id": true, "source": true, "specversion": true, "type": true, "time": true, "subject": true,
	"dataschema": true, "datacontenttype": true, "data": true, "partitionkey": true, "sequence": true,
	"aggregateid": true, "aggregateversion": true, "attempt": true,
}

// setAttributes writes m as CloudEvents headers.
func setAttributes(h http.Header, source string, m event.Message) {
	set := func(name, value string) {
		if value != "" {
			h.Set(ceHeader+name, encodeValue(value))
		}
	}
	set("specversion", "1.0")
	set("id", m.ID.String())
	set("source", source)
	set("type", m.Topic)
	set("subject", m.Key)
	set("partitionkey", m.Key)
	set("aggregateid", m.Key)
	set("sequence", strconv.FormatInt(m.Sequence, 10))
	if !m.CreatedAt.IsZero() {
		set("time", m.CreatedAt.UTC().Format(time.RFC3339Nano))
	}
	if m.Version > 0 {
		set("aggregateversion", strconv.FormatInt(m.Version, 10))
	}
	if m.Attempt > 0 {
		set("attempt", strconv.Itoa(m.Attempt))
	}
	setMessageHeaders(h, m.Headers)
}

func setMessageHeaders(h http.Header, headers event.Headers) {
	for name, value := range headers {
		switch {
		case name == event.HeaderContentType:
		case name == event.HeaderTraceParent, name == event.HeaderTraceState:
			if isVisible(value) {
				h.Set(name, value)
			}
		case isAttributeName(name) && !attributes[name]:
			h.Set(ceHeader+name, encodeValue(value))
		default:
			h.Set(ownHeader+encodeName(name), encodeValue(value))
		}
	}
}

// contentType returns the media type of m's payload. One that is no media type
// is an error, since it cannot be sent.
func contentType(m event.Message) (string, error) {
	value := m.Headers[event.HeaderContentType]
	if value == "" {
		return jsonType, nil
	}
	if _, _, err := mime.ParseMediaType(value); err != nil || !isVisible(value) {
		return "", errors.New("the message's content-type is not a media type")
	}
	return value, nil
}

// isAttributeName reports whether name may be a CloudEvents attribute.
func isAttributeName(name string) bool {
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

// isVisible reports whether value is printable ASCII, blanks included.
func isVisible(value string) bool {
	for _, c := range []byte(value) {
		if c < ' ' || c > '~' {
			return false
		}
	}
	return true
}

const hexDigits = "0123456789ABCDEF"

// encodeValue percent-encodes a header value as the CloudEvents HTTP binding
// says: blanks, quotes, % and everything outside printable ASCII.
func encodeValue(value string) string {
	return percentEncode(value, func(c byte) bool { return c > ' ' && c <= '~' && c != '"' && c != '%' })
}

// encodeName percent-encodes what cannot be part of a header name, and upper
// case, which header names do not keep.
func encodeName(name string) string {
	return percentEncode(name, func(c byte) bool {
		return extract.IsTokenByte(c) && c != '%' && (c < 'A' || c > 'Z')
	})
}

func percentEncode(s string, plain func(byte) bool) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if c := s[i]; plain(c) {
			b.WriteByte(c)
		} else {
			b.Write([]byte{'%', hexDigits[c>>4], hexDigits[c&15]})
		}
	}
	return b.String()
}

// decodeValue reverses encodeValue; a quoted value is unquoted first.
func decodeValue(value string) (string, error) {
	if len(value) >= 2 && value[0] == '"' && value[len(value)-1] == '"' {
		value = unquote(value[1 : len(value)-1])
	}
	if strings.IndexByte(value, '%') < 0 {
		return value, nil
	}
	var b strings.Builder
	for i := 0; i < len(value); i++ {
		if value[i] != '%' {
			b.WriteByte(value[i])
			continue
		}
		if i+2 >= len(value) {
			return "", errors.New("has a wrong percent escape")
		}
		c, err := strconv.ParseUint(value[i+1:i+3], 16, 8)
		if err != nil {
			return "", errors.New("has a wrong percent escape")
		}
		b.WriteByte(byte(c))
		i += 2
	}
	return b.String(), nil
}

func unquote(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			i++
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// headerValues returns the values of a header for extraction: those of
// CloudEvents attributes are decoded.
func headerValues(h http.Header, name string) ([]string, error) {
	values := h.Values(name)
	if !strings.HasPrefix(strings.ToLower(name), ceHeader) {
		return values, nil
	}
	decoded := make([]string, len(values))
	for i, v := range values {
		var err error
		if decoded[i], err = decodeValue(v); err != nil {
			return nil, err
		}
	}
	return decoded, nil
}

// coreAttributes are kept under their full name, so that they are not taken for
// headers of the message itself.
var coreAttributes = map[string]bool{
	"id": true, "source": true, "type": true, "time": true, "subject": true, "dataschema": true, "sequence": true,
}

// keptHeaders are kept by every source, besides CloudEvents attributes: they say
// what the payload is and where it belongs, and carry no secrets.
var keptHeaders = []string{
	event.HeaderContentType, event.HeaderTraceParent, event.HeaderTraceState, "user-agent",
	"webhook-id",
	"x-github-event", "x-github-delivery", "x-github-hook-id",
	"x-gitlab-event", "x-gitlab-event-uuid", "x-shopify-topic", "x-shopify-webhook-id", "x-shopify-shop-domain",
	"x-event-type", "x-correlation-id", "x-request-id",
}

// messageHeaders returns the headers that are stored with a message: the kept
// ones, extra ones, CloudEvents attributes and headers that a Destination sent.
// Values that are not text, and headers that occur twice, are left out.
func messageHeaders(h http.Header, extra []string) event.Headers {
	kept := event.Headers{}
	for _, names := range [][]string{keptHeaders, extra} {
		for _, name := range names {
			keep(kept, strings.ToLower(name), h.Values(name), false)
		}
	}
	for name, values := range h {
		name = strings.ToLower(name)
		if own, ok := strings.CutPrefix(name, ownHeader); ok {
			if own, err := decodeValue(own); err == nil && !isReserved(own) {
				keep(kept, own, values, true)
			}
		}
	}
	for name, values := range h {
		if attribute, ok := strings.CutPrefix(strings.ToLower(name), ceHeader); ok {
			keep(kept, attributeHeader(attribute), values, true)
		}
	}
	if len(kept) == 0 {
		return nil
	}
	return kept
}

// attributeHeader returns the name under which a CloudEvents attribute is kept;
// empty for those that became fields of the message or concern one delivery.
func attributeHeader(attribute string) string {
	switch {
	case coreAttributes[attribute]:
		return ceHeader + attribute
	case attributes[attribute], !isAttributeName(attribute):
		return ""
	}
	return attribute
}

// isReserved reports whether a sender may not set the header under its own
// name, because another part of the request decides it.
func isReserved(name string) bool {
	switch name {
	case event.HeaderContentType, event.HeaderTraceParent, event.HeaderTraceState:
		return true
	}
	return strings.HasPrefix(name, ceHeader)
}

func keep(kept event.Headers, name string, values []string, encoded bool) {
	if name == "" || len(values) != 1 || !utf8.ValidString(name) {
		return
	}
	value := values[0]
	if encoded {
		var err error
		if value, err = decodeValue(value); err != nil {
			return
		}
	}
	if utf8.ValidString(value) && strings.IndexByte(value, 0) < 0 && strings.IndexByte(name, 0) < 0 {
		kept[name] = value
	}
}
