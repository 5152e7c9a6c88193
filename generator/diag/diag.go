// Package diag describes what is wrong with a schema: where it is, what to write
// instead, and how to print that for people, programs and GitHub.
package diag

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/lanebox/lanebox/generator/model"
)

// A Severity says whether generation can go on.
type Severity uint8

const (
	// Error: nothing is generated.
	Error Severity = iota
	// Warning: the schema is sound, but probably not what was meant.
	Warning
)

// String returns "error" or "warning".
func (s Severity) String() string {
	if s == Warning {
		return "warning"
	}
	return "error"
}

// A Diagnostic is one finding.
type Diagnostic struct {
	// File is the name the schema was loaded under.
	File string
	// Pos is where the marked text begins.
	Pos model.Pos
	// Length is the number of runes marked, all on the line of Pos; 0 marks one.
	Length   int
	Severity Severity
	// Code names the check, such as "unknown-key". It is stable, for programs.
	Code string
	// Message says what is wrong, in one line.
	Message string
	// Hint says what to write instead; may be empty.
	Hint string
}

// String returns file:line:col: message (hint), without the source line.
func (d Diagnostic) String() string {
	s := d.head()
	if d.Hint != "" {
		s += " (" + d.Hint + ")"
	}
	return s
}

// head returns the first line of the text form.
func (d Diagnostic) head() string {
	word := ""
	if d.Severity == Warning {
		word = "warning: "
	}
	return fmt.Sprintf("%s:%d:%d: %s%s", d.File, d.Pos.Line, d.Pos.Column, word, oneLine(d.Message))
}

// A List is everything found in a schema.
type List []Diagnostic

// Sorted returns the list ordered by position, each finding once.
func (l List) Sorted() List {
	sorted := slices.Clone(l)
	slices.SortStableFunc(sorted, func(a, b Diagnostic) int {
		return cmp.Or(
			cmp.Compare(a.File, b.File),
			cmp.Compare(a.Pos.Line, b.Pos.Line),
			cmp.Compare(a.Pos.Column, b.Pos.Column),
			cmp.Compare(a.Severity, b.Severity),
			cmp.Compare(a.Code, b.Code),
			cmp.Compare(a.Message, b.Message))
	})
	return slices.Compact(sorted)
}

// Errors counts the findings that prevent generation.
func (l List) Errors() int {
	n := 0
	for _, d := range l {
		if d.Severity == Error {
			n++
		}
	}
	return n
}

// Err returns the list as an error, or nil if it holds no error.
func (l List) Err() error {
	if l.Errors() == 0 {
		return nil
	}
	return &Failure{List: l}
}

// A Failure is a List that prevents generation.
type Failure struct{ List List }

// Error returns one line per finding.
func (f *Failure) Error() string {
	lines := make([]string, 0, len(f.List))
	for _, d := range f.List {
		lines = append(lines, d.String())
	}
	return strings.Join(lines, "\n")
}

// oneLine makes text safe to print on one line.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 || r == 0x2028 || r == 0x2029 {
			return '\uFFFD'
		}
		return r
	}, s)
}
