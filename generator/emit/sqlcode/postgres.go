package sqlcode

import (
	"github.com/lanebox/lanebox/generator/model"
	"github.com/lanebox/lanebox/generator/output"
)

// postgresQueries returns the query model of PostgreSQL.
func postgresQueries(binary bool) []Query { return nil }

// emitPostgres returns the files of the PostgreSQL dialect.
func emitPostgres(m *model.Model) ([]output.File, error) { return nil, nil }
