package generator_test

import (
	"bytes"
	"context"
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/lanebox/lanebox/generator"
)

// smallest are schemas for SQL Server in which most things are missing, and one
// whose names must be quoted wherever they stand.
var smallest = map[string]string{
	"publishing": `
version: 1
dialects: [sqlserver]
keys: {order: {type: string}}
events: {order.placed: {key: order, fields: {order: string}}}
destinations: {warehouse: {type: http}}
routes: [{events: "order.*", to: warehouse}]
`,
	"pulling": `
version: 1
dialects: [sqlserver]
events: {order.placed: {fields: {id: string}}}
sources: {orders: {type: handler, mode: pull, events: [order.placed]}}
`,
	"relaying": `
version: 1
dialects: [sqlserver]
sources: {orders: {type: http, path: /orders, idempotencyKeyPath: $.id, eventTypePath: $.type, aggregateIdPath: $.order}}
destinations: {warehouse: {type: http}}
routes: [{events: "*", to: warehouse}]
`,
	"bytes": `
version: 1
dialects: [sqlserver]
events: {image.stored: {payload: binary}}
destinations: {archive: {type: http}}
routes: [{events: image.stored, to: archive}]
`,
	"nothing": "version: 1\ndialects: [sqlserver]\n",
	"quoted": `
version: 1
dialects: [sqlserver]
database: {schema: "select Ünïcode-9", prefix: Table_}
keys: {order: {type: string}}
events: {"select.from_@#/+:-x": {key: order, fields: {order: string}}}
destinations: {table: {type: http}, db: {type: http}, call_timeouts: {type: http}}
routes: [{events: "select.*", to: [table, db, call_timeouts]}]
`,
}

var moduleName = regexp.MustCompile(`(?m)^module .*$`)

// TestSQLServerCodeCompiles generates services for SQL Server alone, without a
// line from sqlc, and builds them.
func TestSQLServerCodeCompiles(t *testing.T) {
	dir := t.TempDir()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, data []byte) {
		t.Helper()
		full := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(full), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, data, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	mod, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	sum, err := os.ReadFile("../go.sum")
	if err != nil {
		t.Fatal(err)
	}
	write("go.mod", []byte(moduleName.ReplaceAllString(string(mod), "module example.com/shop")+
		"\nrequire github.com/lanebox/lanebox v0.0.0\n\nreplace github.com/lanebox/lanebox => "+strconv.Quote(root)+"\n"))
	write("go.sum", sum)
	for name, src := range smallest {
		result, found, err := generator.Generate(context.Background(), "lanebox.yaml", []byte(src), generator.Options{
			Import: func(folder string) (string, error) { return "example.com/shop/" + name + "/" + folder, nil },
		})
		if err != nil || found.Err() != nil {
			t.Fatalf("%s: %v\n%v", name, err, found)
		}
		for _, f := range result.Files {
			write(name+"/"+f.Path, f.Data)
			if strings.HasSuffix(f.Path, ".go") {
				if formatted, err := format.Source(f.Data); err != nil || !bytes.Equal(formatted, f.Data) {
					t.Errorf("%s: %s is not formatted: %v", name, f.Path, err)
				}
			}
			if strings.HasSuffix(f.Path, "sqlc.yaml") {
				t.Errorf("%s: there is nothing for sqlc, but %s", name, f.Path)
			}
		}
	}
	cmd := exec.Command("go", "vet", "./...")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOPROXY=off", "GOFLAGS=-mod=mod", "GOTOOLCHAIN=local")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("go vet: %v\n%s", err, out)
	}
}
