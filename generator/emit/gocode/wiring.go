package gocode

import (
	"fmt"
	"slices"

	"github.com/dave/jennifer/jen"

	"github.com/lanebox/lanebox/generator/model"
)

// A wiring renders the package of one dialect.
type wiring struct {
	g       *generator
	dialect string // name of the package, of the dialect and, in prose, of the database
	product string // the database's own name
	handle  string // what the service's database handle is called
	// handleType and txType are the Go types of handle and transaction.
	handleType, txType func() *jen.Statement
	// inTx returns the statement that runs fn in a transaction of the handle.
	inTx func(fn *jen.Statement) *jen.Statement
	// inTxDoc is what the comment of InTx says besides; "" means nothing.
	inTxDoc string
	// store returns the new store; nil means that NewStore takes the handle alone.
	store func() *jen.Statement
	// waker returns the lane.Waker, nil if there is none; migrate is the function
	// of package migrate.
	waker   func() *jen.Statement
	migrate string
	// announce tells other processes that messages may be waiting; nil if none
	// can hear.
	announce func() *jen.Statement
	// start returns a function that refuses a database at the start of Run; nil
	// if there is nothing to refuse.
	start func() *jen.Statement
	// settings adds members to Config; checks returns an expression for what New
	// refuses of them. Both are nil if there are none.
	settings func(member func(name string, t *jen.Statement, text string))
	checks   func() *jen.Statement
}

func (g *generator) postgres(f *jen.File) {
	f.ImportAlias(rtPostgres, "pgstore")
	w := &wiring{
		g: g, dialect: "postgres", product: "PostgreSQL", handle: "pool", migrate: "Postgres",
		handleType: func() *jen.Statement { return jen.Op("*").Qual(pgxpool, "Pool") },
		txType:     func() *jen.Statement { return jen.Qual(pgx, "Tx") },
		inTx: func(fn *jen.Statement) *jen.Statement {
			return jen.Qual(rtPostgres, "InTx").Call(jen.Id("ctx"), jen.Id("pool"), fn)
		},
		waker: func() *jen.Statement {
			return jen.Qual(rtPostgres, "NewWaker").Call(jen.Id("pool"), jen.Lit(g.m.Database.SchemaIn("postgres")), jen.Lit(g.m.Database.Prefix))
		},
		announce: func() *jen.Statement {
			return jen.Qual(rtPostgres, "AnnounceSoon").Call(jen.Id("pool"), jen.Lit(g.m.Database.SchemaIn("postgres")), jen.Lit(g.m.Database.Prefix))
		},
		start: func() *jen.Statement {
			return jen.Func().Params(jen.Id("ctx").Qual("context", "Context")).Error().Block(
				jen.Return(jen.Qual(rtPostgres, "CheckIsolation").Call(jen.Id("ctx"), jen.Id("pool"))))
		},
	}
	w.render(f)
}

func (g *generator) sqlite(f *jen.File) {
	f.ImportAlias(rtSQLite, "sqlitestore")
	w := &wiring{
		g: g, dialect: "sqlite", product: "SQLite", handle: "db", migrate: "SQLite",
		handleType: func() *jen.Statement { return jen.Op("*").Qual("database/sql", "DB") },
		txType:     func() *jen.Statement { return jen.Op("*").Qual("database/sql", "Tx") },
		inTx: func(fn *jen.Statement) *jen.Statement {
			return jen.Qual(rtSQLite, "Write").Call(jen.Id("ctx"), jen.Id("db"), fn)
		},
		waker: func() *jen.Statement { return jen.Qual(rtSQLite, "NewWaker").Call(jen.Id("db")) },
	}
	w.render(f)
}

func (w *wiring) render(f *jen.File) {
	f.PackageComment(fmt.Sprintf("// Package %s keeps the events of package %s in %s.", w.dialect, oneLine(w.g.m.Go.Package), w.product))
	w.publishing(f)
	w.aliases(f)
	w.config(f)
	w.check(f)
	w.constructor(f)
	w.loops(f)
	w.box(f)
	w.migration(f)
}

func (w *wiring) events(name string) *jen.Statement { return jen.Qual(w.g.m.Go.Import, name) }

