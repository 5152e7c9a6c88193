package schema

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"gopkg.in/yaml.v3"

	"github.com/lanebox/lanebox/generator/diag"
	"github.com/lanebox/lanebox/generator/model"
)

const (
	maxBytes = 8 << 20 // of a schema
	maxDepth = 64      // of nested mappings and lists
	maxFound = 1000    // findings kept
)

// Load reads a schema. The file is nil when nothing of it could be understood;
// otherwise it holds what could, and Faulty says whether something is missing.
// name stands in the findings.
func Load(name string, src []byte) (*File, diag.List) {
	l := &loader{name: name, lines: diag.Lines(src)}
	file := l.load(src)
	if file != nil {
		file.Name = name
		file.Faulty = l.found.Errors() > 0
		file.End = l.end()
	}
	return file, l.found.Sorted()
}

// A loader collects findings while it walks the nodes.
type loader struct {
	name  string
	lines []string
	found diag.List
}

// load parses src and reads the root table.
func (l *loader) load(src []byte) *File {
	if !l.checkBytes(src) {
		return nil
	}
	document := l.parse(src)
	if document == nil || !l.checkNodes(document, 0) {
		return nil
	}
	file := new(File)
	fileTable.read(l, document, root, file)
	return file
}

// report adds an error at m.
func (l *loader) report(m Mark, code, hint, format string, args ...any) {
	if len(l.found) >= maxFound {
		return
	}
	l.found = append(l.found, diag.Diagnostic{
		File: l.name, Pos: m.Pos, Length: m.Length, Code: code,
		Message: fmt.Sprintf(format, args...), Hint: hint,
	})
}

// end is the last place of the file.
func (l *loader) end() model.Pos {
	last := len(l.lines)
	return model.Pos{Line: last, Column: max(1, utf8.RuneCountInString(l.lines[last-1]))}
}

// clamp moves a place that a parser invented into the file.
func (l *loader) clamp(line, column int) model.Pos {
	if line > len(l.lines) {
		return l.end()
	}
	line = max(1, line)
	return model.Pos{Line: line, Column: max(1, min(column, utf8.RuneCountInString(l.lines[line-1])+1))}
}

// checkBytes refuses what is no YAML text at all.
func (l *loader) checkBytes(src []byte) bool {
	first := Mark{Pos: model.Pos{Line: 1, Column: 1}, Length: 1}
	switch {
	case len(src) > maxBytes:
		l.report(first, "too-large", "split it into several schemas", "the schema has %d bytes; the limit is %d", len(src), maxBytes)
		return false
	case bytes.HasPrefix(src, []byte("\xff\xfe")), bytes.HasPrefix(src, []byte("\xfe\xff")):
		l.report(first, "encoding", "save it as UTF-8", "the schema is UTF-16")
		return false
	}
	for i, line := range l.lines {
		column := 0
		for at, r := range line {
			column++
			m := Mark{Pos: model.Pos{Line: i + 1, Column: column}, Length: 1}
			switch {
			case r == utf8.RuneError && strings.HasPrefix(line[at:], "\uFFFD"):
			case r == utf8.RuneError:
				l.report(m, "encoding", "save it as UTF-8", "byte 0x%02x is not UTF-8", line[at])
				return false
			case r < ' ' && r != '\t' || r >= 0x7f && r < 0xa0 || r == 0xFFFE || r == 0xFFFF:
				l.report(m, "control-character", "remove it", "the schema contains the control character U+%04X", r)
				return false
			case r == 0xFEFF:
				l.report(m, "control-character", "remove it", "a byte order mark (U+FEFF) may stand only at the start of the file")
				return false
			}
		}
	}
	return true
}

// parse returns the root node of the only document.
func (l *loader) parse(src []byte) *yaml.Node {
	decoder := yaml.NewDecoder(bytes.NewReader(src))
	var document yaml.Node
	err := decode(decoder, &document)
	if errors.Is(err, io.EOF) || err == nil && empty(&document) {
		l.report(Mark{Pos: model.Pos{Line: 1, Column: 1}, Length: 1}, "empty", "begin with version: 1; lanebox init writes an example", "the schema is empty")
		return nil
	}
	if err != nil {
		l.syntax(err)
		return nil
	}
	var second yaml.Node
	switch err := decode(decoder, &second); {
	case errors.Is(err, io.EOF):
	case err != nil:
		l.syntax(err)
		return nil
	default:
		m := Mark{Pos: l.clamp(second.Line, second.Column), Length: 3}
		l.report(m, "several-documents", "keep one document in a file", "a second document begins here")
		return nil
	}
	return document.Content[0]
}

