package event

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
)

// EncodeJSON renders *e as generated code stores it: the JSON of encoding/json
// in which <, > and & stay as they are.
func EncodeJSON[E any](e *E) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(e); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// DecodeJSON reads an event from its payload and validates it; a nil validate
// accepts every value. Unknown members are ignored, missing ones keep their zero
// value. A byte order mark in front is skipped.
func DecodeJSON[E any](payload []byte, validate func(*E) error) (E, error) {
	var e E
	if err := json.Unmarshal(bytes.TrimPrefix(payload, []byte("\xef\xbb\xbf")), &e); err != nil {
		return e, fmt.Errorf("decode payload: %w", err)
	}
	if validate == nil {
		return e, nil
	}
	if err := validate(&e); err != nil {
		return e, fmt.Errorf("decode payload: %w", err)
	}
	return e, nil
}

// DecodeBinary reads an event of the service's own type from a binary payload
// and validates it as ValidateOwn does.
func DecodeBinary[E any, P interface {
	*E
	encoding.BinaryUnmarshaler
}](payload []byte) (E, error) {
	var e E
	if err := P(&e).UnmarshalBinary(payload); err != nil {
		return e, fmt.Errorf("decode payload: %w", err)
	}
	if err := ValidateOwn(&e); err != nil {
		return e, fmt.Errorf("decode payload: %w", err)
	}
	return e, nil
}
