package gocode

import "github.com/dave/jennifer/jen"

// sqlserver renders the package of SQL Server. Nothing there tells other
// processes of new messages: they find them by polling.
func (g *generator) sqlserver(f *jen.File) {
	f.ImportAlias(rtSQLServer, "mssqlstore")
	w := &wiring{
		g: g, dialect: "sqlserver", product: "SQL Server", handle: "db", migrate: "SQLServer",
		handleType: func() *jen.Statement { return jen.Op("*").Qual("database/sql", "DB") },
		txType:     func() *jen.Statement { return jen.Op("*").Qual("database/sql", "Tx") },
		inTx: func(fn *jen.Statement) *jen.Statement {
			return jen.Qual(rtSQLServer, "InTx").Call(jen.Id("ctx"), jen.Id("db"), fn)
		},
		inTxDoc: "When publishing fails, the whole transaction is lost, whatever fn returns. Run InTx again from\n" +
			"the start, which is worth it when the error is an *event.RetryableError.",
		store: func() *jen.Statement { return jen.Id("NewStore").Call(jen.Id("db"), jen.Id("c").Dot("CallTimeout")) },
		start: func() *jen.Statement {
			return jen.Func().Params(jen.Id("ctx").Qual("context", "Context")).Error().Block(
				jen.Return(jen.Id("store").Dot("Start").Call(jen.Id("ctx"), jen.Id("c").Dot("Logger"))))
		},
		settings: func(member func(name string, t *jen.Statement, text string)) {
			member("CallTimeout", jen.Qual("time", "Duration"), "CallTimeout bounds every call of lanebox to the database; 0 means 30 s, which is also the least.")
		},
		checks: func() *jen.Statement {
			return jen.Qual(rtSQLServer, "CheckCallTimeout").Call(jen.Id("c").Dot("CallTimeout"))
		},
	}
	w.render(f)
}
