// Package dialect knows what differs between the databases: how an identifier
// is quoted, how a text literal is written, and which Go type sqlc gives to the
// types of the query model. It holds facts, no behaviour.
package dialect

import (
	"fmt"
	"strings"
)

// A Type is the type of a query's parameter or column, whatever the database.
type Type string

// The types that queries use. The plural ones are arrays; a dialect without
// arrays carries them as one JSON text.
const (
	Bool      Type = "bool"
	Int16     Type = "int16"
	Int32     Type = "int32"
	Int64     Type = "int64"
	Text      Type = "text"
	TextNull  Type = "text?"
	Int64Null Type = "int64?"
	Bytes     Type = "bytes"
	UUID      Type = "uuid"
	Duration  Type = "duration"
	Time      Type = "time"

	// Name is a short text of few values, which a query compares with a column.
	Name Type = "name"
	// TextBytes is text in the database and []byte in Go.
	TextBytes Type = "textbytes"
	// JSON is an array of objects in one JSON text.
	JSON Type = "json"

	Int16s    Type = "int16s"
	Int32s    Type = "int32s"
	Int64s    Type = "int64s"
	Texts     Type = "texts"
	Bytess    Type = "bytess"
	UUIDs     Type = "uuids"
	Durations Type = "durations"
	Bools     Type = "bools"
)

// A Dialect is one database.
type Dialect struct {
	// Name is "postgres", "sqlite" or "sqlserver"; folders and Go packages are named
	// after it.
	Name string
	// Engine is sqlc's name of the dialect; "" when sqlc does not know it.
	Engine string
	// Quote quotes an identifier where it must be.
	Quote func(name string) string
	// Literal writes a text literal.
	Literal func(s string) string
	// GoTypes are the Go types of the generated query code, as they are written in
	// its files. A type that is missing cannot be used with the dialect.
	GoTypes map[Type]string
}

// ByName returns the dialect with the given name.
func ByName(name string) (*Dialect, error) {
	for _, d := range all {
		if d.Name == name {
			return d, nil
		}
	}
	return nil, fmt.Errorf("unknown dialect %q", name)
}

// Names returns the names of all dialects.
func Names() []string {
	var names []string
	for _, d := range all {
		names = append(names, d.Name)
	}
	return names
}

// doubled puts s between two quotes and doubles those inside.
func doubled(s, quote string) string {
	return quote + strings.ReplaceAll(s, quote, quote+quote) + quote
}

// words turns a list of words into a set.
func words(list string) map[string]bool {
	set := map[string]bool{}
	for _, w := range strings.Fields(list) {
		set[w] = true
	}
	return set
}