// decode reads the next document. A panic of the parser becomes an error.
func decode(d *yaml.Decoder, n *yaml.Node) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("yaml: cannot be parsed: %v", p)
		}
	}()
	return d.Decode(n)
}

// empty reports a document without content, such as a lone "---".
func empty(document *yaml.Node) bool {
	return len(document.Content) == 0 ||
		document.Content[0].Kind == yaml.ScalarNode && document.Content[0].Tag == "!!null" && document.Content[0].Value == ""
}

var (
	yamlLine      = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)`)
	unknownAnchor = regexp.MustCompile(`^unknown anchor '(.*)' referenced`)
)

// syntax reports an error of the YAML parser, which gives a line at most.
func (l *loader) syntax(err error) {
	match := yamlLine.FindStringSubmatch(strings.ReplaceAll(err.Error(), "\n", " "))
	if match == nil {
		l.report(Mark{Pos: l.clamp(1, 1), Length: 1}, "syntax", "", "%v", err)
		return
	}
	message := match[2]
	if anchor := unknownAnchor.FindStringSubmatch(message); anchor != nil {
		l.report(l.find(1, "*"+anchor[1]), "anchor", "write the value out", "aliases are not supported (*%s)", anchor[1])
		return
	}
	line, _ := strconv.Atoi(match[1])
	if line > 0 && strings.HasPrefix(message, "did not find expected") {
		line++ // the parser counts from 0, the scanner from 1
	}
	line = max(1, line)
	m, hint := Mark{Pos: l.clamp(line, l.indent(line)+1), Length: 1}, ""
	switch {
	case strings.HasPrefix(message, "found character that cannot start any token"):
		m, hint = l.badStart(line, m)
	case strings.HasPrefix(message, "mapping values are not allowed"):
		m, hint = l.badColon(line, m), "check the indentation, or quote a value that contains \": \""
	case strings.HasPrefix(message, "did not find expected key"):
		hint = "check the indentation of this mapping and quote values that begin with a special character"
	case strings.HasPrefix(message, "did not find expected ',' or"):
		m, hint = l.badFlow(line, m)
	case strings.Contains(message, "unexpected end of stream"):
		hint = "a quote is not closed"
	}
	l.report(m, "syntax", hint, "not valid YAML: %s", message)
}

// indent counts the blanks a line begins with.
func (l *loader) indent(line int) int {
	if line > len(l.lines) {
		return 0
	}
	s := l.lines[line-1]
	return len(s) - len(strings.TrimLeft(s, " "))
}

// find marks the first occurrence of text at or after a line.
func (l *loader) find(line int, text string) Mark {
	for i := line - 1; i < len(l.lines); i++ {
		if at := strings.Index(l.lines[i], text); at >= 0 {
			pos := model.Pos{Line: i + 1, Column: utf8.RuneCountInString(l.lines[i][:at]) + 1}
			return Mark{Pos: pos, Length: utf8.RuneCountInString(text)}
		}
	}
	return Mark{Pos: l.clamp(line, 1), Length: 1}
}

// badStart finds the character that begins no token near a line.
func (l *loader) badStart(line int, fallback Mark) (Mark, string) {
	for i := line; i <= min(line+1, len(l.lines)); i++ {
		s := l.lines[i-1]
		if at := len(s) - len(strings.TrimLeft(s, " ")); at < len(s) && s[at] == '\t' {
			return Mark{Pos: model.Pos{Line: i, Column: at + 1}, Length: 1}, "indent with spaces, not with tabs"
		}
	}
	if line <= len(l.lines) {
		if at := strings.IndexAny(l.lines[line-1], "\t`@%"); at >= 0 {
			column := utf8.RuneCountInString(l.lines[line-1][:at]) + 1
			return Mark{Pos: model.Pos{Line: line, Column: column}, Length: 1}, "quote the value"
		}
	}
	return fallback, "quote the value"
}

