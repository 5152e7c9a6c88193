package event_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/lanebox/lanebox/runtime/event"
)

func TestCheckKey(t *testing.T) {
	for _, good := range []string{"a", " ", "ä", "a\u0308", strings.Repeat("k", event.MaxKeyBytes), "\U0001f600", "\ufeff"} {
		if err := event.CheckKey(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for bad, want := range map[string]string{
		"":                        "key is empty",
		strings.Repeat("ä", 128):  "key has 256 bytes; the limit is 255",
		"\xff":                    "key is not valid UTF-8",
		"\xed\xa0\x80":            "key is not valid UTF-8",
		"a\x00":                   "key contains U+0000",
		strings.Repeat("k", 1e4):  "key has 10000 bytes; the limit is 255",
		strings.Repeat("\x00", 1): "key contains U+0000",
	} {
		if err := event.CheckKey(bad); err == nil || err.Error() != want {
			t.Errorf("%.20q: %v, want %s", bad, err, want)
		}
	}
}

// split undoes JoinKey.
func split(key string) []string {
	parts := []string{""}
	for i := 0; i < len(key); i++ {
		switch key[i] {
		case '|':
			parts = append(parts, "")
			continue
		case '\\':
			i++
		}
		parts[len(parts)-1] += key[i : i+1]
	}
	return parts
}

// FuzzJoinKey shows that no two tuples have one encoding: every encoding leads
// back to its tuple.
func FuzzJoinKey(f *testing.F) {
	f.Add("a", "b", "c")
	f.Add("", "|", `\`)
	f.Add(`a\|`, `\\`, "||")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		for _, tuple := range [][]string{{a}, {a, b}, {a, b, c}} {
			if key := event.JoinKey(tuple...); !slices.Equal(split(key), tuple) {
				t.Fatalf("%q became %q, which is %q", tuple, key, split(key))
			}
		}
	})
}
