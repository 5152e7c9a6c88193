package webhook

import (
	"net/http"
	"strings"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/transport/internal/envelope"
)

const (
	ceHeader  = "ce-"
	ownHeader = envelope.OwnPrefix // for header names that CloudEvents does not allow
	jsonType  = envelope.JSONType
)

// setFields writes m's attributes and headers as CloudEvents says for HTTP.
func setFields(h http.Header, source string, m event.Message) {
	for _, f := range envelope.Fields(source, m) {
		switch f.Kind {
		case envelope.Attribute:
			h.Set(ceHeader+f.Name, envelope.EncodeValue(f.Value))
		case envelope.Own:
			h.Set(ownHeader+envelope.EncodeName(f.Name), envelope.EncodeValue(f.Value))
		case envelope.Plain:
			h.Set(f.Name, f.Value)
		}
	}
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
		if decoded[i], err = envelope.DecodeValue(v); err != nil {
			return nil, err
		}
	}
	return decoded, nil
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
	var fields []envelope.Field
	seen := map[string]bool{}
	for _, names := range [][]string{keptHeaders, extra} {
		for _, name := range names {
			if name = strings.ToLower(name); !seen[name] {
				seen[name] = true
				fields = appendPlain(fields, name, h.Values(name))
			}
		}
	}
	for name, values := range h {
		name = strings.ToLower(name)
		if own, ok := strings.CutPrefix(name, ownHeader); ok {
			if own, err := envelope.DecodeValue(own); err == nil {
				fields = appendEncoded(fields, envelope.Own, own, values)
			}
		} else if attribute, ok := strings.CutPrefix(name, ceHeader); ok {
			fields = appendEncoded(fields, envelope.Attribute, attribute, values)
		}
	}
	return envelope.Headers(fields)
}

func appendPlain(fields []envelope.Field, name string, values []string) []envelope.Field {
	for _, value := range values {
		fields = append(fields, envelope.Field{Kind: envelope.Plain, Name: name, Value: value})
	}
	return fields
}

func appendEncoded(fields []envelope.Field, kind envelope.Kind, name string, values []string) []envelope.Field {
	for _, value := range values {
		f := envelope.Field{Kind: kind, Name: name}
		var err error
		if f.Value, err = envelope.DecodeValue(value); err != nil {
			f.Flaw = err.Error()
		}
		fields = append(fields, f)
	}
	return fields
}
