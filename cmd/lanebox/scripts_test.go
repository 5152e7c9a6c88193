package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/lanebox/lanebox/runtime/storetest/testmssql"
)

// service makes a module that requires this repository: service folder module
// [modfile]. With the name of a modfile, that file gets the requirements instead,
// and go.mod stays bare.
func service(ts *testscript.TestScript, repo, sums string, args []string) {
	if len(args) < 2 || len(args) > 3 {
		ts.Fatalf("usage: service folder module [modfile]")
	}
	dir := ts.MkAbs(args[0])
	ts.Check(os.MkdirAll(dir, 0o777))
	mod, err := os.ReadFile(filepath.Join(repo, "go.mod"))
	ts.Check(err)
	// The same requirements as here, so that nothing need be looked up.
	text := strings.Replace(string(mod), "module "+modulePath, "module "+args[1], 1)
	text += fmt.Sprintf("\nrequire %s v0.0.0\n\nreplace %s => %q\n\ntool %s/cmd/lanebox\n", modulePath, modulePath, repo, modulePath)
	name, sumName := "go.mod", "go.sum"
	if len(args) == 3 {
		bare := "module " + args[1] + "\n\ngo 1.26.0\n"
		ts.Check(os.WriteFile(filepath.Join(dir, name), []byte(bare), 0o666))
		name, sumName = args[2], strings.TrimSuffix(args[2], ".mod")+".sum"
	}
	ts.Check(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666))
	ts.Check(os.WriteFile(filepath.Join(dir, sumName), []byte(sums), 0o666))
}

// replace changes a text in a file: replace old new file. The file must hold old.
func replace(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: replace old new file")
	}
	name := ts.MkAbs(args[2])
	before := ts.ReadFile(name)
	if !strings.Contains(before, args[0]) {
		ts.Fatalf("%s does not hold %q", args[2], args[0])
	}
	ts.Check(os.WriteFile(name, []byte(strings.ReplaceAll(before, args[0], args[1])), 0o666))
}

// snapshot keeps the state of a folder, times of change included: snapshot
// folder. With "same" as second argument it compares instead.
func snapshot(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) == 0 || len(args) > 2 || len(args) == 2 && args[1] != "same" || neg && len(args) != 2 {
		ts.Fatalf("usage: snapshot folder [same]")
	}
	dir := ts.MkAbs(args[0])
	var lines []string
	ts.Check(filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		sum := ""
		if info.Mode().IsRegular() {
			data, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			digest := sha256.Sum256(data)
			sum = hex.EncodeToString(digest[:8])
		}
		rel, err := filepath.Rel(dir, name)
		lines = append(lines, fmt.Sprintf("%s %s %d %s", rel, info.Mode(), info.ModTime().UnixNano(), sum))
		return err
	}))
	digest := sha256.Sum256([]byte(dir))
	kept := filepath.Join(ts.Getenv("WORK"), ".snapshot-"+hex.EncodeToString(digest[:8]))
	if len(args) == 1 {
		ts.Check(os.WriteFile(kept, []byte(strings.Join(lines, "\n")), 0o666))
		return
	}
	before := strings.Split(ts.ReadFile(kept), "\n")
	if same := slices.Equal(before, lines); same == neg {
		ts.Fatalf("%s: same is %v\nbefore:\n%s\nnow:\n%s", args[0], same, strings.Join(before, "\n"), strings.Join(lines, "\n"))
	}
}

// postgresDatabase makes a database for the script and sets LANEBOX_DB to its
// URL: postgres. Without a server the script fails if LANEBOX_TEST_REQUIRE=all,
// and is skipped otherwise.
func postgresDatabase(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) > 0 {
		ts.Fatalf("usage: postgres")
	}
	server := os.Getenv("LANEBOX_TEST_POSTGRES_URL")
	if server == "" {
		ts.Fatalf("LANEBOX_TEST_POSTGRES_URL is not set; guard the script with [!postgres] skip")
	}
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, server)
	ts.Check(err)
	defer conn.Close(ctx)
	name := "lanebox_script_" + strings.ToLower(rand.Text())
	_, err = conn.Exec(ctx, "CREATE DATABASE "+name)
	ts.Check(err)
	ts.Defer(func() {
		conn, err := pgx.Connect(ctx, server)
		if err != nil {
			ts.Logf("drop %s: %v", name, err)
			return
		}
		defer conn.Close(ctx)
		if _, err := conn.Exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			ts.Logf("drop %s: %v", name, err)
		}
	})
	u, err := url.Parse(server)
	ts.Check(err)
	u.Path = "/" + name
	ts.Setenv("LANEBOX_DB", u.String())
}

// sqlserverDatabase makes a database for the script and sets LANEBOX_DB to its
// URL: sqlserver.
func sqlserverDatabase(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) > 0 {
		ts.Fatalf("usage: sqlserver")
	}
	u, err := url.Parse(os.Getenv(testmssql.Variable))
	ts.Check(err)
	db, err := sql.Open("sqlserver", u.String())
	ts.Check(err)
	name := "lanebox_script_" + strings.ToLower(rand.Text())
	_, err = db.ExecContext(context.Background(), "CREATE DATABASE "+name)
	ts.Check(err)
	ts.Defer(func() {
		defer db.Close()
		if _, err := db.ExecContext(context.Background(), "DROP DATABASE "+name); err != nil {
			ts.Logf("drop %s: %v", name, err)
		}
	})
	query := u.Query()
	query.Set("database", name)
	u.RawQuery = query.Encode()
	ts.Setenv("LANEBOX_DB", u.String())
}

// query runs a statement in the script's database: query SQL. The first column
// of its rows is printed for stdout.
func query(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: query SQL")
	}
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, ts.Getenv("LANEBOX_DB"))
	ts.Check(err)
	defer conn.Close(ctx)
	rows, err := conn.Query(ctx, args[0])
	ts.Check(err)
	lines, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		values, err := row.Values()
		if len(values) == 0 {
			return "", err
		}
		return fmt.Sprint(values[0]), err
	})
	if (err != nil) != neg {
		ts.Fatalf("query: %v", err)
	}
	fmt.Fprintln(ts.Stdout(), strings.Join(lines, "\n"))
}
