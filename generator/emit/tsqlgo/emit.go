// Package tsqlgo writes the Go bindings of SQL Server's queries: the package
// internal/db in the shape in which sqlc, which does not know that database,
// writes it for the others. Types and names come from the query model alone, the
// texts are those of queries.sql.
//
// It differs from sqlc's code in two things that are only to be seen inside a
// method. Parameters are sent by name and with a type that does not depend on
// their value, so that a query has one plan. And results are read to the end
// also where one row is wanted: the driver cancels what a batch has left to do
// when a result is closed before that.
package tsqlgo

import (
	"bytes"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/dave/jennifer/jen"

	"github.com/lanebox/lanebox/generator/emit/imports"
	"github.com/lanebox/lanebox/generator/emit/sqlcode"
	"github.com/lanebox/lanebox/generator/output"
)

const mssql = "github.com/microsoft/go-mssqldb"

// A statement is a query of the model and its text, a batch in which every
// parameter stands as @name.
type statement struct{ sqlcode.Statement }

// Emit returns the files of the package in the folder dir. It fails when a
// statement lacks a parameter of its query or has a type that SQL Server's
// queries do not use.
func Emit(dir string, list []sqlcode.Statement) ([]output.File, error) {
	statements := make([]statement, len(list))
	for i, s := range list {
		statements[i] = statement{s}
		if err := statements[i].check(); err != nil {
			return nil, fmt.Errorf("query %s: %w", s.Name, err)
		}
	}
	slices.SortFunc(statements, func(a, b statement) int { return strings.Compare(a.Name, b.Name) })
	var files []output.File
	for _, f := range []struct {
		name   string
		render func(*jen.File, []statement)
	}{
		{"db.gen.go", bindings}, {"models.gen.go", models}, {"querier.gen.go", querier}, {"queries.sql.gen.go", queries},
	} {
		file := jen.NewFilePathName(dir, "db")
		file.HeaderComment("// " + output.Header)
		file.ImportAlias(mssql, "mssql")
		f.render(file, statements)
		var b bytes.Buffer
		if err := file.Render(&b); err != nil {
			return nil, fmt.Errorf("render %s: %w", f.name, err)
		}
		files = append(files, output.File{Path: path.Join(dir, f.name), Data: imports.Group(b.Bytes(), "")})
	}
	return files, nil
}

// bindings renders what carries the queries: DBTX, Queries and how they read
// results.
func bindings(f *jen.File, statements []statement) {
	ctx := func() *jen.Statement { return jen.Qual("context", "Context") }
	anys := func() *jen.Statement { return jen.Op("...").Any() }
	f.Type().Id("DBTX").Interface(
		jen.Id("ExecContext").Params(ctx(), jen.String(), anys()).Params(jen.Qual("database/sql", "Result"), jen.Error()),
		jen.Id("PrepareContext").Params(ctx(), jen.String()).Params(jen.Op("*").Qual("database/sql", "Stmt"), jen.Error()),
		jen.Id("QueryContext").Params(ctx(), jen.String(), anys()).Params(jen.Op("*").Qual("database/sql", "Rows"), jen.Error()),
		jen.Id("QueryRowContext").Params(ctx(), jen.String(), anys()).Op("*").Qual("database/sql", "Row"),
	)
	f.Line()
	f.Func().Id("New").Params(jen.Id("db").Id("DBTX")).Op("*").Id("Queries").Block(
		jen.Return(jen.Op("&").Id("Queries").Values(jen.Dict{jen.Id("db"): jen.Id("db")})))
	f.Line()
	f.Type().Id("Queries").Struct(jen.Id("db").Id("DBTX"))
	f.Line()
	f.Func().Params(jen.Id("q").Op("*").Id("Queries")).Id("WithTx").Params(jen.Id("tx").Op("*").Qual("database/sql", "Tx")).Op("*").Id("Queries").Block(
		jen.Return(jen.Op("&").Id("Queries").Values(jen.Dict{jen.Id("db"): jen.Id("tx")})))
	readers(f, statements)
}

// models renders an empty file: no query returns a whole table.
func models(*jen.File, []statement) {}

func querier(f *jen.File, statements []statement) {
	f.Type().Id("Querier").InterfaceFunc(func(group *jen.Group) {
		for _, s := range statements {
			s.comment(group)
			group.Id(s.Name).Params(s.params()...).Params(s.results()...)
		}
	})
	f.Line()
	f.Var().Id("_").Id("Querier").Op("=").Parens(jen.Op("*").Id("Queries")).Parens(jen.Nil())
}

func queries(f *jen.File, statements []statement) {
	f.HeaderComment("// source: queries.sql")
	for _, s := range statements {
		s.render(f)
	}
}
