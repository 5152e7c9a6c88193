package sqlcode_test

import (
	"path"
	"testing"

	"github.com/lanebox/lanebox/generator/emit/sqlcode"
	"github.com/lanebox/lanebox/generator/emit/sqlcode/sqlcodetest"
	"github.com/lanebox/lanebox/generator/emit/tsqlgo"
	"github.com/lanebox/lanebox/generator/model"
)

// sqlServerFixtures are the generated packages that the tests of the SQL Server
// store run on, below the module's root.
const sqlServerFixtures = "runtime/sqlstore/sqlserver/internal/fixture"

// sqlServerFixture returns a model like those of PostgreSQL: plain uses the
// defaults of the database, quoted needs quotes everywhere and stores bytes.
func sqlServerFixture(name string) *model.Model {
	m := sqlcodetest.Model("sqlserver")
	m.Go = model.Go{Package: name, Out: path.Join(sqlServerFixtures, name), Import: path.Join("github.com/lanebox/lanebox", sqlServerFixtures, name)}
	m.Database = model.Database{}
	if name == "quoted" {
		m.Database = model.Database{Schema: `my "odd" schema\`, Prefix: "Select "}
		m.Binary = true
	}
	return m
}

// TestSQLServerFixtures keeps the committed packages equal to what is generated.
func TestSQLServerFixtures(t *testing.T) {
	for _, name := range []string{"plain", "quoted"} {
		m := sqlServerFixture(name)
		files, err := sqlcode.Emit(m)
		if err != nil {
			t.Fatal(err)
		}
		statements, err := sqlcode.SQLServerQueries(m)
		if err != nil {
			t.Fatal(err)
		}
		code, err := tsqlgo.Emit(path.Join(m.Go.Out, "sqlserver", "internal", "db"), statements)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range append(files, code...) {
			compare(t, f)
		}
	}
}
