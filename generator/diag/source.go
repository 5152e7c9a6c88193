package diag

import (
	"strings"
	"unicode/utf8"
)

// Lines splits a schema into lines the way YAML counts them: LF, CRLF, CR, NEL,
// LS and PS end a line. A byte order mark is dropped. There is at least one line.
func Lines(src []byte) []string {
	s := strings.TrimPrefix(string(src), "\uFEFF")
	var lines []string
	start := 0
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		next := i + size
		switch r {
		case '\r':
			if next < len(s) && s[next] == '\n' {
				next++
			}
		case '\n', 0x85, 0x2028, 0x2029:
		default:
			i = next
			continue
		}
		lines = append(lines, s[start:i])
		start, i = next, next
	}
	if start < len(s) || len(lines) == 0 {
		lines = append(lines, s[start:])
	}
	return lines
}
