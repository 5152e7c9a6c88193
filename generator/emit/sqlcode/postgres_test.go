package sqlcode_test

import (
	"strings"
	"testing"

	"github.com/lanebox/lanebox/generator/dialect"
	"github.com/lanebox/lanebox/generator/emit/sqlcode"
	"github.com/lanebox/lanebox/generator/emit/sqlcode/sqlcodetest"
	"github.com/lanebox/lanebox/generator/model"
	"github.com/lanebox/lanebox/generator/sqlc"
)

// PostgreSQL cuts names of more than 63 bytes without an error; so long ones are
// one.
func TestPostgresRefusesNamesItWouldCut(t *testing.T) {
	for _, db := range []model.Database{
		{Schema: "public", Prefix: strings.Repeat("p", 42)}, {Schema: strings.Repeat("s", 64)},
	} {
		m := sqlcodetest.Model("postgres")
		m.Database = db
		if _, err := sqlcode.Emit(m); err == nil || !strings.Contains(err.Error(), "PostgreSQL keeps 63") {
			t.Errorf("%+v: %v", db, err)
		}
	}
	m := sqlcodetest.Model("postgres")
	m.Database.Prefix = strings.Repeat("p", 41)
	if _, err := sqlcode.Emit(m); err != nil {
		t.Error(err)
	}
}

// Half a schema is a schema: only destinations, only sources, neither.
func TestPostgresPartialModels(t *testing.T) {
	for name, cut := range map[string]func(*model.Model){
		"no sources":      func(m *model.Model) { m.Sources = nil },
		"no destinations": func(m *model.Model) { m.Destinations, m.Routes, m.Events = nil, nil, nil },
		"nothing":         func(m *model.Model) { m.Destinations, m.Routes, m.Events, m.Sources = nil, nil, nil, nil },
		"one route":       func(m *model.Model) { m.Routes = m.Routes[:1] },
	} {
		m := sqlcodetest.Model("postgres")
		cut(m)
		files, err := sqlcode.Emit(m)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		code, err := sqlc.Run(t.Context(), files)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := sqlc.Check(dialect.Postgres, sqlcode.Queries("postgres", false), code); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Names from the schema stay inside their comments and literals.
func TestPostgresNamesCannotInject(t *testing.T) {
	m := sqlcodetest.Model("postgres")
	m.Destinations[0].Name = "x\n; DROP TABLE outbox; --"
	m.Sources[0].Name = "y' ); DROP TABLE inbox; --\n"
	m.Routes[0].Events = []string{"o'rder.*", `b\s_%.*`}
	files, err := sqlcode.Emit(m)
	if err != nil {
		t.Fatal(err)
	}
	comments := 0
	for _, f := range files {
		for line := range strings.Lines(string(f.Data)) {
			if _, after, ok := strings.Cut(line, "-- x "); ok {
				comments++
				if after != "; DROP TABLE outbox; --\n" {
					t.Errorf("%s: %q", f.Path, line)
				}
			}
		}
	}
	if comments == 0 {
		t.Error("no comment names the destination")
	}
	if _, err := sqlc.Run(t.Context(), files); err != nil {
		t.Error(err)
	}
}
