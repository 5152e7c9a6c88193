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

// emit returns the SQL of the test model and sqlc's Go for it.
func emit(t *testing.T, binary bool) (sql, code []output.File) {
	t.Helper()
	m := sqlcodetest.Model("postgres")
	m.Binary = binary
	sql, err := sqlcode.Emit(m)
	if err != nil {
		t.Fatal(err)
	}
	code, err = sqlc.Run(t.Context(), sql)
	if err != nil {
		t.Fatal(err)
	}
	return sql, code
}

func TestGeneratedCodeMatchesQueryModel(t *testing.T) {
	for _, binary := range []bool{false, true} {
		_, code := emit(t, binary)
		if err := sqlc.Check(dialect.Postgres, sqlcode.Queries("postgres", binary), code); err != nil {
			t.Errorf("binary=%v:\n%v", binary, err)
		}
		for _, f := range code {
			if !strings.HasPrefix(string(f.Data), "// "+output.Header+"\n") {
				t.Errorf("%s does not start with the header", f.Path)
			}
		}
	}
}

var _ = context.Canceled
var _ = errors.Is
