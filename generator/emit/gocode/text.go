package gocode

import (
	"strings"
	"unicode"

	"github.com/dave/jennifer/jen"
)

// oneLine replaces everything in s that could end a comment line.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' || r == unicode.ReplacementChar || r == '\ufeff' {
			return ' '
		}
		return r
	}, s)
}

// comment writes text as line comments. Text comes from the schema and may be
// hostile: every line is put behind "// ", whatever it begins with, so that it
// can neither end the comment nor become a directive.
func comment(to adder, text string) {
	for _, line := range lines(text) {
		to.Add(jen.Comment(strings.TrimRight("// "+line, " \t")))
	}
}

// An adder is a file, or the members of a struct or interface.
type adder interface {
	Add(code ...jen.Code) *jen.Statement
}

func lines(text string) []string {
	text = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(strings.ToValidUTF8(text, " "))
	list := strings.Split(strings.Trim(text, "\n"), "\n")
	for i, l := range list {
		list[i] = disarm(strings.TrimRight(oneLine(l), " "))
	}
	return list
}

// disarm quotes a build constraint of the old form: the formatter looks for them
// in every comment and moves them to the top of the file.
func disarm(line string) string {
	if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "+build"); ok {
		return "'+build'" + rest
	}
	return line
}

// doc joins paragraphs, leaving out empty ones.
func doc(paragraphs ...string) string {
	var list []string
	for _, p := range paragraphs {
		if strings.TrimSpace(p) != "" {
			list = append(list, strings.Trim(p, "\n"))
		}
	}
	return strings.Join(list, "\n\n")
}

// names joins words for a sentence: "a, b and c".
func names(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " and " + words[len(words)-1]
}
