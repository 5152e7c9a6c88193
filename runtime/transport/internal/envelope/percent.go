package envelope

import (
	"errors"
	"strconv"
	"strings"

	"github.com/lanebox/lanebox/runtime/transport/internal/extract"
)

const hexDigits = "0123456789ABCDEF"

// EncodeValue percent-encodes a header value as the CloudEvents bindings of HTTP
// and NATS say: blanks, quotes, % and everything outside printable ASCII.
func EncodeValue(value string) string {
	return percentEncode(value, func(c byte) bool { return c > ' ' && c <= '~' && c != '"' && c != '%' })
}

// EncodeName percent-encodes what cannot be part of a header name, and upper
// case, which HTTP header names do not keep.
func EncodeName(name string) string {
	return percentEncode(name, func(c byte) bool {
		return extract.IsTokenByte(c) && c != '%' && (c < 'A' || c > 'Z')
	})
}

func percentEncode(s string, plain func(byte) bool) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if c := s[i]; plain(c) {
			b.WriteByte(c)
		} else {
			b.Write([]byte{'%', hexDigits[c>>4], hexDigits[c&15]})
		}
	}
	return b.String()
}

// DecodeValue reverses EncodeValue and EncodeName; a quoted value is unquoted
// first.
func DecodeValue(value string) (string, error) {
	if len(value) >= 2 && value[0] == '"' && value[len(value)-1] == '"' {
		value = unquote(value[1 : len(value)-1])
	}
	if strings.IndexByte(value, '%') < 0 {
		return value, nil
	}
	var b strings.Builder
	for i := 0; i < len(value); i++ {
		if value[i] != '%' {
			b.WriteByte(value[i])
			continue
		}
		if i+2 >= len(value) {
			return "", errors.New("has a wrong percent escape")
		}
		c, err := strconv.ParseUint(value[i+1:i+3], 16, 8)
		if err != nil {
			return "", errors.New("has a wrong percent escape")
		}
		b.WriteByte(byte(c))
		i += 2
	}
	return b.String(), nil
}

func unquote(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			i++
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
