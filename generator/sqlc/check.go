package sqlc

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/lanebox/lanebox/generator/dialect"
	"github.com/lanebox/lanebox/generator/emit/sqlcode"
	"github.com/lanebox/lanebox/generator/output"
)

// leftover matches a parameter that sqlc failed to replace: it exits without an
// error then, and the query fails when it runs.
var leftover = regexp.MustCompile(`sqlc\.(arg|narg|slice|embed)\(|[ (<>=]@[a-z_]+`)

// positional matches a parameter of a finished text.
var positional = regexp.MustCompile(`[$?]([0-9]+)`)

// Check compares sqlc's Go files of one dialect with the query model: every
// query is there, with exactly the parameters and columns of the model, by name,
// type and order; no column is untyped; no parameter is left in a text. It
// returns all differences joined. Files of other dialects are ignored.
func Check(d *dialect.Dialect, queries []sqlcode.Query, files []output.File) error {
	g, err := parseGenerated(d.Name, files)
	if err != nil {
		return err
	}
	var errs []error
	for _, q := range queries {
		for _, problem := range g.compare(d, q) {
			errs = append(errs, fmt.Errorf("%s: query %s: %s", d.Name, q.Name, problem))
		}
		delete(g.methods, q.Name)
	}
	for name := range g.methods {
		if g.texts[sqlcode.Query{Name: name}.ConstName()] != "" {
			errs = append(errs, fmt.Errorf("%s: query %s is not in the query model", d.Name, name))
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}

// generated is what one package of sqlc's code declares.
type generated struct {
	texts   map[string]string        // constant -> SQL
	structs map[string][]member      // struct type -> fields
	methods map[string]*ast.FuncType // method of Queries -> signature
}

// A member is a field of a struct.
type member struct{ name, typ string }

// parseGenerated reads the Go files of the dialect's package.
func parseGenerated(dialectName string, files []output.File) (*generated, error) {
	g := &generated{texts: map[string]string{}, structs: map[string][]member{}, methods: map[string]*ast.FuncType{}}
	found := false
	for _, f := range files {
		if !strings.HasSuffix(path.Dir(f.Path), dialectName+"/internal/db") || path.Ext(f.Path) != ".go" {
			continue
		}
		found = true
		file, err := parser.ParseFile(token.NewFileSet(), f.Path, f.Data, parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("check sqlc's code: %w", err)
		}
		for _, decl := range file.Decls {
			g.add(decl)
		}
	}
	if !found {
		return nil, fmt.Errorf("check sqlc's code: no Go file for %s", dialectName)
	}
	return g, nil
}

func (g *generated) add(decl ast.Decl) {
	switch decl := decl.(type) {
	case *ast.FuncDecl:
		if decl.Recv != nil {
			g.methods[decl.Name.Name] = decl.Type
		}
	case *ast.GenDecl:
		for _, spec := range decl.Specs {
			switch spec := spec.(type) {
			case *ast.ValueSpec:
				g.addTexts(spec)
			case *ast.TypeSpec:
				if s, ok := spec.Type.(*ast.StructType); ok {
					g.structs[spec.Name.Name] = members(s)
				}
			}
		}
	}
}

func (g *generated) addTexts(spec *ast.ValueSpec) {
	for i, v := range spec.Values {
		if lit, ok := v.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if text, err := strconv.Unquote(lit.Value); err == nil {
				g.texts[spec.Names[i].Name] = text
			}
		}
	}
}

// members returns the fields of a struct, with their types as Go text.
func members(s *ast.StructType) []member {
	var ms []member
	for _, f := range s.Fields.List {
		for _, n := range f.Names {
			ms = append(ms, member{n.Name, types.ExprString(f.Type)})
		}
	}
	return ms
}

// compare returns what is wrong with one query.
func (g *generated) compare(d *dialect.Dialect, q sqlcode.Query) []string {
	method, text := g.methods[q.Name], g.texts[q.ConstName()]
	if method == nil || text == "" {
		return []string{"is missing"}
	}
	var problems []string
	if m := leftover.FindString(text); m != "" {
		problems = append(problems, fmt.Sprintf("parameter left in the text: %q", strings.TrimSpace(m)))
	}
	if n := countPositional(text); n != len(q.Params) {
		problems = append(problems, fmt.Sprintf("the text has %d parameters, the model %d", n, len(q.Params)))
	}
	problems = append(problems, diffMembers("parameter", g.params(q, method), want(d, q.Params))...)
	return append(problems, diffMembers("column", g.columns(q, method), want(d, q.Columns))...)
}

// params returns the parameters of a query's method.
func (g *generated) params(q sqlcode.Query, method *ast.FuncType) []member {
	if method.Params.NumFields() < 2 {
		return nil
	}
	return g.structs[q.Name+"Params"]
}

// columns returns the columns of a query's result. A row of one column has no
// struct: it is returned as it is, without a name.
func (g *generated) columns(q sqlcode.Query, method *ast.FuncType) []member {
	if q.Kind != sqlcode.One && q.Kind != sqlcode.Many {
		return nil
	}
	typ := method.Results.List[0].Type
	if list, ok := typ.(*ast.ArrayType); ok && q.Kind == sqlcode.Many {
		typ = list.Elt
	}
	name := types.ExprString(typ)
	if s, ok := g.structs[name]; ok {
		return s
	}
	if len(q.Columns) == 1 {
		return []member{{q.Columns[0].GoName(), name}}
	}
	return []member{{"?", name}}
}

// want returns the fields as sqlc should declare them.
func want(d *dialect.Dialect, fields []sqlcode.Field) []member {
	ms := make([]member, len(fields))
	for i, f := range fields {
		ms[i] = member{f.GoName(), d.GoTypes[f.Type]}
	}
	return ms
}

// diffMembers compares two lists of fields.
func diffMembers(what string, got, want []member) []string {
	var problems []string
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got):
			problems = append(problems, fmt.Sprintf("%s %d: want %s %s, it is missing", what, i+1, want[i].name, want[i].typ))
		case i >= len(want):
			problems = append(problems, fmt.Sprintf("%s %d: %s %s is not in the model", what, i+1, got[i].name, got[i].typ))
		case strings.Contains(got[i].typ, "interface{}") || got[i].typ == "any":
			problems = append(problems, fmt.Sprintf("%s %d: %s is untyped; cast it in the text", what, i+1, got[i].name))
		case got[i] != want[i]:
			problems = append(problems, fmt.Sprintf("%s %d: want %s %s, got %s %s", what, i+1, want[i].name, want[i].typ, got[i].name, got[i].typ))
		}
	}
	return problems
}

// countPositional counts the distinct numbered parameters of a text.
func countPositional(text string) int {
	seen := map[string]bool{}
	for _, m := range positional.FindAllStringSubmatch(text, -1) {
		seen[m[1]] = true
	}
	return len(seen)
}
