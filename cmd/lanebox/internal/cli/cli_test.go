package cli

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// run carries out a command line in a folder and returns what it printed.
func run(t *testing.T, ctx context.Context, dir string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	t.Chdir(dir)
	var out, errs strings.Builder
	status = Run(ctx, args, &out, &errs)
	return status, out.String(), errs.String()
}

// serviceFolder returns a module with the starter schema.
func serviceFolder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module example.com/shop\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	if status, _, stderr := run(t, t.Context(), dir, "init"); status != 0 {
		t.Fatal(stderr)
	}
	return dir
}

func TestInterruptedCommandWritesNothing(t *testing.T) {
	dir := serviceFolder(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	status, _, stderr := run(t, ctx, dir, "generate")
	if status != exitFound || stderr != "lanebox generate: interrupted\n" {
		t.Errorf("status %d, stderr %q", status, stderr)
	}
	if _, err := os.Stat(filepath.Join(dir, "internal")); !os.IsNotExist(err) {
		t.Errorf("something was written: %v", err)
	}
	status, _, stderr = run(t, ctx, dir, "migrate", "--db", "shop.db")
	if status != exitFound || stderr != "lanebox migrate: interrupted\n" {
		t.Errorf("status %d, stderr %q", status, stderr)
	}
}

func TestFlagsMayStandAnywhere(t *testing.T) {
	for _, args := range [][]string{
		{"--format", "json", "a"}, {"a", "--format", "json"}, {"a", "-format=json"},
	} {
		var format string
		cmd := checkCommand()
		set := flagSet(cmd)
		rest, err := parse(set, args)
		if f := set.Lookup("format"); f != nil {
			format = f.Value.String()
		}
		if err != nil || format != "json" || !slices.Equal(rest, []string{"a"}) {
			t.Errorf("%q: rest %q, format %q, error %v", args, rest, format, err)
		}
	}
	rest, err := parse(flagSet(checkCommand()), []string{"--", "--format"})
	if err != nil || !slices.Equal(rest, []string{"--format"}) {
		t.Errorf("after --: rest %q, error %v", rest, err)
	}
}

func TestTarget(t *testing.T) {
	for db, want := range map[string][2]string{
		"postgres://u@h/d":              {"postgres", "postgres://u@h/d"},
		"postgresql://h/d?sslmode=off":  {"postgres", "postgresql://h/d?sslmode=off"},
		"host=h dbname=d":               {"postgres", "host=h dbname=d"},
		"shop.db":                       {"sqlite", "shop.db"},
		"a path/with: colon.db":         {"sqlite", "a path/with: colon.db"},
		"/var/lib/shop.db":              {"sqlite", "/var/lib/shop.db"},
		"sqlite:shop.db":                {"sqlite", "shop.db"},
		"sqlite:///var/lib/shop.db":     {"sqlite", "/var/lib/shop.db"},
		"sqlserver://u@h?database=d":    {"sqlserver", "sqlserver://u@h?database=d"},
		"mssql://h/d":                   {},
		"sqlite:":                       {},
		"postgres+unix://h/d":           {},
		`C:\data\shop.db`:               {"sqlite", `C:\data\shop.db`},
		"sqlite://relative/folder/s.db": {"sqlite", "relative/folder/s.db"},
	} {
		dialect, address, err := target(db)
		if got := [2]string{dialect, address}; got != want || (err != nil) != (want[0] == "") {
			t.Errorf("%q: got %q, %v; want %q", db, got, err, want)
		}
	}
}

func TestPackageName(t *testing.T) {
	for text, want := range map[string]string{
		"shop": "shop", "Shop-Service": "shopservice", "2fast": "fast", "go": "goservice", "func": "funcservice",
		"main": "mainservice", "...": "service", "café_2": "café2", "init": "initservice",
	} {
		if got := identifier(text); got != want {
			t.Errorf("identifier(%q) = %q, want %q", text, got, want)
		}
	}
	for path, want := range map[string]string{
		"example.com/shop": "shop", "example.com/shop/v2": "shop", "shop": "shop", "v2": "v2", "example.com/v": "v", "gopkg.in/shop.v3": "shop.v3",
	} {
		if got := moduleBase(path); got != want {
			t.Errorf("moduleBase(%q) = %q, want %q", path, got, want)
		}
	}
}

func TestEveryVerbExplainsItself(t *testing.T) {
	for _, cmd := range commands() {
		if cmd.summary == "" || len(cmd.help) < 80 {
			t.Errorf("%s: summary %q, help %q", cmd.name, cmd.summary, cmd.help)
		}
		for line := range strings.Lines(cmd.help) {
			if len(line) > 81 {
				t.Errorf("%s: a line of the help is longer than 80 columns: %q", cmd.name, line)
			}
		}
	}
}
