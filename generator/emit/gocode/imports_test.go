package gocode_test

import (
	"go/parser"
	"go/token"
	"path"
	"strconv"
	"strings"
	"testing"

	"github.com/lanebox/lanebox/generator/model"
)

// TestImportsReadLikeHandWritten checks what goimports would write: the standard
// library first, then an empty line and the rest, both sorted.
func TestImportsReadLikeHandWritten(t *testing.T) {
	undotted := rich()
	undotted.Go.Import = "shop/internal/events" // a module path without a dot
	for _, m := range []*model.Model{rich(), undotted} {
		for _, f := range emit(t, m) {
			set := token.NewFileSet()
			parsed, err := parser.ParseFile(set, f.Path, f.Data, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			previous, group, line := "", "", 0
			for _, spec := range parsed.Imports {
				p, _ := strconv.Unquote(spec.Path.Value)
				first, _, _ := strings.Cut(p, "/")
				this := "standard"
				if strings.Contains(first, ".") || first == "shop" {
					this = "others"
				}
				at := set.Position(spec.Pos()).Line
				want := 1
				if group == "standard" && this == "others" {
					want, previous = 2, ""
				}
				if line > 0 && (at-line != want || group == "others" && this == "standard" || p < previous) {
					t.Errorf("%s:%d: import %s stands behind %s", f.Path, at, p, previous)
				}
				previous, group, line = p, this, at
			}
		}
	}
}

// TestImportAliases checks that an import has another name only where it needs
// one: where the package's name is not known, or not the end of the path.
func TestImportAliases(t *testing.T) {
	for name, c := range map[string]struct {
		packages map[string]string
		want     string
	}{
		"not known": {nil, `orders "example.com/shop/orders"`},
		"the same":  {map[string]string{"example.com/shop/orders": "orders"}, `"example.com/shop/orders"`},
		"another":   {map[string]string{"example.com/shop/orders": "order"}, `orders "example.com/shop/orders"`},
	} {
		m := rich()
		m.Go.Packages = c.packages
		for _, f := range emit(t, m) {
			if path.Base(f.Path) == "events.gen.go" && !strings.Contains(string(f.Data), "\n\t"+c.want+"\n") {
				t.Errorf("%s: no import %s", name, c.want)
			}
		}
	}
}
