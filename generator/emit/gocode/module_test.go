package gocode_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/lanebox/lanebox/generator/output"
)

// A module is a service in a temporary folder that uses this repository.
type module struct {
	t   *testing.T
	dir string
}

var moduleLine = regexp.MustCompile(`(?m)^module .*$`)

// newModule returns the empty module example.com/shop. Its requirements are
// those of this repository, so that nothing has to be downloaded or resolved.
func newModule(t *testing.T) *module {
	t.Helper()
	_, file, _, _ := runtime.Caller(0)
	root := filepath.Join(filepath.Dir(file), "..", "..", "..")
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	sum, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	m := &module{t: t, dir: t.TempDir()}
	text := moduleLine.ReplaceAllString(string(mod), "module example.com/shop")
	m.write("go.mod", text+"\nrequire github.com/lanebox/lanebox v0.0.0\n\nreplace github.com/lanebox/lanebox => "+strconv.Quote(root)+"\n")
	m.write("go.sum", string(sum))
	return m
}

func (m *module) write(name, text string) {
	m.t.Helper()
	full := filepath.Join(m.dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(full), 0o777); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(full, []byte(text), 0o666); err != nil {
		m.t.Fatal(err)
	}
}

func (m *module) writeFiles(files []output.File) {
	m.t.Helper()
	for _, f := range files {
		m.write(f.Path, string(f.Data))
	}
}

// copyDir copies a folder of testdata; .txt at the end of a name is dropped, so
// that Go files in testdata need not compile here.
func (m *module) copyDir(from, to string) {
	m.t.Helper()
	err := filepath.WalkDir(from, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		m.write(filepath.ToSlash(filepath.Join(to, strings.TrimSuffix(rel, ".txt"))), string(data))
		return nil
	})
	if err != nil {
		m.t.Fatal(err)
	}
}

// run runs the go command and returns what it printed.
func (m *module) run(args ...string) (string, error) {
	m.t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir = m.dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOPROXY=off", "GOFLAGS=-mod=mod", "GOTOOLCHAIN=local")
	var b bytes.Buffer
	cmd.Stdout, cmd.Stderr = &b, &b
	err := cmd.Run()
	return b.String(), err
}

// must runs the go command and fails the test when it fails.
func (m *module) must(args ...string) {
	m.t.Helper()
	if text, err := m.run(args...); err != nil {
		m.t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, text)
	}
}
