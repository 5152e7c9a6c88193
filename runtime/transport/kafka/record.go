package kafka

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/transport/internal/envelope"
)

// ceHeader begins the names of CloudEvents attributes.
const ceHeader = "ce_"

// encode returns m as a record. An error is the message's own fault.
func encode(topic, source string, m event.Message) (*kgo.Record, error) {
	media, err := envelope.ContentType(m)
	if err != nil {
		return nil, err
	}
	// An empty value is not null: a compacted topic takes null for a deletion.
	r := &kgo.Record{Topic: topic, Value: m.Payload}
	if r.Value == nil {
		r.Value = []byte{}
	}
	if m.Key != "" {
		r.Key = []byte(m.Key)
	}
	fields := envelope.Fields(source, m)
	size := len(media)
	for _, f := range fields {
		size += len(f.Value)
	}
	values := make([]byte, 0, size) // one allocation for all
	value := func(text string) []byte {
		from := len(values)
		values = append(values, text...)
		return values[from:len(values):len(values)]
	}
	r.Headers = make([]kgo.RecordHeader, 0, len(fields)+1)
	r.Headers = append(r.Headers, kgo.RecordHeader{Key: event.HeaderContentType, Value: value(media)})
	for _, f := range fields {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: headerName(f), Value: value(f.Value)})
	}
	return r, nil
}

// headerName returns the name under which a field travels.
func headerName(f envelope.Field) string {
	switch f.Kind {
	case envelope.Attribute:
		if name := attributeHeaders[f.Name]; name != "" {
			return name
		}
		return ceHeader + f.Name
	case envelope.Own:
		return envelope.OwnPrefix + f.Name
	}
	return f.Name
}

// attributeHeaders are the header names of the attributes that a message's own
// fields take.
var attributeHeaders = func() map[string]string {
	names := map[string]string{}
	full := event.Message{Topic: "t", Key: "k", Version: 1, Attempt: 1, CreatedAt: time.Unix(0, 0)}
	for _, f := range envelope.Fields("s", full) {
		names[f.Name] = ceHeader + f.Name
	}
	return names
}()

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