func (w *wiring) db() *jen.Statement { return jen.Id(w.handle).Add(w.handleType()) }

// publishing renders In and InTx.
func (w *wiring) publishing(f *jen.File) {
	comment(f, "running are the boxes of this package that run in this process.")
	f.Var().Id("running").Qual(rtBox, "Running")
	f.Line()
	comment(f, "In returns a publisher that stores events in tx. They are delivered after tx has committed,\nand never if it is rolled back.")
	w.publisherFunc(f, "In", w.txType(), "Appender")
	if w.dialect == "postgres" {
		f.Line()
		comment(f, "InSQL is In for a transaction of database/sql on pgx's driver.")
		w.publisherFunc(f, "InSQL", jen.Op("*").Qual("database/sql", "Tx"), "SQLAppender")
	}
	f.Line()
	others := ""
	nudge := jen.If(jen.Err().Op("==").Nil()).Block(jen.Id("running").Dot("Nudge").Call())
	if w.announce != nil {
		others = "; without any, those of\nother processes are told"
		nudge = jen.If(jen.Err().Op("==").Nil().Op("&&").Op("!").Id("running").Dot("Nudge").Call()).Block(w.announce())
	}
	comment(f, "InTx runs fn in a transaction and commits it when fn returns nil. Boxes that run in this\n"+
		"process look for the new messages at once"+others+". Publish last, and keep "+
		"the transaction\nshort: until it commits, other transactions that publish under the same keys wait for it."+paragraph(w.inTxDoc))
	f.Func().Id("InTx").Params(jen.Id("ctx").Qual("context", "Context"), w.db(), w.fnParam()).Error().Block(
		jen.Err().Op(":=").Add(w.inTx(jen.Func().Params(jen.Id("tx").Add(w.txType())).Error().Block(
			jen.Return(jen.Id("fn").Call(jen.Id("tx"), w.events("NewPublisher").Call(jen.Id("Appender").Call(jen.Id("tx")))))))),
		nudge,
		jen.Return(jen.Err()))
}

// paragraph puts an empty line before a text, unless it is empty.
func paragraph(text string) string {
	if text == "" {
		return ""
	}
	return "\n\n" + text
}

func (w *wiring) fnParam() *jen.Statement {
	return jen.Id("fn").Func().Params(jen.Id("tx").Add(w.txType()), jen.Id("pub").Op("*").Add(w.events("Publisher"))).Error()
}

func (w *wiring) publisherFunc(f *jen.File, name string, tx *jen.Statement, appender string) {
	f.Func().Id(name).Params(jen.Id("tx").Add(tx)).Op("*").Add(w.events("Publisher")).Block(
		jen.Return(w.events("NewPublisher").Call(jen.Id("running").Dot("Nudging").Call(jen.Id(appender).Call(jen.Id("tx"))))))
}

// aliases fixes the transaction type of handlers and hooks.
func (w *wiring) aliases(f *jen.File) {
	for i := range w.g.m.Sources {
		s := &w.g.m.Sources[i]
		alias := func(name, what string) {
			f.Line()
			comment(f, fmt.Sprintf("%s %s of source %s in transactions of %s.", name, what, s.Name, w.product))
			f.Type().Id(name).Op("=").Add(w.events(name)).Index(w.txType())
		}
		if s.Pull {
			alias(s.GoName+"Handler", "handles the messages")
		}
		if s.Map {
			alias(s.GoName+"Map", "maps the messages")
		}
	}
}

