package sqlcode_test

import (
	"bytes"
	"crypto/sha256"
	"database/sql"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lanebox/lanebox/generator/dialect"
	"github.com/lanebox/lanebox/generator/emit/sqlcode"
	"github.com/lanebox/lanebox/generator/model"
	"github.com/lanebox/lanebox/generator/output"
	"github.com/lanebox/lanebox/generator/sqlc"
	_ "modernc.org/sqlite"
)

// init makes the test binary the sqlc that sqlc.Run starts.
func init() { sqlc.ChildMain() }

var updateShop = flag.Bool("update-shop", false, "write the generated shop for the tests of runtime/sqlstore/sqlite")

// shopFolder holds the SQLite part of the shop, which the tests of the runtime
// compile and run.
const shopFolder = "../../../runtime/sqlstore/sqlite/internal"

// shopModel is a small schema with everything that the SQL distinguishes.
func shopModel(binary bool) *model.Model {
	order := &model.Key{Name: "order_id", GoName: "OrderID", Parts: []model.KeyPart{{Type: model.Type{Kind: model.String}}}}
	account := &model.Key{Name: "account", GoName: "Account", Version: model.Version{Dense: true},
		Parts: []model.KeyPart{{Type: model.Type{Kind: model.String}}}}
	m := &model.Model{
		File: "lanebox.yaml", Go: model.Go{Package: "shop", Out: "shop",
			Import: "github.com/lanebox/lanebox/runtime/sqlstore/sqlite/internal/shop"}, Dialects: []string{"sqlite"}, Binary: binary,
		Keys: []model.Key{*account, *order},
		Destinations: []model.Destination{
			{Name: "audit", GoName: "Audit", Number: 1003, Type: "handler"},
			{Name: "ledger", GoName: "Ledger", Number: 1002, Type: "handler"},
			{Name: "warehouse", GoName: "Warehouse", Number: 1001, Type: "http"},
		},
		Sources: []model.Source{
			{Name: "orders", GoName: "Orders", Number: 2001, Type: "http"},
			{Name: "payments", GoName: "Payments", Number: 2002, Type: "handler", Pull: true},
			{Name: "refunds", GoName: "Refunds", Number: 2003, Type: "http"},
		},
		Events: []model.Event{
			{Topic: "account.changed", GoName: "AccountChanged", Key: account},
			{Topic: "news", GoName: "News"},
			{Topic: "order.placed", GoName: "OrderPlaced", Key: order},
			{Topic: "order.shipped", GoName: "OrderShipped", Key: order},
		},
	}
	audit, ledger, warehouse := &m.Destinations[0], &m.Destinations[1], &m.Destinations[2]
	m.Routes = []model.Route{
		{Events: []string{"order.*"}, To: []*model.Destination{warehouse, ledger}},
		{Events: []string{"account.changed"}, To: []*model.Destination{ledger}},
		{Events: []string{"account.*"}, To: []*model.Destination{ledger, audit}},
		{Events: []string{"news", "it's [odd]?*"}, To: []*model.Destination{warehouse}},
	}
	return m
}

// generateShop returns everything generated for m, sqlc's Go included.
func generateShop(t *testing.T, m *model.Model) []output.File {
	t.Helper()
	files, err := sqlcode.Emit(m)
	if err != nil {
		t.Fatal(err)
	}
	compiled, err := sqlc.Run(t.Context(), files)
	if err != nil {
		t.Fatal(err)
	}
	if err := sqlc.Check(dialect.SQLite, sqlcode.Queries("sqlite", m.Binary), compiled); err != nil {
		t.Fatal(err)
	}
	return append(files, compiled...)
}

// TestSQLiteShopIsCurrent compares the shop that the runtime's tests run with
// what is generated now.
func TestSQLiteShopIsCurrent(t *testing.T) {
	for _, f := range generateShop(t, shopModel(false)) {
		name := filepath.Join(shopFolder, filepath.FromSlash(f.Path))
		if *updateShop {
			if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, f.Data, 0o666); err != nil {
				t.Fatal(err)
			}
			continue
		}
		have, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(have, f.Data) {
			t.Errorf("%s is stale; run go test ./generator/emit/sqlcode -run SQLiteShop -update-shop", name)
		}
	}
}

