package rowtext_test

import (
	"maps"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/internal/rowtext"
)

func TestClean(t *testing.T) {
	for in, want := range map[string]string{"": "", "plain": "plain", "a\x00b": "a\uFFFDb", "a\xffb": "a\uFFFDb", "żółć 😀": "żółć 😀"} {
		if got := rowtext.Clean(in); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
	long := rowtext.Clean(strings.Repeat("é", 5000))
	if len(long) > 2003 || !utf8.ValidString(long) || !strings.HasPrefix(long, "éé") {
		t.Errorf("%d bytes, valid: %v", len(long), utf8.ValidString(long))
	}
}

func TestCheckText(t *testing.T) {
	for in, ok := range map[string]bool{"": true, `{"a":"\u0000"}`: true, "😀": true, "a\x00": false, "\xff": false, "\xed\xa0\x80": false} {
		if err := rowtext.CheckText([]byte(in)); (err == nil) != ok {
			t.Errorf("%q: %v", in, err)
		}
	}
}

func TestHeadersRoundTrip(t *testing.T) {
	for _, h := range []event.Headers{nil, {"a": "b"}, {"": "", "x": "<&>\u2028\"\\\n😀"}} {
		if got := rowtext.DecodeHeaders(rowtext.EncodeHeaders(h)); !maps.Equal(got, h) {
			t.Errorf("%v became %v", h, got)
		}
	}
	for text, want := range map[string]event.Headers{`{"n":1,"s":"x","o":{"a":[]}}`: {"n": "1", "s": "x", "o": `{"a":[]}`}, `[1]`: nil, `{`: nil} {
		if got := rowtext.DecodeHeaders(text); !maps.Equal(got, want) {
			t.Errorf("%s became %v, want %v", text, got, want)
		}
	}
}
