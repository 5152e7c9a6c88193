package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const modulePath = "github.com/lanebox/lanebox"

// A layer says what a package may import. Paths are relative to the module;
// "x/..." stands for x and everything below it.
type layer struct {
	pkg string
	// may lists the packages of this module that it imports directly.
	may []string
	// third lists the import paths of other modules that it imports directly.
	third []string
	// never lists what it must not even depend on indirectly.
	never []string
	why   string
}

// transportMay is what a transport may import.
var transportMay = []string{"runtime/event", "runtime/lane", "runtime/outbox", "runtime/inbox", "runtime/topology", "runtime/transport/internal/...", "runtime/internal/..."}

// otherThan returns the drivers and clients that a transport with this client
// must not depend on.
func otherThan(client string) []string {
	all := []string{"database/sql", "modernc.org/sqlite", "github.com/jackc/pgx/v5", "github.com/microsoft/go-mssqldb",
		"github.com/rabbitmq/amqp091-go", "github.com/twmb/franz-go/pkg/kgo", "github.com/nats-io/nats.go"}
	return slices.DeleteFunc(all, func(s string) bool { return s == client })
}

// layers is the dependency rule: imports point down and never up. The first line
// that matches a package counts.
var layers = []layer{
	{pkg: "runtime", why: "names versions and nothing more, so that generated code can ask for one"},
	{pkg: "runtime/event", never: []string{"net", "database/sql", "os/exec"},
		why: "the words that everyone shares depend on nobody"},
	{pkg: "runtime/lane", may: []string{"runtime/event"}, never: []string{"net/http", "database/sql"},
		why: "the store seam knows messages, no database"},
	{pkg: "runtime/schedule", may: []string{"runtime/event", "runtime/lane"}, never: []string{"net/http", "database/sql", "log/slog"},
		why: "the machine decides; it reads no clock and does no I/O"},
	{pkg: "runtime/engine", may: []string{"runtime/event", "runtime/lane", "runtime/schedule", "runtime/internal/..."}, never: []string{"net/http", "database/sql"},
		why: "the only goroutines: they carry out what the machine decides, through the seams"},
	{pkg: "runtime/outbox", may: []string{"runtime/event", "runtime/lane", "runtime/schedule", "runtime/engine", "runtime/internal/..."}, never: []string{"net/http", "database/sql"},
		why: "publishing and polling work on any store and any destination"},
	{pkg: "runtime/inbox", may: []string{"runtime/event", "runtime/lane", "runtime/schedule", "runtime/engine", "runtime/outbox", "runtime/internal/..."}, never: []string{"net/http", "database/sql"},
		why: "receiver, relay and worker work on any store and any source"},
	{pkg: "runtime/box", may: []string{"runtime/event", "runtime/lane", "runtime/schedule", "runtime/engine", "runtime/outbox", "runtime/inbox", "runtime/internal/..."}, never: []string{"database/sql"},
		why: "what all generated boxes share knows no database"},
	{pkg: "runtime/migrate", may: []string{"runtime/internal/..."}, third: []string{"github.com/jackc/pgx/v5/..."}, never: []string{"modernc.org/sqlite"},
		why: "a service on PostgreSQL migrates without an SQLite driver"},
	{pkg: "runtime/migrate/internal/...", why: "tests of migrate that need every driver, out of the sight of services"},
	{pkg: "runtime/sqlstore/postgres/internal/...", may: []string{"runtime/..."}, third: []string{"github.com/jackc/pgx/v5/..."}, never: []string{"modernc.org/sqlite"},
		why: "generated code for the tests of this dialect"},
	{pkg: "runtime/sqlstore/sqlite/internal/...", may: []string{"runtime/..."}, never: []string{"github.com/jackc/pgx/v5/pgxpool"},
		why: "generated code for the tests of this dialect"},
	{pkg: "runtime/sqlstore/postgres", may: []string{"runtime/event", "runtime/lane", "runtime/outbox", "runtime/inbox", "runtime/internal/..."}, third: []string{"github.com/jackc/pgx/v5/..."}, never: []string{"modernc.org/sqlite"},
		why: "one dialect, one driver"},
	{pkg: "runtime/sqlstore/sqlite", may: []string{"runtime/event", "runtime/lane", "runtime/outbox", "runtime/inbox", "runtime/internal/..."}, third: []string{"modernc.org/sqlite/..."}, never: []string{"github.com/jackc/pgx/v5"},
		why: "one dialect, one driver"},
	{pkg: "runtime/sqlstore/sqlserver/internal/...", may: []string{"runtime/..."}, third: []string{"github.com/microsoft/go-mssqldb/..."}, never: []string{"modernc.org/sqlite", "github.com/jackc/pgx/v5/pgxpool"},
		why: "generated code for the tests of this dialect"},
	{pkg: "runtime/sqlstore/sqlserver", may: []string{"runtime/event", "runtime/lane", "runtime/outbox", "runtime/inbox", "runtime/internal/..."}, third: []string{"github.com/microsoft/go-mssqldb/..."}, never: []string{"modernc.org/sqlite", "github.com/jackc/pgx/v5"},
		why: "one dialect, one driver"},
	{pkg: "runtime/topology", never: []string{"net", "database/sql"},
		why: "what a schema says about brokers needs no client"},
	{pkg: "runtime/transport/rabbitmq", may: transportMay, third: []string{"github.com/rabbitmq/amqp091-go/..."}, never: otherThan("github.com/rabbitmq/amqp091-go"),
		why: "one broker, one client"},
	{pkg: "runtime/transport/kafka", may: transportMay, third: []string{"github.com/twmb/franz-go/..."}, never: otherThan("github.com/twmb/franz-go/pkg/kgo"),
		why: "one broker, one client"},
	{pkg: "runtime/transport/natsjs", may: transportMay, third: []string{"github.com/nats-io/nats.go/..."}, never: otherThan("github.com/nats-io/nats.go"),
		why: "one broker, one client"},
	{pkg: "runtime/transport/...", may: []string{"runtime/event", "runtime/lane", "runtime/outbox", "runtime/inbox", "runtime/topology", "runtime/transport/internal/...", "runtime/internal/..."}, never: otherThan(""),
		why: "a transport carries messages and knows no store"},
	{pkg: "runtime/memstore", may: []string{"runtime/event", "runtime/lane", "runtime/schedule", "runtime/outbox", "runtime/inbox", "runtime/internal/..."}, never: []string{"net/http", "database/sql"},
		why: "the model of a store is plain Go"},
	{pkg: "runtime/storetest/testpg", third: []string{"github.com/jackc/pgx/v5/..."}, why: "finds the PostgreSQL server of the tests"},
	{pkg: "runtime/storetest/testmssql", third: []string{"github.com/microsoft/go-mssqldb/..."}, why: "finds the SQL Server of the tests"},
	{pkg: "runtime/storetest/...", may: []string{"runtime/..."}, never: []string{"modernc.org/sqlite", "github.com/jackc/pgx/v5"},
		why: "the contract of stores, for stores of any driver"},
	{pkg: "runtime/transporttest/testrabbit", why: "finds or starts the RabbitMQ server of the tests"},
	{pkg: "runtime/transporttest/...", may: []string{"runtime/..."}, never: []string{"modernc.org/sqlite", "github.com/jackc/pgx/v5"},
		why: "the contract of transports, for transports of any kind"},
	{pkg: "runtime/ordertest/...", may: []string{"runtime/event", "runtime/lane", "runtime/outbox"}, never: []string{"database/sql"},
		why: "the order checker that every level of test shares"},
	{pkg: "runtime/internal/...", may: []string{"runtime/event", "runtime/lane"}, never: []string{"modernc.org/sqlite", "github.com/jackc/pgx/v5"},
		why: "helpers of the packages above"},

	{pkg: "generator/model", never: []string{"gopkg.in/yaml.v3", "text/template"}, why: "what a schema means, with no YAML, no Go text and no SQL text"},
	{pkg: "generator/diag", may: []string{"generator/model"}, why: "says what is wrong, where, and what to do"},
	{pkg: "generator/naming", may: []string{"generator/model"}, why: "makes identifiers that compile everywhere"},
	{pkg: "generator/schema", may: []string{"generator/diag", "generator/model"}, third: []string{"gopkg.in/yaml.v3"},
		why: "reads YAML and remembers where each thing stood"},
	{pkg: "generator/resolve", may: []string{"generator/schema", "generator/model", "generator/naming", "generator/diag", "generator/dialect"}, never: []string{"github.com/dave/jennifer/jen", "text/template"},
		why: "proves a schema sound; it writes nothing"},
	{pkg: "generator/dialect", may: []string{"generator/model"}, never: []string{"database/sql"}, why: "facts in which databases differ, no driver"},
	{pkg: "generator/output", third: []string{"github.com/rogpeppe/go-internal/diff"}, never: []string{"gopkg.in/yaml.v3"},
		why: "compares files with the disk, whatever they hold"},
	{pkg: "generator/gomod", third: []string{"golang.org/x/mod/..."}, why: "finds import paths"},
	{pkg: "generator/emit/imports", why: "arranges the imports of generated code, whatever it is for"},
	{pkg: "generator/emit/gocode", may: []string{"generator/model", "generator/naming", "generator/output", "generator/dialect", "generator/emit/imports", "templates"}, third: []string{"github.com/dave/jennifer/jen"}, never: []string{"gopkg.in/yaml.v3"},
		why: "renders a model as Go; it never sees the schema's text"},
	{pkg: "generator/emit/sqlcode", may: []string{"generator/model", "generator/naming", "generator/output", "generator/dialect", "templates"}, never: []string{"gopkg.in/yaml.v3", "database/sql"},
		why: "renders a model as SQL; it never sees the schema's text"},
	{pkg: "generator/emit/sqlcode/sqlcodetest", may: []string{"generator/model"}, why: "a model for tests"},
	{pkg: "generator/emit/tsqlgo", may: []string{"generator/output", "generator/dialect", "generator/emit/imports", "generator/emit/sqlcode"}, third: []string{"github.com/dave/jennifer/jen"},
		why: "writes for SQL Server what sqlc writes for the others, from the query model"},
	{pkg: "generator/emit/tsqlgo/internal/sample", third: []string{"github.com/microsoft/go-mssqldb"}, why: "generated code for the tests of the emitter"},
	{pkg: "generator/sqlc", may: []string{"generator/model", "generator/output", "generator/dialect", "generator/emit/sqlcode"}, third: []string{"github.com/sqlc-dev/sqlc/pkg/cli"},
		why: "runs sqlc and compares its code with the query model"},
	{pkg: "generator", may: []string{"generator/..."}, why: "the pipeline, flat"},
	{pkg: "templates/...", why: "text and nothing more"},

	{pkg: "cmd/lanebox/internal/cli", may: []string{"generator/...", "runtime/...", "templates/..."}, third: []string{"github.com/jackc/pgx/v5/...", "github.com/microsoft/go-mssqldb/..."},
		why: "turns arguments into one call and one exit status"},
	{pkg: "cmd/lanebox", may: []string{"cmd/lanebox/internal/cli", "generator/sqlc"}, why: "a main function"},
	{pkg: "examples/fulfilment", may: []string{"examples/...", "runtime/..."}, third: []string{"github.com/rabbitmq/amqp091-go", "github.com/nats-io/nats-server/v2/server"},
		why: "one command that runs anywhere: it looks for a broker, and brings one if there is none"},
	{pkg: "examples/...", may: []string{"examples/...", "runtime/..."}, third: []string{"github.com/jackc/pgx/v5/...", "modernc.org/sqlite/...", "github.com/microsoft/go-mssqldb/..."},
		why: "examples are services: they use the runtime and their generated code"},
	{pkg: "scripts/...", may: []string{"runtime/transporttest/testrabbit"},
		why: "must run before anything else builds; how a broker is started it shares with the tests"},
}