// TestSQLiteOutputDoesNotDependOnTheRun generates twice.
func TestSQLiteOutputDoesNotDependOnTheRun(t *testing.T) {
	a, err := sqlcode.Emit(shopModel(true))
	if err != nil {
		t.Fatal(err)
	}
	b, err := sqlcode.Emit(shopModel(true))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.EqualFunc(a, b, func(x, y output.File) bool { return x.Path == y.Path && bytes.Equal(x.Data, y.Data) }) {
		t.Error("two runs differ")
	}
}

// migrated returns a database with the SQLite migrations of m, applied twice
// where that is allowed.
func migrated(t *testing.T, m *model.Model) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(t.TempDir(), "x.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	files, err := sqlcode.Emit(m)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"0001_outbox", "0002_inbox", "repeatable", "repeatable"} {
		i := slices.IndexFunc(files, func(f output.File) bool { return f.Path == "shop/sqlite/migrations/"+name+".sql" })
		if i < 0 {
			t.Fatalf("no migration %s", name)
		}
		if _, err := db.Exec(string(files[i].Data)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	return db
}

// TestSQLitePrefix: hostile prefixes are quoted, and sqlc understands the result.
func TestSQLitePrefix(t *testing.T) {
	for _, prefix := range []string{"shop_", "Order", `my "shop" `, "3d"} {
		m := shopModel(false)
		m.Database.Prefix = prefix
		db := migrated(t, m)
		table := `"` + strings.ReplaceAll(prefix+"outbox", `"`, `""`) + `"`
		if _, err := db.Exec(`INSERT INTO ` + table + ` (topic, key, payload) VALUES ('order.placed', 'k', '{}')`); err != nil {
			t.Errorf("%q: %v", prefix, err)
		}
		var n int
		if err := db.QueryRow(`SELECT count(*) FROM ` + table).Scan(&n); err != nil || n != 2 {
			t.Errorf("%q: %d rows, %v; want one for each destination", prefix, n, err)
		}
		if prefix == "shop_" {
			generateShop(t, m)
		}
	}
}

// TestSQLiteBinaryPayload: a schema with binary payloads has the same tables;
// only the type that generated code writes differs.
func TestSQLiteBinaryPayload(t *testing.T) {
	generateShop(t, shopModel(true))
	text, err := sqlcode.Emit(shopModel(false))
	if err != nil {
		t.Fatal(err)
	}
	binary, err := sqlcode.Emit(shopModel(true))
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range text {
		if strings.Contains(f.Path, "/migrations/") && !bytes.Equal(f.Data, binary[i].Data) {
			t.Errorf("%s depends on the payload", f.Path)
		}
	}
}

// TestSQLiteEmptySchema: nothing declared is nothing routed, not a syntax error.
func TestSQLiteEmptySchema(t *testing.T) {
	m := &model.Model{Go: model.Go{Package: "shop", Out: "shop", Import: "example.com/shop"}, Dialects: []string{"sqlite"}}
	db := migrated(t, m)
	if _, err := db.Exec(`INSERT INTO outbox (topic, payload) VALUES ('x', '')`); err == nil || !strings.Contains(err.Error(), "topic has no route") {
		t.Errorf("got %v, want a refusal", err)
	}
	if _, err := db.Exec(`INSERT INTO inbox (source, event_type, payload) VALUES (1, 'x', '')`); err == nil || !strings.Contains(err.Error(), "source 1 is unknown") {
		t.Errorf("got %v, want a refusal", err)
	}
}

// TestSQLiteStepsNeverChange pins the numbered steps: once they are released,
// databases have recorded their checksums, and a change needs a new step.
func TestSQLiteStepsNeverChange(t *testing.T) {
	files, err := sqlcode.Emit(shopModel(false))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"0001_outbox": "ee6843a33d122f79c0f36b0f6b5349eafcaf667f689286aa01afc47cdc7e96b1",
		"0002_inbox":  "0e85def61fca8cae4104fc2dd5237223f9b96e74b3791d752608310bc44a4704",
	} {
		i := slices.IndexFunc(files, func(f output.File) bool { return f.Path == "shop/sqlite/migrations/"+name+".sql" })
		if got := fmt.Sprintf("%x", sha256.Sum256(files[i].Data)); got != want {
			t.Errorf("%s has the checksum %s, it was %s", name, got, want)
		}
	}
}
