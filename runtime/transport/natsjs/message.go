package natsjs

import (
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/transport/internal/envelope"
)

const (
	attributePrefix = "ce-"
	// serverPrefix begins the names of headers that the server reads or writes.
	serverPrefix = "nats-"
)

// encode returns m as it is published to a subject.
func encode(source, subject string, m event.Message) (*nats.Msg, error) {
	media, err := envelope.ContentType(m)
	if err != nil {
		return nil, err
	}
	header := nats.Header{event.HeaderContentType: {media}}
	for _, f := range envelope.Fields(source, m) {
		switch f.Kind {
		case envelope.Attribute:
			header[attributePrefix+f.Name] = []string{envelope.EncodeValue(f.Value)}
		case envelope.Own:
			header[envelope.OwnPrefix+envelope.EncodeName(f.Name)] = []string{envelope.EncodeValue(f.Value)}
		default:
			header[f.Name] = []string{f.Value}
		}
	}
	return &nats.Msg{Subject: subject, Header: header, Data: m.Payload}, nil
}

// fields returns the headers of a received message. What the server added is
// left out.
func fields(header nats.Header) []envelope.Field {
	out := make([]envelope.Field, 0, len(header))
	for name, values := range header {
		for _, value := range values {
			if f, ok := field(name, value); ok {
				out = append(out, f)
			}
		}
	}
	return out
}

func field(name, value string) (f envelope.Field, ok bool) {
	lower := strings.ToLower(name)
	if attribute, ok := strings.CutPrefix(lower, attributePrefix); ok {
		return decoded(envelope.Attribute, attribute, value), true
	}
	if own, ok := strings.CutPrefix(lower, envelope.OwnPrefix); ok {
		own, err := envelope.DecodeValue(own)
		return decoded(envelope.Own, own, value), err == nil
	}
	switch lower {
	case event.HeaderContentType, event.HeaderTraceParent, event.HeaderTraceState:
		name = lower
	}
	return envelope.Field{Kind: envelope.Plain, Name: name, Value: value}, !strings.HasPrefix(lower, serverPrefix)
}

func decoded(kind envelope.Kind, name, value string) envelope.Field {
	text, err := envelope.DecodeValue(value)
	if err != nil {
		return envelope.Field{Kind: kind, Name: name, Flaw: err.Error()}
	}
	return envelope.Field{Kind: kind, Name: name, Value: text}
}

// messageID identifies a message that names no id itself: by what its publisher
// had the server deduplicate it by, or by its place in the stream.
func messageID(log string, header nats.Header, sequence uint64) string {
	if id := header.Get(nats.MsgIdHdr); id != "" {
		return id
	}
	return log + "#" + strconv.FormatUint(sequence, 10)
}