// walls hold for every package, whatever its layer says.
var walls = []layer{
	{pkg: "runtime/...", never: []string{modulePath + "/generator/...", modulePath + "/templates/...", "github.com/sqlc-dev/sqlc/...", "github.com/dave/jennifer/..."},
		why: "a service must not compile the generator"},
	{pkg: "generator/...", never: []string{modulePath + "/runtime/..."},
		why: "the generator names the runtime in text alone; examples that compile keep that honest"},
	{pkg: "examples/...", never: []string{modulePath + "/generator/...", "github.com/sqlc-dev/sqlc/...", "github.com/dave/jennifer/..."},
		why: "a service must not compile the generator"},
}

// A goPackage is what go list says about a package.
type goPackage struct {
	ImportPath, Dir string
	GoFiles         []string
	Imports, Deps   []string
}

// rel returns an import path relative to this module; ok is false for packages
// of others.
func rel(importPath string) (string, bool) {
	return strings.CutPrefix(importPath, modulePath+"/")
}

// goList runs go list in dir.
func goList(t *testing.T, dir string, args ...string) []goPackage {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Dir,GoFiles,Imports,Deps"}, args...)...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, &stderr)
	}
	var pkgs []goPackage
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}

func repository(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// matches reports whether path is pattern, or below it if it ends in "/...".
func matches(pattern, path string) bool {
	if base, ok := strings.CutSuffix(pattern, "/..."); ok {
		return path == base || strings.HasPrefix(path, base+"/")
	}
	return path == pattern
}

func anyMatches(patterns []string, path string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matches(p, path) })
}

