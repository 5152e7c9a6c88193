package dialect

import "strings"

// SQLServer is SQL Server 2016 and later at compatibility level 130 or higher,
// and Azure SQL, through go-mssqldb. Lists travel as one JSON array each.
var SQLServer = &Dialect{
	Name:    "sqlserver",
	Quote:   quoteSQLServer,
	Literal: literalSQLServer,
	GoTypes: map[Type]string{
		Bool: "bool", Int16: "int16", Int32: "int32", Int64: "int64", Text: "string", Name: "string", TextBytes: "[]byte",
		Bytes: "[]byte", UUID: "string", Time: "time.Time",
		JSON: "string", Int32s: "string", Int64s: "string", Texts: "string", UUIDs: "string",
	},
}

// SQLServerTypes are the types with which parameters are declared in T-SQL: a
// text that were declared with its length would have a plan of its own for every
// length. A name is, since a column that is compared with a longer type is
// converted. Ids are texts, since the driver swaps the bytes of a uniqueidentifier
// or not, as the connection string says ("guid conversion").
var SQLServerTypes = map[Type]string{
	Bool: "bit", Int16: "smallint", Int32: "int", Int64: "bigint", Text: "nvarchar(max)", Name: "nvarchar(128)", TextBytes: "nvarchar(max)",
	Bytes: "varbinary(max)", UUID: "nvarchar(128)", Time: "datetime2(7)",
	JSON: "nvarchar(max)", Int32s: "nvarchar(max)", Int64s: "nvarchar(max)", Texts: "nvarchar(max)", UUIDs: "nvarchar(max)",
}

// quoteSQLServer quotes every name: the words that need it differ between
// versions, and brackets work whatever QUOTED_IDENTIFIER says.
func quoteSQLServer(name string) string {
	return "[" + strings.ReplaceAll(name, "]", "]]") + "]"
}

// literalSQLServer writes s without line breaks: tools split scripts at a line
// GO, literals or not.
func literalSQLServer(s string) string {
	if !strings.ContainsAny(s, "\r\n") {
		return "N" + doubled(s, `'`)
	}
	r := strings.NewReplacer(`'`, `''`, "\r", "', NCHAR(13), N'", "\n", "', NCHAR(10), N'")
	return "CONCAT(N'" + r.Replace(s) + "')"
}
