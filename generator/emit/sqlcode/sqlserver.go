package sqlcode

import (
	"bytes"
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
	"text/template"
	"unicode"
	"unicode/utf16"

	"github.com/lanebox/lanebox/generator/dialect"
	"github.com/lanebox/lanebox/generator/model"
	"github.com/lanebox/lanebox/generator/output"
)

// sqlServerNameMax is the longest identifier of SQL Server, in UTF-16 units, and
// sqlServerResourceMax the longest name of an application lock.
const (
	sqlServerNameMax     = 128
	sqlServerResourceMax = 255
)

// sqlServerBinary makes texts compare by their code units.
const sqlServerBinary = "COLLATE Latin1_General_100_BIN2"

// sqlServerSQL is what the templates of SQL Server read. Lists and matches are
// SQL text already.
type sqlServerSQL struct {
	RawSchema    string // not quoted
	NewSchema    bool   // not dbo: it may have to be created
	CreateSchema string // the statement that creates the schema
	Binary       bool   // the outbox stores bytes
	Payload      string // type of the outbox's payload column
	DataType     string // the same as INFORMATION_SCHEMA names it

	Destinations []sqlServerDestination
	Sources      []postgresSource
	Scopes       []Scope
	Keyed, Dense string // topics with a mark behind, as a list for IN; "" when there are none

	Outbox, Inbox sqlServerQueue
}

// sqlServerDestination is one destination with the condition under which @topic
// goes there.
type sqlServerDestination struct {
	Number int32
	Match  string
}

// sqlServerQueue names what differs between outbox and inbox.
type sqlServerQueue struct {
	Name              string // prefix of the queries
	Inbox, Text       bool   // Text: payloads are not bytes
	View, Table, Dead string // unqualified names
	Scope, Key, Topic string // columns, quoted where they must be
	Payload, Empty    string // type of the payload, and a literal of an empty one
	Hash              string // the lane of @key
}

// Removed is the condition under which a scope's column names none of the
// schema's scopes.
func (s sqlServerSQL) Removed(column string) string {
	if len(s.Scopes) == 0 {
		return "1 = 1"
	}
	numbers := make([]string, len(s.Scopes))
	for i, scope := range s.Scopes {
		numbers[i] = fmt.Sprint(scope.Number)
	}
	return column + " NOT IN (" + strings.Join(numbers, ", ") + ")"
}

// emitSQLServer returns the SQL files of the SQL Server dialect, and its store.
func emitSQLServer(m *model.Model) ([]output.File, error) {
	if err := checkSQLServerNames(m.Database); err != nil {
		return nil, err
	}
	dir := path.Join(m.Go.Out, "sqlserver")
	var files []output.File
	var schema bytes.Buffer
	fmt.Fprintf(&schema, "-- %s\n-- The whole database part in one piece, for readers. Databases are made by the migrations.\n", output.Header)
	for _, s := range sqlServerSteps {
		body, err := renderSQLServer(m, s.name+".tmpl")
		if err != nil {
			return nil, err
		}
		s.body = body
		files = append(files, output.File{Path: path.Join(dir, "migrations", s.name), Data: tidy(s.batches())})
		schema.WriteByte('\n')
		schema.Write(body)
	}
	queries, err := sqlServerText(m)
	if err != nil {
		return nil, err
	}
	store, err := storeCode(m, "sqlserver")
	if err != nil {
		return nil, err
	}
	return append(files,
		output.File{Path: path.Join(dir, "store.gen.go"), Data: store},
		output.File{Path: path.Join(dir, "schema.sql"), Data: tidy(schema.Bytes())},
		output.File{Path: path.Join(dir, "queries.sql"), Data: queries},
	), nil
}

// sqlServerSteps are the numbered steps and, last, the repeatable part.
var sqlServerSteps = []step{
	{name: "0001_outbox.sql", head: sqlServerStepHead},
	{name: "0002_inbox.sql", head: sqlServerStepHead},
	{name: "repeatable.sql", head: sqlServerRepeatableHead},
}

