package sqlcode

import (
	"bytes"
	"fmt"
	"path"
	"text/template"

	"github.com/lanebox/lanebox/generator/model"
	"github.com/lanebox/lanebox/generator/output"
	"github.com/lanebox/lanebox/templates"
)

// Emit returns the SQL of every dialect of m, the stores, and sqlc.yaml if one of
// the dialects is compiled with sqlc. It is a pure function of m.
func Emit(m *model.Model) ([]output.File, error) {
	var files []output.File
	for _, name := range m.Dialects {
		emit := map[string]func(*model.Model) ([]output.File, error){
			"postgres": emitPostgres, "sqlite": emitSQLite, "sqlserver": emitSQLServer,
		}[name]
		if emit == nil {
			return nil, fmt.Errorf("emit SQL: unknown dialect %q", name)
		}
		fs, err := emit(m)
		if err != nil {
			return nil, fmt.Errorf("emit SQL for %s: %w", name, err)
		}
		files = append(files, fs...)
	}
	if config := sqlcConfig(m.Dialects); config != nil {
		files = append(files, output.File{Path: path.Join(m.Go.Out, "sqlc.yaml"), Data: config})
	}
	return files, nil
}

// render executes the template at the path inside package templates; the
// files next to it can be used by their base name.
func render(name string, funcs template.FuncMap, data any) ([]byte, error) {
	t, err := template.New(path.Base(name)).Funcs(funcs).ParseFS(templates.FS, path.Dir(name)+"/*.tmpl")
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := t.Execute(&b, data); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
