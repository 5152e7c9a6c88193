package postgres

import (
	"encoding/json"

	"github.com/lanebox/lanebox/runtime/event"
)

// encodeHeaders renders headers as a JSON object; no headers are "".
func encodeHeaders(h event.Headers) string {
	if len(h) == 0 {
		return ""
	}
	text, err := json.Marshal(h)
	if err != nil { // a map of strings always has a JSON form
		panic(err)
	}
	return string(text)
}

// decodeHeaders reads what encodeHeaders wrote. A writer of plain SQL may have
// stored other JSON: values that are no strings keep their JSON text, and what
// is no object gives no headers.
func decodeHeaders(text string) event.Headers {
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