// broken returns how a package breaks the rule of its layer.
func broken(l layer, p goPackage) []string {
	var found []string
	for _, imported := range p.Imports {
		if ours, ok := rel(imported); ok {
			if !anyMatches(l.may, ours) {
				found = append(found, fmt.Sprintf("imports %s", ours))
			}
		} else if strings.Contains(strings.Split(imported, "/")[0], ".") && !anyMatches(l.third, imported) {
			found = append(found, fmt.Sprintf("imports %s", imported))
		}
	}
	return append(found, brokenWall(l, p)...)
}

func brokenWall(l layer, p goPackage) []string {
	var found []string
	for _, dep := range p.Deps {
		if anyMatches(l.never, dep) {
			found = append(found, fmt.Sprintf("depends on %s", dep))
		}
	}
	return found
}

func TestDependencyRule(t *testing.T) {
	used := map[string]bool{}
	for _, p := range goList(t, repository(t), "./...") {
		if p.ImportPath == modulePath {
			t.Errorf("the root of the repository is a package")
			continue
		}
		path, _ := rel(p.ImportPath)
		i := slices.IndexFunc(layers, func(l layer) bool { return matches(l.pkg, path) })
		if i < 0 {
			t.Errorf("%s has no line in layers: say what it may import, and why", path)
			continue
		}
		used[layers[i].pkg] = true
		for _, what := range broken(layers[i], p) {
			t.Errorf("%s %s, but %s: %s", path, what, layers[i].pkg, layers[i].why)
		}
		for _, w := range walls {
			if !matches(w.pkg, path) {
				continue
			}
			for _, what := range brokenWall(w, p) {
				t.Errorf("%s %s, but %s", path, what, w.why)
			}
		}
		for _, dep := range p.Deps {
			if ours, ok := rel(dep); ok && matches("cmd/...", ours) && !matches("cmd/...", path) {
				t.Errorf("%s depends on %s: nothing imports cmd", path, ours)
			}
		}
	}
	for _, l := range layers {
		if !used[l.pkg] {
			t.Errorf("no package needs the line for %s", l.pkg)
		}
	}
}

