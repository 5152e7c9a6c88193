// Package deps keeps module requirements until their users exist.
package deps

import (
	_ "github.com/dave/jennifer/jen"
	_ "github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/rogpeppe/go-internal/testscript"
	_ "github.com/sqlc-dev/sqlc/pkg/cli"
	_ "gopkg.in/yaml.v3"
	_ "modernc.org/sqlite"
)
