package gocode_test

import (
	"bytes"
	"fmt"
	"go/format"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/lanebox/lanebox/generator/emit/gocode"
	"github.com/lanebox/lanebox/generator/model"
	"github.com/lanebox/lanebox/generator/resolve"
	"github.com/lanebox/lanebox/generator/schema"
)

// TestHostileNamesCompile generates from a schema whose names and texts are
// chosen to break careless generators. The output compiles, vets, and holds no
// code that came out of a description.
func TestHostileNamesCompile(t *testing.T) {
	src, err := os.ReadFile("testdata/hostile/lanebox.yaml")
	if err != nil {
		t.Fatal(err)
	}
	file, found := schema.Load("lanebox.yaml", src)
	if file == nil {
		t.Fatalf("the schema cannot be read:\n%v", found)
	}
	model, more := resolve.Resolve(file)
	if model == nil {
		t.Fatalf("the schema is refused:\n%v\n%v", found, more)
	}
	model.Go.Import = "example.com/shop/internal/event"
	m := newModule(t)
	files := emit(t, model)
	m.writeFiles(files)
	fakeStores(m, model)
	m.write("context/x.go", "package context\n\ntype ID string\n")
	m.write("types/type/x.go", "package types\n\ntype No int64\n")
	m.write("keyed/x.go", "package keyed\n\ntype T struct{}\n")
	m.write("v2/x.go", "package shop\n\ntype T struct{}\n")
	m.write("drafts/x.go", "package drafts\n\nimport \"example.com/shop/context\"\n\ntype T struct{ ID I }\n\ntype I struct{}\n\nfunc (I) ID() context.ID { return \"x\" }\n")
	m.write("go-event/v3/x.go", "package event\n\ntype T struct{}\n\nfunc (T) MarshalBinary() ([]byte, error) { return nil, nil }\n\nfunc (*T) UnmarshalBinary([]byte) error { return nil }\n")
	m.write("1st/x.go", "package first\n\ntype T struct{}\n")
	m.must("vet", "./...")
	for _, f := range files {
		if formatted, err := format.Source(f.Data); err != nil || !bytes.Equal(formatted, f.Data) {
			t.Errorf("%s is not formatted: %v", f.Path, err)
		}
		for i, line := range strings.Split(string(f.Data), "\n") {
			if evil.MatchString(line) {
				t.Errorf("%s:%d: %s", f.Path, i+1, line)
			}
		}
	}
}

// evil are lines that a description could smuggle in: code, and comments that
// mean something to the compiler or the formatter.
var evil = regexp.MustCompile(`^\s*(func init|#include|// ?\+build|//go:build|//go:embed /|//line|//export|/\*)`)

// TestPackageNamesCompile names the package like something that its own dialect
// packages declare.
func TestPackageNamesCompile(t *testing.T) {
	m := newModule(t)
	m.copyDir("testdata/service/orders", "orders")
	m.copyDir("testdata/service/carriers", "go-carriers/v2")
	for _, name := range []string{"running", "migrations", "mux", "loops", "appender"} {
		model := rich()
		model.Go.Package, model.Go.Out, model.Go.Import = name, "named/"+name, "example.com/shop/named/"+name
		m.writeFiles(emit(t, model))
		fakeStores(m, model)
	}
	m.must("vet", "./named/...")
}

