package cli

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	mssql "github.com/microsoft/go-mssqldb"
	"github.com/microsoft/go-mssqldb/msdsn"

	"github.com/lanebox/lanebox/generator"
	"github.com/lanebox/lanebox/generator/model"
	"github.com/lanebox/lanebox/generator/output"
	"github.com/lanebox/lanebox/runtime/migrate"
	"github.com/lanebox/lanebox/runtime/sqlstore/sqlite"
)

// databaseVariable names the environment variable that --db defaults to.
const databaseVariable = "LANEBOX_DB"

func migrateCommand() command {
	var db string
	var dryRun bool
	return command{
		name:    "migrate",
		args:    "[--db URL] [--dry-run] [schema]",
		summary: "bring a database to the state that the schema asks for",
		help: `Applies the numbered steps that the database lacks, and, if it changed, the
repeatable part: routes, triggers and buckets. Everything happens in one
transaction under a lock, so that several processes may migrate at once, and an
error leaves the database as it was.

The database is a URL, postgres://user@host/name or
sqlserver://user@host?database=name, or the path of an SQLite file, which may be
written sqlite:path. It is given by --db or by ` + databaseVariable + `; the variable
keeps passwords out of the list of processes.

A table of the same name that lanebox did not make is refused, and so is a
schema without a destination or source for which messages still wait.

With --dry-run the same happens and is undone; the SQL is printed. Without a
database, --dry-run prints all SQL of all dialects. The files can also be
applied with goose, tern or by hand: they lie in the output folder, in
<dialect>/migrations.`,
		flags: func(f *flag.FlagSet) {
			f.StringVar(&db, "db", "", "`URL` or SQLite file; default: $"+databaseVariable)
			f.BoolVar(&dryRun, "dry-run", false, "change nothing; print the SQL that would be applied")
		},
		run: func(ctx context.Context, c *call) error {
			if db == "" {
				db = getenv(databaseVariable)
			}
			if db == "" && !dryRun {
				return usageError("no database: give --db or set " + databaseVariable)
			}
			s, err := readSchema(c.args)
			if err != nil {
				return err
			}
			result, findings, err := generator.SQL(s.name, s.data)
			if err := errors.Join(err, findings.Text(c.stderr, s.data)); err != nil {
				return err
			}
			if findings.Errors() > 0 {
				return errFound
			}
			if db == "" {
				return c.printMigrations(result)
			}
			return c.migrate(ctx, s, result, db, dryRun)
		},
	}
}

// migrate applies the schema to one database.
func (c *call) migrate(ctx context.Context, s source, result *generator.Result, db string, dryRun bool) error {
	dialect, address, err := target(db)
	if err != nil {
		return err
	}
	if !slices.Contains(result.Model.Dialects, dialect) {
		return fmt.Errorf("the database is %s, but %s has dialects: [%s]", dialect, s.name, strings.Join(result.Model.Dialects, ", "))
	}
	if err := checkCommitted(s, result, dialect); err != nil {
		return err
	}
	set := migrationSet(result, dialect)
	set.DryRun = dryRun
	began := time.Now()
	report, err := apply(ctx, dialect, address, set)
	if err != nil {
		return err
	}
	if dryRun {
		return c.printPlan(set, report)
	}
	_, err = fmt.Fprintf(c.stdout, "%s (%s)\n", report, time.Since(began).Round(time.Millisecond))
	return err
}

// connectTime is how long connecting may take. What migrating waits for is
// somebody else's migration, or a long transaction, and may take its time.
const connectTime = 15 * time.Second

// apply connects to the database and migrates it.
func apply(ctx context.Context, dialect, address string, set migrate.Set) (migrate.Report, error) {
	switch dialect {
	case "sqlite":
		return applySQLite(ctx, address, set)
	case "sqlserver":
		return applySQLServer(ctx, address, set)
	default:
		return applyPostgres(ctx, address, set)
	}
}