// config renders what the service provides.
func (w *wiring) config(f *jen.File) {
	f.Line()
	comment(f, "Config is what the service provides. Fields of destinations and sources are required.")
	f.Type().Id("Config").StructFunc(func(group *jen.Group) {
		member := func(name string, t *jen.Statement, text string) {
			comment(group, text)
			group.Id(name).Add(t)
		}
		for i := range w.g.m.Destinations {
			d := &w.g.m.Destinations[i]
			member(d.GoName, jen.Qual(rtOutbox, "Destination"), doc(fmt.Sprintf("%s is destination %s.", d.GoName, d.Name), d.Doc))
		}
		for i := range w.g.m.Sources {
			s := &w.g.m.Sources[i]
			if s.Pull {
				member(s.GoName, jen.Id(s.GoName+"Handler"), fmt.Sprintf("%s handles the messages of source %s.", s.GoName, s.Name))
			}
			if s.Map {
				member(s.GoName+"Map", jen.Id(s.GoName+"Map"), fmt.Sprintf("%sMap turns the messages of source %s into events.", s.GoName, s.Name))
			}
			if s.Type == "http" {
				member(s.GoName+"Verifier", jen.Qual(rtWebhook, "Verifier"),
					fmt.Sprintf("%sVerifier checks that requests to source %s are genuine.", s.GoName, s.Name))
			}
			if s.Broker != nil {
				member(s.GoName+"From", jen.Qual(rtInbox, "Source"),
					fmt.Sprintf("%sFrom brings the messages of source %s, whose topology is events.%sTopology.", s.GoName, s.Name, s.GoName))
			}
		}
		group.Line()
		member("Logger", jen.Op("*").Qual("log/slog", "Logger"), "Logger hears of what goes wrong; nil means slog.Default().")
		member("Observer", jen.Func().Params(jen.Qual(rtEngine, "Event")), "Observer is told everything that happens; nil means nobody. It is called from several\ngoroutines, one call at a time per destination or source, and must not block.")
		if w.settings != nil {
			w.settings(member)
		}
		member("PollInterval", jen.Qual("time", "Duration"), "PollInterval is how often the database is asked for messages that nobody announced;\n0 means 1 s.")
		member("Grace", jen.Qual("time", "Duration"), "Grace is how long Run waits, after its context has ended, for what is in flight; 0 means 20 s.")
	})
}

// check renders what New refuses.
func (w *wiring) check(f *jen.File) {
	line := func(code *jen.Statement) jen.Code { return jen.Line().Add(code) }
	var checks, endpoints []jen.Code
	required := func(name string) {
		checks = append(checks, line(jen.Qual(rtBox, "Required").Call(jen.Lit(name), jen.Id("c").Dot(name))))
	}
	for i := range w.g.m.Destinations {
		d := &w.g.m.Destinations[i]
		required(d.GoName)
		endpoints = append(endpoints, line(jen.Qual(rtBox, "Endpoint").Values(
			jen.Id("Name").Op(":").Lit(d.Name),
			jen.Id("Destination").Op(":").Id("c").Dot(d.GoName),
			jen.Id("Keyed").Op(":").Lit(w.g.keyed(d)))))
	}
	for i := range w.g.m.Sources {
		for _, name := range configFields(&w.g.m.Sources[i]) {
			required(name)
		}
	}
	if w.checks != nil {
		checks = append(checks, line(w.checks()))
	}
	if len(endpoints) > 1 {
		checks = append(checks, line(jen.Qual(rtBox, "Distinct").Call(append(endpoints, jen.Line())...)))
	}
	f.Line()
	comment(f, "check returns what is missing, and destinations that are one.")
	f.Func().Params(jen.Id("c").Id("Config")).Id("check").Params().Error().Block(
		jen.Return(jen.Qual("errors", "Join").Call(append(checks, jen.Line())...)))
}

// keyed reports whether ordered messages may be sent to d: those of an event
// with a key, or what push sources bring.
func (g *generator) keyed(d *model.Destination) bool {
	return g.hasPush() || slices.ContainsFunc(g.m.Events, func(e model.Event) bool {
		return e.Key != nil && slices.ContainsFunc(e.Destinations, func(to *model.Destination) bool { return to.Name == d.Name })
	})
}

