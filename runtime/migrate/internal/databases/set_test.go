package databases_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/lanebox/lanebox/runtime/migrate"
)

// A target is an empty database of one dialect.
type target struct {
	*testing.T
	dialect string
	schema  string
	migrate func(s migrate.Set) (migrate.Report, error)
	// run executes a whole file, as another tool would.
	run   func(sql string) error
	count func(query string) int64
}

// eachDialect runs a test on a fresh database of every dialect.
func eachDialect(t *testing.T, test func(d *target)) {
	t.Run("sqlite", func(t *testing.T) { test(newSQLite(t)) })
	t.Run("postgres", func(t *testing.T) { test(newPostgres(t)) })
	t.Run("sqlserver", func(t *testing.T) { test(newSQLServer(t)) })
}

// set is a schema like the generated ones, in small: tables, a function or
// trigger whose body holds semicolons, and the scopes.
func (d *target) set() migrate.Set {
	s := migrate.Set{Schema: d.schema, Scopes: []migrate.Scope{
		{Number: 11, Kind: migrate.KindDestination, Name: "warehouse"},
		{Number: 12, Kind: migrate.KindDestination, Name: "ledger"},
		{Number: 21, Kind: migrate.KindSource, Name: "payments"},
		{Number: 22, Kind: migrate.KindPushSource, Name: "orders"},
		{Number: 1, Kind: migrate.KindPush, Name: "push"},
	}}
	d.fill(&s)
	return s
}

// fill writes the texts of a set for its prefix and scopes.
func (d *target) fill(s *migrate.Set) {
	d.Helper()
	read := func(name string) string {
		b, err := os.ReadFile("testdata/" + d.dialect + "/" + name)
		if err != nil {
			d.Fatal(err)
		}
		return strings.NewReplacer("SCHEMA", d.schema, "PREFIX", s.Prefix).Replace(string(b))
	}
	s.Steps = []migrate.Step{
		{Name: "0001_outbox", SQL: read("0001_outbox.sql")},
		{Name: "0002_inbox", SQL: read("0002_inbox.sql")},
	}
	s.Repeatable = read("repeatable.sql")
	var rows []string
	for _, x := range s.Scopes {
		rows = append(rows, fmt.Sprintf("(%d, '%s', '%s')", x.Number, x.Kind, x.Name))
	}
	insert := "INSERT INTO " + d.table(s, "lane_scope") + " (scope, kind, name) VALUES\n" + strings.Join(rows, ",\n")
	if d.dialect == "sqlserver" {
		s.Repeatable += "DELETE FROM " + d.table(s, "lane_scope") + ";\n" + insert + ";\n"
		return
	}
	s.Repeatable += insert + "\nON CONFLICT (scope) DO UPDATE SET kind = excluded.kind, name = excluded.name;\n"
}

// table names a table of a set.
func (d *target) table(s *migrate.Set, name string) string {
	if d.schema == "" {
		return `"` + s.Prefix + name + `"`
	}
	return `"` + d.schema + `"."` + s.Prefix + name + `"`
}

// apply migrates and compares the report.
func (d *target) apply(s migrate.Set, want string) {
	d.Helper()
	r, err := d.migrate(s)
	if err != nil {
		d.Fatal(err)
	}
	if r.String() != want {
		d.Errorf("report %q, want %q", r, want)
	}
}

const current = "routes, triggers and buckets are current"

func TestMigrateAppliesOnce(t *testing.T) {
	eachDialect(t, func(d *target) {
		s := d.set()
		d.apply(s, "applied 0001_outbox, 0002_inbox; "+current)
		d.apply(s, "nothing to apply; "+current)
		if n := d.count(`SELECT count(*) FROM ` + d.table(&s, "lanebox_migration")); n != 3 {
			t.Errorf("%d rows are recorded, want 3", n)
		}
		// The body of the trigger arrived whole.
		if err := d.run(`INSERT INTO ` + d.table(&s, "outbox") + ` (destination, lane, "key", topic, payload) VALUES (11, 1, 'k', 't;''', '{}')`); err != nil {
			t.Fatal(err)
		}
		if n := d.count(`SELECT count(*) FROM ` + d.table(&s, "outbox") + ` WHERE topic = 't;''; seen'`); n != 1 {
			t.Errorf("the trigger did not run")
		}
	})
}

