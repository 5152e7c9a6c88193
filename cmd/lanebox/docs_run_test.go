package main

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	tsql "github.com/sqlc-dev/teesql/parser"

	"github.com/lanebox/lanebox/runtime/sqlstore/sqlite"
	"github.com/lanebox/lanebox/runtime/storetest/testmssql"
	"github.com/lanebox/lanebox/runtime/storetest/testpg"
)

// A reader does what documents say, in a folder of its own.
type reader struct {
	t   *testing.T
	dir string
	env []string
}

// newReader returns a reader in an empty folder. Modules come from the module
// cache alone, so that nothing depends on the network.
func newReader(t *testing.T) *reader {
	t.Helper()
	cache, err := exec.Command("go", "env", "GOMODCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	proxy := "file://" + filepath.ToSlash(filepath.Join(strings.TrimSpace(string(cache)), "cache", "download"))
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return &reader{t: t, dir: dir, env: append(os.Environ(),
		"GOPROXY="+proxy, "GOSUMDB=off", "GOFLAGS=-buildvcs=false", "GOWORK=off", "GOTOOLCHAIN=local")}
}

// run runs one command line in the reader's folder, which it may change, and
// returns its standard output.
func (r *reader) run(line string) string {
	r.t.Helper()
	where := filepath.Join(r.t.TempDir(), "pwd")
	cmd := exec.CommandContext(r.t.Context(), "sh", "-c", line+"\nstatus=$?\npwd >\"$READER_PWD\"\nexit $status")
	cmd.Dir, cmd.Env = r.dir, append(r.env, "READER_PWD="+where)
	var out, log strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil {
		r.t.Fatalf("%s: %v\n%s%s", line, err, &out, &log)
	}
	now, err := os.ReadFile(where)
	if err != nil {
		r.t.Fatal(err)
	}
	r.dir = strings.TrimSpace(string(now))
	return out.String()
}

// replaceModule lets a new module find lanebox in this repository.
func (r *reader) replaceModule(modfile string) {
	r.t.Helper()
	r.run("go mod edit -replace='" + modulePath + "=" + repository(r.t) + "' " + modfile)
}

// console runs the commands of a block, and compares what they print with the
// lines behind them.
func (r *reader) console(b block) {
	r.t.Helper()
	for _, part := range strings.Split("\n"+b.text, "\n$ ")[1:] {
		line, want, _ := strings.Cut(part, "\n")
		got := r.run(line)
		if want = strings.TrimSpace(want); want != "" && !looksLike(want, got) {
			r.t.Errorf("%s: %s prints\n%s\nbut the document says\n%s", b, line, got, want)
		}
		if strings.HasPrefix(line, "go mod init") {
			modfile := "go.mod"
			if strings.Contains(line, "-modfile=tools.mod") {
				modfile = "tools.mod"
			}
			r.replaceModule(modfile)
		}
	}
}

// looksLike compares output; … in want stands for any text.
func looksLike(want, got string) bool {
	pattern := strings.ReplaceAll(regexp.QuoteMeta(want), "…", "(?s:.*)")
	return regexp.MustCompile(`\A` + pattern + `\s*\z`).MatchString(got)
}

func TestLooksLike(t *testing.T) {
	for _, c := range []struct {
		want, got string
		like      bool
	}{
		{"applied a (…)", "applied a (12ms)\n", true},
		{"applied a", "applied a, b\n", false},
		{"a", "a\nb\n", false},
		{"", "a\n", false},
		{"a/…\nb", "a/x  about\nb\n", true},
		{"a.b", "axb\n", false},
	} {
		if looksLike(c.want, c.got) != c.like {
			t.Errorf("looksLike(%q, %q) is %v", c.want, c.got, !c.like)
		}
	}
}

// write writes a block that is a file.
func (r *reader) write(b block) {
	r.t.Helper()
	_, name, _ := strings.Cut(b.info, " file=")
	full := filepath.Join(r.dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(full), 0o777); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(full, []byte(b.text), 0o666); err != nil {
		r.t.Fatal(err)
	}
}

// The README's tutorial works as it stands, in order, in an empty folder, and
// ends in delivered messages.
func TestTutorial(t *testing.T) {
	r := newReader(t)
	delivered := false
	for _, b := range blocksOf(t, "yaml file=lanebox.yaml", "go file=cmd/shop/main.go", "console tutorial") {
		if b.info == "console tutorial" {
			r.console(b)
			delivered = delivered || strings.Contains(b.text, "\norder-42 order.paid.v1 ")
		} else {
			r.write(b)
		}
	}
	if !delivered {
		t.Error("the tutorial shows no delivered message")
	}
	r.run("go vet ./... && go tool lanebox generate --check")

	t.Run("PostgreSQL", func(t *testing.T) {
		for _, info := range []string{"console postgres", "console psql"} {
			r := &reader{t: t, dir: r.dir, env: append(slices.Clone(r.env), "DATABASE_URL="+testpg.URL(t))}
			if info == "console psql" {
				r.env = append(r.env, "PATH="+psqlFolder(t)+string(os.PathListSeparator)+os.Getenv("PATH"))
			}
			for _, b := range blocksOf(t, info) {
				r.console(b)
			}
		}
	})
}

// psqlFolder returns a folder with a psql that behaves as the real one for the
// flags in the documents; empty if the real one is installed.
func psqlFolder(t *testing.T) string {
	t.Helper()
	if name, err := exec.LookPath("psql"); err == nil {
		return filepath.Dir(name)
	}
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\n%s=1 exec %q \"$@\"\n", asPsql, self)
	if err := os.WriteFile(filepath.Join(dir, "psql"), []byte(script), 0o777); err != nil {
		t.Fatal(err)
	}
	return dir
}