// constructor renders New and what it is made of.
func (w *wiring) constructor(f *jen.File) {
	f.Line()
	comment(f, "New returns the outbox and inbox of the service. It does not touch the database.")
	f.Func().Id("New").Params(w.db(), jen.Id("c").Id("Config")).Params(jen.Op("*").Id("Box"), jen.Error()).Block(
		jen.List(jen.Id("b"), jen.Err()).Op(":=").Id("c").Dot("build").Call(jen.Id(w.handle)),
		jen.If(jen.Err().Op("!=").Nil()).Block(jen.Return(jen.Nil(), jen.Qual("fmt", "Errorf").Call(jen.Lit(w.dialect+".New: %w"), jen.Err()))),
		jen.Return(jen.Id("b"), jen.Nil()))
	f.Line()
	f.Func().Params(jen.Id("c").Id("Config")).Id("build").Params(w.db()).Params(jen.Op("*").Id("Box"), jen.Error()).BlockFunc(func(group *jen.Group) {
		group.If(jen.Err().Op(":=").Id("c").Dot("check").Call(), jen.Err().Op("!=").Nil()).Block(jen.Return(jen.Nil(), jen.Err()))
		group.Id("store").Op(":=").Add(w.newStore())
		receivers, sources, feeds, inProcess := w.receivers(group)
		w.process(group)
		if sources != nil {
			group.List(jen.Id("mux"), jen.Err()).Op(":=").Qual(rtWebhook, "NewMux").Call(sources...)
			returnNilErr(group)
		}
		parts := jen.Qual(rtBox, "Config").BlockFunc(func(group *jen.Group) {
			group.Id("Process").Op(":").Id("process").Op(",")
			group.Id("Running").Op(":").Op("&").Id("running").Op(",")
			if w.start != nil {
				group.Id("Start").Op(":").Add(w.start()).Op(",")
			}
			if receivers != nil {
				group.Id("Receivers").Op(":").Index().Op("*").Qual(rtInbox, "Receiver").Values(receivers...).Op(",")
			}
			if sources != nil {
				group.Id("Sources").Op(":").Id("mux").Op(",")
			}
			if feeds != nil {
				group.Id("Feeds").Op(":").Index().Qual(rtBox, "Feed").Values(append(feeds, jen.Line())...).Op(",")
				group.Id("Grace").Op(":").Id("c").Dot("Grace").Op(",")
			}
		})
		group.Id("b").Op(":=").Qual(rtBox, "New").Call(parts)
		group.Return(jen.Op("&").Id("Box").Values(append([]jen.Code{
			jen.Id("Box").Op(":").Id("b"), jen.Id(w.handle).Op(":").Id(w.handle)}, inProcess...)...), jen.Nil())
	})
}

func (w *wiring) newStore() *jen.Statement {
	if w.store != nil {
		return w.store()
	}
	return jen.Id("NewStore").Call(jen.Id(w.handle))
}

func returnNilErr(group *jen.Group) {
	group.If(jen.Err().Op("!=").Nil()).Block(jen.Return(jen.Nil(), jen.Err()))
}

// receivers renders a receiver per source and an HTTP handler per HTTP source.
// It returns their variables, the feeds of sources at brokers, and the members of
// Box for the other sources.
func (w *wiring) receivers(group *jen.Group) (receivers, sources, feeds, inProcess []jen.Code) {
	for i := range w.g.m.Sources {
		s := &w.g.m.Sources[i]
		receiver, source := "receive"+s.GoName, "source"+s.GoName
		group.Id(receiver).Op(":=").Qual(rtInbox, "NewReceiver").Call(
			w.events(s.GoName+"Receiver").Call(jen.Id("store"), jen.Id("c").Dot("Logger")))
		receivers = append(receivers, jen.Id(receiver))
		if s.Broker != nil {
			feeds = append(feeds, jen.Line().Values(
				jen.Id("Name").Op(":").Lit(s.Name),
				jen.Id("Source").Op(":").Id("c").Dot(s.GoName+"From"),
				jen.Id("Receiver").Op(":").Id(receiver)))
			continue
		}
		if s.Type != "http" {
			inProcess = append(inProcess, jen.Id(receiver).Op(":").Id(receiver))
			continue
		}
		group.List(jen.Id(source), jen.Err()).Op(":=").Qual(rtWebhook, "NewSource").Call(
			jen.Id(receiver), w.events(s.GoName+"SourceConfig").Call(jen.Id("c").Dot("Logger")), jen.Id("c").Dot(s.GoName+"Verifier"))
		returnNilErr(group)
		sources = append(sources, jen.Id(source))
	}
	return receivers, sources, feeds, inProcess
}

