package migrate

import (
	"regexp"
	"strings"
)

// A createdTable is what a step says about one of its tables.
type createdTable struct {
	name    string
	columns []string
}

// identifier matches a name with or without quotes or brackets.
const identifier = `("(?:[^"]|"")+"|\[(?:[^\]]|\]\])+\]|[A-Za-z_]\w*)`

var (
	// tableLine is how lanebox's steps begin a table, perhaps with a schema.
	tableLine = regexp.MustCompile(`^CREATE TABLE (?:` + identifier + `\.)?` + identifier + ` \($`)
	// columnLine is how they write a column: one a line, indented by two blanks.
	// A constraint begins with its keyword in capitals.
	columnLine = regexp.MustCompile(`^  ` + identifier + ` +[A-Za-z]`)
	constraint = regexp.MustCompile(`^  (?:CONSTRAINT|PRIMARY|UNIQUE|CHECK|FOREIGN|INDEX) `)
)

// created returns the tables that a step creates. It understands the form in
// which lanebox writes its steps, not SQL in general.
func created(sql string) []createdTable {
	var tables []createdTable
	open := false
	for line := range strings.Lines(sql) {
		line = strings.TrimRight(line, "\r\n")
		if m := tableLine.FindStringSubmatch(line); m != nil {
			tables, open = append(tables, createdTable{name: unquote(m[2])}), true
			continue
		}
		if strings.HasPrefix(line, ")") {
			open = false
		}
		if !open || constraint.MatchString(line) {
			continue
		}
		if m := columnLine.FindStringSubmatch(line); m != nil {
			t := &tables[len(tables)-1]
			t.columns = append(t.columns, unquote(m[1]))
		}
	}
	return tables
}

// unquote returns the name that an identifier stands for.
func unquote(s string) string {
	switch {
	case strings.HasPrefix(s, `"`):
		return strings.ReplaceAll(s[1:len(s)-1], `""`, `"`)
	case strings.HasPrefix(s, `[`):
		return strings.ReplaceAll(s[1:len(s)-1], `]]`, `]`)
	}
	return s
}
