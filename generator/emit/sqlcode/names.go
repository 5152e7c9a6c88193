package sqlcode

import "strings"

// GoName is how sqlc names a field, with id as the only initialism.
func (f Field) GoName() string {
	var b strings.Builder
	for part := range strings.SplitSeq(f.Name, "_") {
		if part == "id" {
			b.WriteString("ID")
		} else if part != "" {
			b.WriteString(strings.ToUpper(part[:1]) + part[1:])
		}
	}
	return b.String()
}

// ConstName is how sqlc names the constant that holds the query's text.
func (q Query) ConstName() string { return strings.ToLower(q.Name[:1]) + q.Name[1:] }
