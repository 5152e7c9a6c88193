// Package generator turns a schema into files: load, resolve, emit, compile the
// SQL, and check what came out. The same schema and the same generator give the
// same bytes; clock, network, environment and the order of mappings in the
// schema play no part.
package generator

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"sync"

	"github.com/lanebox/lanebox/generator/diag"
	"github.com/lanebox/lanebox/generator/dialect"
	"github.com/lanebox/lanebox/generator/emit/gocode"
	"github.com/lanebox/lanebox/generator/emit/sqlcode"
	"github.com/lanebox/lanebox/generator/emit/tsqlgo"
	"github.com/lanebox/lanebox/generator/model"
	"github.com/lanebox/lanebox/generator/output"
	"github.com/lanebox/lanebox/generator/resolve"
	"github.com/lanebox/lanebox/generator/schema"
	"github.com/lanebox/lanebox/generator/sqlc"
)

// Options say how to generate.
type Options struct {
	// Import returns the import path of the package in a folder, which is
	// slash-separated and relative to the schema. It is called once, with go.out.
	Import func(dir string) (string, error)
	// PackageName returns the name of the package with an import path, "" if it has
	// no files yet. It returns false for a package of another module, whose name is
	// not known. nil knows none.
	PackageName func(importPath string) (name string, ok bool)
	// SkipSQLC leaves out the Go bindings that sqlc makes of the SQL, without which
	// the Go code does not compile. It is for callers that only look at the rest.
	SkipSQLC bool
}

// A Result is what a sound schema gives.
type Result struct {
	Model *model.Model
	// Files are sorted by path.
	Files []output.File
}

// Folders returns where the files of the result lie, those of dialects that the
// schema does not name (any more) included.
func (r *Result) Folders() []output.Folder {
	folders := []output.Folder{{Path: r.Model.Go.Out}}
	for _, d := range dialect.Names() {
		folders = append(folders, output.Folder{Path: path.Join(r.Model.Go.Out, d), Deep: true})
	}
	return folders
}

// Check loads and resolves the schema src without generating. The findings are
// sorted by position and name the file as name. The model is nil if one of them
// is an error.
func Check(name string, src []byte) (*model.Model, diag.List) {
	file, found := schema.Load(name, src)
	if file == nil {
		return nil, found.Sorted()
	}
	m, more := resolve.Resolve(file)
	found = append(found, more...).Sorted()
	if found.Errors() > 0 {
		return nil, found
	}
	return m, found
}

// Generate makes all files of the schema src, whose name stands in findings. If
// a finding is an error, the result is nil, and so is the error: it tells of
// what has no place in the schema, such as a missing module or a failed sqlc.
func Generate(ctx context.Context, name string, src []byte, o Options) (*Result, diag.List, error) {
	m, found := Check(name, src)
	if m == nil {
		return nil, found, nil
	}
	var err error
	if o.Import != nil {
		if m.Go.Import, err = o.Import(m.Go.Out); err != nil {
			return nil, found, err
		}
	}
	if err := packages(m, o); err != nil {
		return nil, found, err
	}
	files, err := emit(ctx, m, o)
	if err != nil {
		return nil, found, err
	}
	return &Result{Model: m, Files: files}, found, nil
}

// packages finds the names of the service's own packages that m refers to. It
// fails if the output folder belongs to another package.
func packages(m *model.Model, o Options) error {
	if o.PackageName == nil {
		return nil
	}
	if name, _ := o.PackageName(m.Go.Import); name != "" && name != m.Go.Package {
		return fmt.Errorf("%s: go.out %q is the folder of package %s, which cannot hold package %s as well; name a folder of its own",
			m.File, m.Go.Out, name, m.Go.Package)
	}
	m.Go.Packages = map[string]string{}
	for _, p := range gocode.Imports(m) {
		if name, ok := o.PackageName(p); ok {
			m.Go.Packages[p] = cmp.Or(name, path.Base(p))
		}
	}
	return nil
}

// SQL makes the SQL of the schema src alone: tables, migrations and queries. It
// needs no Go module and no sqlc.
func SQL(name string, src []byte) (*Result, diag.List, error) {
	m, found := Check(name, src)
	if m == nil {
		return nil, found, nil
	}
	files, err := sqlcode.Emit(m)
	if err != nil {
		return nil, found, err
	}
	files = slices.DeleteFunc(files, func(f output.File) bool { return path.Ext(f.Path) != ".sql" })
	return &Result{Model: m, Files: sorted(files)}, found, nil
}

// emit makes the files of a model. Nearly all the time goes into sqlc, so the
// other Go code is rendered meanwhile.
func emit(ctx context.Context, m *model.Model, o Options) ([]output.File, error) {
	files, err := sqlcode.Emit(m)
	if err != nil {
		return nil, err
	}
	var bindings []output.File
	var sqlcErr error
	var running sync.WaitGroup
	if !o.SkipSQLC {
		running.Go(func() { bindings, sqlcErr = compile(ctx, m, files) })
	}
	code, err := gocode.Emit(m)
	own, ownErr := ownBindings(m)
	running.Wait()
	if err := cmp.Or(err, ownErr, sqlcErr); err != nil {
		return nil, err
	}
	return sorted(slices.Concat(files, bindings, own, code)), nil
}

// ownBindings renders the Go bindings of the dialect that sqlc does not know.
func ownBindings(m *model.Model) ([]output.File, error) {
	name := dialect.SQLServer.Name
	if !slices.Contains(m.Dialects, name) {
		return nil, nil
	}
	statements, err := sqlcode.SQLServerQueries(m)
	if err != nil {
		return nil, err
	}
	return tsqlgo.Emit(path.Join(m.Go.Out, name, "internal/db"), statements)
}

// compile runs sqlc on the SQL of the dialects that it knows and compares its
// code with the query model.
func compile(ctx context.Context, m *model.Model, sql []output.File) ([]output.File, error) {
	var known []*dialect.Dialect
	for _, name := range m.Dialects {
		d, err := dialect.ByName(name)
		if err != nil {
			return nil, err
		}
		if d.Engine != "" {
			known = append(known, d)
		}
	}
	if known == nil {
		return nil, nil
	}
	bindings, err := sqlc.Run(ctx, sql)
	if err != nil {
		return nil, err
	}
	for _, d := range known {
		if err := sqlc.Check(d, sqlcode.Queries(d.Name, m.Binary), bindings); err != nil {
			return nil, err
		}
	}
	return bindings, nil
}

func sorted(files []output.File) []output.File {
	slices.SortFunc(files, func(a, b output.File) int { return cmp.Compare(a.Path, b.Path) })
	return files
}