func (w *wiring) process(group *jen.Group) {
	group.List(jen.Id("process"), jen.Err()).Op(":=").Qual(rtEngine, "NewProcess").Call(
		jen.Qual(rtEngine, "ProcessConfig").BlockFunc(func(group *jen.Group) {
			group.Id("Keeper").Op(":").Id("store").Op(",")
			if w.waker != nil {
				group.Id("Waker").Op(":").Add(w.waker()).Op(",")
			}
			for _, name := range []string{"Logger", "Observer", "PollInterval", "Grace"} {
				group.Id(name).Op(":").Id("c").Dot(name).Op(",")
			}
		}), jen.Id("c").Dot("loops").Call(jen.Id("store")).Op("..."))
	returnNilErr(group)
}

// loops renders one loop per destination and pull source, and the relay.
func (w *wiring) loops(f *jen.File) {
	member := func(name string, value *jen.Statement) jen.Code { return jen.Id(name).Op(":").Add(value).Op(",") }
	logger := member("Logger", jen.Id("c").Dot("Logger"))
	f.Line()
	comment(f, "loops returns what delivers: a poller per destination, the relay, a worker per pull source.")
	f.Func().Params(jen.Id("c").Id("Config")).Id("loops").Params(jen.Id("store").Op("*").Id("Store")).Index().Op("*").Qual(rtEngine, "Loop").Block(
		jen.Return(jen.Index().Op("*").Qual(rtEngine, "Loop").BlockFunc(func(group *jen.Group) {
			for i := range w.g.m.Destinations {
				d := &w.g.m.Destinations[i]
				group.Qual(rtOutbox, "NewPoller").Call(jen.Qual(rtOutbox, "PollerConfig").Block(
					member("Name", jen.Lit(d.Name)),
					member("Scope", w.events(d.GoName+"Destination")),
					member("Store", jen.Id("store").Dot(d.GoName+"Destination").Call()),
					member("Destination", jen.Id("c").Dot(d.GoName)),
					member("Policy", w.events(d.GoName+"DestinationPolicy").Call()),
				)).Op(",")
			}
			if w.g.hasPush() {
				group.Add(w.relay(member, logger)).Op(",")
			}
			for i := range w.g.m.Sources {
				s := &w.g.m.Sources[i]
				if !s.Pull {
					continue
				}
				group.Qual(rtInbox, "NewWorker").Call(jen.Qual(rtInbox, "WorkerConfig").Index(w.txType()).Block(
					member("Name", jen.Lit(s.Name)),
					member("Scope", w.events(s.GoName+"Source")),
					member("Store", jen.Id("store").Dot(s.GoName+"Source").Call()),
					member("Pull", jen.Id("store").Dot(s.GoName+"Source").Call()),
					member("Handlers", w.events("Handle"+s.GoName).Call(jen.Id("c").Dot(s.GoName))),
					logger,
					member("Policy", w.events(s.GoName+"SourcePolicy").Call()),
				)).Op(",")
			}
		})))
}

func (w *wiring) relay(member func(string, *jen.Statement) jen.Code, logger jen.Code) *jen.Statement {
	members := []jen.Code{
		member("Scope", w.events("PushSources")),
		member("Store", jen.Id("store").Dot("Push").Call()),
		member("Push", jen.Id("store").Dot("Push").Call()),
		member("Routed", w.events("Routed")),
	}
	var hooks []jen.Code
	for i := range w.g.m.Sources {
		if s := &w.g.m.Sources[i]; s.Map {
			hooks = append(hooks, jen.Lit(s.Name).Op(":").Add(w.events("Remap"+s.GoName)).Call(jen.Id("c").Dot(s.GoName+"Map")).Op(","))
		}
	}
	if hooks != nil {
		members = append(members, member("Remap", jen.Map(jen.String()).Qual(rtInbox, "Remap").Index(w.txType()).Block(hooks...)))
	}
	if w.g.m.Binary {
		members = append(members, member("Binary", jen.True()))
	}
	return jen.Qual(rtInbox, "NewRelay").Call(jen.Qual(rtInbox, "RelayConfig").Index(w.txType()).Block(append(members, logger)...))
}