func TestDependencyRuleFindsBreaches(t *testing.T) {
	p := goPackage{
		Imports: []string{"fmt", modulePath + "/runtime/event", modulePath + "/generator/model", "github.com/jackc/pgx/v5"},
		Deps:    []string{"fmt", "net/http", modulePath + "/generator/model"},
	}
	l := layer{may: []string{"runtime/event"}, never: []string{"net/http"}}
	want := []string{"imports generator/model", "imports github.com/jackc/pgx/v5", "depends on net/http"}
	if got := broken(l, p); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := brokenWall(walls[0], p); !slices.Equal(got, []string{"depends on " + modulePath + "/generator/model"}) {
		t.Errorf("wall: got %q", got)
	}
}

// forbidden are the names that a pure package must not use.
var forbidden = map[string][]string{
	"time":      {"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"},
	"os":        {"*"},
	"net":       {"*"},
	"context":   {"*"},
	"sync":      {"*"},
	"log":       {"*"},
	"log/slog":  {"*"},
	"math/rand": {"*"},
	// A seeded *rand.Rand may be handed in; the functions that use the global
	// generator may not be called.
	"math/rand/v2": {"Int", "IntN", "Int32", "Int32N", "Int64", "Int64N", "Uint", "UintN", "Uint32", "Uint32N", "Uint64", "Uint64N",
		"N", "Float32", "Float64", "ExpFloat64", "NormFloat64", "Perm", "Shuffle"},
	"crypto/rand": {"*"},
}