// fakeStores writes stores without a database, whatever the model's names are.
func fakeStores(m *module, model *model.Model) {
	for _, dialect := range model.Dialects {
		tx, handle := "*sql.Tx", "*sql.DB"
		imports := `"database/sql"`
		switch dialect {
		case "postgres":
			tx, handle = "pgx.Tx", "*pgxpool.Pool"
			imports += "\n\t\"github.com/jackc/pgx/v5\"\n\t\"github.com/jackc/pgx/v5/pgxpool\""
		case "sqlserver":
			handle += ", time.Duration"
			imports += "\n\t\"context\"\n\t\"log/slog\"\n\t\"time\""
		}
		var b strings.Builder
		fmt.Fprintf(&b, `// Package %[1]s has a store without a database.
package %[1]s

import (
	%[2]s
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/outbox"
)

type Store struct {
	lane.Keeper
	inbox.ReceiveStore
}

type fakeScope struct {
	lane.Store
	inbox.PullStore[%[3]s]
	inbox.PushStore[%[3]s]
}

func NewStore(%[4]s) *Store { return &Store{} }

func (s *Store) Push() fakeScope { return fakeScope{} }

func Appender(%[3]s) outbox.Appender { return nil }

func SQLAppender(*sql.Tx) outbox.Appender { return nil }
`, dialect, imports, tx, handle)
		if dialect == "sqlserver" {
			b.WriteString("\nfunc (s *Store) Start(context.Context, *slog.Logger) error { return nil }\n")
		}
		for _, d := range model.Destinations {
			fmt.Fprintf(&b, "\nfunc (s *Store) %sDestination() fakeScope { return fakeScope{} }\n", d.GoName)
		}
		for _, s := range model.Sources {
			if s.Pull {
				fmt.Fprintf(&b, "\nfunc (s *Store) %sSource() fakeScope { return fakeScope{} }\n", s.GoName)
			}
		}
		m.write(model.Go.Out+"/"+dialect+"/store.gen.go", b.String())
		m.write(model.Go.Out+"/"+dialect+"/migrations/0001_outbox.sql", "-- Only here to be embedded.\n")
	}
}

// TestEmitRefuses covers models that the resolver would not let through.
func TestEmitRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(m *model.Model)
		want  string
	}{
		"no import":      {func(m *model.Model) { m.Go.Import = "" }, "lanebox.yaml: the import path of internal/events is not known"},
		"reserved":       {func(m *model.Model) { m.Events[5].GoName, m.Events[5].Struct.GoName = "Event", "Event" }, `event "ping.v1" becomes Event, which generated code uses itself`},
		"constructor":    {func(m *model.Model) { m.Events[5].GoName, m.Events[5].Struct.GoName = "NewOrderID", "NewOrderID" }, `NewOrderID`},
		"keyword":        {func(m *model.Model) { m.Keys[4].GoName = "type" }, `key "order_id": Go name "type"`},
		"publisher":      {func(m *model.Model) { m.Catalogs[0].GoName = "All" }, `catalog "billing" becomes All`},
		"method":         {func(m *model.Model) { m.Events[2].Struct.Fields[1].GoName = "Validate" }, `becomes Validate`},
		"json name":      {func(m *model.Model) { m.Events[2].Struct.Fields[1].Name = `a"b` }, "encoding/json cannot use this name"},
		"json case":      {func(m *model.Model) { m.Events[2].Struct.Fields[1].Name = "ORDER_ID" }, "case does not count"},
		"selector":       {func(m *model.Model) { m.Events[3].KeyFields[0] = "X; panic(1)" }, "lanebox.yaml:41:10"},
		"import path":    {func(m *model.Model) { m.Events[3].GoType.Import = "a\"\nb" }, "is not an import path"},
		"import cycle":   {func(m *model.Model) { m.Events[3].GoType.Import = "example.com/shop/internal/events/postgres" }, "is generated and imports package events"},
		"type name":      {func(m *model.Model) { m.Events[3].GoType.Name = "T{}; x" }, "is not an exported Go type"},
		"kind":           {func(m *model.Model) { m.Events[2].Struct.Fields[1].Type.Kind = "money" }, `unknown type "money"`},
		"constant field": {func(m *model.Model) { m.Events[2].Struct.Fields[1].Type = keyRef(&m.Keys[2]) }, `key "ledger" is a constant`},
		"parts":          {func(m *model.Model) { m.Events[0].KeyFields = m.Events[0].KeyFields[:1] }, `key "account" has 2 parts, not 1`},
		"config":         {func(m *model.Model) { m.Destinations[0].GoName = "Logger" }, `destination "ledger" becomes Logger`},
		"source":         {func(m *model.Model) { m.Sources[2].GoName = "Warehouse" }, `source "payments" becomes Warehouse`},
		"enum":           {func(m *model.Model) { m.Keys[6].Parts[0].Type.Enum.Values[1].GoName = "RegionEU" }, "RegionEU"},
	} {
		m := rich()
		c.spoil(m)
		files, err := gocode.Emit(m)
		if err == nil || !strings.Contains(err.Error(), c.want) || files != nil {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
}
