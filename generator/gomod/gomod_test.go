package gomod_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lanebox/lanebox/generator/gomod"
)

func put(t *testing.T, name, data string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(data), 0o666); err != nil {
		t.Fatal(err)
	}
}

func TestImportPath(t *testing.T) {
	root := filepath.Join(t.TempDir(), "a path with spaces")
	put(t, filepath.Join(root, "go.work"), "go 1.26.0\n\nuse ./shop\n")
	put(t, filepath.Join(root, "shop/go.mod"), "// a comment\nmodule example.com/shop/v2 // the second\n\ngo 1.26.0\n")
	put(t, filepath.Join(root, "shop/vendor/example.com/dep/dep.go"), "package dep\n")
	put(t, filepath.Join(root, "shop/tools/go.mod"), "module \"example.com/tools\"\n")
	if err := os.MkdirAll(filepath.Join(root, "shop/odd/go.mod"), 0o777); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{
		"shop":                   "example.com/shop/v2",
		"shop/internal/events":   "example.com/shop/v2/internal/events",
		"shop/cmd/../events":     "example.com/shop/v2/events",
		"shop/tools/gen":         "example.com/tools/gen",
		"shop/odd/events":        "example.com/shop/v2/odd/events", // a folder called go.mod
		"shop/not/yet/there/now": "example.com/shop/v2/not/yet/there/now",
	} {
		got, err := gomod.ImportPath(filepath.Join(root, filepath.FromSlash(dir)))
		if err != nil || got != want {
			t.Errorf("%s: got %q, %v; want %q", dir, got, err, want)
		}
	}
}

func TestImportPathErrors(t *testing.T) {
	root := t.TempDir()
	_, err := gomod.ImportPath(filepath.Join(root, "events"))
	var none *gomod.NoModuleError
	if !errors.As(err, &none) || !strings.Contains(err.Error(), "go mod init") {
		t.Errorf("outside of a module: %v", err)
	}
	put(t, filepath.Join(root, "shop/go.mod"), "module example.com/shop\n")
	if _, err := gomod.ImportPath(filepath.Join(root, "shop/my events")); err == nil || !strings.Contains(err.Error(), "my events") {
		t.Errorf("a package folder with a space: %v", err)
	}
	put(t, filepath.Join(root, "empty/go.mod"), "go 1.26.0\n")
	if _, err := gomod.ImportPath(filepath.Join(root, "empty")); err == nil || !strings.Contains(err.Error(), "names no module") {
		t.Errorf("a go.mod without a module line: %v", err)
	}
}

func TestPackageName(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":               "module example.com/shop/v2\n",
		"root.go":              "// Package shop sells.\npackage shop\n",
		"orders/a_test.go":     "package orders_test\n",
		"orders/gen.go":        "//go:build ignore\n\npackage main\n",
		"orders/_old.go":       "package old\n",
		"orders/orders.go":     "package order\n",
		"events/events.gen.go": "package evnts\n",
		"events/not.go":        "no Go",
	} {
		put(t, filepath.Join(root, filepath.FromSlash(name)), text)
	}
	for importPath, want := range map[string]struct {
		name   string
		inside bool
	}{
		"example.com/shop/v2":         {"shop", true},
		"example.com/shop/v2/orders":  {"order", true},
		"example.com/shop/v2/events":  {"", true},
		"example.com/shop/v2/missing": {"", true},
		"example.com/shop/v22/orders": {"", false},
		"example.com/shop":            {"", false},
		"time":                        {"", false},
	} {
		name, inside := gomod.PackageName(filepath.Join(root, "deeper", "schema"), importPath)
		if name != want.name || inside != want.inside {
			t.Errorf("%s: got %q, %v; want %q, %v", importPath, name, inside, want.name, want.inside)
		}
	}
	if _, inside := gomod.PackageName(t.TempDir(), "example.com/shop/v2"); inside {
		t.Error("a package belongs to no module")
	}
}
