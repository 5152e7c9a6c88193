// Package gomod finds the import path of a folder from the nearest go.mod.
package gomod

import (
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
)

// A NoModuleError says that a folder is not part of a Go module.
type NoModuleError struct{ Dir string }

func (e *NoModuleError) Error() string {
	return fmt.Sprintf("%s is not inside a Go module: there is no go.mod here or above; run: go mod init example.com/yourservice", e.Dir)
}

// Find returns the folder of the go.mod that dir belongs to, and that module's
// path. The folder dir need not exist yet. A go.work file plays no part: it
// chooses modules, but gives no folder another path. Find returns a
// *NoModuleError if there is no go.mod in dir or above.
func Find(dir string) (root, modulePath string, err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return "", "", err
	}
	for at := dir; ; at = filepath.Dir(at) {
		name := filepath.Join(at, "go.mod")
		data, err := os.ReadFile(name)
		if err == nil {
			modulePath := modfile.ModulePath(data)
			if modulePath == "" {
				return "", "", fmt.Errorf("%s names no module", name)
			}
			return at, modulePath, nil
		}
		if !errors.Is(err, fs.ErrNotExist) && !isDir(name) {
			return "", "", fmt.Errorf("find the module: %w", err)
		}
		if at == filepath.Dir(at) {
			return "", "", &NoModuleError{Dir: dir}
		}
	}
}

func isDir(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.IsDir()
}

// ImportPath returns the import path of the package in dir.
func ImportPath(dir string) (string, error) {
	root, modulePath, err := Find(dir)
	if err != nil {
		return "", err
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	rel, err := filepath.Rel(root, abs)
	if err != nil {
		return "", err
	}
	p := path.Join(modulePath, filepath.ToSlash(rel))
	if err := module.CheckImportPath(p); err != nil {
		return "", fmt.Errorf("%s cannot hold a Go package: %w", dir, err)
	}
	return p, nil
}

// PackageName returns the name of the package with an import path, as its files
// say; "" if there is none yet. It returns false if the package is not part of the
// module that dir belongs to.
func PackageName(dir, importPath string) (name string, inside bool) {
	root, modulePath, err := Find(dir)
	if err != nil {
		return "", false
	}
	rel, inside := strings.CutPrefix(importPath+"/", modulePath+"/")
	if !inside {
		return "", false
	}
	return packageIn(filepath.Join(root, filepath.FromSlash(rel))), true
}

// packageIn returns the name of the package whose files lie in dir, or "". Tests,
// programs, generated files and files that are not Go do not count.
func packageIn(dir string) string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return ""
	}
	for _, e := range entries {
		name := e.Name()
		if e.IsDir() || strings.ContainsAny(name[:1], "_.") || path.Ext(name) != ".go" ||
			strings.HasSuffix(name, "_test.go") || strings.HasSuffix(name, ".gen.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, name), nil, parser.PackageClauseOnly)
		if err == nil && f.Name.Name != "main" && f.Name.Name != "documentation" {
			return f.Name.Name
		}
	}
	return ""
}