func TestMigrateRepeatsWhatChanged(t *testing.T) {
	eachDialect(t, func(d *target) {
		s := d.set()
		d.apply(s, "applied 0001_outbox, 0002_inbox; "+current)
		s.Scopes[0].Name = "depot"
		d.fill(&s)
		d.apply(s, current)
		if n := d.count(`SELECT count(*) FROM ` + d.table(&s, "lane_scope") + ` WHERE name = 'depot'`); n != 1 {
			t.Error("the new name was not stored")
		}
	})
}

func TestMigrateAppliesNewSteps(t *testing.T) {
	eachDialect(t, func(d *target) {
		s := d.set()
		d.apply(s, "applied 0001_outbox, 0002_inbox; "+current)
		s.Steps = append(s.Steps, migrate.Step{Name: "0003_history", SQL: "CREATE TABLE " + d.table(&s, "history") + " (\n  x integer\n);\n"})
		d.apply(s, "applied 0003_history; "+current)
		d.apply(s, "nothing to apply; "+current)
	})
}

func TestMigrateRefusesAChangedStep(t *testing.T) {
	eachDialect(t, func(d *target) {
		s := d.set()
		d.apply(s, "applied 0001_outbox, 0002_inbox; "+current)
		s.Steps[1].SQL += "-- changed\n"
		var changed *migrate.ChangedStepError
		if _, err := d.migrate(s); !errors.As(err, &changed) || changed.Step != "0002_inbox" {
			t.Errorf("got %v, want a ChangedStepError of 0002_inbox", err)
		}
	})
}

func TestMigrateRefusesANewerDatabase(t *testing.T) {
	eachDialect(t, func(d *target) {
		s := d.set()
		d.apply(s, "applied 0001_outbox, 0002_inbox; "+current)
		old := s
		old.Steps = s.Steps[:1]
		var newer *migrate.NewerDatabaseError
		if _, err := d.migrate(old); !errors.As(err, &newer) || len(newer.Steps) != 1 || newer.Steps[0] != "0002_inbox" {
			t.Errorf("got %v, want a NewerDatabaseError of 0002_inbox", err)
		}
	})
}

func TestMigrateRefusesAForeignTable(t *testing.T) {
	for _, table := range []string{"outbox", "inbox_receipt", "lanebox_migration"} {
		t.Run(table, func(t *testing.T) {
			eachDialect(t, func(d *target) {
				s := d.set()
				if err := d.run(`CREATE TABLE ` + d.table(&s, table) + ` (id integer, sequence integer)`); err != nil {
					t.Fatal(err)
				}
				var foreign *migrate.ForeignTableError
				_, err := d.migrate(s)
				if !errors.As(err, &foreign) || foreign.Table != table || !strings.Contains(err.Error(), "database.prefix") {
					t.Fatalf("got %v, want a ForeignTableError of %s that names database.prefix", err, table)
				}
				if n := d.count(`SELECT count(*) FROM ` + d.table(&s, table)); n != 0 {
					t.Error("the table was written to")
				}
				s.Prefix = "my_"
				d.fill(&s)
				d.apply(s, "applied 0001_outbox, 0002_inbox; "+current)
			})
		})
	}
}

func TestMigrateAdoptsWhatAnotherToolApplied(t *testing.T) {
	eachDialect(t, func(d *target) {
		s := d.set()
		if err := d.run(s.Steps[0].SQL); err != nil {
			t.Fatal(err)
		}
		d.apply(s, "applied 0002_inbox; adopted 0001_outbox; "+current)
		d.apply(s, "nothing to apply; "+current)
	})
	eachDialect(t, func(d *target) {
		s := d.set()
		for _, text := range []string{s.Steps[0].SQL, s.Steps[1].SQL, s.Repeatable} {
			if err := d.run(text); err != nil {
				t.Fatal(err)
			}
		}
		d.apply(s, "adopted 0001_outbox, 0002_inbox; "+current)
	})
}

func TestMigrateRefusesAStepAppliedInPart(t *testing.T) {
	eachDialect(t, func(d *target) {
		s := d.set()
		table := "inbox_dead"
		if d.schema != "" {
			table = d.schema + "." + table
		}
		half, _, _ := strings.Cut(s.Steps[1].SQL, "CREATE TABLE "+table)
		if half == s.Steps[1].SQL {
			t.Fatal("the step was not cut")
		}
		if err := d.run(half); err != nil {
			t.Fatal(err)
		}
		if _, err := d.migrate(s); err == nil || !strings.Contains(err.Error(), "applied in part") {
			t.Errorf("got %v, want an error about a part", err)
		}
	})
}

