package sqlc_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/lanebox/lanebox/generator/dialect"
	"github.com/lanebox/lanebox/generator/emit/sqlcode"
	"github.com/lanebox/lanebox/generator/emit/sqlcode/sqlcodetest"
	"github.com/lanebox/lanebox/generator/output"
	"github.com/lanebox/lanebox/generator/sqlc"
)

func TestMain(m *testing.M) {
	sqlc.ChildMain()
	os.Exit(m.Run())
}

func TestGeneratedCodeMatchesQueryModel(t *testing.T) {
	for _, binary := range []bool{false, true} {
		m := sqlcodetest.Model("postgres", "sqlite")
		m.Binary = binary
		sql, err := sqlcode.Emit(m)
		if err != nil {
			t.Fatal(err)
		}
		code, err := sqlc.Run(t.Context(), sql)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range []*dialect.Dialect{dialect.Postgres, dialect.SQLite} {
			if err := sqlc.Check(d, sqlcode.Queries(d.Name, binary), code); err != nil {
				t.Errorf("binary=%v:\n%v", binary, err)
			}
		}
		for _, f := range code {
			if !strings.HasPrefix(string(f.Data), "// "+output.Header+"\n") {
				t.Errorf("%s does not start with the header", f.Path)
			}
			if !strings.HasPrefix(f.Path, "internal/events/postgres/internal/db/") && !strings.HasPrefix(f.Path, "internal/events/sqlite/internal/db/") {
				t.Errorf("unexpected file %s", f.Path)
			}
		}
	}
}

// small returns a configuration with one table and the given queries.
func small(queries string) []output.File {
	m := sqlcodetest.Model("postgres")
	files, err := sqlcode.Emit(m)
	if err != nil {
		panic(err)
	}
	var config output.File
	for _, f := range files {
		if strings.HasSuffix(f.Path, "sqlc.yaml") {
			config = f
		}
	}
	return []output.File{config,
		{Path: "internal/events/postgres/schema.sql", Data: []byte("CREATE TABLE thing (id bigint NOT NULL, name text NOT NULL);\n")},
		{Path: "internal/events/postgres/queries.sql", Data: []byte(queries)},
	}
}

var thing = sqlcode.Query{Name: "Thing", Kind: sqlcode.Many,
	Params:  []sqlcode.Field{{Name: "id", Type: dialect.Int64}},
	Columns: []sqlcode.Field{{Name: "id", Type: dialect.Int64}, {Name: "name", Type: dialect.Text}}}

func TestCheckFindsDifferences(t *testing.T) {
	good := "-- name: Thing :many\nSELECT t.id, t.name FROM thing AS t WHERE t.id = sqlc.arg('id')::bigint;\n"
	for name, c := range map[string]struct {
		queries string
		model   []sqlcode.Query
		want    string // "" means no error
	}{
		"the same": {good, []sqlcode.Query{thing}, ""},
		"a parameter that sqlc drops in silence": {
			"-- name: Thing :many\nSELECT t.id, t.name FROM thing AS t WHERE t.id = 1;\n" +
				"-- name: Merge :exec\nMERGE INTO thing AS t USING (SELECT 1::bigint AS id) AS s ON t.id = s.id WHEN MATCHED THEN UPDATE SET name = sqlc.arg('name')::text;\n",
			[]sqlcode.Query{{Name: "Merge", Kind: sqlcode.Exec, Params: []sqlcode.Field{{Name: "name", Type: dialect.Text}}}},
			`query Merge: parameter left in the text: "sqlc.arg("`},
		"a parameter that is not in the text": {
			"-- name: Thing :many\nSELECT t.id, t.name FROM thing AS t WHERE t.id = 1;\n", []sqlcode.Query{thing},
			"query Thing: parameter 1: want ID int64, it is missing"},
		"an untyped column": {
			"-- name: Thing :many\nSELECT t.id, min(t.name) AS name FROM thing AS t WHERE t.id = sqlc.arg('id')::bigint GROUP BY t.id;\n", []sqlcode.Query{thing},
			"query Thing: column 2: Name is untyped; cast it in the text"},
		"a single untyped column": {
			"-- name: Thing :one\nSELECT min(t.name) AS name FROM thing AS t;\n",
			[]sqlcode.Query{{Name: "Thing", Kind: sqlcode.One, Columns: []sqlcode.Field{{Name: "name", Type: dialect.Text}}}},
			"query Thing: column 1: Name is untyped"},
		"another type": {
			"-- name: Thing :many\nSELECT t.id, t.name FROM thing AS t WHERE t.id = sqlc.arg('id')::integer;\n", []sqlcode.Query{thing},
			"query Thing: parameter 1: want ID int64, got ID int32"},
		"an array without its cast": {
			"-- name: Thing :many\nSELECT t.id, t.name FROM thing AS t WHERE t.id = ANY(sqlc.arg('ids'));\n",
			[]sqlcode.Query{{Name: "Thing", Kind: sqlcode.Many, Params: []sqlcode.Field{{Name: "ids", Type: dialect.Int64s}}, Columns: thing.Columns}},
			"query Thing: parameter 1: want Ids []int64, got Ids int64"},
		"columns in another order": {
			"-- name: Thing :many\nSELECT t.name, t.id FROM thing AS t WHERE t.id = sqlc.arg('id')::bigint;\n", []sqlcode.Query{thing},
			"query Thing: column 1: want ID int64, got Name string"},
		"a missing column": {
			"-- name: Thing :many\nSELECT t.id FROM thing AS t WHERE t.id = sqlc.arg('id')::bigint;\n", []sqlcode.Query{thing},
			"query Thing: column"},
		"a missing query":              {good, []sqlcode.Query{thing, {Name: "Other", Kind: sqlcode.Exec}}, "query Other: is missing"},
		"a query outside of the model": {good, nil, "query Thing is not in the query model"},
	} {
		t.Run(name, func(t *testing.T) {
			code, err := sqlc.Run(t.Context(), small(c.queries))
			if err != nil {
				t.Fatal(err)
			}
			err = sqlc.Check(dialect.Postgres, c.model, code)
			switch {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
}

func TestCheckNeedsCode(t *testing.T) {
	if err := sqlc.Check(dialect.Postgres, []sqlcode.Query{thing}, nil); err == nil {
		t.Error("no error without any file")
	}
}

// Errors name the files that the service will see, not those of a temporary
// folder.
func TestErrorsNameGeneratedFiles(t *testing.T) {
	_, err := sqlc.Run(t.Context(), small("-- name: Thing :many\nSELECT t.id FROM thingg AS t;\n"))
	var refused *sqlc.Error
	if !errors.As(err, &refused) {
		t.Fatalf("got %v", err)
	}
	if !strings.Contains(refused.Log, "internal/events/postgres/queries.sql:1:1: relation \"thingg\" does not exist") || strings.Contains(refused.Log, os.TempDir()) {
		t.Errorf("got %s", refused.Log)
	}
}

func TestRunNeedsAConfiguration(t *testing.T) {
	if _, err := sqlc.Run(t.Context(), nil); err == nil {
		t.Error("no error")
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := sqlc.Run(ctx, small("")); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
