package cli

import (
	"context"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/lanebox/lanebox/generator/gomod"
	starter "github.com/lanebox/lanebox/templates/init"
)

func initCommand() command {
	return command{
		name:    "init",
		args:    "[folder]",
		summary: "write a commented lanebox.yaml to start from",
		help: `Writes two files into the folder (by default the working directory), which must
belong to a Go module:

  lanebox.yaml   a commented schema, to be edited
  lanebox.go     a go:generate line, in the package of that folder

Files that exist are left alone: if there is either of them, nothing is written.

Then edit the schema, run go generate, and commit the result.`,
		run: func(_ context.Context, c *call) error {
			dir := "."
			switch len(c.args) {
			case 0:
			case 1:
				dir = c.args[0]
			default:
				return usageError("one folder at a time")
			}
			return c.initialise(dir)
		},
	}
}

// initialise writes the starter files into dir.
func (c *call) initialise(dir string) error {
	root, modulePath, err := gomod.Find(dir)
	if err != nil {
		return err
	}
	pkg, err := packageName(dir, modulePath)
	if err != nil {
		return err
	}
	schema, program := filepath.Join(dir, schemaName), filepath.Join(dir, "lanebox.go")
	for _, name := range []string{schema, program} {
		if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s exists already; nothing was written", name)
		}
	}
	tool, err := toolCommand(dir, root)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	directive := fmt.Sprintf("package %s\n\n//go:generate %s generate\n", pkg, tool)
	for _, f := range []struct{ name, text, about string }{
		{schema, starter.Schema, "a commented schema to edit"},
		{program, directive, "//go:generate " + tool + " generate"},
	} {
		if err := writeNew(f.name, f.text); err != nil {
			return err
		}
		fmt.Fprintf(c.stdout, "wrote %-19s %s\n", f.name, f.about)
	}
	_, err = fmt.Fprintf(c.stdout, "next: edit %s, then run go generate ./...\n", schema)
	return err
}

// writeNew writes a file that must not exist, whoever made it meanwhile.
func writeNew(name, text string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// toolCommand returns the command that runs lanebox in dir: as a tool of the
// module, or of the separate tools.mod beside its go.mod.
func toolCommand(dir, root string) (string, error) {
	text, err := os.ReadFile(filepath.Join(root, "tools.mod"))
	if err != nil || !strings.Contains(string(text), "github.com/lanebox/lanebox/cmd/lanebox") {
		return "go tool lanebox", nil
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	rel, err := filepath.Rel(abs, filepath.Join(root, "tools.mod"))
	if err != nil {
		return "", err
	}
	return "go tool -modfile=" + filepath.ToSlash(rel) + " lanebox", nil
}

// packageName returns the name for a Go file in dir: that of the files there, or
// one made from the folder's name; from the module's name at its root, where the
// folder may have any name.
func packageName(dir, modulePath string) (string, error) {
	names, err := filepath.Glob(filepath.Join(quoteGlob(dir), "*.go"))
	if err != nil {
		return "", err
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.PackageClauseOnly)
		if err == nil && f.Name.Name != "documentation" {
			return f.Name.Name, nil
		}
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	base := filepath.Base(abs)
	if isFile(filepath.Join(dir, "go.mod")) {
		base = moduleBase(modulePath)
	}
	return identifier(base), nil
}

// quoteGlob makes a folder's name stand for itself in a pattern.
func quoteGlob(dir string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(dir)
}

// moduleBase returns the last element of a module path that is not a version.
func moduleBase(modulePath string) string {
	parts := strings.Split(modulePath, "/")
	last := parts[len(parts)-1]
	if len(parts) > 1 && len(last) > 1 && last[0] == 'v' && strings.Trim(last[1:], "0123456789") == "" {
		return parts[len(parts)-2]
	}
	return last
}

// identifier makes a package name of text: lower-case letters and digits, the
// first of them a letter, and no keyword.
func identifier(text string) string {
	var b []rune
	for _, r := range strings.ToLower(text) {
		if unicode.IsLetter(r) || len(b) > 0 && unicode.IsDigit(r) {
			b = append(b, r)
		}
	}
	name := string(b)
	if name == "" || token.IsKeyword(name) || slices.Contains([]string{"main", "init"}, name) {
		return name + "service"
	}
	return name
}
