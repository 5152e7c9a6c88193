// Package gocode renders a model as the Go packages of a service: the events
// package (events, keys, publisher, handler interfaces, facts) and one package
// per dialect that wires them to the runtime. The stores of those packages come
// from package sqlcode.
//
// What is generated stays small: types, and calls of the runtime that carry what
// only the schema knows. Behaviour belongs in the runtime.
package gocode

import (
	"bytes"
	"errors"
	"fmt"
	"go/format"
	"maps"
	"path"
	"slices"
	"sync"

	"github.com/dave/jennifer/jen"

	"github.com/lanebox/lanebox/generator/emit/imports"
	"github.com/lanebox/lanebox/generator/model"
	"github.com/lanebox/lanebox/generator/output"
)

// Emit returns the files of m, in a fixed order. It fails when two declarations
// would get one name, when a name from the schema is no Go identifier, or when
// the import path of the output folder is not known.
func Emit(m *model.Model) ([]output.File, error) {
	if m.Go.Import == "" {
		return nil, fmt.Errorf("%s: the import path of %s is not known", m.File, m.Go.Out)
	}
	g := newGenerator(m)
	if err := g.check(); err != nil {
		return nil, err
	}
	files := []struct {
		path   string
		want   bool
		render func(*jen.File)
	}{
		{"events.gen.go", true, g.events},
		{"keys.gen.go", len(m.Keys) > 0, g.keys},
		{"publish.gen.go", true, g.publish},
		{"handlers.gen.go", g.hasHandlers(), g.handlers},
		{"schema.gen.go", true, g.schema},
		{"assert.gen.go", g.hasAssertions(), g.assertions},
		{"postgres/postgres.gen.go", g.hasDialect("postgres"), g.postgres},
		{"sqlite/sqlite.gen.go", g.hasDialect("sqlite"), g.sqlite},
		{"sqlserver/sqlserver.gen.go", g.hasDialect("sqlserver"), g.sqlserver},
	}
	out := make([]output.File, 0, len(files)) // never moved, since the renderers fill it in
	var running sync.WaitGroup
	errs := make([]error, len(files))
	for i, f := range files {
		if !f.want {
			continue
		}
		out = append(out, output.File{Path: path.Join(m.Go.Out, f.path)})
		data := &out[len(out)-1].Data
		running.Go(func() { *data, errs[i] = g.render(f.path, f.render) })
	}
	running.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return out, nil
}

func (g *generator) render(name string, body func(*jen.File)) ([]byte, error) {
	f := g.newFile(path.Dir(name))
	f.NoFormat = true // settle does it
	body(f)
	var b bytes.Buffer
	if err := f.Render(&b); err != nil {
		return nil, fmt.Errorf("render %s: %w", name, err)
	}
	source, err := g.settle(imports.Group(b.Bytes(), g.m.Go.Import))
	if err != nil {
		return nil, fmt.Errorf("format %s: %w", name, err)
	}
	return source, nil
}

// settle formats source. Where descriptions of the schema stand in it, that is
// repeated until it changes nothing: the formatter rewrites doc comments, and an
// odd text may need it more than once.
func (g *generator) settle(source []byte) ([]byte, error) {
	for range 4 {
		formatted, err := format.Source(source)
		if err != nil {
			return nil, err
		}
		if !g.described || bytes.Equal(formatted, source) {
			return formatted, nil
		}
		source = formatted
	}
	return source, nil
}

// newFile starts a file of the events package (dir ".") or of a dialect.
func (g *generator) newFile(dir string) *jen.File {
	f := jen.NewFilePathName(g.m.Go.Import, g.m.Go.Package)
	if dir != "." {
		f = jen.NewFilePathName(g.m.Go.Import+"/"+dir, dir)
		g.importEvents(f)
	}
	f.HeaderComment("// " + output.Header)
	f.HeaderComment("// Source: " + oneLine(g.m.File))
	f.ImportNames(knownNames)
	f.ImportAlias(rtRuntime, "lbruntime")
	for importPath, alias := range g.aliases {
		switch {
		case knownNames[importPath] != "": // named above
		case path.Base(importPath) == alias && (g.m.Go.Packages[importPath] == alias || imports.IsStandard(importPath, g.m.Go.Import)):
			f.ImportName(importPath, alias)
		default:
			f.ImportAlias(importPath, alias)
		}
	}
	return f
}

// importEvents imports the events package as events into a dialect's file,
// whatever its name, which might be that of something in the file.
func (g *generator) importEvents(f *jen.File) {
	if g.m.Go.Package == "events" && path.Base(g.m.Go.Import) == "events" {
		f.ImportName(g.m.Go.Import, "events")
	} else {
		f.ImportAlias(g.m.Go.Import, "events")
	}
}

// A generator holds what several files need to know about one model.
type generator struct {
	m *model.Model
	// structs and enums are all types that are emitted, in order of first use.
	structs []*model.Struct
	enums   []*model.EnumType
	// aliases are the import names of the service's own packages.
	aliases map[string]string
	// described says that the schema has descriptions, which become comments.
	described bool
}

func newGenerator(m *model.Model) *generator {
	g := &generator{m: m, aliases: map[string]string{}}
	c := collector{g: g, seen: map[any]bool{}}
	for i := range m.Keys {
		for _, p := range m.Keys[i].Parts {
			c.visit(p.Type)
		}
	}
	for i := range m.Events {
		c.event(&m.Events[i])
	}
	g.aliases = c.aliases()
	g.described = g.hasDocs()
	return g
}

// Imports returns the import paths of the service's own packages that the code
// for m imports, sorted.
func Imports(m *model.Model) []string {
	return slices.Sorted(maps.Keys(newGenerator(m).aliases))
}

func (g *generator) hasDocs() bool {
	return slices.ContainsFunc(g.m.Keys, func(k model.Key) bool { return k.Doc != "" }) ||
		slices.ContainsFunc(g.m.Events, func(e model.Event) bool { return e.Doc != "" }) ||
		slices.ContainsFunc(g.m.Sources, func(s model.Source) bool { return s.Doc != "" }) ||
		slices.ContainsFunc(g.m.Destinations, func(d model.Destination) bool { return d.Doc != "" }) ||
		slices.ContainsFunc(g.enums, func(e *model.EnumType) bool { return e.Doc != "" }) ||
		slices.ContainsFunc(g.structs, func(s *model.Struct) bool {
			return s.Doc != "" || slices.ContainsFunc(s.Fields, func(f model.Field) bool { return f.Doc != "" })
		})
}

func (g *generator) hasDialect(name string) bool { return slices.Contains(g.m.Dialects, name) }

// published are the events that can be published: those with a destination.
func (g *generator) published() []*model.Event {
	var list []*model.Event
	for i := range g.m.Events {
		if e := &g.m.Events[i]; publishable(e) {
			list = append(list, e)
		}
	}
	return list
}

func publishable(e *model.Event) bool { return len(e.Destinations) > 0 }

// catalogEvents returns the events of a catalog that can be published.
func catalogEvents(c *model.Catalog) []*model.Event {
	var list []*model.Event
	for _, e := range c.Events {
		if publishable(e) {
			list = append(list, e)
		}
	}
	return list
}
