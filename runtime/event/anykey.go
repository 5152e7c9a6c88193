package event

import "encoding"

// AnyKey is an ordering key of whatever type.
type AnyKey interface{ OrderingKey() string }

// RawKeyOf returns k as text; nil yields the empty key.
func RawKeyOf(k AnyKey) RawKey {
	if k == nil {
		return ""
	}
	return RawKey(k.OrderingKey())
}

// ParseKeyText reads the value of a key from its text; the empty text is the
// zero value. Generated keys decode themselves with it.
func ParseKeyText[V any, P interface {
	*V
	encoding.TextUnmarshaler
}](text []byte) (V, error) {
	var v V
	if len(text) == 0 {
		return v, nil
	}
	err := P(&v).UnmarshalText(text)
	return v, err
}

// StringKey compiles only if T is based on string. Generated code asserts with
// it that a key's own type is what the schema says.
func StringKey[T ~string]() {}

// IntKey compiles only if T is based on int64 or int; see StringKey.
func IntKey[T ~int64 | ~int]() {}