const (
	sqlServerStepHead = `-- A numbered step: it runs once, with "lanebox migrate" or "sqlcmd -b -I", in the order of its number. GO ends a batch.`
	// sqlcmd goes on after an error unless told otherwise, which would leave the
	// transaction of the repeatable part.
	sqlServerRepeatableHead = `-- The repeatable part: routes, triggers, scopes, buckets and views. "lanebox migrate" or "sqlcmd -b -I" applies it after the
-- numbered steps, whenever it changed. Repeating it is harmless. GO ends a batch.`
)

// batches returns the step as a file of batches, each ended by a line GO.
func (s step) batches() []byte {
	return fmt.Appendf(nil, "-- %s\n%s\n\n%s", output.Header, s.head, s.body)
}

// checkSQLServerNames refuses a prefix or schema that SQL Server would refuse, with
// which the names of locks would be cut, or at which a script could be split.
func checkSQLServerNames(db model.Database) error {
	units := func(s string) int { return len(utf16.Encode([]rune(s))) }
	schema := db.SchemaIn("sqlserver")
	if strings.ContainsFunc(schema+db.Prefix, unicode.IsControl) {
		return fmt.Errorf("schema name %q and prefix %q must not have control characters for SQL Server", schema, db.Prefix)
	}
	if n := units(schema); n > sqlServerNameMax {
		return fmt.Errorf("schema name %q has %d characters, SQL Server takes %d", schema, n, sqlServerNameMax)
	}
	const longest = "inbox_position_pkey"
	if n := units(db.Prefix) + len(longest); n > sqlServerNameMax {
		return fmt.Errorf("prefix %q is too long: %s would have %d characters, SQL Server takes %d", db.Prefix, db.Prefix+longest, n, sqlServerNameMax)
	}
	if n := units(schema+db.Prefix) + len(".outbox:-9223372036854775808"); n > sqlServerResourceMax {
		return fmt.Errorf("schema name %q and prefix %q are too long together: the name of a lock would have %d characters, SQL Server takes %d", schema, db.Prefix, n, sqlServerResourceMax)
	}
	return nil
}

// renderSQLServer executes one SQL template for m.
func renderSQLServer(m *model.Model, name string) ([]byte, error) {
	return render("sql/sqlserver/"+name, sqlServerFuncs(m.Database), newSQLServerSQL(m))
}

// sqlServerLocks takes the locks of lanes, in the order of their numbers; the
// batch declares @wait.
type sqlServerLocks struct {
	In       string // indentation
	Resource string // the start of the locks' names, a literal
	Lanes    string // a query of distinct lanes
}

// sqlServerFuncs are the functions of the templates.
func sqlServerFuncs(db model.Database) template.FuncMap {
	d := dialect.SQLServer
	schema := db.SchemaIn("sqlserver")
	resource := func(queue string) string { return d.Literal(schema + "." + db.Prefix + queue + ":") }
	locksIn := func(in, queue, lanes string) sqlServerLocks { return sqlServerLocks{in, resource(queue), lanes} }
	return template.FuncMap{
		"t":       func(name string) string { return d.Quote(schema) + "." + d.Quote(db.Prefix+name) },
		"n":       func(name string) string { return d.Quote(db.Prefix + name) },
		"raw":     func(name string) string { return comment(db.Prefix + name) },
		"rawName": func(name string) string { return db.Prefix + name },
		"lit":     d.Literal,
		"bin":     func() string { return sqlServerBinary },
		"past":    func() string { return "ROWLOCK, READPAST, READCOMMITTEDLOCK" },
		"hash":    sqlServerHash,
		"random":  func() string { return sqlServerRandom },
		"lane":    sqlServerLane,
		"bytes": func(key string) string {
			return sqlServerBytes(d.Quote(schema)+"."+d.Quote(db.Prefix+"key_bytes"), key)
		},
		"badKey":   sqlServerBadKey,
		"later":    func(ms string) string { return sqlServerShift("", ms) },
		"ago":      func(ms string) string { return sqlServerShift("-", ms) },
		"resource": resource,
		"locks":    func(queue, lanes string) sqlServerLocks { return locksIn("  ", queue, lanes) },
		"locksIn":  locksIn,
	}
}

