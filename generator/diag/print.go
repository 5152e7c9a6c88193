package diag

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
)

// Limit is the number of findings that the text form prints; the rest is
// counted. A program gets all of them.
const Limit = 50

// longestLine is the number of runes of a source line that the text form shows.
const longestLine = 160

// Text writes the findings for people: the position and message, the source
// line, and the marked text with the hint. src is the schema they refer to; nil
// leaves the source lines out.
func (l List) Text(w io.Writer, src []byte) error {
	var lines []string
	if src != nil {
		lines = Lines(src)
	}
	var b strings.Builder
	for i, d := range l {
		if i == Limit {
			fmt.Fprintf(&b, "… and %d more\n", len(l)-Limit)
			break
		}
		d.text(&b, lines)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// text writes one finding.
func (d Diagnostic) text(b *strings.Builder, lines []string) {
	fmt.Fprintln(b, d.head())
	if d.Pos.Line < 1 || d.Pos.Line > len(lines) {
		if d.Hint != "" {
			fmt.Fprintf(b, "     | %s\n", oneLine(d.Hint))
		}
		return
	}
	runes := []rune(lines[d.Pos.Line-1])
	from := 0
	if at := d.Pos.Column - 1; at > longestLine-20 {
		from = min(at-20, len(runes))
	}
	to := min(len(runes), from+longestLine)
	fmt.Fprintf(b, "%4d | %s\n", d.Pos.Line, strings.TrimRight(visible(runes[from:to]), " "))
	mark := strings.Repeat("^", max(1, min(d.Length, to-(d.Pos.Column-1))))
	at := min(max(from, d.Pos.Column-1), len(runes))
	if end := min(at+d.Length, to); end > at {
		mark = strings.Repeat("^", width(runes[at:end]))
	}
	line := fmt.Sprintf("     | %s%s %s", strings.Repeat(" ", width(runes[from:at])), mark, oneLine(d.Hint))
	fmt.Fprintln(b, strings.TrimRight(line, " "))
}

// visible replaces what would move the cursor.
func visible(runes []rune) string {
	return strings.Map(func(r rune) rune {
		if r == '\t' {
			return ' '
		}
		return r
	}, strings.Map(func(r rune) rune {
		if r != '\t' && unicode.IsControl(r) {
			return '\uFFFD'
		}
		return r
	}, string(runes)))
}

// width is the number of terminal cells that the runes fill.
func width(runes []rune) int {
	n := 0
	for _, r := range runes {
		switch {
		case unicode.In(r, unicode.Mn, unicode.Me):
		case unicode.In(r, unicode.Han, unicode.Hangul, unicode.Hiragana, unicode.Katakana), r >= 0xFF01 && r <= 0xFF60, r >= 0x1F300 && r <= 0x1FAFF:
			n += 2
		default:
			n++
		}
	}
	return n
}

// jsonDiagnostic is the form that programs read.
type jsonDiagnostic struct {
	File     string `json:"file"`
	Line     int    `json:"line"`
	Column   int    `json:"column"`
	Length   int    `json:"length"`
	Severity string `json:"severity"`
	Code     string `json:"code"`
	Message  string `json:"message"`
	Hint     string `json:"hint,omitempty"`
}

// JSON writes all findings as one JSON array; an empty list is [].
func (l List) JSON(w io.Writer) error {
	out := make([]jsonDiagnostic, 0, len(l))
	for _, d := range l {
		out = append(out, jsonDiagnostic{
			File: d.File, Line: d.Pos.Line, Column: d.Pos.Column, Length: max(1, d.Length),
			Severity: d.Severity.String(), Code: d.Code, Message: d.Message, Hint: d.Hint,
		})
	}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(out)
}

// GitHub writes all findings as workflow commands, which GitHub Actions shows
// beside the changed lines.
func (l List) GitHub(w io.Writer) error {
	data := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	property := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
	var b strings.Builder
	for _, d := range l {
		text := d.Message
		if d.Hint != "" {
			text += "\n" + d.Hint
		}
		fmt.Fprintf(&b, "::%s file=%s,line=%d,col=%d,endColumn=%d,title=%s::%s\n",
			d.Severity, property.Replace(d.File), d.Pos.Line, d.Pos.Column, d.Pos.Column+max(1, d.Length),
			property.Replace("lanebox "+d.Code), data.Replace(text))
	}
	_, err := io.WriteString(w, b.String())
	return err
}
