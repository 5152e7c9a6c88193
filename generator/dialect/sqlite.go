package dialect

// SQLite is SQLite 3.38 and later, through modernc.org/sqlite.
var SQLite = &Dialect{
	Name:    "sqlite",
	Engine:  "sqlite",
	Quote:   func(name string) string { return doubled(name, `"`) },
	Literal: func(s string) string { return doubled(s, `'`) },
	GoTypes: map[Type]string{
		Int64: "int64", Text: "string", TextNull: "*string", Int64Null: "*int64", Bytes: "[]byte",
		Int64s: "string", Texts: "string", Bytess: "string",
	},
}
