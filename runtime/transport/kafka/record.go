package kafka

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/transport/internal/envelope"
)

// ceHeader begins the names of CloudEvents attributes.
const ceHeader = "ce_"

// An encoder makes records of messages. What many records consist of is allocated
// together.
type encoder struct {
	topic, source string
	left          int // messages, this one included

	fields  [16]envelope.Field // of one message
	records []kgo.Record
	headers []kgo.RecordHeader
	bytes   []byte
}

// newEncoder returns an encoder for n messages; it takes more.
func newEncoder(topic, source string, n int) *encoder {
	return &encoder{topic: topic, source: source, left: n}
}

// encode returns m as a record. An error is the message's own fault.
func (e *encoder) encode(m event.Message) (*kgo.Record, error) {
	media, err := envelope.ContentType(m)
	if err != nil {
		return nil, err
	}
	fields := envelope.AppendFields(e.fields[:0], e.source, m)
	e.reserve(fields, len(m.Key)+len(media))
	e.records = append(e.records, kgo.Record{Topic: e.topic, Value: m.Payload})
	r := &e.records[len(e.records)-1]
	if r.Value == nil { // an empty value is not null: a compacted topic takes null for a deletion
		r.Value = []byte{}
	}
	if m.Key != "" {
		r.Key = e.copy(m.Key)
	}
	first := len(e.headers)
	e.headers = append(e.headers, kgo.RecordHeader{Key: event.HeaderContentType, Value: e.copy(media)})
	for _, f := range fields {
		e.headers = append(e.headers, kgo.RecordHeader{Key: headerName(f), Value: e.copy(f.Value)})
	}
	r.Headers = e.headers[first:len(e.headers):len(e.headers)]
	return r, nil
}

// reserve makes room for the message at hand, and for those to come if they are
// like it. size is that of what is not in its fields.
func (e *encoder) reserve(fields []envelope.Field, size int) {
	for _, f := range fields {
		size += len(f.Value)
	}
	many := max(e.left, 1)
	e.left--
	if len(e.records) == cap(e.records) {
		e.records = make([]kgo.Record, 0, many)
	}
	if n := 1 + len(fields); cap(e.headers)-len(e.headers) < n {
		e.headers = make([]kgo.RecordHeader, 0, many*n)
	}
	if cap(e.bytes)-len(e.bytes) < size {
		e.bytes = make([]byte, 0, max(size, min(many*size, 1<<16)))
	}
}

func (e *encoder) copy(text string) []byte {
	from := len(e.bytes)
	e.bytes = append(e.bytes, text...)
	return e.bytes[from:len(e.bytes):len(e.bytes)]
}

// headerName returns the name under which a field travels.
func headerName(f envelope.Field) string {
	switch f.Kind {
	case envelope.Attribute:
		return attributeHeader(f.Name)
	case envelope.Own:
		return envelope.OwnPrefix + f.Name
	}
	return f.Name
}

// attributeHeader returns ceHeader+name. Those that most messages have are
// constants, since this is where encoding would spend its time.
func attributeHeader(name string) string {
	switch name {
	case "specversion":
		return ceHeader + "specversion"
	case "id":
		return ceHeader + "id"
	case "source":
		return ceHeader + "source"
	case "type":
		return ceHeader + "type"
	case "subject":
		return ceHeader + "subject"
	case "partitionkey":
		return ceHeader + "partitionkey"
	case "aggregateid":
		return ceHeader + "aggregateid"
	case "sequence":
		return ceHeader + "sequence"
	case "time":
		return ceHeader + "time"
	case "aggregateversion":
		return ceHeader + "aggregateversion"
	case "attempt":
		return ceHeader + "attempt"
	}
	return ceHeader + name
}

// maxVarint is the longest encoding of a length.
const maxVarint = 5

// encodedSize returns the most bytes that r takes in a batch, the batch's own
// header included.
func encodedSize(r *kgo.Record) int {
	const batchHeader, fixed = 65, 2 + 10 // attributes and header count, differences of time and offset
	size := batchHeader + fixed + 4*maxVarint + len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		size += 2*maxVarint + len(h.Key) + len(h.Value)
	}
	return size
}

// decode returns a record as the inbox stores it.
func decode(d *envelope.Decoder, r *kgo.Record) inbox.Incoming {
	fields := make([]envelope.Field, len(r.Headers))
	for i, h := range r.Headers {
		fields[i] = field(h)
	}
	m := d.Incoming(envelope.Received{Fields: fields, Body: r.Value, MessageID: messageID(r), Key: string(r.Key)})
	if r.Value == nil && m.Dead != "" {
		m.Dead = "the record has no value (a tombstone); " + m.Dead
	}
	return m
}

func field(h kgo.RecordHeader) envelope.Field {
	f := envelope.Field{Kind: envelope.Plain, Name: h.Key, Value: string(h.Value)}
	lower := strings.ToLower(h.Key)
	switch {
	case strings.HasPrefix(lower, ceHeader):
		f.Kind, f.Name = envelope.Attribute, lower[len(ceHeader):]
	case strings.HasPrefix(h.Key, envelope.OwnPrefix):
		f.Kind, f.Name = envelope.Own, h.Key[len(envelope.OwnPrefix):]
	case lower == event.HeaderContentType:
		f.Name = lower
	}
	return f
}

// messageID identifies a record that names no id. The time tells records apart
// that have the same place in a topic which was deleted and made again.
func messageID(r *kgo.Record) string {
	id := fmt.Sprintf("kafka:%s/%d/%d@%d", r.Topic, r.Partition, r.Offset, r.Timestamp.UnixMilli())
	if len(id) <= event.MaxKeyBytes {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return "kafka:" + hex.EncodeToString(sum[:])
}
