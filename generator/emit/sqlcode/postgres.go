package sqlcode

import (
	"bytes"
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
	"text/template"

	"github.com/lanebox/lanebox/generator/dialect"
	"github.com/lanebox/lanebox/generator/model"
	"github.com/lanebox/lanebox/generator/output"
)

// postgresNameMax is the longest identifier PostgreSQL keeps; it cuts longer
// ones without an error.
const postgresNameMax = 63

// postgresSQL is what the templates of PostgreSQL read. Lists and matches are
// SQL text already.
type postgresSQL struct {
	Schema    string // quoted
	NewSchema bool   // not public: it may have to be created
	ForSQLC   bool   // written for sqlc, which cannot look into DO blocks
	Prefix    string // as in the schema; only for comments
	Payload   string // type of the outbox's payload column

	Destinations []postgresDestination
	Sources      []postgresSource
	Scopes       []Scope
	ScopeNumbers string // an integer[] literal of all scopes
	Leased       string // the same of those that have lanes
	Keyed, Dense string // text[] literals of topics; "" when there are none
	FanOut       bool   // a topic may go to several destinations

	Outbox, Inbox postgresQueue
}

// postgresDestination is one destination with the condition under which a topic
// goes there.
type postgresDestination struct {
	Number int32
	Name   string
	Match  string
	Last   bool
}

// postgresSource is one source with the scope its messages belong to.
type postgresSource struct {
	Number, Scope int32
	Name          string
}

// postgresQueue names what differs between outbox and inbox.
type postgresQueue struct {
	Name                        string // prefix of the queries
	Inbox                       bool
	Table, Dead, Sequence, Lane string // unqualified names
	Scope, Key, Topic, Payload  string // columns; Payload is the column's type
}

// A Scope is a row of lane_scope.
type Scope struct {
	Number int32
	Kind   string // "destination", "source", "push" or "push source"
	Name   string
}

// Leased reports whether the scope has lanes of its own. A push source has none:
// it is listed so that its removal is noticed.
func (s Scope) Leased() bool { return s.Kind != "push source" }

// Scopes returns the scopes of m: destinations, pull sources, push sources, and
// the one scope of all push sources together when there is any.
func Scopes(m *model.Model) []Scope {
	var scopes []Scope
	for _, d := range m.Destinations {
		scopes = append(scopes, Scope{d.Number, "destination", d.Name})
	}
	push := false
	for _, s := range m.Sources {
		kind := "push source"
		if s.Pull {
			kind = "source"
		}
		scopes = append(scopes, Scope{s.Number, kind, s.Name})
		push = push || !s.Pull
	}
	if push {
		scopes = append(scopes, Scope{model.PushScope, "push", "push"})
	}
	return scopes
}

// sourceScope returns the number of the lanes that a source's messages belong to.
func sourceScope(s *model.Source) int32 {
	if s.Pull {
		return s.Number
	}
	return model.PushScope
}

// emitPostgres returns the files of the PostgreSQL dialect.
func emitPostgres(m *model.Model) ([]output.File, error) {
	if err := checkPostgresNames(m.Database); err != nil {
		return nil, err
	}
	dir := path.Join(m.Go.Out, "postgres")
	steps, err := postgresSteps(m)
	if err != nil {
		return nil, err
	}
	var files []output.File
	for _, s := range steps {
		files = append(files, output.File{Path: path.Join(dir, "migrations", s.name), Data: s.file()})
	}
	schema, err := postgresSchema(m)
	if err != nil {
		return nil, err
	}
	queries, err := renderPostgres(m, "queries.sql.tmpl", false)
	if err != nil {
		return nil, err
	}
	store, err := storeCode(m, "postgres")
	if err != nil {
		return nil, err
	}
	return append(files,
		output.File{Path: path.Join(dir, "schema.sql"), Data: schema},
		output.File{Path: path.Join(dir, "queries.sql"), Data: queries},
		output.File{Path: path.Join(dir, "store.gen.go"), Data: store},
	), nil
}

// checkPostgresNames refuses a prefix or schema that PostgreSQL would cut.
func checkPostgresNames(db model.Database) error {
	longest := "lane_version_pkey"
	for _, n := range []string{"inbox_dead_idempotency", "inbox_idempotency", "outbox_sequence"} {
		if len(n) > len(longest) {
			longest = n
		}
	}
	if n := len(db.Prefix) + len(longest); n > postgresNameMax {
		return fmt.Errorf("prefix %q is too long: %s would have %d bytes, PostgreSQL keeps %d", db.Prefix, db.Prefix+longest, n, postgresNameMax)
	}
	if len(db.Schema) > postgresNameMax {
		return fmt.Errorf("schema name %q has %d bytes, PostgreSQL keeps %d", db.Schema, len(db.Schema), postgresNameMax)
	}
	return nil
}

// A step is one migration file.
type step struct {
	name string // "0001_outbox.sql"
	head string // comment lines under the header
	body []byte
}

// file returns the step as a migration file. The goose annotations are comments
// to tern and psql.
func (s step) file() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "-- %s\n%s\n-- +goose Up\n\n", output.Header, s.head)
	b.Write(s.body)
	return b.Bytes()
}

const (
	postgresStepHead = `-- A numbered step: it runs once, with "lanebox migrate", goose, tern or psql, in the order of its number.`
	// The repeatable part has no number: goose and tern need a copy of it with the
	// next number whenever it changes.
	postgresRepeatableHead = `-- The repeatable part: routes, triggers, scopes, buckets and views. "lanebox migrate" and psql apply it after the
-- numbered steps, whenever it changed; for goose or tern, copy it to a file with the next number. Repeating it is harmless.`
)

// postgresSteps returns the numbered steps and, last, the repeatable part.
func postgresSteps(m *model.Model) ([]step, error) {
	steps := []step{
		{name: "0001_outbox.sql", head: postgresStepHead},
		{name: "0002_inbox.sql", head: postgresStepHead},
		{name: "repeatable.sql", head: postgresRepeatableHead},
	}
	for i := range steps {
		body, err := renderPostgres(m, steps[i].name+".tmpl", false)
		if err != nil {
			return nil, err
		}
		steps[i].body = body
	}
	return steps, nil
}

// postgresSchema returns schema.sql: the state after all steps, without the
// annotations of migration tools. sqlc reads it, and so do people.
func postgresSchema(m *model.Model) ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "-- %s\n-- The whole database part in one piece, for sqlc and for readers. Databases are made by the migrations.\n", output.Header)
	for _, name := range []string{"0001_outbox.sql.tmpl", "0002_inbox.sql.tmpl", "repeatable.sql.tmpl"} {
		body, err := renderPostgres(m, name, true)
		if err != nil {
			return nil, err
		}
		b.WriteByte('\n')
		for line := range strings.Lines(string(body)) {
			if !strings.HasPrefix(line, "-- +goose ") {
				b.WriteString(line)
			}
		}
	}
	return b.Bytes(), nil
}

// renderPostgres executes one SQL template for m.
func renderPostgres(m *model.Model, name string, forSQLC bool) ([]byte, error) {
	d := dialect.Postgres
	schema := d.Quote(m.Database.SchemaIn("postgres"))
	funcs := template.FuncMap{
		"t":       func(name string) string { return schema + "." + d.Quote(m.Database.Prefix+name) },
		"n":       func(name string) string { return d.Quote(m.Database.Prefix + name) },
		"raw":     func(name string) string { return m.Database.Prefix + name },
		"lit":     d.Literal,
		"comment": comment,
	}
	return render("sql/postgres/"+name, funcs, newPostgresSQL(m, forSQLC))
}

// comment makes a name safe behind "--".
func comment(s string) string { return strings.Join(strings.Fields(s), " ") }

func newPostgresSQL(m *model.Model, forSQLC bool) postgresSQL {
	d, schema := dialect.Postgres, m.Database.SchemaIn("postgres")
	data := postgresSQL{
		Schema: d.Quote(schema), NewSchema: schema != "public", ForSQLC: forSQLC,
		Prefix: comment(m.Database.Prefix), Payload: "text", Scopes: Scopes(m), FanOut: fansOut(m),
	}
	if m.Binary {
		data.Payload = "bytea"
	}
	data.Outbox = postgresQueue{Name: "Outbox", Table: "outbox", Dead: "outbox_dead", Sequence: "outbox_sequence", Lane: "outbox_lane",
		Scope: "destination", Key: "key", Topic: "topic", Payload: data.Payload}
	data.Inbox = postgresQueue{Name: "Inbox", Inbox: true, Table: "inbox", Dead: "inbox_dead", Sequence: "inbox_sequence", Lane: "inbox_lane",
		Scope: "scope", Key: "aggregate_id", Topic: "event_type", Payload: "bytea"}
	for i := range m.Destinations {
		if match := postgresMatch(m, &m.Destinations[i]); match != "" {
			data.Destinations = append(data.Destinations, postgresDestination{Number: m.Destinations[i].Number, Name: m.Destinations[i].Name, Match: match})
		}
	}
	slices.SortFunc(data.Destinations, func(a, b postgresDestination) int { return cmp.Compare(a.Number, b.Number) })
	if n := len(data.Destinations); n > 0 {
		data.Destinations[n-1].Last = true
	}
	for i := range m.Sources {
		s := &m.Sources[i]
		data.Sources = append(data.Sources, postgresSource{s.Number, sourceScope(s), s.Name})
	}
	data.ScopeNumbers = postgresNumbers(data.Scopes, func(Scope) bool { return true })
	data.Leased = postgresNumbers(data.Scopes, Scope.Leased)
	data.Keyed = postgresArray(topicsOf(m, keyed))
	data.Dense = postgresArray(topicsOf(m, dense))
	return data
}

// postgresNumbers returns the numbers of the scopes that match as an integer[]
// literal.
func postgresNumbers(scopes []Scope, match func(Scope) bool) string {
	var numbers []string
	for _, s := range scopes {
		if match(s) {
			numbers = append(numbers, fmt.Sprint(s.Number))
		}
	}
	return "'{" + strings.Join(numbers, ",") + "}'::integer[]"
}

// fansOut reports whether a topic may go to more than one destination.
func fansOut(m *model.Model) bool {
	routed := map[int32]bool{}
	for _, r := range m.Routes {
		for _, d := range r.To {
			routed[d.Number] = true
		}
	}
	return len(routed) > 1
}

// topicsOf returns the topics of the events that match.
func topicsOf(m *model.Model, match func(*model.Event) bool) []string {
	var topics []string
	for i := range m.Events {
		if match(&m.Events[i]) {
			topics = append(topics, m.Events[i].Topic)
		}
	}
	return topics
}

// keyed matches the events with a key, dense those whose versions have no gaps.
func keyed(e *model.Event) bool { return e.Key != nil }
func dense(e *model.Event) bool { return e.Key != nil && e.Key.Version.Dense }

// postgresArray writes texts as a constant text[]: one constant, so that IN over
// many of them is a hash lookup.
func postgresArray(texts []string) string {
	if len(texts) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteByte('{')
	for i, s := range texts {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`)
	}
	b.WriteByte('}')
	return dialect.Postgres.Literal(b.String()) + "::text[]"
}

// postgresMatch returns the condition under which a topic goes to d: its exact
// topics in one list, its globs as LIKE patterns. "" means never.
func postgresMatch(m *model.Model, d *model.Destination) string {
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
			like := strings.NewReplacer(`!`, `!!`, `%`, `!%`, `_`, `!_`, `*`, `%`).Replace(pattern)
			conditions = append(conditions, `topic COLLATE "C" LIKE `+dialect.Postgres.Literal(like)+` ESCAPE '!'`)
		}
	}
	if len(exact) > 0 {
		slices.Sort(exact)
		conditions = slices.Insert(conditions, 0, "topic = ANY ("+postgresArray(slices.Compact(exact))+")")
	}
	return strings.Join(slices.Compact(conditions), " OR ")
}
