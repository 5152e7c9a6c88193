// Package rowtext turns what messages carry into the texts that a database
// stores, and back.
package rowtext

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/lanebox/lanebox/runtime/event"
)

// maxError is the longest error text that is stored, in bytes.
const maxError = 2000

// Clean makes an error text storable: valid UTF-8 without U+0000, and bounded.
func Clean(s string) string {
	if len(s) > maxError {
		s = s[:maxError]
	}
	return Storable(s)
}

// Storable makes a text storable in every database: valid UTF-8 without U+0000.
func Storable(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// CheckText reports why a text column cannot hold a payload, or nil.
func CheckText(b []byte) error {
	if !utf8.Valid(b) {
		return fmt.Errorf("payload is not valid UTF-8")
	}
	for i, c := range b {
		if c == 0 {
			return fmt.Errorf("payload has a zero byte at %d, which a text column cannot hold", i)
		}
	}
	return nil
}

// EncodeHeaders renders headers as a JSON object; no headers are "".
func EncodeHeaders(h event.Headers) string {
	if len(h) == 0 {
		return ""
	}
	text, err := json.Marshal(h)
	if err != nil { // a map of strings always has a JSON form
		panic(err)
	}
	return string(text)
}

// DecodeHeaders reads what EncodeHeaders wrote. A writer of plain SQL may have
// stored other JSON: values that are no strings keep their JSON text, and what
// is no object gives no headers.
func DecodeHeaders(text string) event.Headers {
	if text == "" {
		return nil
	}
	var h event.Headers
	if json.Unmarshal([]byte(text), &h) == nil {
		return h
	}
	var raw map[string]json.RawMessage
	if json.Unmarshal([]byte(text), &raw) != nil {
		return nil
	}
	h = event.Headers{}
	for name, value := range raw {
		var s string
		if json.Unmarshal(value, &s) != nil {
			s = string(value)
		}
		h[name] = s
	}
	return h
}