// impure returns what a file does that a pure function cannot.
func impure(name string, src any) ([]string, error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var found []string
	names := map[string]string{} // local name to import path
	for _, spec := range f.Imports {
		path, _ := strconv.Unquote(spec.Path.Value)
		if slices.Equal(forbidden[path], []string{"*"}) {
			found = append(found, "imports "+path)
		}
		local := filepath.Base(strings.TrimSuffix(path, "/v2"))
		if spec.Name != nil {
			local = spec.Name.Name
		}
		names[local] = path
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			found = append(found, "starts a goroutine")
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && slices.Contains(forbidden[names[x.Name]], n.Sel.Name) {
				found = append(found, "uses "+names[x.Name]+"."+n.Sel.Name)
			}
		}
		return true
	})
	return found, nil
}

func TestScheduleIsPure(t *testing.T) {
	pkgs := goList(t, repository(t), "./runtime/schedule")
	for _, name := range pkgs[0].GoFiles {
		found, err := impure(filepath.Join(pkgs[0].Dir, name), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, what := range found {
			t.Errorf("%s %s: the machine is told the time and decides; the engine acts", name, what)
		}
	}
}

func TestPurityCheckFindsBreaches(t *testing.T) {
	src := `package p
import (
	clock "time"
	"math/rand/v2"
	"os"
)
var d clock.Duration
func f(r *rand.Rand) { go f(r); _ = clock.Now(); os.Exit(rand.IntN(2) + r.IntN(2)) }
`
	found, err := impure("p.go", src)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"imports os", "starts a goroutine", "uses time.Now", "uses math/rand/v2.IntN"}; !slices.Equal(found, want) {
		t.Errorf("got %q, want %q", found, want)
	}
}

// serviceModule makes a module with the starter schema's generated code, and
// returns its folder.
func serviceModule(t *testing.T, require ...string) string {
	t.Helper()
	dir := t.TempDir()
	mod := "module example.com/shop\n\ngo 1.26.0\n\nrequire (\n\t" + strings.Join(require, "\n\t") + "\n)\n"
	mod += "\nreplace " + modulePath + " => " + strconv.Quote(withoutBlanks(t)) + "\n"
	writeFile(t, filepath.Join(dir, "go.mod"), mod)
	return dir
}