// sqlServerRandom is the unordered lane of a random bucket.
const sqlServerRandom = "CONVERT(bigint, 144115188075855872) * ((CHECKSUM(NEWID()) & 127) - 64)"

// sqlServerHash is the keyed lane of a text: odd, and from all of its bytes.
func sqlServerHash(text string) string {
	return "CONVERT(bigint, SUBSTRING(HASHBYTES('SHA2_256', " + text + "), 1, 8)) | CONVERT(bigint, 1)"
}

// sqlServerLane is the lane of a key, of which text is hashed. An empty key is
// none; a comparison would take blanks for it.
func sqlServerLane(key, text string) string {
	return "CASE WHEN DATALENGTH(" + key + ") > 0 THEN " + sqlServerHash(text) + " ELSE " + sqlServerRandom + " END"
}

// sqlServerBytes is the size of a key as function counts it; 0 for a key that
// needs no counting, because it is short and of printable ASCII.
func sqlServerBytes(function, key string) string {
	marked := "CONCAT(" + key + ", N'.')"
	return "CASE WHEN LEN(" + marked + ") > 256 OR " + marked + " " + sqlServerBinary + " LIKE N'%[^ -~]%' THEN " + function + "(" + key + ") ELSE 0 END"
}

// sqlServerBadKey is the reason why a key of so many bytes is refused.
func sqlServerBadKey(noun, bytes string) string {
	return "CASE WHEN " + bytes + " < 0 THEN N'" + noun + " contains U+0000 or half of a surrogate pair' ELSE CONCAT(N'" + noun + " has ', " + bytes + ", N' bytes; the limit is 255') END"
}

// sqlServerShift is the server's clock moved by milliseconds. DATEADD takes an
// int, which 25 days in milliseconds do not fit in.
func sqlServerShift(sign, ms string) string {
	return "DATEADD(millisecond, " + sign + "(" + ms + " % 86400000), DATEADD(day, " + sign + "(" + ms + " / 86400000), SYSUTCDATETIME()))"
}

func newSQLServerSQL(m *model.Model) sqlServerSQL {
	d := dialect.SQLServer
	schema := m.Database.SchemaIn("sqlserver")
	data := sqlServerSQL{
		RawSchema: schema, NewSchema: schema != "dbo", CreateSchema: "CREATE SCHEMA " + d.Quote(schema),
		Binary: m.Binary, Payload: "nvarchar(max)", DataType: "nvarchar", Scopes: Scopes(m),
	}
	empty := "N''"
	if m.Binary {
		data.Payload, data.DataType, empty = "varbinary(max)", "varbinary", "0x"
	}
	data.Outbox = sqlServerQueue{Name: "Outbox", Text: !m.Binary, View: "outbox", Table: "outbox_row", Dead: "outbox_dead",
		Scope: "destination", Key: "[key]", Topic: "topic", Payload: data.Payload, Empty: empty, Hash: sqlServerHash("@key")}
	data.Inbox = sqlServerQueue{Name: "Inbox", Inbox: true, View: "inbox", Table: "inbox_row", Dead: "inbox_dead",
		Scope: "scope", Key: "aggregate_id", Topic: "event_type", Payload: "varbinary(max)", Empty: "0x", Hash: sqlServerHash("CONCAT(@scope, N':', @key)")}
	for i := range m.Destinations {
		if match := sqlServerMatch(m, &m.Destinations[i]); match != "" {
			data.Destinations = append(data.Destinations, sqlServerDestination{m.Destinations[i].Number, match})
		}
	}
	slices.SortFunc(data.Destinations, func(a, b sqlServerDestination) int { return cmp.Compare(a.Number, b.Number) })
	for i := range m.Sources {
		s := &m.Sources[i]
		data.Sources = append(data.Sources, postgresSource{s.Number, sourceScope(s), s.Name})
	}
	data.Keyed = sqlServerList(topicsOf(m, keyed))
	data.Dense = sqlServerList(topicsOf(m, dense))
	return data
}

// sqlServerMark stands behind a topic wherever topics are compared: SQL Server
// ignores trailing blanks otherwise.
const sqlServerMark = "|"

