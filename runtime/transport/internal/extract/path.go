package extract

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A Path is a singular JSONPath (RFC 9535): it leads to at most one value.
type Path struct {
	text  string
	steps []step
}

// A step enters an object by name or an array by index.
type step struct {
	name  string
	index int // used when array is true
	array bool
}

// ParsePath reads a path such as $.a.b, $['a b'] or $.list[0]. Wildcards,
// filters, slices, unions and negative indexes are refused: they may lead to
// several values or to a different one each time.
func ParsePath(text string) (Path, error) {
	p := &pathParser{text: text}
	if !strings.HasPrefix(text, "$") {
		return Path{}, p.fail("a path starts with $")
	}
	p.at = 1
	var steps []step
	for p.at < len(text) {
		s, err := p.step()
		if err != nil {
			return Path{}, err
		}
		steps = append(steps, s)
	}
	if len(steps) == 0 {
		return Path{}, p.fail("it names no field; write for example $.id")
	}
	return Path{text: text, steps: steps}, nil
}

// String returns the path as it was written.
func (p Path) String() string { return p.text }

type pathParser struct {
	text string
	at   int
}

func (p *pathParser) fail(format string, args ...any) error {
	return fmt.Errorf("path %q: %s", p.text, fmt.Sprintf(format, args...))
}

// peek returns the next byte, or 0 at the end; a path with a 0 byte is refused
// wherever it is looked at.
func (p *pathParser) peek() byte {
	if p.at < len(p.text) {
		return p.text[p.at]
	}
	return 0
}

func (p *pathParser) step() (step, error) {
	switch p.peek() {
	case '.':
		p.at++
		return p.shorthand()
	case '[':
		p.at++
		return p.bracket()
	}
	return step{}, p.fail("expected . or [ at byte %d", p.at+1)
}

// shorthand reads a name after a dot: letters, digits, _ and non-ASCII.
func (p *pathParser) shorthand() (step, error) {
	start := p.at
	for p.at < len(p.text) {
		r, size := utf8.DecodeRuneInString(p.text[p.at:])
		if r == utf8.RuneError && size == 1 {
			return step{}, p.fail("it is not valid UTF-8")
		}
		if !isNameRune(r, p.at == start) {
			break
		}
		p.at += size
	}
	name := p.text[start:p.at]
	switch next := p.peek(); {
	case name == "" && next == '.':
		return step{}, p.fail(".. may lead to several values")
	case name == "" && next == '*':
		return step{}, p.fail("* may lead to several values")
	case p.at < len(p.text) && next != '.' && next != '[':
		return step{}, p.fail("write names with other characters than letters, digits and _ as ['name']")
	case name == "":
		return step{}, p.fail("a name is missing after the dot")
	}
	return step{name: name}, nil
}

func isNameRune(r rune, first bool) bool {
	switch {
	case r == '_', r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= 0x80:
		return true
	}
	return !first && r >= '0' && r <= '9'
}

// bracket reads what follows an opening bracket, up to and with the closing one.
func (p *pathParser) bracket() (step, error) {
	p.blanks()
	s, err := p.selector()
	if err != nil {
		return step{}, err
	}
	p.blanks()
	if p.peek() != ']' {
		return step{}, p.fail("expected ] at byte %d: one name or one index per bracket", p.at+1)
	}
	p.at++
	return s, nil
}

func (p *pathParser) blanks() {
	for p.at < len(p.text) && strings.IndexByte(" \t\r\n", p.text[p.at]) >= 0 {
		p.at++
	}
}

func (p *pathParser) selector() (step, error) {
	switch c := p.peek(); {
	case c == '\'' || c == '"':
		name, err := p.quoted(c)
		return step{name: name}, err
	case c >= '0' && c <= '9':
		return p.index()
	case c == '-':
		return step{}, p.fail("an index counts from the start of the list")
	case c == '*', c == '?', c == ':':
		return step{}, p.fail("%c may lead to several values", c)
	}
	return step{}, p.fail("expected a quoted name or an index at byte %d", p.at+1)
}

func (p *pathParser) index() (step, error) {
	start := p.at
	for p.peek() >= '0' && p.peek() <= '9' {
		p.at++
	}
	digits := p.text[start:p.at]
	n, err := strconv.ParseInt(digits, 10, 32)
	if err != nil || len(digits) > 1 && digits[0] == '0' {
		return step{}, p.fail("%s is not an index", digits)
	}
	return step{index: int(n), array: true}, nil
}

// quoted reads a quoted name. Escapes are those of JSON, plus \'.
func (p *pathParser) quoted(quote byte) (string, error) {
	p.at++
	start := p.at
	for {
		switch c := p.peek(); {
		case p.at >= len(p.text):
			return "", p.fail("the quoted name does not end")
		case c < ' ':
			return "", p.fail("a name contains a control character")
		case c == '\\':
			p.at++
		case c == quote:
			raw := p.text[start:p.at]
			p.at++
			name, ok := unescape([]byte(raw))
			if !ok {
				return "", p.fail("the name %q has a wrong escape", raw)
			}
			return name, nil
		}
		p.at++
	}
}
