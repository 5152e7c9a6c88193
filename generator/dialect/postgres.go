package dialect

import "regexp"

var all = []*Dialect{Postgres, SQLite, SQLServer}

// Postgres is PostgreSQL 13 and later, through pgx.
var Postgres = &Dialect{
	Name:    "postgres",
	Engine:  "postgresql",
	Quote:   quotePostgres,
	Literal: literalPostgres,
	GoTypes: map[Type]string{
		Bool: "bool", Int16: "int16", Int32: "int32", Int64: "int64", Text: "string", TextNull: "*string",
		Int64Null: "*int64", Bytes: "[]byte", UUID: "pgtype.UUID", Duration: "time.Duration", Time: "time.Time",
		Int16s: "[]int16", Int32s: "[]int32", Int64s: "[]int64", Texts: "[]string", Bytess: "[][]byte",
		UUIDs: "[]pgtype.UUID", Durations: "[]time.Duration", Bools: "[]bool",
	},
}

// plain matches what PostgreSQL reads as written without quotes.
var plain = regexp.MustCompile(`^[a-z_][a-z0-9_]*$`)

// quotePostgres quotes name unless it is a lower-case identifier that is no
// reserved word.
func quotePostgres(name string) string {
	if plain.MatchString(name) && !reservedPostgres[name] {
		return name
	}
	return doubled(name, `"`)
}

// literalPostgres writes s so that it reads the same whatever
// standard_conforming_strings says: a text with a backslash becomes E'…'.
func literalPostgres(s string) string {
	quoted := doubled(s, `'`)
	for i := range len(s) {
		if s[i] == '\\' {
			return "E" + backslash.ReplaceAllString(quoted, `\\`)
		}
	}
	return quoted
}

var backslash = regexp.MustCompile(`\\`)

// reservedPostgres are the words that cannot be a table's or a schema's name
// without quotes.
var reservedPostgres = words(`
all analyse analyze and any array as asc asymmetric authorization between
bigint binary bit boolean both case cast char character check coalesce collate
collation column concurrently constraint create cross current_catalog
current_date current_role current_schema current_time current_timestamp
current_user dec decimal default deferrable desc distinct do else end except
exists extract false fetch float for foreign freeze from full grant greatest
group grouping having ilike in initially inner inout int integer intersect
interval into is isnull join lateral leading least left like limit localtime
localtimestamp national natural nchar none normalize not notnull null nullif
numeric offset on only or order out outer overlaps overlay placing position
precision primary real references returning right row select session_user
setof similar smallint some substring symmetric table tablesample then time
timestamp to trailing treat trim true union unique user using values varchar
variadic verbose when where window with xmlattributes xmlconcat xmlelement
xmlexists xmlforest xmlnamespaces xmlparse xmlpi xmlroot xmlserialize xmltable`)