// box renders the Box type and its methods.
func (w *wiring) box(f *jen.File) {
	f.Line()
	comment(f, "A Box runs the outbox and inbox of the service: Run delivers until its context ends, Receiver\n"+
		"returns the handler of all HTTP sources, Nudge says that messages may be waiting. It is safe\nfor concurrent use.")
	f.Type().Id("Box").StructFunc(func(group *jen.Group) {
		group.Op("*").Qual(rtBox, "Box")
		group.Id(w.handle).Add(w.handleType())
		for i := range w.g.m.Sources {
			if s := &w.g.m.Sources[i]; inProcess(s) {
				group.Id("receive"+s.GoName).Op("*").Qual(rtInbox, "Receiver")
			}
		}
	})
	f.Line()
	comment(f, "InTx runs fn in a transaction of the database of b; see the function InTx.")
	f.Func().Params(jen.Id("b").Op("*").Id("Box")).Id("InTx").Params(jen.Id("ctx").Qual("context", "Context"), w.fnParam()).Error().Block(
		jen.Return(jen.Id("InTx").Call(jen.Id("ctx"), jen.Id("b").Dot(w.handle), jen.Id("fn"))))
	for i := range w.g.m.Sources {
		if s := &w.g.m.Sources[i]; inProcess(s) {
			f.Line()
			comment(f, fmt.Sprintf("%sReceiver returns the receiver of source %s, for the transport that feeds it.", s.GoName, s.Name))
			f.Func().Params(jen.Id("b").Op("*").Id("Box")).Id(s.GoName+"Receiver").Params().Op("*").Qual(rtInbox, "Receiver").Block(
				jen.Return(jen.Id("b").Dot("receive" + s.GoName)))
		}
	}
}

// inProcess reports whether code of the service feeds a source.
func inProcess(s *model.Source) bool { return s.Type != "http" && s.Broker == nil }

// migration renders Migrate.
func (w *wiring) migration(f *jen.File) {
	f.Line()
	f.Comment("//go:embed migrations/*.sql")
	f.Var().Id("migrations").Qual("embed", "FS")
	f.Line()
	comment(f, "Migrate brings the tables, routes and triggers of the database to the state of the schema. It\n"+
		"may be called at every start: a lock lets one process migrate while the others wait.")
	f.Func().Id("Migrate").Params(jen.Id("ctx").Qual("context", "Context"), w.db()).Params(jen.Qual(rtMigrate, "Report"), jen.Error()).Block(
		jen.List(jen.Id("set"), jen.Err()).Op(":=").Qual(rtMigrate, "Files").Call(jen.Id("migrations")),
		jen.If(jen.Err().Op("!=").Nil()).Block(jen.Return(jen.Qual(rtMigrate, "Report").Values(), jen.Err())),
		jen.List(jen.Id("set").Dot("Schema"), jen.Id("set").Dot("Prefix")).Op("=").
			List(jen.Lit(w.g.m.Database.SchemaIn(w.dialect)), jen.Lit(w.g.m.Database.Prefix)),
		jen.Id("set").Dot("Scopes").Op("=").Index().Qual(rtMigrate, "Scope").BlockFunc(w.scopes),
		jen.Return(jen.Qual(rtMigrate, w.migrate).Call(jen.Id("ctx"), jen.Id(w.handle), jen.Id("set"))))
}

func (w *wiring) scopes(group *jen.Group) {
	scope := func(number jen.Code, kind, name string) {
		group.Values(jen.Id("Number").Op(":").Int32().Parens(number), jen.Id("Kind").Op(":").Qual(rtMigrate, kind), jen.Id("Name").Op(":").Lit(name)).Op(",")
	}
	for i := range w.g.m.Destinations {
		d := &w.g.m.Destinations[i]
		scope(w.events(d.GoName+"Destination"), "KindDestination", d.Name)
	}
	for i := range w.g.m.Sources {
		s := &w.g.m.Sources[i]
		kind := "KindPushSource"
		if s.Pull {
			kind = "KindSource"
		}
		scope(w.events(s.GoName+"Source"), kind, s.Name)
	}
	if w.g.hasPush() {
		scope(w.events("PushSources"), "KindPush", "push")
	}
}
