package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/lanebox/lanebox/generator"
	"github.com/lanebox/lanebox/generator/gomod"
)

// schemaName is the schema's usual file name.
const schemaName = "lanebox.yaml"

// A source is a schema file.
type source struct {
	name string // as the user would write it, for messages
	data []byte
}

// dir is the folder that output paths are relative to.
func (s source) dir() string { return filepath.Dir(s.name) }

// readSchema reads the schema that the arguments name: a file, a folder that
// holds lanebox.yaml, or, without argument, the one in the working directory,
// which under go generate is the folder of the file with the directive.
func readSchema(args []string) (source, error) {
	if len(args) > 1 {
		return source{}, usageError(fmt.Sprintf("one schema at a time, got %d", len(args)))
	}
	name := schemaName
	if len(args) == 1 {
		name = args[0]
		if info, err := os.Stat(name); err == nil && info.IsDir() {
			name = filepath.Join(name, schemaName)
		}
	}
	data, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return source{}, fmt.Errorf("there is no %s%s", name, elsewhere(args))
	}
	if err != nil {
		return source{}, fmt.Errorf("read the schema: %w", err)
	}
	return source{name: name, data: data}, nil
}

// elsewhere says where a schema might be instead.
func elsewhere(args []string) string {
	if len(args) == 0 {
		for dir := ".."; ; dir = filepath.Join(dir, "..") {
			abs, err := filepath.Abs(dir)
			if err != nil || abs == filepath.Dir(abs) {
				break
			}
			if name := filepath.Join(dir, schemaName); isFile(name) {
				return " here; name the one above: " + name
			}
			if isFile(filepath.Join(dir, "go.mod")) {
				break
			}
		}
	}
	return "; lanebox init writes one to start from"
}

func isFile(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.Mode().IsRegular()
}

// importPath returns the import path of the output folder. That folder must not
// lie outside of the module that the schema belongs to: nothing there is ours.
func (s source) importPath(out string) (string, error) {
	root, modulePath, err := gomod.Find(s.dir())
	if err != nil {
		return "", err
	}
	dir, err := filepath.Abs(filepath.Join(s.dir(), filepath.FromSlash(out)))
	if err != nil {
		return "", err
	}
	if rel, err := filepath.Rel(root, dir); err != nil || !filepath.IsLocal(rel) {
		return "", fmt.Errorf("%s: go.out %q lies outside of module %s in %s", s.name, out, modulePath, root)
	}
	return gomod.ImportPath(dir)
}

// packageName returns the name of a package of the module that the schema
// belongs to.
func (s source) packageName(importPath string) (string, bool) {
	return gomod.PackageName(s.dir(), importPath)
}

// generate runs the generator on a schema. Findings are printed to c.stderr; if
// any is an error, generate returns errFound.
func (c *call) generate(ctx context.Context, s source, o generator.Options) (*generator.Result, error) {
	o.Import, o.PackageName = s.importPath, s.packageName
	result, findings, err := generator.Generate(ctx, s.name, s.data, o)
	if err := findings.Text(c.stderr, s.data); err != nil {
		return nil, err
	}
	if err != nil {
		return nil, err
	}
	if findings.Errors() > 0 {
		return nil, errFound
	}
	return result, nil
}
