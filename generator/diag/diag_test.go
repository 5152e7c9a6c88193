package diag_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/lanebox/lanebox/generator/diag"
	"github.com/lanebox/lanebox/generator/model"
)

func at(line, column, length int, message, hint string) diag.Diagnostic {
	return diag.Diagnostic{File: "lanebox.yaml", Pos: model.Pos{Line: line, Column: column}, Length: length, Code: "code", Message: message, Hint: hint}
}

func text(t *testing.T, l diag.List, src []byte) string {
	t.Helper()
	var b strings.Builder
	if err := l.Text(&b, src); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestText prints the example of the documentation.
func TestText(t *testing.T) {
	src := []byte("\n\n\n\n\n\n\n    key: order_idd\n")
	got := text(t, diag.List{at(8, 10, 9, `key "order_idd" is not a field of order.placed.v1`, `did you mean "order_id"?`)}, src)
	want := `lanebox.yaml:8:10: key "order_idd" is not a field of order.placed.v1
   8 |     key: order_idd
     |          ^^^^^^^^^ did you mean "order_id"?
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestTextCorners(t *testing.T) {
	long := strings.Repeat("x", 400)
	for name, c := range map[string]struct {
		src  string
		d    diag.Diagnostic
		want string
	}{
		"no source line": {"a", at(7, 1, 1, "m", "h"), "lanebox.yaml:7:1: m\n     | h\n"},
		"no hint":        {"abc", at(1, 2, 1, "m", ""), "lanebox.yaml:1:2: m\n   1 | abc\n     |  ^\n"},
		"end of line":    {"abc", at(1, 4, 1, "m", ""), "lanebox.yaml:1:4: m\n   1 | abc\n     |    ^\n"},
		"beyond":         {"abc", at(1, 2, 99, "m", ""), "lanebox.yaml:1:2: m\n   1 | abc\n     |  ^^\n"},
		"tab":            {"\tb", at(1, 2, 1, "m", ""), "lanebox.yaml:1:2: m\n   1 |  b\n     |  ^\n"},
		"wide":           {"注文: x", at(1, 5, 1, "m", ""), "lanebox.yaml:1:5: m\n   1 | 注文: x\n     |       ^\n"},
		"control":        {"a\x1b[2Jb", at(1, 1, 1, "m\x1b[2J", ""), "lanebox.yaml:1:1: m\uFFFD[2J\n   1 | a\uFFFD[2Jb\n     | ^\n"},
		"far right": {long + "yz", at(1, 401, 1, "m", ""), "lanebox.yaml:1:401: m\n   1 | " + strings.Repeat("x", 20) +
			"yz\n     | " + strings.Repeat(" ", 20) + "^\n"},
	} {
		if got := text(t, diag.List{c.d}, []byte(c.src)); got != c.want {
			t.Errorf("%s: got\n%q\nwant\n%q", name, got, c.want)
		}
	}
	warning := at(1, 1, 1, "m", "")
	warning.Severity = diag.Warning
	if got := text(t, diag.List{warning}, nil); got != "lanebox.yaml:1:1: warning: m\n" {
		t.Errorf("warning without source: %q", got)
	}
}

func TestTextIsCapped(t *testing.T) {
	var l diag.List
	for i := range diag.Limit + 7 {
		l = append(l, at(i+1, 1, 1, fmt.Sprint(i), ""))
	}
	if got := text(t, l, nil); strings.Count(got, "\n") != diag.Limit+1 || !strings.HasSuffix(got, "… and 7 more\n") {
		t.Errorf("got %d lines, ending in %q", strings.Count(got, "\n"), got[len(got)-30:])
	}
}

func TestSorted(t *testing.T) {
	l := diag.List{at(2, 1, 1, "c", ""), at(1, 9, 1, "b", ""), at(2, 1, 1, "c", ""), at(1, 2, 1, "a", "")}
	var got []string
	for _, d := range l.Sorted() {
		got = append(got, d.Message)
	}
	if !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("sorted: %v", got)
	}
	if l[0].Message != "c" {
		t.Error("Sorted changed its receiver")
	}
}

func TestErr(t *testing.T) {
	warning := at(1, 1, 1, "w", "")
	warning.Severity = diag.Warning
	if err := (diag.List{warning}).Err(); err != nil {
		t.Errorf("a warning is an error: %v", err)
	}
	err := diag.List{warning, at(2, 3, 1, "m", "h")}.Err()
	var failure *diag.Failure
	if !errors.As(err, &failure) || len(failure.List) != 2 || err.Error() != "lanebox.yaml:1:1: warning: w\nlanebox.yaml:2:3: m (h)" {
		t.Errorf("got %v", err)
	}
}

func TestJSON(t *testing.T) {
	var b bytes.Buffer
	if err := (diag.List{}).JSON(&b); err != nil || b.String() != "[]\n" {
		t.Errorf("empty: %q, %v", b.String(), err)
	}
	b.Reset()
	if err := (diag.List{at(2, 3, 0, "<m>", "h")}).JSON(&b); err != nil {
		t.Fatal(err)
	}
	var got []map[string]any
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"file": "lanebox.yaml", "line": 2.0, "column": 3.0, "length": 1.0, "severity": "error", "code": "code", "message": "<m>", "hint": "h"}
	if len(got) != 1 || fmt.Sprint(got[0]) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestGitHub(t *testing.T) {
	d := at(2, 3, 4, "100% wrong\n::error::x", "h")
	d.File = "a,b:c.yaml"
	var b strings.Builder
	if err := (diag.List{d}).GitHub(&b); err != nil {
		t.Fatal(err)
	}
	want := "::error file=a%2Cb%3Ac.yaml,line=2,col=3,endColumn=7,title=lanebox code::100%25 wrong%0A::error::x%0Ah\n"
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

func TestSuggest(t *testing.T) {
	candidates := []string{"order_id", "total", "note", "events", "to"}
	for word, want := range map[string]string{
		"order_idd": "order_id", "orderId": "order_id", "oder_id": "order_id", "totla": "total", "evnts": "events",
		"xyz": "", "order_id": "", "": "", "t": "to", "completely": "",
	} {
		if got := diag.Suggest(word, candidates); got != want {
			t.Errorf("Suggest(%q) = %q, want %q", word, got, want)
		}
	}
	if got := diag.OneOf("xyz", []string{"a1", "b1", "c1"}); got != "use a1, b1 or c1" {
		t.Errorf("OneOf: %q", got)
	}
}

func TestLines(t *testing.T) {
	for src, want := range map[string][]string{
		"": {""}, "a": {"a"}, "a\n": {"a"}, "a\r\nb\rc\nd": {"a", "b", "c", "d"}, "\ufeffa": {"a"},
		"a\u0085b\u2028c\u2029d": {"a", "b", "c", "d"}, "\n\n": {"", ""},
	} {
		if got := diag.Lines([]byte(src)); !slices.Equal(got, want) {
			t.Errorf("Lines(%q) = %q, want %q", src, got, want)
		}
	}
}
