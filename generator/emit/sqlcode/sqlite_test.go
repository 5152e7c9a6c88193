package sqlcode_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/lanebox/lanebox/generator/dialect"
	"github.com/lanebox/lanebox/generator/emit/sqlcode"
	"github.com/lanebox/lanebox/generator/model"
	"github.com/lanebox/lanebox/generator/output"
	"github.com/lanebox/lanebox/generator/sqlc"
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
		Database: model.Database{Schema: "public"},
		Keys:     []model.Key{*account, *order},
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
