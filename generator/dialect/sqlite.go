package dialect

import "regexp"

// SQLite is SQLite 3.35 and later with its JSON functions (they are always there
// from 3.38 on) for writers of plain SQL; generated code runs on the SQLite
// inside modernc.org/sqlite.
var SQLite = &Dialect{
	Name:    "sqlite",
	Engine:  "sqlite",
	Quote:   quoteSQLite,
	Literal: func(s string) string { return doubled(s, `'`) },
	GoTypes: map[Type]string{
		Int64: "int64", Text: "string", TextNull: "*string", Int64Null: "*int64", Bytes: "[]byte",
		Int64s: "string", Texts: "string",
	},
}

// plainSQLite matches what SQLite reads as written without quotes.
var plainSQLite = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// quoteSQLite quotes name unless it is a plain identifier. Lanebox's own names,
// which name always ends in, keep it from being a reserved word.
func quoteSQLite(name string) string {
	if plainSQLite.MatchString(name) {
		return name
	}
	return doubled(name, `"`)
}
