package sqlcode

import (
	"github.com/lanebox/lanebox/generator/model"
	"github.com/lanebox/lanebox/generator/output"
)

// sqliteQueries returns the query model of SQLite.
func sqliteQueries(binary bool) []Query { return nil }

// emitSQLite returns the files of the SQLite dialect.
func emitSQLite(m *model.Model) ([]output.File, error) { return nil, nil }
