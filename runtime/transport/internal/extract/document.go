package extract

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// A Document is a body that is known to be one JSON value.
type Document struct{ body []byte }

// ParseDocument checks that body is one JSON value. A byte order mark before it
// is passed over. The document refers to body, which must not change.
func ParseDocument(body []byte) (Document, error) {
	body = bytes.TrimPrefix(body, []byte("\ufeff"))
	var raw json.RawMessage
	err := json.Unmarshal(body, &raw)
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		return Document{}, fmt.Errorf("not JSON at byte %d", syntax.Offset)
	case err != nil:
		return Document{}, errors.New("not JSON")
	}
	return Document{body: body}, nil
}

// Find returns the text of the string or number at p. A number keeps its digits
// as they were written. It returns *NoValueError when there is nothing usable
// and *InvalidError when the value must not be guessed.
func (d Document) Find(p Path) (string, error) {
	at := skipBlank(d.body, 0)
	for _, s := range p.steps {
		next, err := d.enter(at, s)
		if err != nil {
			return "", err.as(p)
		}
		at = next
	}
	text, err := d.scalar(at)
	if err != nil {
		return "", err.as(p)
	}
	return text, nil
}

// A flaw is why a value cannot be used.
type flaw struct {
	reason  string
	invalid bool // present, but not to be guessed
}

func (f *flaw) as(p Path) error {
	if f.invalid {
		return &InvalidError{Rule: p.text, Reason: f.reason}
	}
	return &NoValueError{Reasons: []string{p.text + " " + f.reason}}
}

func absent(reason string) *flaw { return &flaw{reason: reason} }

func (d Document) enter(at int, s step) (int, *flaw) {
	if s.array {
		return d.element(at, s.index)
	}
	return d.member(at, s.name)
}

// member finds the value of a name. A name that occurs twice is refused:
// programs disagree on which of the two counts.
func (d Document) member(at int, name string) (int, *flaw) {
	b := d.body
	if b[at] != '{' {
		return 0, absent("is missing: an object was expected on the way")
	}
	found := -1
	for i := skipBlank(b, at+1); b[i] != '}'; {
		end := skipValue(b, i)
		value := skipBlank(b, skipBlank(b, end)+1) // over the colon
		if nameIs(b[i+1:end-1], name) {
			if found >= 0 {
				return 0, &flaw{reason: fmt.Sprintf("is ambiguous: %q occurs twice", name), invalid: true}
			}
			found = value
		}
		i = skipSeparator(b, skipValue(b, value))
	}
	if found < 0 {
		return 0, absent("is missing")
	}
	return found, nil
}

func (d Document) element(at, index int) (int, *flaw) {
	b := d.body
	if b[at] != '[' {
		return 0, absent("is missing: a list was expected on the way")
	}
	for i := skipBlank(b, at+1); b[i] != ']'; index-- {
		if index == 0 {
			return i, nil
		}
		i = skipSeparator(b, skipValue(b, i))
	}
	return 0, absent("is missing: the list is shorter")
}

func (d Document) scalar(at int) (string, *flaw) {
	raw := d.body[at:skipValue(d.body, at)]
	switch raw[0] {
	case '{':
		return "", absent("is an object")
	case '[':
		return "", absent("is a list")
	case 'n':
		return "", absent("is null")
	case 't', 'f':
		return "", absent("is a boolean")
	case '"':
		text, ok := unescape(raw[1 : len(raw)-1])
		if !ok {
			return "", &flaw{reason: "is not valid Unicode text", invalid: true}
		}
		if text == "" {
			return "", absent("is an empty string")
		}
		return text, nil
	}
	return string(raw), nil
}

func nameIs(raw []byte, name string) bool {
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw) == name
	}
	text, ok := unescape(raw)
	return ok && text == name
}

// The functions below walk a body that is known to be valid JSON.

func skipBlank(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	return i
}

// skipSeparator passes blanks and one comma.
func skipSeparator(b []byte, i int) int {
	i = skipBlank(b, i)
	if b[i] == ',' {
		i = skipBlank(b, i+1)
	}
	return i
}

// skipValue returns the end of the value that starts at i.
func skipValue(b []byte, i int) int {
	switch b[i] {
	case '"':
		return skipString(b, i)
	case '{', '[':
		return skipNested(b, i)
	}
	for i < len(b) && strings.IndexByte(" \n\r\t,]}:", b[i]) < 0 {
		i++
	}
	return i
}

func skipString(b []byte, i int) int {
	for i++; b[i] != '"'; i++ {
		if b[i] == '\\' {
			i++
		}
	}
	return i + 1
}

func skipNested(b []byte, i int) int {
	for depth := 0; ; i++ {
		switch b[i] {
		case '"':
			i = skipString(b, i) - 1
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
}

// unescape decodes the inside of a JSON string. It fails for invalid UTF-8, a
// lone surrogate and a wrong escape: replacing them would make one key of
// several.
func unescape(raw []byte) (string, bool) {
	if !utf8.Valid(raw) {
		return "", false
	}
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw), true
	}
	var out strings.Builder
	for len(raw) > 0 {
		if raw[0] != '\\' {
			out.WriteByte(raw[0])
			raw = raw[1:]
			continue
		}
		r, size := escaped(raw)
		if size == 0 {
			return "", false
		}
		out.WriteRune(r)
		raw = raw[size:]
	}
	return out.String(), true
}

// escaped decodes the escape at the start of raw; a size of 0 means that it is
// wrong.
func escaped(raw []byte) (r rune, size int) {
	if len(raw) < 2 {
		return 0, 0
	}
	if raw[1] == 'u' {
		return escapedUnit(raw)
	}
	const from, to = `"\/'bfnrt`, "\"\\/'\b\f\n\r\t"
	if i := strings.IndexByte(from, raw[1]); i >= 0 {
		return rune(to[i]), 2
	}
	return 0, 0
}

func escapedUnit(raw []byte) (r rune, size int) {
	first, ok := hexUnit(raw)
	if !ok {
		return 0, 0
	}
	if !utf16.IsSurrogate(first) {
		return first, 6
	}
	second, ok := hexUnit(raw[6:])
	if !ok {
		return 0, 0
	}
	if r = utf16.DecodeRune(first, second); r == utf8.RuneError {
		return 0, 0
	}
	return r, 12
}

// hexUnit reads \uXXXX.
func hexUnit(raw []byte) (rune, bool) {
	if len(raw) < 6 || raw[0] != '\\' || raw[1] != 'u' {
		return 0, false
	}
	var r rune
	for _, c := range raw[2:6] {
		digit := strings.IndexByte("0123456789abcdef", c|0x20)
		if digit < 0 || c < '0' {
			return 0, false
		}
		r = r<<4 | rune(digit)
	}
	return r, true
}