// optionalInFlow is a type such as string? where YAML cannot tell the question
// mark from its own.
var optionalInFlow = regexp.MustCompile(`[\pL\p{Nd}_]+\?(\s*[,}\]]|$)`)

// badFlow explains a list or mapping in brackets that begins on a line.
func (l *loader) badFlow(line int, fallback Mark) (Mark, string) {
	for i := line; i <= min(line+20, len(l.lines)); i++ {
		s := l.lines[i-1]
		if at := optionalInFlow.FindStringIndex(s); at != nil {
			word := s[at[0] : at[0]+strings.IndexByte(s[at[0]:], '?')+1]
			column := utf8.RuneCountInString(s[:at[0]]) + 1
			m := Mark{Pos: model.Pos{Line: i, Column: column}, Length: utf8.RuneCountInString(word)}
			return m, fmt.Sprintf("inside {…} and […], quote it: %q", word)
		}
		if i == line && strings.ContainsAny(s, "[{") {
			fallback.Pos.Column = utf8.RuneCountInString(s[:strings.IndexAny(s, "[{")]) + 1
		}
	}
	return fallback, "close the bracket or brace, and quote values that contain one"
}

// badColon finds the second ": " of a line, or its first one.
func (l *loader) badColon(line int, fallback Mark) Mark {
	if line > len(l.lines) {
		return fallback
	}
	s := l.lines[line-1]
	at := strings.Index(s, ":")
	if at < 0 {
		return fallback
	}
	if next := strings.Index(s[at+1:], ": "); next >= 0 {
		at += 1 + next
	}
	return Mark{Pos: model.Pos{Line: line, Column: utf8.RuneCountInString(s[:at]) + 1}, Length: 1}
}

// checkNodes refuses what makes one file mean different things to different
// tools, before anything else looks at it.
func (l *loader) checkNodes(n *yaml.Node, depth int) bool {
	m := l.mark(n)
	switch {
	case depth > maxDepth:
		l.report(m, "too-deep", "", "the schema is nested more than %d levels deep", maxDepth)
		return false
	case n.Kind == yaml.AliasNode:
		l.report(m, "anchor", "write the value out", "aliases are not supported (*%s)", n.Value)
		return false
	case n.Anchor != "":
		l.report(m, "anchor", "write the value out wherever it is needed", "anchors are not supported (&%s)", n.Anchor)
		return false
	case n.Tag == "!!merge":
		l.report(m, "anchor", "write the keys out", "merge keys are not supported (<<)")
		return false
	case n.Style&yaml.TaggedStyle != 0:
		l.report(m, "tag", "remove the tag; quote the value if text is meant", "YAML tags are not supported (%s)", n.Tag)
		return false
	}
	ok := true
	for _, child := range n.Content {
		ok = l.checkNodes(child, depth+1) && ok
	}
	return ok
}

// mark returns the text of a node, as far as it is on its first line. A mapping
// or list is marked by its first character.
func (l *loader) mark(n *yaml.Node) Mark {
	m := Mark{Pos: l.clamp(n.Line, n.Column), Length: 1}
	if n.Kind == yaml.AliasNode {
		m.Length = utf8.RuneCountInString(n.Value) + 1
		return m
	}
	if n.Kind != yaml.ScalarNode {
		return m
	}
	line := []rune(l.lines[m.Pos.Line-1])
	rest := line[min(len(line), m.Pos.Column-1):]
	switch {
	case n.Style&yaml.DoubleQuotedStyle != 0:
		m.Length = quotedLength(rest, '"')
	case n.Style&yaml.SingleQuotedStyle != 0:
		m.Length = quotedLength(rest, '\'')
	case n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) == 0:
		m.Length = utf8.RuneCountInString(n.Value)
	}
	m.Length = max(1, min(m.Length, len(rest)))
	return m
}

// quotedLength is the length of a quoted scalar, with its quotes.
func quotedLength(text []rune, quote rune) int {
	for i := 1; i < len(text); i++ {
		switch {
		case quote == '"' && text[i] == '\\':
			i++
		case text[i] == quote && quote == '\'' && i+1 < len(text) && text[i+1] == quote:
			i++
		case text[i] == quote:
			return i + 1
		}
	}
	return len(text)
}
