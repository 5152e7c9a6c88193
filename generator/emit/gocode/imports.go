package gocode

import (
	"fmt"
	"go/token"
	"go/types"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/lanebox/lanebox/generator/model"
)

// The packages of the runtime that generated code imports.
const (
	rtRuntime  = "github.com/lanebox/lanebox/runtime"
	rtEvent    = rtRuntime + "/event"
	rtLane     = rtRuntime + "/lane"
	rtSchedule = rtRuntime + "/schedule"
	rtEngine   = rtRuntime + "/engine"
	rtOutbox   = rtRuntime + "/outbox"
	rtInbox    = rtRuntime + "/inbox"
	rtBox      = rtRuntime + "/box"
	rtMigrate  = rtRuntime + "/migrate"
	rtTopology = rtRuntime + "/topology"
	rtWebhook  = rtRuntime + "/transport/webhook"
	rtHandler  = rtRuntime + "/transport/handler"
	rtPostgres = rtRuntime + "/sqlstore/postgres"
	rtSQLite   = rtRuntime + "/sqlstore/sqlite"

	rtSQLServer = rtRuntime + "/sqlstore/sqlserver"

	pgx     = "github.com/jackc/pgx/v5"
	pgxpool = "github.com/jackc/pgx/v5/pgxpool"
)

// knownNames are the names of imported packages, so that no alias is written.
var knownNames = map[string]string{
	rtEvent: "event", rtLane: "lane", rtSchedule: "schedule", rtEngine: "engine", rtOutbox: "outbox", rtInbox: "inbox",
	rtBox: "box", rtMigrate: "migrate", rtTopology: "topology", rtWebhook: "webhook", rtHandler: "handler",
	pgx: "pgx", pgxpool: "pgxpool",
	"cmp": "cmp", "context": "context", "database/sql": "sql", "encoding/json": "json", "log/slog": "slog",
	"net/http": "http", "strconv": "strconv", "time": "time",
}

// taken are the names that an import of the service's own must not get: those
// of other imports and of the parameters, variables and functions of generated
// code.
var taken = map[string]bool{
	"lbruntime": true, "pgstore": true, "sqlitestore": true, "mssqlstore": true, "postgres": true, "sqlite": true, "sqlserver": true, "events": true,
	"b": true, "c": true, "ctx": true, "e": true, "err": true, "fn": true, "h": true, "k": true, "key": true,
	"hook": true, "i": true, "list": true, "m": true, "p": true, "opts": true, "payload": true, "plain": true,
	"pool": true, "db": true, "pub": true, "tx": true, "v": true, "data": true, "text": true, "parts": true,
	"drafts": true, "keyed": true, "draft": true, "own": true, "store": true, "loops": true, "process": true,
	"fmt": true, "errors": true, "strings": true, "migrations": true, "db_": true, "topic": true, "appender": true,
	"message": true, "messages": true, "eventType": true, "set": true, "value": true,
}

func init() {
	for _, name := range knownNames {
		taken[name] = true
	}
}

var majorVersion = regexp.MustCompile(`^v[0-9]+$`)

// importAlias returns a name for an import path whose package name is not known:
// the last element that is not a major version, cut down to letters and digits.
func importAlias(importPath string) string {
	base := path.Base(importPath)
	if majorVersion.MatchString(base) && path.Dir(importPath) != "." {
		base = path.Base(path.Dir(importPath))
	}
	base = strings.TrimPrefix(strings.TrimSuffix(base, "-go"), "go-")
	base, _, _ = strings.Cut(base, ".v")
	alias := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return -1
	}, strings.ToLower(base))
	alias = strings.TrimLeft(alias, "0123456789")
	if alias == "" || token.IsKeyword(alias) || types.Universe.Lookup(alias) != nil || taken[alias] {
		alias += "pkg"
	}
	return alias
}

// A collector finds the types that events and keys are made of.
type collector struct {
	g       *generator
	seen    map[any]bool
	imports []string
}

func (c *collector) event(e *model.Event) {
	if e.GoType != nil {
		c.foreign(e.GoType)
	} else if e.Struct != nil {
		c.object(e.Struct)
	}
}

func (c *collector) visit(t model.Type) {
	switch t.Kind {
	case model.Enum:
		if !c.seen[t.Enum] {
			c.seen[t.Enum] = true
			c.g.enums = append(c.g.enums, t.Enum)
		}
	case model.Object:
		c.object(t.Struct)
	case model.List, model.Map:
		c.visit(*t.Elem)
	case model.Foreign:
		c.foreign(t.GoType)
	}
}

func (c *collector) object(s *model.Struct) {
	if c.seen[s] {
		return
	}
	c.seen[s] = true
	c.g.structs = append(c.g.structs, s)
	for _, f := range s.Fields {
		c.visit(f.Type)
	}
}

func (c *collector) foreign(t *model.GoType) {
	if !slices.Contains(c.imports, t.Import) {
		c.imports = append(c.imports, t.Import)
	}
}

// aliases names the imports so that no two get the same name, whatever file
// they are used in.
func (c *collector) aliases() map[string]string {
	aliases, used := map[string]string{}, map[string]bool{}
	slices.Sort(c.imports)
	for _, p := range c.imports {
		if name, ok := knownNames[p]; ok {
			aliases[p] = name
			continue
		}
		base := importAlias(p)
		alias := base
		for i := 2; used[alias]; i++ {
			alias = fmt.Sprint(base, i)
		}
		used[alias] = true
		aliases[p] = alias
	}
	return aliases
}
