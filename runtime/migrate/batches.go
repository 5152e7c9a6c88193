package migrate

import "strings"

// batches splits a T-SQL text at its lines GO, as Microsoft's tools do: in any
// case, with blanks around, but not inside of a text, a quoted name or a comment.
// Batches without a statement are left out.
func batches(text string) []string {
	var list []string
	var batch strings.Builder
	end := func() {
		if strings.TrimSpace(batch.String()) != "" {
			list = append(list, batch.String())
		}
		batch.Reset()
	}
	var s scanner
	for line := range strings.Lines(text) {
		if s.plain() && strings.EqualFold(strings.TrimSpace(line), "GO") {
			end()
			continue
		}
		s.line(line)
		batch.WriteString(line)
	}
	end()
	return list
}

// A scanner knows whether what it has read ends inside of something that goes on
// in the next line.
type scanner struct {
	until   byte // the quote that ends a text or name; 0 outside
	comment int  // how many comments are open; they nest
}

// plain reports whether the scanner is outside of everything.
func (s *scanner) plain() bool { return s.until == 0 && s.comment == 0 }

// line reads one line.
func (s *scanner) line(line string) {
	for i := 0; i < len(line); i++ {
		pair := line[i:min(i+2, len(line))]
		switch {
		case s.until != 0:
			switch {
			case line[i] != s.until:
			case len(pair) == 2 && pair[1] == s.until: // a doubled one stands for itself
				i++
			default:
				s.until = 0
			}
		case pair == "/*":
			s.comment++
			i++
		case s.comment > 0:
			if pair == "*/" {
				s.comment--
				i++
			}
		case pair == "--":
			return
		case line[i] == '\'' || line[i] == '"':
			s.until = line[i]
		case line[i] == '[':
			s.until = ']'
		}
	}
}