// sqlServerList writes topics as the elements of an IN, with the mark.
func sqlServerList(topics []string) string {
	quoted := make([]string, len(topics))
	for i, t := range topics {
		quoted[i] = dialect.SQLServer.Literal(t + sqlServerMark)
	}
	return strings.Join(quoted, ", ")
}

// sqlServerMatch returns the condition under which @topic goes to d: its exact
// topics in one list, its globs as LIKE patterns. "" means never.
func sqlServerMatch(m *model.Model, d *model.Destination) string {
	const topic = "CONCAT(@topic, N'" + sqlServerMark + "') " + sqlServerBinary
	var exact, conditions []string
	for _, r := range m.Routes {
		if !slices.ContainsFunc(r.To, func(to *model.Destination) bool { return to.Number == d.Number }) {
			continue
		}
		for _, pattern := range r.Events {
			if !strings.ContainsAny(pattern, "*") {
				exact = append(exact, pattern)
				continue
			}
			like := strings.NewReplacer(`!`, `!!`, `%`, `!%`, `_`, `!_`, `[`, `![`, `*`, `%`).Replace(pattern)
			conditions = append(conditions, topic+` LIKE `+dialect.SQLServer.Literal(like+sqlServerMark)+` ESCAPE N'!'`)
		}
	}
	if len(exact) > 0 {
		slices.Sort(exact)
		conditions = slices.Insert(conditions, 0, topic+" IN ("+sqlServerList(slices.Compact(exact))+")")
	}
	return strings.Join(slices.Compact(conditions), " OR ")
}

// A Statement is a query of the model with the text that a package sends.
type Statement struct {
	Query
	Comment string // lines starting with "-- "
	SQL     string // one batch, without a line break at its end
}

// SQLServerQueries returns the queries of SQL Server with their texts, in the
// order of queries.sql.
func SQLServerQueries(m *model.Model) ([]Statement, error) {
	text, err := renderSQLServer(m, "queries.sql.tmpl")
	if err != nil {
		return nil, err
	}
	texts := map[string]Statement{}
	for block := range strings.SplitSeq(string(text), "\n\n") {
		comments, rest, ok := strings.Cut(strings.TrimSpace(block), "-- name: ")
		if !ok {
			continue
		}
		head, sql, _ := strings.Cut(rest, "\n")
		texts[head] = Statement{Comment: strings.TrimSpace(comments), SQL: strings.TrimSpace(sql)}
	}
	var statements []Statement
	for _, q := range Queries("sqlserver", m.Binary) {
		head := q.Name + " :" + string(q.Kind)
		s, ok := texts[head]
		if !ok {
			return nil, fmt.Errorf("queries.sql has no text for %s", head)
		}
		delete(texts, head)
		s.Query = q
		statements = append(statements, s)
	}
	for head := range texts {
		return nil, fmt.Errorf("queries.sql has %s, which the query model has not", head)
	}
	return statements, nil
}

// sqlServerText returns queries.sql: the template's text, with the parameters of
// every query declared under its name.
func sqlServerText(m *model.Model) ([]byte, error) {
	text, err := renderSQLServer(m, "queries.sql.tmpl")
	if err != nil {
		return nil, err
	}
	queries := map[string]Query{}
	for _, q := range Queries("sqlserver", m.Binary) {
		queries["-- name: "+q.Name+" :"+string(q.Kind)] = q
	}
	var b bytes.Buffer
	for line := range strings.Lines(string(text)) {
		b.WriteString(line)
		if q, ok := queries[strings.TrimSpace(line)]; ok && len(q.Params) > 0 {
			fmt.Fprintf(&b, "-- params: %s\n", SQLServerParams(q))
		}
	}
	return tidy(b.Bytes()), nil
}

// SQLServerParams declares the parameters of a query in T-SQL.
func SQLServerParams(q Query) string {
	params := make([]string, len(q.Params))
	for i, p := range q.Params {
		params[i] = "@" + p.Name + " " + dialect.SQLServerTypes[p.Type]
	}
	return strings.Join(params, ", ")
}