func applyPostgres(ctx context.Context, address string, set migrate.Set) (migrate.Report, error) {
	connect, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	conn, err := pgx.Connect(connect, address)
	if err != nil {
		return migrate.Report{}, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return migrate.Postgres(ctx, conn, set)
}

func applySQLite(ctx context.Context, address string, set migrate.Set) (migrate.Report, error) {
	if _, err := os.Stat(filepath.Dir(address)); err != nil {
		return migrate.Report{}, fmt.Errorf("open the SQLite file: %w", err)
	}
	if _, err := os.Stat(address); errors.Is(err, fs.ErrNotExist) && set.DryRun {
		// A dry run leaves no file behind.
		tmp, err := os.MkdirTemp("", "lanebox-dry-run-")
		if err != nil {
			return migrate.Report{}, err
		}
		defer os.RemoveAll(tmp)
		address = filepath.Join(tmp, "empty.db")
	}
	db, err := sqlite.Open(address)
	if err != nil {
		return migrate.Report{}, err
	}
	defer db.Close()
	return migrate.SQLite(ctx, db, set)
}

func applySQLServer(ctx context.Context, address string, set migrate.Set) (migrate.Report, error) {
	config, err := msdsn.Parse(address)
	if err != nil {
		// The driver's error quotes the whole URL, with the password.
		return migrate.Report{}, errors.New("the URL of the SQL Server is not well formed: use sqlserver://user:password@host:1433?database=name, " +
			"with special characters of the password percent-encoded")
	}
	if config.Database == "" {
		return migrate.Report{}, errors.New("the URL names no database: add ?database=name, or the tables might come to lie in master")
	}
	db := sql.OpenDB(mssql.NewConnectorConfig(config))
	defer db.Close()
	connect, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	if err := db.PingContext(connect); err != nil {
		return migrate.Report{}, fmt.Errorf("connect to SQL Server: %w", err)
	}
	return migrate.SQLServer(ctx, db, set)
}

// adoText matches connection strings such as "Server=localhost;Database=shop".
var adoText = regexp.MustCompile(`(?i)^\s*(server|data source|addr|address|network address)\s*=.*;`)

// target tells which dialect a database speaks, and its address for the driver.
func target(db string) (dialect, address string, err error) {
	scheme, rest, found := strings.Cut(db, ":")
	switch {
	case found && (scheme == "postgres" || scheme == "postgresql"):
		return "postgres", db, nil
	case found && scheme == "sqlserver":
		return "sqlserver", db, nil
	case found && scheme == "sqlite":
		address = strings.TrimPrefix(rest, "//")
	case found && strings.HasPrefix(rest, "//"):
		return "", "", fmt.Errorf("unknown kind of database %q: use postgres://…, sqlserver://… or the path of an SQLite file", scheme)
	case strings.Contains(db, "host=") || strings.Contains(db, "dbname="):
		return "postgres", db, nil
	case adoText.MatchString(db):
		return "", "", errors.New("the text of keys and values looks like one for SQL Server: write it as sqlserver://user:password@host:1433?database=name")
	default:
		address = db
	}
	if address == "" {
		return "", "", errors.New("the database names no SQLite file")
	}
	return "sqlite", address, nil
}

// migrations returns the generated migrations of a dialect, in order.
func migrations(result *generator.Result, dialect string) []output.File {
	dir := path.Join(result.Model.Go.Out, dialect, "migrations")
	var files []output.File
	for _, f := range result.Files {
		if path.Dir(f.Path) == dir && path.Ext(f.Path) == ".sql" {
			files = append(files, f)
		}
	}
	return files
}

// checkCommitted refuses to apply other SQL than the generated package embeds,
// where that package is at hand.
func checkCommitted(s source, result *generator.Result, dialect string) error {
	changes, err := output.Compare(s.dir(), result.Folders(), migrations(result, dialect))
	if err != nil {
		return err
	}
	for _, change := range changes {
		if change.State == output.Stale {
			return fmt.Errorf("%s is not what the schema gives; run go generate before you migrate", display(s, change.Path))
		}
	}
	return nil
}

// migrationSet returns what the dialect's database must have.
func migrationSet(result *generator.Result, dialect string) migrate.Set {
	m := result.Model
	set := migrate.Set{Schema: m.Database.SchemaIn(dialect), Prefix: m.Database.Prefix, Scopes: scopes(m)}
	for _, f := range migrations(result, dialect) {
		name := strings.TrimSuffix(path.Base(f.Path), ".sql")
		if name == "repeatable" {
			set.Repeatable = string(f.Data)
		} else {
			set.Steps = append(set.Steps, migrate.Step{Name: name, SQL: string(f.Data)})
		}
	}
	return set
}

// scopes lists the destinations and sources of the schema.
func scopes(m *model.Model) []migrate.Scope {
	var list []migrate.Scope
	for _, d := range m.Destinations {
		list = append(list, migrate.Scope{Number: d.Number, Kind: migrate.KindDestination, Name: d.Name})
	}
	push := false
	for _, s := range m.Sources {
		kind := migrate.KindSource
		if !s.Pull {
			push, kind = true, migrate.KindPushSource
		}
		list = append(list, migrate.Scope{Number: s.Number, Kind: kind, Name: s.Name})
	}
	if push {
		list = append(list, migrate.Scope{Number: model.PushScope, Kind: migrate.KindPush, Name: "push"})
	}
	return list
}

// printMigrations prints all SQL of all dialects.
func (c *call) printMigrations(result *generator.Result) error {
	for _, dialect := range result.Model.Dialects {
		for _, f := range migrations(result, dialect) {
			if _, err := fmt.Fprintf(c.stdout, "-- file: %s\n%s\n", f.Path, f.Data); err != nil {
				return err
			}
		}
	}
	return nil
}

// printPlan prints the SQL that a dry run applied and undid.
func (c *call) printPlan(set migrate.Set, report migrate.Report) error {
	for _, step := range set.Steps {
		if slices.Contains(report.Applied, step.Name) {
			fmt.Fprintf(c.stdout, "-- step: %s\n%s\n", step.Name, step.SQL)
		}
	}
	if report.Repeated {
		fmt.Fprintf(c.stdout, "-- repeatable part\n%s\n", set.Repeatable)
	}
	_, err := fmt.Fprintf(c.stdout, "-- dry run: %s; nothing was changed\n", report)
	return err
}
