// Package envelope maps messages to CloudEvents attributes and headers and back,
// the same for every protocol. Names and values are plain text here: prefixes
// and encodings are the protocol's and added by each transport.
package envelope

import (
	"errors"
	"mime"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/lanebox/lanebox/runtime/event"
)

const (
	// JSONType is the media type of a payload that names none.
	JSONType = "application/json"
	// OwnPrefix begins the wire name of a header of Kind Own, in every protocol.
	OwnPrefix = "lanebox-"
	// corePrefix begins the names under which received core attributes are kept as
	// headers, so that they are not taken for headers of the message itself.
	corePrefix = "ce-"
)

// A Kind says how a protocol carries a field.
type Kind uint8

const (
	// Attribute is a CloudEvents attribute: with the protocol's own prefix.
	Attribute Kind = iota
	// Own is a header of the message whose name CloudEvents does not allow: with
	// OwnPrefix.
	Own
	// Plain is a header under its very name.
	Plain
)

// A Field is an attribute or header of a message.
type Field struct {
	Kind Kind
	// Name and Value are not encoded, and Name has no prefix.
	Name, Value string
	// Flaw, when it is not empty, says why a received field has no usable value:
	// "has a wrong percent escape".
	Flaw string
}

// taken are the attribute names that a message's own fields take; a message
// header of such a name has Kind Own.
var taken = map[string]bool{
	"id": true, "source": true, "specversion": true, "type": true, "time": true, "subject": true,
	"dataschema": true, "datacontenttype": true, "data": true, "partitionkey": true, "sequence": true,
	"aggregateid": true, "aggregateversion": true, "attempt": true,
}

// core are the attributes that are kept as headers under their full name.
var core = map[string]bool{
	"id": true, "source": true, "type": true, "time": true, "subject": true, "dataschema": true, "sequence": true,
}

// Fields returns what travels beside m's payload: its attributes in a fixed
// order, then its headers by name. source is the CloudEvents attribute of that
// name. The content type is not among them (see ContentType), nor are headers
// that speak of one delivery.
func Fields(source string, m event.Message) []Field {
	return AppendFields(make([]Field, 0, 12+len(m.Headers)), source, m)
}

// AppendFields appends to out what Fields returns.
func AppendFields(out []Field, source string, m event.Message) []Field {
	add := func(name, value string) {
		if value != "" {
			out = append(out, Field{Kind: Attribute, Name: name, Value: value})
		}
	}
	add("specversion", "1.0")
	add("id", m.ID.String())
	add("source", source)
	add("type", m.Topic)
	add("subject", m.Key)
	add("partitionkey", m.Key)
	add("aggregateid", m.Key)
	add("sequence", strconv.FormatInt(m.Sequence, 10))
	if !m.CreatedAt.IsZero() {
		add("time", m.CreatedAt.UTC().Format(time.RFC3339Nano))
	}
	if m.Version > 0 {
		add("aggregateversion", strconv.FormatInt(m.Version, 10))
	}
	if m.Attempt > 0 {
		add("attempt", strconv.Itoa(m.Attempt))
	}
	return appendHeaders(out, m.Headers)
}

func appendHeaders(out []Field, headers event.Headers) []Field {
	names := make([]string, 0, len(headers))
	for name := range headers {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		f := Field{Kind: Own, Name: name, Value: headers[name]}
		switch {
		case name == event.HeaderContentType, isDelivery(name):
			continue
		case name == event.HeaderTraceParent, name == event.HeaderTraceState:
			if !IsVisible(f.Value) {
				continue
			}
			f.Kind = Plain
		case isAttributeName(name) && !taken[name]:
			f.Kind = Attribute
		}
		out = append(out, f)
	}
	return out
}

// isDelivery reports whether a header speaks of one delivery, and so is set by
// the source that took it.
func isDelivery(name string) bool {
	return name == event.HeaderRedelivered || name == event.HeaderDeliveryCount
}

// ContentType returns the media type of m's payload. One that is no media type
// is an error, since it cannot be sent.
func ContentType(m event.Message) (string, error) {
	value := m.Headers[event.HeaderContentType]
	if value == "" {
		return JSONType, nil
	}
	if _, _, err := mime.ParseMediaType(value); err != nil || !IsVisible(value) {
		return "", errors.New("the message's content-type is not a media type")
	}
	return value, nil
}

// Headers returns the headers that are stored with a received message: every
// field that is text and occurs once, under the name that the message's
// publisher gave it. Attributes that became fields of the message are left out,
// and core attributes are kept with the prefix "ce-". nil means none.
func Headers(fields []Field) event.Headers {
	kept, twice := event.Headers{}, repeated(fields)
	for _, kind := range []Kind{Plain, Own, Attribute} {
		keepKind(kept, fields, kind, twice)
	}
	if len(kept) == 0 {
		return nil
	}
	return kept
}

// keepKind keeps the fields of one kind; they replace those of kinds before.
func keepKind(kept event.Headers, fields []Field, kind Kind, twice map[label]bool) {
	for _, f := range fields {
		if f.Kind != kind || f.Flaw != "" || twice[label{f.Kind, f.Name}] {
			continue
		}
		name := keptName(f)
		if name != "" && storable(name) && storable(f.Value) {
			kept[name] = f.Value
		}
	}
}

// A label is what must not occur twice.
type label struct {
	kind Kind
	name string
}

// repeated returns the labels that occur more than once; nil means none.
func repeated(fields []Field) map[label]bool {
	seen := make(map[label]bool, len(fields))
	var twice map[label]bool
	for _, f := range fields {
		l := label{f.Kind, f.Name}
		if seen[l] {
			if twice == nil {
				twice = map[label]bool{}
			}
			twice[l] = true
		}
		seen[l] = true
	}
	return twice
}

// keptName returns the name of the header that a field is kept as; "" if it is
// not.
func keptName(f Field) string {
	switch {
	case isDelivery(f.Name):
		return ""
	case f.Kind == Plain:
		return f.Name
	case f.Kind == Own && IsReserved(f.Name):
		return ""
	case f.Kind == Own:
		return f.Name
	case core[f.Name]:
		return corePrefix + f.Name
	case taken[f.Name], !isAttributeName(f.Name):
		return ""
	}
	return f.Name
}

// IsReserved reports whether a sender may not set the header under its own
// name, because another part of the message or its delivery decides it.
func IsReserved(name string) bool {
	switch name {
	case event.HeaderContentType, event.HeaderTraceParent, event.HeaderTraceState:
		return true
	}
	return strings.HasPrefix(name, corePrefix) || isDelivery(name)
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

// IsVisible reports whether value is printable ASCII, blanks included.
func IsVisible(value string) bool {
	for _, c := range []byte(value) {
		if c < ' ' || c > '~' {
			return false
		}
	}
	return true
}

// storable reports whether every database keeps s as it is.
func storable(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }
