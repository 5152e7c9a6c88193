package sqlcode

import (
	"bytes"
	"fmt"
	"go/format"
	"path"
	"slices"
	"strings"
	"text/template"

	"github.com/lanebox/lanebox/generator/dialect"
	"github.com/lanebox/lanebox/generator/model"
	"github.com/lanebox/lanebox/generator/output"
)

// sqliteFiles maps every template to the file it makes, below the dialect's
// folder.
var sqliteFiles = []struct{ template, file string }{
	{"sql/sqlite/schema.sql.tmpl", "schema.sql"},
	{"sql/sqlite/queries.sql.tmpl", "queries.sql"},
	{"sql/sqlite/step1.sql.tmpl", "migrations/0001_outbox.sql"},
	{"sql/sqlite/step2.sql.tmpl", "migrations/0002_inbox.sql"},
	{"sql/sqlite/repeatable.sql.tmpl", "migrations/repeatable.sql"},
	{"go/sqlite/store.go.tmpl", "store.gen.go"},
}

// emitSQLite returns the files of the SQLite dialect.
func emitSQLite(m *model.Model) ([]output.File, error) {
	v := newSQLiteView(m)
	var files []output.File
	for _, f := range sqliteFiles {
		data, err := render(f.template, v.funcs(), v)
		if err != nil {
			return nil, err
		}
		if strings.HasSuffix(f.file, ".go") {
			if data, err = format.Source(data); err != nil {
				return nil, fmt.Errorf("%s: %w", f.file, err)
			}
		}
		files = append(files, output.File{Path: path.Join(m.Go.Out, "sqlite", f.file), Data: tidy(data)})
	}
	return files, nil
}

// tidy ends a file with exactly one line break.
func tidy(data []byte) []byte { return append(bytes.TrimSpace(data), '\n') }

// sqliteNow is the database's clock in milliseconds since 1970, and sqliteUUID a
// random UUID; both work from SQLite 3.35 on.
const (
	sqliteNow  = `(CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER))`
	sqliteUUID = `(lower(hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' ||
              substr(hex(randomblob(2)), 2) || '-' || substr('89AB', 1 + (random() & 3), 1) ||
              substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6))))`
)

// A sqliteView is what the templates of SQLite read.
type sqliteView struct {
	*model.Model
	// Payload is the type that the outbox's payload is written with.
	Payload string
	Queues  []sqliteQueue
	Routes  []sqliteRoute
	Keyed   []sqliteKeyed
	// Dense are the topics whose versions the database numbers.
	Dense   []string
	FanOut  bool
	Sources []sqliteSource
	Scopes  []sqliteScope
}

// A sqliteQueue is the outbox or the inbox: the same queries with other names.
type sqliteQueue struct {
	Name, Table, Dead, Scope, Key, Topic string
	Inbox                                bool
}

// Lower is the queue's name inside a Go name.
func (q sqliteQueue) Lower() string { return strings.ToLower(q.Name) }

// TopicField is the Go field of the topic's column.
func (q sqliteQueue) TopicField() string {
	if q.Inbox {
		return "EventType"
	}
	return "Topic"
}

// A sqliteRoute sends topics that match Pattern to a destination.
type sqliteRoute struct {
	Destination int32
	Pattern     string // for GLOB
}

// A sqliteKeyed is the refusal of a missing key, for the topics of one key.
type sqliteKeyed struct {
	Message string
	Topics  []string
}

type sqliteSource struct {
	Name          string
	Number, Scope int32
}

type sqliteScope struct {
	Number     int32
	Kind, Name string
}

func newSQLiteView(m *model.Model) *sqliteView {
	v := &sqliteView{Model: m, Payload: "TEXT", Queues: []sqliteQueue{
		{"Outbox", "outbox", "outbox_dead", "destination", `"key"`, "topic", false},
		{"Inbox", "inbox", "inbox_dead", "scope", "aggregate_id", "event_type", true},
	}}
	if m.Binary {
		v.Payload = "BLOB"
	}
	v.addRoutes()
	v.addKeys()
	v.addScopes()
	return v
}

// addRoutes lists every pair of destination and pattern once, in the order of
// the destinations' numbers.
func (v *sqliteView) addRoutes() {
	for _, r := range v.Model.Routes {
		for _, to := range r.To {
			for _, e := range r.Events {
				route := sqliteRoute{to.Number, sqliteGlob(e)}
				if !slices.Contains(v.Routes, route) {
					v.Routes = append(v.Routes, route)
				}
			}
		}
	}
	slices.SortStableFunc(v.Routes, func(a, b sqliteRoute) int { return int(int64(a.Destination) - int64(b.Destination)) })
	v.FanOut = len(v.Routes) > 0 && v.Routes[0].Destination != v.Routes[len(v.Routes)-1].Destination
}

// sqliteGlob turns a glob of the schema, in which only * is special, into one of
// SQLite.
func sqliteGlob(glob string) string {
	return strings.NewReplacer("?", "[?]", "[", "[[]").Replace(glob)
}

// addKeys collects the topics that need a key, and those with dense versions.
func (v *sqliteView) addKeys() {
	for _, e := range v.Events {
		if e.Key == nil {
			continue
		}
		message := "key is empty, but the event declares key " + e.Key.Name
		i := slices.IndexFunc(v.Keyed, func(k sqliteKeyed) bool { return k.Message == message })
		if i < 0 {
			i = len(v.Keyed)
			v.Keyed = append(v.Keyed, sqliteKeyed{Message: message})
		}
		v.Keyed[i].Topics = append(v.Keyed[i].Topics, e.Topic)
		if e.Key.Version.Dense {
			v.Dense = append(v.Dense, e.Topic)
		}
	}
}

// addScopes lists destinations, sources, and what push sources share.
func (v *sqliteView) addScopes() {
	for _, d := range v.Destinations {
		v.Scopes = append(v.Scopes, sqliteScope{d.Number, "destination", d.Name})
	}
	push := false
	for _, s := range v.Model.Sources {
		scope, kind := s.Number, "source"
		if !s.Pull {
			scope, kind, push = model.PushScope, "push source", true
		}
		v.Sources = append(v.Sources, sqliteSource{s.Name, s.Number, scope})
		v.Scopes = append(v.Scopes, sqliteScope{s.Number, kind, s.Name})
	}
	if push {
		v.Scopes = append(v.Scopes, sqliteScope{model.PushScope, "push", "push"})
	}
}

// PushScope is the number of the scope that all push sources share.
func (v *sqliteView) PushScope() int32 { return model.PushScope }

// PullSources are the sources with lanes of their own.
func (v *sqliteView) PullSources() []model.Source {
	return slices.DeleteFunc(slices.Clone(v.Model.Sources), func(s model.Source) bool { return !s.Pull })
}

// funcs are the functions of the templates.
func (v *sqliteView) funcs() template.FuncMap {
	d := dialect.SQLite
	raw := func(table string) string { return v.Database.Prefix + table }
	return template.FuncMap{
		"t":    func(table string) string { return d.Quote(raw(table)) },
		"raw":  func(table string) string { return comment(raw(table)) },
		"lit":  d.Literal,
		"lits": func(list []string) string { return sqliteList(list, d.Literal) },
		"now":  func() string { return sqliteNow },
		"uuid": func() string { return sqliteUUID },
		"uuidGlob": func() string {
			hex := func(n int) string { return strings.Repeat("[0-9A-Fa-f]", n) }
			return strings.Join([]string{hex(8), hex(4), hex(4), hex(4), hex(12)}, "-")
		},
		"refuse": sqliteRefuse,
		"checks": func(verb, topic, column, noun string) sqliteChecks {
			return sqliteChecks{verb, topic, column, noun}
		},
	}
}

// sqliteChecks are the rules for a key, which the outbox calls key and the inbox
// aggregate id.
type sqliteChecks struct{ Verb, Topic, Column, Noun string }

// Refuse writes the refusal of the key; COLUMN in the reason is its column.
func (c sqliteChecks) Refuse(reason string) string {
	return sqliteRefuse(c.Verb, c.Topic, dialect.SQLite.Literal(c.Noun)+" || "+strings.ReplaceAll(reason, "COLUMN", c.Column))
}

// sqliteRefuse writes an expression that fails inside a trigger with a message
// that package sqlstore/sqlite recognises: "lanebox: VERB TOPIC: REASON". topic
// is the column of the topic, reason an SQL expression of a text without ": ".
func sqliteRefuse(verb, topic, reason string) string {
	return "json_extract('{}', 'lanebox: " + verb + " ' || NEW." + topic + " || ': ' || " + reason + ")"
}

// sqliteList writes literals with commas between them.
func sqliteList(list []string, literal func(string) string) string {
	quoted := make([]string, len(list))
	for i, s := range list {
		quoted[i] = literal(s)
	}
	return strings.Join(quoted, ", ")
}
