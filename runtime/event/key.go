package event

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxKeyBytes is the longest ordering key. It is the limit of an AMQP short
// string, the smallest among the transports.
const MaxKeyBytes = 255

// A Key is a typed ordering key. The generator makes one distinct type per key
// of the schema, so that one aggregate's key cannot be used for another's.
type Key interface {
	comparable
	// OrderingKey returns the bytes that are compared. Empty means "no key".
	OrderingKey() string
}

// RawKey is an ordering key given as text. It serves events that declare no key.
type RawKey string

// OrderingKey returns the text itself.
func (k RawKey) OrderingKey() string { return string(k) }

// CheckKey reports why key cannot be an ordering key, or nil. Keys are compared
// byte for byte: nothing is trimmed, folded or normalised.
func CheckKey(key string) error {
	switch {
	case key == "":
		return fmt.Errorf("key is empty")
	case len(key) > MaxKeyBytes:
		return fmt.Errorf("key has %d bytes; the limit is %d", len(key), MaxKeyBytes)
	case !utf8.ValidString(key):
		return fmt.Errorf("key is not valid UTF-8")
	case strings.IndexByte(key, 0) >= 0:
		return fmt.Errorf("key contains U+0000")
	}
	return nil
}

// JoinKey encodes the parts of a composite key so that no two tuples collide:
// parts are joined with "|", and "|" and "\" inside a part are escaped with "\".
func JoinKey(parts ...string) string {
	var b strings.Builder
	for i, p := range parts {
		if i > 0 {
			b.WriteByte('|')
		}
		for j := 0; j < len(p); j++ {
			if p[j] == '|' || p[j] == '\\' {
				b.WriteByte('\\')
			}
			b.WriteByte(p[j])
		}
	}
	return b.String()
}
