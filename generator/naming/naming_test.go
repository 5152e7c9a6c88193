package naming_test

import (
	"errors"
	"fmt"
	"go/token"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/lanebox/lanebox/generator/model"
	"github.com/lanebox/lanebox/generator/naming"
)

func TestExported(t *testing.T) {
	for name, want := range map[string]string{
		"order_id": "OrderID", "orderId": "OrderID", "OrderID": "OrderID", "order-id": "OrderID", "ORDER_ID": "ORDERID",
		"order.placed": "OrderPlaced", "order_ids": "OrderIDs", "orderIDs": "OrderIDs", "userIDs_old": "UserIDsOld",
		"url": "URL", "urls": "URLs", "httpUrl": "HTTPURL", "HTTPServer": "HTTPServer", "parseJSONBody": "ParseJSONBody",
		"apiKey": "APIKey", "identity": "Identity", "mHz": "MHz", "MHz": "MHz", "utf8_text": "UTF8Text",
		"a": "A", "a b-c": "ABC", "éclair": "Éclair", "straße": "Straße", "order2go": "Order2go", "v2Order": "V2Order",
		"type": "Type", "func": "Func", "nil": "Nil", "string": "String", "__x__": "X", "x…y": "XY", "order🚀": "Order",
		"данные": "Данные", "ǆ": "Ǆ",
	} {
		got, err := naming.Exported(name)
		if err != nil || got != want {
			t.Errorf("Exported(%q) = %q, %v; want %q", name, got, err, want)
		}
	}
	for name, want := range map[string]string{
		"": "no letter or digit", "---": "no letter or digit", "🚀": "no letter or digit", "3d": "begin with a digit",
		"注文": "not exported", "٣": "begin with a digit", "ª": "not exported",
	} {
		if got, err := naming.Exported(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Exported(%q) = %q, %v; want an error with %q", name, got, err, want)
		}
	}
}

func TestEvent(t *testing.T) {
	for topic, want := range map[string]string{
		"order.placed": "OrderPlaced", "order.placed.v1": "OrderPlaced", "order.placed.v2": "OrderPlacedV2",
		"order.placed.v10": "OrderPlacedV10", "order.v1.placed": "OrderV1Placed", "order.placed-v1": "OrderPlacedV1",
		"v1": "V1", "order.v0": "OrderV0", "payment.captured.v1": "PaymentCaptured",
	} {
		if got, err := naming.Event(topic); err != nil || got != want {
			t.Errorf("Event(%q) = %q, %v; want %q", topic, got, err, want)
		}
	}
}

func TestParameter(t *testing.T) {
	for name, want := range map[string]string{
		"order_id": "orderID", "OrderID": "orderID", "ID": "id", "id": "id", "type": "typeValue", "len": "lenValue",
		"time": "timeValue", "event": "eventValue", "ctx": "ctxValue", "3d": "value", "3_d": "d", "": "value", "---": "value",
		"url_path": "urlPath", "注文": "注文", "HTTPServer": "httpServer",
	} {
		if got := naming.Parameter(name); got != want {
			t.Errorf("Parameter(%q) = %q, want %q", name, got, want)
		}
	}
}

func TestCheckPackage(t *testing.T) {
	for _, name := range []string{"events", "shop", "shop2", "order_events", "event"} {
		if err := naming.CheckPackage(name); err != nil {
			t.Errorf("CheckPackage(%q): %v", name, err)
		}
	}
	for _, name := range []string{"", "main", "type", "string", "My", "a-b", "1a", "a.b", "_", "x_test", "postgres", "sqlite", "outbox"} {
		if naming.CheckPackage(name) == nil {
			t.Errorf("CheckPackage(%q) accepted it", name)
		}
	}
}

func TestScope(t *testing.T) {
	s := naming.NewScope("All")
	if err := s.Claim("Order", naming.Use{What: `event "order"`, Pos: model.Pos{Line: 3, Column: 1}}); err != nil {
		t.Fatal(err)
	}
	err := s.Claim("Order", naming.Use{What: `key "order"`, Pos: model.Pos{Line: 9, Column: 1}})
	var collision *naming.CollisionError
	if !errors.As(err, &collision) || err.Error() != `key "order" and event "order" (line 3) both become Order` {
		t.Errorf("got %v", err)
	}
	if err := s.Claim("All", naming.Use{What: `event "all"`}); err == nil || err.Error() != `event "all" becomes All, which generated code uses itself` {
		t.Errorf("got %v", err)
	}
	if s.Free("Order") || !s.Free("Other") {
		t.Error("Free is wrong")
	}
	var zero naming.Scope
	if err := zero.Claim("X", naming.Use{}); err != nil || zero.Free("X") {
		t.Errorf("the zero Scope: %v", err)
	}
}

// TestNumber pins numbers: rows in databases carry them, so they never change.
func TestNumber(t *testing.T) {
	for _, c := range []struct {
		kind, name string
		want       int32
	}{
		{"destination", "warehouse", 64148466},
		{"destination", "ledger", 2010243311},
		{"source", "orders", 1617585631},
		{"source", "payments", 1585940069},
		{"destination", "", 1195934048},
	} {
		if got := naming.Number(c.kind, c.name); got != c.want {
			t.Errorf("Number(%q, %q) = %d, want %d", c.kind, c.name, got, c.want)
		}
	}
	if naming.Number("source", "a") == naming.Number("destination", "a") {
		t.Error("a source and a destination of one name have one number")
	}
	for i := range 100_000 {
		if n := naming.Number("source", fmt.Sprint(i)); n <= model.PushScope {
			t.Fatalf("Number of %d is %d", i, n)
		}
	}
}

// FuzzNames: whatever the name, the results are identifiers or refused.
func FuzzNames(f *testing.F) {
	for _, s := range []string{"order_id", "OrderIDs", "注文", "éclair", "3d", "A+", "a\xffb", "\u0301x", "ǆx", "type", "ﬀ", "x٣", ".v1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		for _, make := range []func(string) (string, error){naming.Exported, naming.Event} {
			if id, err := make(name); err == nil && (!token.IsIdentifier(id) || !token.IsExported(id)) {
				t.Errorf("%q becomes %q, which is no exported identifier", name, id)
			}
		}
		if id := naming.Parameter(name); !token.IsIdentifier(id) || token.IsExported(id) {
			t.Errorf("%q becomes %q, which is no parameter", name, id)
		}
		if suffix := naming.Suffix(name); suffix != "" && !token.IsIdentifier("X"+suffix) || !utf8.ValidString(suffix) {
			t.Errorf("%q becomes %q, which cannot end an identifier", name, suffix)
		}
		if n := naming.Number("source", name); n <= model.PushScope {
			t.Errorf("%q has number %d", name, n)
		}
	})
}
