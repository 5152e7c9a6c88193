package tsqlgo

import (
	"slices"

	"github.com/dave/jennifer/jen"

	"github.com/lanebox/lanebox/generator/dialect"
	"github.com/lanebox/lanebox/generator/emit/sqlcode"
)

// readers renders the functions that the queries share, as far as one of the
// statements needs them.
func readers(f *jen.File, statements []statement) {
	uses := func(match func(statement) bool) bool { return slices.ContainsFunc(statements, match) }
	of := func(kind sqlcode.Kind) func(statement) bool { return func(s statement) bool { return s.Kind == kind } }
	if uses(of(sqlcode.Many)) || uses(of(sqlcode.One)) {
		readMany(f)
	}
	if uses(of(sqlcode.One)) {
		readOne(f)
	}
	if uses(func(s statement) bool {
		return slices.ContainsFunc(s.Params, func(p sqlcode.Field) bool { return p.Type == dialect.Bytes })
	}) {
		notNull(f)
	}
}

// generic are the parameters of a function that reads rows of type T.
func generic(name string, result *jen.Statement) *jen.Statement {
	return jen.Func().Id(name).Types(jen.Id("T").Any()).Params(
		jen.Id("rows").Op("*").Qual("database/sql", "Rows"), jen.Err().Error(), jen.Id("scan").Func().Params(jen.Op("*").Id("T")).Error(),
	).Params(result, jen.Error())
}

func returnErr() *jen.Statement {
	return jen.If(jen.Err().Op("!=").Nil()).Block(jen.Return(jen.Nil(), jen.Err()))
}

func readMany(f *jen.File) {
	next := func(method string) *jen.Statement { return jen.Id("rows").Dot(method).Call() }
	f.Line()
	f.Comment("// readMany reads all rows and waits for the end of the batch: closing a result earlier")
	f.Comment("// would cancel what the batch has left to do, and hide its errors.")
	f.Add(generic("readMany", jen.Index().Id("T"))).Block(
		returnErr(),
		jen.Defer().Add(next("Close")),
		jen.Var().Id("items").Index().Id("T"),
		jen.For(next("Next")).Block(
			jen.Var().Id("i").Id("T"),
			jen.If(jen.Err().Op(":=").Id("scan").Call(jen.Op("&").Id("i")), jen.Err().Op("!=").Nil()).Block(jen.Return(jen.Nil(), jen.Err())),
			jen.Id("items").Op("=").Append(jen.Id("items"), jen.Id("i"))),
		jen.For(next("NextResultSet")).Block(jen.For(next("Next")).Block()),
		jen.If(jen.Err().Op(":=").Add(next("Err")), jen.Err().Op("!=").Nil()).Block(jen.Return(jen.Nil(), jen.Err())),
		jen.Return(jen.Id("items"), jen.Nil()))
}

func readOne(f *jen.File) {
	f.Line()
	f.Comment("// readOne reads the first row, as readMany does; without any, the error is sql.ErrNoRows.")
	f.Add(generic("readOne", jen.Id("T"))).Block(
		jen.Var().Id("none").Id("T"),
		jen.List(jen.Id("items"), jen.Err()).Op(":=").Id("readMany").Call(jen.Id("rows"), jen.Err(), jen.Id("scan")),
		jen.If(jen.Err().Op("!=").Nil()).Block(jen.Return(jen.Id("none"), jen.Err())),
		jen.If(jen.Len(jen.Id("items")).Op("==").Lit(0)).Block(jen.Return(jen.Id("none"), jen.Qual("database/sql", "ErrNoRows"))),
		jen.Return(jen.Id("items").Index(jen.Lit(0)), jen.Nil()))
}

func notNull(f *jen.File) {
	f.Line()
	f.Comment("// notNull returns b, or no bytes for nil, which would be sent as NULL.")
	f.Func().Id("notNull").Params(jen.Id("b").Index().Byte()).Index().Byte().Block(
		jen.If(jen.Id("b").Op("==").Nil()).Block(jen.Return(jen.Index().Byte().Values())),
		jen.Return(jen.Id("b")))
}
