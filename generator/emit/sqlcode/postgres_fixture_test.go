package sqlcode_test

import (
	"bytes"
	"flag"
	"os"
	"path"
	"path/filepath"
	"testing"

	"github.com/lanebox/lanebox/generator/dialect"
	"github.com/lanebox/lanebox/generator/emit/sqlcode"
	"github.com/lanebox/lanebox/generator/emit/sqlcode/sqlcodetest"
	"github.com/lanebox/lanebox/generator/model"
	"github.com/lanebox/lanebox/generator/output"
	"github.com/lanebox/lanebox/generator/sqlc"
)

var update = flag.Bool("update", false, "write the generated packages that the store's tests use")

// fixtures are the generated packages that the tests of the PostgreSQL store
// run on, below the module's root.
const fixtures = "runtime/sqlstore/postgres/internal/fixture"

// plainModel uses the defaults of the database; quotedModel needs quotes
// everywhere and stores bytes.
func plainModel() *model.Model { return fixtureModel("plain") }

func quotedModel() *model.Model {
	m := fixtureModel("quoted")
	m.Database = model.Database{Schema: `my "odd" schema\`, Prefix: "Select "}
	m.Binary = true
	return m
}

func fixtureModel(name string) *model.Model {
	m := sqlcodetest.Model("postgres")
	m.Go = model.Go{Package: name, Out: path.Join(fixtures, name), Import: path.Join("github.com/lanebox/lanebox", fixtures, name)}
	return m
}

// TestPostgresFixtures keeps the committed packages equal to what is generated.
func TestPostgresFixtures(t *testing.T) {
	for _, m := range []*model.Model{plainModel(), quotedModel()} {
		files, err := sqlcode.Emit(m)
		if err != nil {
			t.Fatal(err)
		}
		code, err := sqlc.Run(t.Context(), files)
		if err != nil {
			t.Fatal(err)
		}
		if err := sqlc.Check(dialect.Postgres, sqlcode.Queries("postgres", m.Binary), code); err != nil {
			t.Error(err)
		}
		for _, f := range append(files, code...) {
			compare(t, f)
		}
	}
}

func compare(t *testing.T, f output.File) {
	name := filepath.Join("..", "..", "..", filepath.FromSlash(f.Path))
	if *update {
		if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, f.Data, 0o666); err != nil {
			t.Fatal(err)
		}
		return
	}
	onDisk, err := os.ReadFile(name)
	if err != nil {
		t.Errorf("%v (run go test ./generator/emit/sqlcode -run Fixtures -update)", err)
	} else if !bytes.Equal(onDisk, f.Data) {
		t.Errorf("%s is stale (run go test ./generator/emit/sqlcode -run Fixtures -update)", f.Path)
	}
}
