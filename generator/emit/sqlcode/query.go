// Package sqlcode writes everything of a service that is SQL or stands directly
// on it: tables, migrations, annotated queries, the configuration of sqlc, and
// the store that implements the runtime's seams with sqlc's code.
//
// Every query is declared once, in the query model: its name, its kind, its
// typed parameters and its typed columns. Templates supply the text of a
// dialect. After sqlc ran, package sqlc compares its Go code with the model, so
// that a parameter that sqlc dropped, or a column it could not type, is found.
package sqlcode

import (
	"github.com/lanebox/lanebox/generator/dialect"
)

// A Kind is what sqlc makes of a query.
type Kind string

// The kinds of queries.
const (
	Exec     Kind = "exec"
	ExecRows Kind = "execrows"
	One      Kind = "one"
	Many     Kind = "many"
)

// A Field is a parameter or a column.
type Field struct {
	Name string // snake_case
	Type dialect.Type
}

// A Query is one query of the model.
type Query struct {
	// Name is the name after "-- name:" and of sqlc's method.
	Name string
	Kind Kind
	// Params are in the order in which sqlc numbers them: the parts of a statement
	// in the order of its grammar, its WITH list last.
	Params []Field
	// Columns are the columns of a row; empty for Exec and ExecRows.
	Columns []Field
}

// Queries returns the queries of a dialect, in the order of its queries.sql.
// binary says that the outbox stores bytes instead of text.
func Queries(name string, binary bool) []Query {
	switch name {
	case "postgres":
		return postgresQueries()
	case "sqlite":
		return sqliteQueries(binary)
	case "sqlserver":
		return sqlServerQueries(binary)
	default:
		return nil
	}
}

// fields reads "name type, name type, …" into fields.
func fields(list ...any) []Field {
	fs := make([]Field, 0, len(list)/2)
	for i := 0; i < len(list); i += 2 {
		fs = append(fs, Field{Name: list[i].(string), Type: list[i+1].(dialect.Type)})
	}
	return fs
}
