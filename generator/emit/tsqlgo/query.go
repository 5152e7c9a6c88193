package tsqlgo

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/dave/jennifer/jen"

	"github.com/lanebox/lanebox/generator/emit/sqlcode"
)

// maxParameters is how many parameters a call of SQL Server takes, less the two
// that carry the text and the declarations.
const maxParameters = 2100 - 2

// parameter matches parameters and variables, but not the server's own, which
// begin with @@.
var parameter = regexp.MustCompile(`@+[A-Za-z_][A-Za-z0-9_]*`)

// check refuses what would fail when the query runs.
func (s statement) check() error {
	var errs []error
	used := parameter.FindAllString(s.SQL, -1)
	for _, p := range s.Params {
		if t, ok := goTypes[p.Type]; !ok || t.send == nil {
			errs = append(errs, fmt.Errorf("parameter %s has type %s, which cannot be sent", p.Name, p.Type))
		}
		if !slices.Contains(used, "@"+p.Name) {
			errs = append(errs, fmt.Errorf("the text has no parameter @%s", p.Name))
		}
	}
	for _, c := range s.Columns {
		if _, ok := goTypes[c.Type]; !ok {
			errs = append(errs, fmt.Errorf("column %s has type %s, which cannot be read", c.Name, c.Type))
		}
	}
	if rows := s.Kind == sqlcode.One || s.Kind == sqlcode.Many; rows != (len(s.Columns) > 0) {
		errs = append(errs, fmt.Errorf("%s with %d columns", s.Kind, len(s.Columns)))
	}
	if len(s.Params) > maxParameters {
		errs = append(errs, fmt.Errorf("%d parameters are more than SQL Server takes", len(s.Params)))
	}
	return errors.Join(errs...)
}

// render writes the text, the types and the method of a query.
func (s statement) render(f *jen.File) {
	f.Line()
	f.Const().Id(s.ConstName()).Op("=").Op(quote("-- name: " + s.Name + " :" + string(s.Kind) + "\n" + strings.TrimSpace(s.SQL) + "\n"))
	f.Line()
	if len(s.Params) > 0 {
		f.Type().Id(s.Name + "Params").Struct(members(s.Params)...)
		f.Line()
	}
	if len(s.Columns) > 1 {
		f.Type().Id(s.Name + "Row").Struct(members(s.Columns)...)
		f.Line()
	}
	s.comment(f)
	f.Func().Params(jen.Id("q").Op("*").Id("Queries")).Id(s.Name).Params(s.params()...).Params(s.results()...).BlockFunc(s.body)
}

// quote writes text as a raw string where that is possible.
func quote(text string) string {
	if strconv.CanBackquote(strings.ReplaceAll(text, "\n", "")) {
		return "`" + text + "`"
	}
	return strconv.Quote(text)
}

func members(fields []sqlcode.Field) []jen.Code {
	list := make([]jen.Code, len(fields))
	for i, f := range fields {
		list[i] = jen.Id(f.GoName()).Add(goTypes[f.Type].code)
	}
	return list
}

// comment writes the doc comment.
func (s statement) comment(to interface {
	Comment(string) *jen.Statement
}) {
	for line := range strings.Lines(s.Comment) {
		line = strings.TrimPrefix(strings.TrimSpace(line), "--")
		to.Comment("// " + strings.TrimSpace(line))
	}
}

func (s statement) params() []jen.Code {
	list := []jen.Code{jen.Id("ctx").Qual("context", "Context")}
	if len(s.Params) > 0 {
		list = append(list, jen.Id("arg").Id(s.Name+"Params"))
	}
	return list
}

func (s statement) results() []jen.Code {
	switch s.Kind {
	case sqlcode.Exec:
		return []jen.Code{jen.Error()}
	case sqlcode.ExecRows:
		return []jen.Code{jen.Int64(), jen.Error()}
	case sqlcode.One:
		return []jen.Code{s.row(), jen.Error()}
	default:
		return []jen.Code{jen.Index().Add(s.row()), jen.Error()}
	}
}

// row is the type of a row: a single column has no struct around it.
func (s statement) row() *jen.Statement {
	if len(s.Columns) == 1 {
		return jen.Add(goTypes[s.Columns[0].Type].code)
	}
	return jen.Id(s.Name + "Row")
}

func (s statement) body(group *jen.Group) {
	switch s.Kind {
	case sqlcode.Exec:
		group.List(jen.Id("_"), jen.Err()).Op(":=").Add(s.call("ExecContext"))
		group.Return(jen.Err())
	case sqlcode.ExecRows:
		group.List(jen.Id("result"), jen.Err()).Op(":=").Add(s.call("ExecContext"))
		group.If(jen.Err().Op("!=").Nil()).Block(jen.Return(jen.Lit(0), jen.Err()))
		group.Return(jen.Id("result").Dot("RowsAffected").Call())
	default:
		group.List(jen.Id("rows"), jen.Err()).Op(":=").Add(s.call("QueryContext"))
		group.Return(jen.Id("read"+upper(string(s.Kind))).Call(jen.Id("rows"), jen.Err(), s.scan()))
	}
}

// call hands the query to the database.
func (s statement) call(method string) *jen.Statement {
	args := []jen.Code{jen.Id("ctx"), jen.Id(s.ConstName())}
	for _, p := range s.Params {
		args = append(args, jen.Qual("database/sql", "Named").Call(jen.Lit(p.Name), goTypes[p.Type].send(jen.Id("arg").Dot(p.GoName()))))
	}
	call := jen.Id("q").Dot("db").Dot(method)
	if len(s.Params) < 2 {
		return call.Call(args...)
	}
	// One parameter a line.
	return call.CallFunc(func(group *jen.Group) {
		group.Add(args[0])
		group.Add(args[1])
		for _, a := range args[2:] {
			group.Line().Add(a)
		}
		group.Line()
	})
}

// scan is the function that reads the current row.
func (s statement) scan() *jen.Statement {
	var fields []jen.Code
	if len(s.Columns) == 1 {
		fields = append(fields, jen.Id("i"))
	} else {
		for _, c := range s.Columns {
			fields = append(fields, jen.Op("&").Id("i").Dot(c.GoName()))
		}
	}
	return jen.Func().Params(jen.Id("i").Op("*").Add(s.row())).Error().Block(
		jen.Return(jen.Id("rows").Dot("Scan").Call(fields...)))
}

func upper(s string) string { return strings.ToUpper(s[:1]) + s[1:] }