func TestMigrateProtectsRemovedScopes(t *testing.T) {
	insert := map[string]string{
		"waiting destination": `INSERT INTO outbox (destination, lane, topic, payload) VALUES (12, 1, 't', '{}')`,
		"dead destination":    `INSERT INTO outbox_dead (destination, lane, topic, payload) VALUES (12, 1, 't', '{}')`,
		"held destination":    `INSERT INTO lane_hold (scope, lane, sequence) VALUES (12, 1, 0)`,
		"waiting source":      `INSERT INTO inbox (scope, source, lane, event_type) VALUES (21, 21, 1, 't')`,
		"dead source":         `INSERT INTO inbox_dead (scope, source, lane, event_type) VALUES (21, 21, 1, 't')`,
		"waiting push source": `INSERT INTO inbox (scope, source, lane, event_type) VALUES (1, 22, 1, 't')`,
	}
	for name, statement := range insert {
		t.Run(name, func(t *testing.T) {
			eachDialect(t, func(d *target) {
				s := d.set()
				d.apply(s, "applied 0001_outbox, 0002_inbox; "+current)
				statement := statement
				if d.schema != "" {
					statement = strings.Replace(statement, "INTO ", "INTO "+d.schema+".", 1)
				}
				if err := d.run(statement); err != nil {
					t.Fatal(err)
				}
				smaller := s
				smaller.Scopes = []migrate.Scope{s.Scopes[0]} // only the warehouse is left
				d.fill(&smaller)
				var removed *migrate.RemovedScopeError
				_, err := d.migrate(smaller)
				if !errors.As(err, &removed) || removed.Load.Waiting+removed.Load.Held+removed.Load.Dead < 1 || !strings.Contains(err.Error(), "was:") {
					t.Fatalf("got %v, want a RemovedScopeError that says what to do", err)
				}
				if n := d.count(`SELECT count(*) FROM ` + d.table(&s, "lane_scope")); n != 5 {
					t.Errorf("%d scopes are left, want all 5", n)
				}
				// A rename keeps the number.
				s.Scopes[1].Name, s.Scopes[2].Name, s.Scopes[3].Name = "books", "money", "shop"
				d.fill(&s)
				d.apply(s, current)
			})
		})
	}
}

func TestMigrateDropsEmptyScopes(t *testing.T) {
	eachDialect(t, func(d *target) {
		s := d.set()
		d.apply(s, "applied 0001_outbox, 0002_inbox; "+current)
		s.Scopes = s.Scopes[:1]
		d.fill(&s)
		d.apply(s, `dropped destination "ledger"; dropped push "push"; dropped push source "orders"; dropped source "payments"; `+current)
		if n := d.count(`SELECT count(*) FROM ` + d.table(&s, "lane_scope")); n != 1 {
			t.Errorf("%d scopes are left, want 1", n)
		}
	})
}

func TestFailedMigrationLeavesNothing(t *testing.T) {
	eachDialect(t, func(d *target) {
		s := d.set()
		s.Steps[1].SQL += "CREATE TABEL oops;\n"
		if _, err := d.migrate(s); err == nil || !strings.Contains(err.Error(), "0002_inbox") {
			t.Fatalf("got %v, want an error that names the step", err)
		}
		good := d.set()
		d.apply(good, "applied 0001_outbox, 0002_inbox; "+current)
	})
}

func TestDryRunChangesNothing(t *testing.T) {
	eachDialect(t, func(d *target) {
		s := d.set()
		s.DryRun = true
		d.apply(s, "applied 0001_outbox, 0002_inbox; "+current)
		s.DryRun = false
		d.apply(s, "applied 0001_outbox, 0002_inbox; "+current)
	})
}

func TestConcurrentMigratorsMigrateOnce(t *testing.T) {
	eachDialect(t, func(d *target) {
		const migrators = 6
		reports, errs := make(chan migrate.Report, migrators), make(chan error, migrators)
		start := make(chan struct{})
		for range migrators {
			go func() {
				<-start
				r, err := d.migrate(d.set())
				reports <- r
				errs <- err
			}()
		}
		close(start)
		applied := 0
		for range migrators {
			if err := <-errs; err != nil {
				t.Error(err)
			}
			if r := <-reports; len(r.Applied) > 0 {
				applied++
			}
		}
		if applied != 1 {
			t.Errorf("%d migrators applied the steps, want 1", applied)
		}
	})
}