// asPsql makes the test program behave as psql.
const asPsql = "LANEBOX_TEST_AS_PSQL"

// psqlMain sends the files behind -f in one transaction.
func psqlMain(args []string) error {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, args[0])
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	var text strings.Builder
	for i, arg := range args[:len(args)-1] {
		if arg != "-f" {
			continue
		}
		file, err := os.ReadFile(args[i+1])
		if err != nil {
			return err
		}
		text.Write(file)
		text.WriteByte('\n')
	}
	_, err = conn.PgConn().Exec(ctx, text.String()).ReadAll()
	return err
}

// A service that keeps the tool in tools.mod, as the README says, builds.
func TestTutorialWithToolsMod(t *testing.T) {
	r := newReader(t)
	r.run("go mod init example.com/shop")
	r.replaceModule("go.mod")
	for _, b := range blocksOf(t, "console tools") {
		r.console(b)
	}
	r.run("go build ./...")
	mod, err := os.ReadFile(filepath.Join(r.dir, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mod), "sqlc") {
		t.Errorf("go.mod names sqlc:\n%s", mod)
	}
}

// docsService generates the code of testdata/docs/lanebox.yaml in a module of
// its own and returns its folder.
func docsService(t *testing.T) *reader {
	t.Helper()
	r := newReader(t)
	mod := strings.Replace(readRepo(t, "go.mod"), "module "+modulePath, "module example.com/shop", 1)
	mod += fmt.Sprintf("\nrequire %s v0.0.0\n\nreplace %s => %q\n", modulePath, modulePath, repository(t))
	r.write(block{info: "- file=go.mod", text: mod})
	r.write(block{info: "- file=go.sum", text: readRepo(t, "go.sum")})
	r.write(block{info: "- file=lanebox.yaml", text: readRepo(t, "cmd/lanebox/testdata/docs/lanebox.yaml")})
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r.env = append(r.env, "LANEBOX="+self)
	r.run(asLanebox + `=1 "$LANEBOX" generate`)
	return r
}

// snippetImports are the packages that Go in documents may use, by name.
var snippetImports = map[string]string{
	"context": "context", "errors": "errors", "fmt": "fmt", "http": "net/http", "os": "os", "signal": "os/signal",
	"sql": "database/sql", "syscall": "syscall", "time": "time",
	"pgx": "github.com/jackc/pgx/v5", "pgxpool": "github.com/jackc/pgx/v5/pgxpool",
	"event":      modulePath + "/runtime/event",
	"inbox":      modulePath + "/runtime/inbox",
	"outbox":     modulePath + "/runtime/outbox",
	"handler":    modulePath + "/runtime/transport/handler",
	"webhook":    modulePath + "/runtime/transport/webhook",
	"rabbitmq":   modulePath + "/runtime/transport/rabbitmq",
	"kafka":      modulePath + "/runtime/transport/kafka",
	"natsjs":     modulePath + "/runtime/transport/natsjs",
	"events":     "example.com/shop/internal/events",
	"postgres":   "example.com/shop/internal/events/postgres",
	"sqlserver":  "example.com/shop/internal/events/sqlserver",
	"mssqlstore": modulePath + "/runtime/sqlstore/sqlserver",
}

// snippetParams are the variables that Go in documents may use undeclared.
const snippetParams = `ctx context.Context, pool *pgxpool.Pool, tx pgx.Tx, db *sql.DB, pub *events.Publisher, mux *http.ServeMux,
	box *postgres.Box, warehouse outbox.Destination, payments postgres.PaymentsHandler, deliveries postgres.DeliveriesHandler, returnsMap postgres.ReturnsMap`

var declares = regexp.MustCompile(`(?m)\A(type|func|var|const) `)

