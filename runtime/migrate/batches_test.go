package migrate

import (
	"slices"
	"strings"
	"testing"
)

func TestBatches(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       []string
	}{
		{"none", "", nil},
		{"only separators", "GO\n\ngo\n  Go  \n", nil},
		{"one", "SELECT 1", []string{"SELECT 1"}},
		{"two", "SELECT 1\nGO\nSELECT 2\n", []string{"SELECT 1\n", "SELECT 2\n"}},
		{"any case, blanks and line ends", "a\r\n\t gO \r\nb", []string{"a\r\n", "b"}},
		{"part of a line", "GOTO x\nSELECT 1 GO\nGO;\n", []string{"GOTO x\nSELECT 1 GO\nGO;\n"}},
		{"in a text", "PRINT 'a\nGO\nit''s\nGO\n'\nGO\nb", []string{"PRINT 'a\nGO\nit''s\nGO\n'\n", "b"}},
		{"in a quoted name", "SELECT \"a\nGO\n\"\nGO\nSELECT [b]]\nGO\n]\nGO\nc", []string{"SELECT \"a\nGO\n\"\n", "SELECT [b]]\nGO\n]\n", "c"}},
		{"in comments, which nest", "/* a\nGO\n/* ' */\nGO\n*/\nGO\nb", []string{"/* a\nGO\n/* ' */\nGO\n*/\n", "b"}},
		{"quotes in a line comment", "-- it's [ /* \"\nGO\nb", []string{"-- it's [ /* \"\n", "b"}},
		{"comment signs in a text", "PRINT '/* --'\nGO\nb", []string{"PRINT '/* --'\n", "b"}},
		{"a quote in brackets", "SELECT [it's]\nGO\nb", []string{"SELECT [it's]\n", "b"}},
	} {
		if got := batches(c.text); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

// Nothing is lost but separators, whatever the text is.
func FuzzBatches(f *testing.F) {
	f.Add("a\nGO\n'b\nGO\n'")
	f.Add("/*/*\nGO\n*/")
	f.Add("GO\nO")
	f.Fuzz(func(t *testing.T, text string) {
		// The batches are the lines of the text, in order, but for lines GO and blank ones.
		kept := slices.Collect(strings.Lines(strings.Join(batches(text), "")))
		for line := range strings.Lines(text) {
			if len(kept) > 0 && line == kept[0] {
				kept = kept[1:]
			} else if l := strings.TrimSpace(line); l != "" && !strings.EqualFold(l, "GO") {
				t.Fatalf("%q was left out", line)
			}
		}
		if len(kept) > 0 {
			t.Fatalf("%q is not in the text", kept)
		}
	})
}
