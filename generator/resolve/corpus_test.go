package resolve_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/lanebox/lanebox/generator/diag"
	"github.com/lanebox/lanebox/generator/model"
	"github.com/lanebox/lanebox/generator/resolve"
	"github.com/lanebox/lanebox/generator/schema"
)

var update = flag.Bool("update", false, "write what the corpus should say")

// TestCorpus resolves every schema of the corpus: name.yaml in, name.want out. In
// ok the output is the model and the warnings, in bad exactly the findings.
func TestCorpus(t *testing.T) {
	for _, kind := range []string{"ok", "bad"} {
		archives, err := filepath.Glob(filepath.Join("..", "testdata", kind, "*.txtar"))
		if err != nil || len(archives) == 0 {
			t.Fatalf("no corpus in %s: %v", kind, err)
		}
		for _, path := range archives {
			t.Run(kind+"/"+strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
				runArchive(t, path, kind == "ok")
			})
		}
	}
}

// runArchive checks, or updates, one archive.
func runArchive(t *testing.T, path string, ok bool) {
	archive, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for _, f := range archive.Files {
		if name, found := strings.CutSuffix(f.Name, ".want"); found {
			want[name] = string(f.Data)
		}
	}
	updated := &txtar.Archive{Comment: archive.Comment}
	for _, f := range archive.Files {
		name, found := strings.CutSuffix(f.Name, ".yaml")
		if !found {
			continue
		}
		got := resolveCase(t, f.Data, ok, name)
		updated.Files = append(updated.Files, f, txtar.File{Name: name + ".want", Data: []byte(got)})
		if !*update && got != want[name] {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, want[name])
		}
	}
	if *update {
		if err := os.WriteFile(path, txtar.Format(updated), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// load loads and resolves a schema and returns all findings.
func load(src []byte) (*model.Model, diag.List) {
	file, found := schema.Load("lanebox.yaml", src)
	if file == nil {
		return nil, found
	}
	m, more := resolve.Resolve(file)
	return m, append(found, more...).Sorted()
}

// resolveCase returns what a schema should come out as.
func resolveCase(t *testing.T, src []byte, ok bool, name string) string {
	t.Helper()
	m, found := load(src)
	checkPositions(t, src, found)
	var b bytes.Buffer
	if err := found.Text(&b, src); err != nil {
		t.Fatal(err)
	}
	if ok != (m != nil) {
		t.Errorf("%s: resolved: %v, want %v; findings:\n%s", name, m != nil, ok, b.String())
	}
	if m == nil {
		return b.String()
	}
	return dump(m) + b.String()
}

// checkPositions fails if a finding points outside the file.
func checkPositions(t *testing.T, src []byte, found diag.List) {
	t.Helper()
	lines := diag.Lines(src)
	for _, d := range found {
		if d.Pos.Line < 1 || d.Pos.Line > len(lines) {
			t.Fatalf("%v: line is not in the file of %d lines", d, len(lines))
		}
		if n := len([]rune(lines[d.Pos.Line-1])); d.Pos.Column < 1 || d.Pos.Column > n+1 {
			t.Fatalf("%v: column is not in the line of %d runes", d, n)
		}
		if d.Message == "" || d.Code == "" || strings.Contains(d.Message, "\n") {
			t.Fatalf("%v: message or code is wrong", d)
		}
	}
}