// snippet makes a Go file of a block: statements become a function. Messages of
// the compiler name the document.
func snippet(t *testing.T, b block) string {
	t.Helper()
	place := fmt.Sprintf("//line %s\n", filepath.Join(repository(t), b.String()))
	body := place + b.text
	if !declares.MatchString(b.text) {
		body = "func _(" + snippetParams + ") (err error) {\n{\n" + place + b.text + "}\nreturn err\n}\n"
	}
	file, err := parser.ParseFile(token.NewFileSet(), "", "package snippet\n"+body, 0)
	if err != nil {
		t.Errorf("%s: %v", b, err)
		return "package snippet\n"
	}
	used := map[string]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok && snippetImports[x.Name] != "" {
				used[x.Name] = true
			}
		}
		return true
	})
	var imports strings.Builder
	for name := range used {
		fmt.Fprintf(&imports, "import %s %q\n", name, snippetImports[name])
	}
	return "package snippet\n" + imports.String() + body
}

// Go in documents compiles against generated code.
func TestDocGo(t *testing.T) {
	r := docsService(t)
	for i, b := range blocksOf(t, "go") {
		r.write(block{info: fmt.Sprintf("- file=snippet%d/snippet.go", i), text: snippet(t, b)})
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "./...")
	cmd.Dir, cmd.Env = r.dir, r.env
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("Go in documents does not compile: %v\n%s", err, out)
	}
}

// businessTables is what SQL in documents finds beside lanebox's tables.
const businessTables = `CREATE TABLE orders (id text PRIMARY KEY, status text NOT NULL, version bigint NOT NULL);
INSERT INTO orders VALUES ('order-42', 'submitted', 1);`

// SQL in documents runs on every database, and what it publishes is routed.
func TestDocSQL(t *testing.T) {
	list := blocksOf(t, "sql")
	r := docsService(t)
	published := 0
	for _, b := range list {
		published += strings.Count(b.text, "INSERT INTO outbox")
	}

	t.Run("SQLite", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "shop.db")
		r.run(asLanebox + `=1 "$LANEBOX" migrate --db '` + file + "'")
		db, err := sqlite.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		judgeSQL(t, list, published, func(text string) error {
			_, err := db.ExecContext(t.Context(), text)
			return err
		}, func(text string) (n int, err error) {
			return n, db.QueryRowContext(t.Context(), text).Scan(&n)
		})
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		url := testpg.URL(t)
		r.run(asLanebox + `=1 "$LANEBOX" migrate --db '` + url + "'")
		conn, err := pgx.Connect(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		judgeSQL(t, list, published, func(text string) error {
			_, err := conn.PgConn().Exec(t.Context(), text).ReadAll()
			return err
		}, func(text string) (n int, err error) {
			return n, conn.QueryRow(t.Context(), text).Scan(&n)
		})
	})
}

// T-SQL in documents can be parsed, and runs where there is a SQL Server.
func TestDocSQLServer(t *testing.T) {
	list := blocksOf(t, "sql sqlserver")
	published := 0
	for _, b := range list {
		published += strings.Count(b.text, "'{")
		if _, err := tsql.Parse(t.Context(), strings.NewReader(b.text)); err != nil {
			t.Errorf("%s: %v", b, err)
		}
	}
	t.Run("SQL Server", func(t *testing.T) {
		url := testmssql.URL(t)
		r := docsService(t)
		r.run(asLanebox + `=1 "$LANEBOX" migrate --db '` + url + "'")
		db := testmssql.DB(t, url)
		for _, b := range list {
			if _, err := db.ExecContext(t.Context(), b.text); err != nil {
				t.Errorf("%s: %v", b, err)
			}
		}
		var got int
		err := db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM outbox WHERE destination <> 0 AND payload NOT LIKE N'%?%'`).Scan(&got)
		if err != nil || got != published {
			t.Errorf("%d messages, %v; want %d", got, err, published)
		}
	})
}

// judgeSQL runs blocks and counts what they left behind.
func judgeSQL(t *testing.T, list []block, published int, exec func(string) error, count func(string) (int, error)) {
	t.Helper()
	if err := exec(businessTables); err != nil {
		t.Fatal(err)
	}
	for _, b := range list {
		if err := exec(b.text); err != nil {
			t.Errorf("%s: %v", b, err)
		}
	}
	for query, want := range map[string]int{
		"SELECT count(*) FROM outbox WHERE destination <> 0 AND lane IS NOT NULL": published,
		"SELECT count(*) FROM orders WHERE status = 'cancelled' AND version = 2":  1,
	} {
		if got, err := count(query); err != nil || got != want {
			t.Errorf("%s: %d, %v; want %d", query, got, err, want)
		}
	}
}