func writeFile(t *testing.T, name, data string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(data), 0o666); err != nil {
		t.Fatal(err)
	}
}

// goRun runs the go command in dir.
func goRun(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// required returns the version of a module in this repository's go.mod.
func required(t *testing.T, path string) string {
	t.Helper()
	cmd := exec.Command("go", "list", "-m", "-f", "{{.Path}} {{.Version}}", path)
	cmd.Dir = repository(t)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// withoutBlanks returns a path of the repository that a vendor folder's list of
// modules can name: it has no quoting for blanks.
func withoutBlanks(t *testing.T) string {
	t.Helper()
	root := repository(t)
	if !strings.ContainsAny(root, " \t") {
		return root
	}
	link := filepath.Join(t.TempDir(), "lanebox")
	if err := os.Symlink(root, link); err != nil {
		t.Fatal(err)
	}
	return link
}

// TestPostgresServiceCompilesNothingElse builds a service on PostgreSQL alone,
// and a module that uses pgx in the same way, and compares what they need.
func TestPostgresServiceCompilesNothingElse(t *testing.T) {
	pgx := required(t, "github.com/jackc/pgx/v5")
	service := serviceModule(t, modulePath+" v0.0.0", pgx)
	lanebox(t, service, "init")
	lanebox(t, service, "generate")
	writeFile(t, filepath.Join(service, "lanebox.go"), "package shop\n\nimport _ \"example.com/shop/internal/events/postgres\"\n")
	// The other dialect is generated too, and not imported.
	if err := os.RemoveAll(filepath.Join(service, "internal/events/sqlite")); err != nil {
		t.Fatal(err)
	}
	goRun(t, service, "mod", "tidy")
	goRun(t, service, "build", "./...")

	plain := serviceModule(t, pgx)
	writeFile(t, filepath.Join(plain, "shop.go"), "package shop\n\nimport (\n\t_ \"github.com/jackc/pgx/v5/pgxpool\"\n\t_ \"github.com/jackc/pgx/v5/stdlib\"\n)\n")
	goRun(t, plain, "mod", "tidy")

	t.Setenv("GOFLAGS", "-mod=mod")
	for _, p := range goList(t, service, "-deps", ".") {
		for _, never := range []string{
			modulePath + "/generator/...", modulePath + "/cmd/...", modulePath + "/runtime/sqlstore/sqlite", "modernc.org/...",
			"github.com/sqlc-dev/...", "github.com/dave/jennifer/...", "gopkg.in/yaml.v3",
			"github.com/rabbitmq/...", "github.com/twmb/...", "github.com/nats-io/...", "github.com/microsoft/...",
		} {
			if matches(never, p.ImportPath) {
				t.Errorf("a service on PostgreSQL compiles %s", p.ImportPath)
			}
		}
	}
	alone := sums(t, plain)
	for _, module := range sums(t, service) {
		if !slices.Contains(alone, module) {
			t.Errorf("go.sum of a service on PostgreSQL has %s, which pgx alone does not need", module)
		}
	}

	// With everything vendored it builds as well, and vendor holds no more.
	goRun(t, service, "mod", "vendor")
	cmd := exec.Command("go", "build", "-mod=vendor", "./...")
	cmd.Dir = service
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("build with a vendor folder: %v\n%s", err, out)
	}
	vendored, err := os.ReadFile(filepath.Join(service, "vendor", "modules.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(vendored)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "modernc.org/"); ok {
			t.Errorf("vendor holds modernc.org/%s", name)
		}
	}
}

// sums returns the paths of the modules in go.sum, each once.
func sums(t *testing.T, dir string) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for line := range strings.Lines(string(data)) {
		paths = append(paths, strings.Fields(line)[0])
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// lanebox runs the command in dir.
func lanebox(t *testing.T, dir string, args ...string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), asLanebox+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("lanebox %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
