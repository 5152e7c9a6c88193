package rabbitmq

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/transport/internal/envelope"
)

const (
	// attributePrefix begins the headers that are CloudEvents attributes.
	attributePrefix = "cloudEvents_"
	// shardHeader names the shard for the headers exchange. It must not begin with
	// "x-": the exchange does not look at such headers.
	shardHeader = "lanebox_shard"
	// countHeader is where a quorum queue tells how often it delivered before.
	countHeader = "x-delivery-count"
	// offsetHeader is where a stream tells a message's place.
	offsetHeader = "x-stream-offset"
)

// prefixes begin the headers that are taken for CloudEvents attributes.
var prefixes = []string{attributePrefix, "cloudEvents:", "ce-", "ce_"}

// frameRoom is what a content header takes besides what is counted.
const frameRoom = 128

// publishing returns m as it is published, with the size of its content header in
// bytes. An error is for good.
func publishing(source string, m event.Message) (amqp.Publishing, int, error) {
	p := amqp.Publishing{
		DeliveryMode: amqp.Persistent,
		MessageId:    m.ID.String(),
		Timestamp:    m.CreatedAt,
		AppId:        source,
		Headers:      amqp.Table{},
		Body:         m.Payload,
	}
	var err error
	if p.ContentType, err = envelope.ContentType(m); err != nil {
		return p, 0, err
	}
	if len(p.ContentType) > maxShort {
		return p, 0, fmt.Errorf("the content type has %d bytes; the limit is %d", len(p.ContentType), maxShort)
	}
	if len(m.Topic) <= maxShort {
		p.Type = m.Topic
	}
	if id := m.Headers[event.HeaderCorrelationID]; len(id) <= maxShort {
		p.CorrelationId = id
	}
	size := frameRoom + len(p.ContentType) + len(p.Type) + len(p.CorrelationId) + len(p.MessageId) + len(p.AppId)
	for _, f := range envelope.Fields(source, m) {
		name := f.Name
		switch f.Kind {
		case envelope.Attribute:
			name = attributePrefix + name
		case envelope.Own:
			name = envelope.OwnPrefix + name
		}
		if len(name) > maxShort {
			return p, 0, fmt.Errorf("the name of header %.40q… has %d bytes; the limit is %d", f.Name, len(f.Name), maxShort-len(name)+len(f.Name))
		}
		p.Headers[name] = f.Value
		size += len(name) + len(f.Value) + 6
	}
	return p, size, nil
}

// received returns a delivery as the envelope reads it.
func received(d amqp.Delivery) envelope.Received {
	r := envelope.Received{
		Body: d.Body, MessageID: d.MessageId, Redelivered: d.Redelivered,
		Fields: make([]envelope.Field, 0, len(d.Headers)+1),
	}
	if d.ContentType != "" {
		r.Fields = append(r.Fields, envelope.Field{Kind: envelope.Plain, Name: event.HeaderContentType, Value: d.ContentType})
	}
	if r.Body == nil {
		r.Body = []byte{}
	}
	for name, value := range d.Headers {
		switch name {
		case shardHeader, offsetHeader:
			continue
		case countHeader:
			r.DeliveryCount, _ = integer(value)
			continue
		}
		text, ok := headerText(value)
		if !ok {
			continue
		}
		r.Fields = append(r.Fields, field(name, text))
	}
	return r
}

// field returns a header as an attribute, a header of a lanebox publisher, or a
// plain one.
func field(name, value string) envelope.Field {
	for _, prefix := range prefixes {
		if len(name) > len(prefix) && strings.EqualFold(name[:len(prefix)], prefix) {
			return envelope.Field{Kind: envelope.Attribute, Name: strings.ToLower(name[len(prefix):]), Value: value}
		}
	}
	if own, ok := strings.CutPrefix(name, envelope.OwnPrefix); ok {
		return envelope.Field{Kind: envelope.Own, Name: own, Value: value}
	}
	return envelope.Field{Kind: envelope.Plain, Name: name, Value: value}
}

// headerText returns a header's value as text; ok is false for lists and tables.
func headerText(value any) (text string, ok bool) {
	switch v := value.(type) {
	case string:
		return v, true
	case []byte:
		return string(v), true
	case bool:
		return strconv.FormatBool(v), true
	case float32:
		return strconv.FormatFloat(float64(v), 'g', -1, 32), true
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64), true
	case time.Time:
		return v.UTC().Format(time.RFC3339Nano), true
	}
	if n, ok := integer(value); ok {
		return strconv.FormatInt(n, 10), true
	}
	return "", false
}

// integer returns an integer of a table.
func integer(value any) (int64, bool) {
	switch v := value.(type) {
	case byte:
		return int64(v), true
	case int8:
		return int64(v), true
	case int16:
		return int64(v), true
	case uint16:
		return int64(v), true
	case int32:
		return int64(v), true
	case uint32:
		return int64(v), true
	case int64:
		return v, true
	case int:
		return int64(v), true
	}
	return 0, false
}
