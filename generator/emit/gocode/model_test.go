package gocode_test

import (
	"time"

	"github.com/lanebox/lanebox/generator/model"
)

func of(k model.Kind) model.Type { return model.Type{Kind: k} }

func optional(t model.Type) model.Type { t.Optional = true; return t }

func list(t model.Type) model.Type { return model.Type{Kind: model.List, Elem: &t} }

func mapOf(t model.Type) model.Type { return model.Type{Kind: model.Map, Elem: &t} }

func object(s *model.Struct) model.Type { return model.Type{Kind: model.Object, Struct: s} }

func enum(e *model.EnumType) model.Type { return model.Type{Kind: model.Enum, Enum: e} }

func keyRef(k *model.Key) model.Type { return model.Type{Kind: model.KeyRef, Key: k} }

func goType(importPath, name string, kind model.Kind, pos model.Pos) model.Type {
	return model.Type{Kind: model.Foreign, GoType: &model.GoType{Import: importPath, Name: name, Kind: kind, Pos: pos}}
}

func at(line, column int) model.Pos { return model.Pos{Line: line, Column: column} }

func field(name, goName string, t model.Type) model.Field {
	return model.Field{Name: name, GoName: goName, Type: t}
}

func plainKey(name, goName, param string, t model.Type) model.Key {
	return model.Key{Name: name, GoName: goName, Parts: []model.KeyPart{{GoName: param, Type: t}}}
}

// rich is a model that uses everything.
func rich() *model.Model {
	region := &model.EnumType{GoName: "Region", Doc: "Where an order is served from.", Values: []model.EnumValue{
		{Value: "eu", GoName: "RegionEU"}, {Value: "us-east", GoName: "RegionUSEast"}, {Value: `"quoted\`, GoName: "RegionQuoted"},
	}}
	keys := []model.Key{
		{
			Name: "account", GoName: "Account", Doc: "An account of a tenant.", Prefix: "acct/",
			Parts: []model.KeyPart{{Name: "tenant_id", GoName: "tenantID", Type: of(model.String)}, {Name: "account_no", GoName: "accountNo", Type: of(model.Int64)}},
		},
		plainKey("day", "Day", "day", of(model.Date)),
		{Name: "ledger", GoName: "Ledger", Const: "ledger", Aggregate: "Ledger"},
		plainKey("mixed", "Mixed", "mixed", goType("example.com/shop/orders", "No", model.Int64, at(9, 20))),
		plainKey("order_id", "OrderID", "orderID", of(model.String)),
		{Name: "pair", GoName: "Pair", Parts: []model.KeyPart{{Name: "x", GoName: "x", Type: of(model.Int32)}, {Name: "set", GoName: "set", Type: of(model.Int64)}}},
		plainKey("region", "RegionKey", "region", enum(region)),
		plainKey("shipment", "Shipment", "id", goType("example.com/shop/orders", "ID", model.String, at(11, 24))),
		plainKey("user", "User", "id", of(model.UUID)),
	}
	keys[4].Aggregate, keys[4].Doc = "Order", "The number of an order."
	keys[8].Prefix = "user-"
	key := func(name string) *model.Key {
		for i := range keys {
			if keys[i].Name == name {
				return &keys[i]
			}
		}
		panic(name)
	}
	keys = append(keys, model.Key{Name: "visit", GoName: "Visit", Parts: []model.KeyPart{
		{Name: "user", GoName: "user", Type: keyRef(key("user"))}, {Name: "day", GoName: "day", Type: keyRef(key("day"))},
	}})

	address := &model.Struct{GoName: "OrderPlacedAddress", Doc: "Where to.", Fields: []model.Field{
		field("street", "Street", of(model.String)), field("lines", "Lines", list(of(model.String))),
	}}
	placed := &model.Struct{GoName: "OrderPlaced", Fields: []model.Field{
		field("order_id", "OrderID", keyRef(key("order_id"))),
		field("total", "Total", of(model.Decimal)),
		field("note", "Note", optional(of(model.String))),
		field("express", "Express", of(model.Bool)),
		field("items", "Items", of(model.Int32)),
		field("big", "Big", of(model.Int64)),
		field("weight", "Weight", of(model.Float64)),
		field("photo", "Photo", of(model.Bytes)),
		field("placed_at", "PlacedAt", of(model.Time)),
		field("due", "Due", optional(of(model.Date))),
		field("patience", "Patience", of(model.Duration)),
		field("customer", "Customer", of(model.UUID)),
		field("extra", "Extra", optional(of(model.JSON))),
		field("raw", "Raw", of(model.JSON)),
		field("region", "Region", enum(region)),
		field("address", "Address", object(address)),
		field("billing", "Billing", optional(object(address))),
		field("history", "History", list(object(address))),
		field("tags", "Tags", mapOf(of(model.String))),
		field("counts", "Counts", optional(mapOf(of(model.Int64)))),
		field("matrix", "Matrix", list(list(enum(region)))),
		field("account", "Account", keyRef(key("account"))),
		field("carrier", "Carrier", goType("example.com/shop/go-carriers/v2", "Carrier", "", at(30, 16))),
		field("version", "Version", of(model.Int32)),
	}}
	placed.Fields[1].Doc = "In the currency of the account."

	destinations := []model.Destination{
		{Name: "ledger", GoName: "LedgerOut", Number: 31, Type: "handler"},
		{
			Name: "warehouse", GoName: "Warehouse", Number: 17, Type: "http",
			Delivery: model.Delivery{
				Concurrency: 64, MaxUnsettled: 256, SettleEach: true, Timeout: 10 * time.Second, Lease: 15 * time.Second, MaxAttempts: 20,
				RetryBase: time.Second, RetryCap: 5 * time.Minute, ParkDead: true,
			},
		},
		{Name: "work", GoName: "Work", Number: 32, Type: "rabbitmq", Broker: &model.Broker{
			Exchange: "work.x", ExchangeType: "topic", Queues: []string{"work"}, RoutingKey: "{header:tenant}.{key}", DeliveryLimit: 5,
			DeadLetterExchange: "dead", MaxPriority: 9, MessageTTL: 90 * time.Second,
		}},
		{Name: "xshards", GoName: "Xshards", Number: 33, Type: "rabbitmq", Broker: &model.Broker{
			Exchange: "x", Ordered: true, Stream: true, Queues: []string{"x.00", "x.01", "x.02"},
		}},
		{Name: "ylog", GoName: "Ylog", Number: 34, Type: "kafka", Broker: &model.Broker{Topics: []string{"y\"`\\"}}},
		{Name: "zsubject", GoName: "Zsubject", Number: 35, Type: "nats", Broker: &model.Broker{
			JetStream: "Z", Subject: "z.{key}", Declare: true, Duplicates: 2 * time.Minute,
		}},
	}
	both := []*model.Destination{&destinations[0], &destinations[1]}
	orders := func(name string, pos model.Pos) *model.GoType {
		return &model.GoType{Import: "example.com/shop/orders", Name: name, Pos: pos}
	}
	events := []model.Event{
		{Topic: "account.closed.v1", GoName: "AccountClosed", Key: key("account"), KeyFields: []string{"TenantID", "AccountNo"}, Destinations: both,
			Struct: &model.Struct{GoName: "AccountClosed", Fields: []model.Field{
				field("tenant_id", "TenantID", of(model.String)), field("account_no", "AccountNo", of(model.Int64)),
			}}},
		{Topic: "image.stored.v1", GoName: "ImageStored", Binary: true, Key: key("ledger"), Destinations: both[:1]},
		{Topic: "order.placed.v1", GoName: "OrderPlaced", Doc: "A customer confirmed a basket.", Struct: placed,
			Key: key("order_id"), KeyFields: []string{"OrderID"}, KeyTyped: true, VersionField: "Version", Destinations: both},
		{Topic: "order.shipped.v1", GoName: "OrderShipped", GoType: orders("Shipped", at(40, 14)), Key: key("shipment"),
			KeyFields: []string{"Order.ID()"}, KeyPos: at(41, 10), VersionField: "Version", VersionPos: at(41, 40), Destinations: both[1:]},
		{Topic: "payment.captured.v1", GoName: "PaymentCaptured", GoType: orders("Captured", at(50, 14))},
		{Topic: "ping.v1", GoName: "Ping", Struct: &model.Struct{GoName: "Ping"}, Destinations: both},
		{Topic: "scan.done.v1", GoName: "ScanDone", Binary: true, GoType: orders("Scan", at(60, 14)), Destinations: both},
		{Topic: "visit.made.v1", GoName: "VisitMade", Key: key("visit"), KeyFields: []string{"User", "Day"}, Destinations: both,
			Struct: &model.Struct{GoName: "VisitMade", Fields: []model.Field{
				field("user", "User", keyRef(key("user"))), field("day", "Day", keyRef(key("day"))),
				field("mixed", "Mixed", optional(keyRef(key("mixed")))), field("pair", "Pair", optional(keyRef(key("pair")))),
				field("region", "Region", optional(keyRef(key("region")))), field("shipment", "Shipment", optional(keyRef(key("shipment")))),
			}}},
	}
	event := func(topics ...string) []*model.Event {
		var found []*model.Event
		for _, topic := range topics {
			for i := range events {
				if events[i].Topic == topic {
					found = append(found, &events[i])
				}
			}
		}
		return found
	}
	return &model.Model{
		File: "lanebox.yaml", Go: model.Go{
			Package: "events", Out: "internal/events", Import: "example.com/shop/internal/events",
			Packages: map[string]string{"example.com/shop/orders": "orders", "example.com/shop/go-carriers/v2": "carriers"},
		},
		Dialects: []string{"postgres", "sqlite", "sqlserver"}, Binary: true,
		Keys: keys, Events: events, Destinations: destinations,
		Sources: []model.Source{
			{Name: "local", GoName: "Local", Number: 104, Type: "handler"},
			{Name: "orders", GoName: "Orders", Number: 101, Type: "http", Path: "/orders", Map: true,
				IdempotencyKey: [][]string{{"header:x-id"}, {"$.source", "$.id"}}, EventType: []string{"$.type"}, AggregateID: []string{"$.orderId"},
				AggregateIDMissing: "unordered", MaxBytes: 1 << 20, Receipts: 7 * 24 * time.Hour},
			{Name: "payments", GoName: "Payments", Doc: "What the bank says.", Number: 102, Type: "http", Path: "/payments", Pull: true,
				Events: event("payment.captured.v1", "order.placed.v1", "image.stored.v1"), Delivery: model.Delivery{Concurrency: 4, Timeout: 1500 * time.Millisecond},
				AggregateIDMissing: "reject", Receipts: time.Hour},
			{Name: "stripe", GoName: "Stripe", Number: 103, Type: "http", Path: "/stripe"},
			{Name: "tracking", GoName: "Tracking", Number: 105, Type: "kafka", Broker: &model.Broker{
				Topics: []string{"a", "b", "c"}, Group: "shop", Start: "last",
			}},
			{Name: "uploads", GoName: "Uploads", Number: 106, Type: "nats", Pull: true, Other: true, Broker: &model.Broker{
				JetStream: "UPLOADS", Subjects: []string{"uploads.>"}, Durable: "shop", Ordered: true, Start: "first",
			}, AggregateIDMissing: "reject"},
			{Name: "vouchers", GoName: "Vouchers", Number: 107, Type: "rabbitmq", Pull: true, Other: true, Broker: &model.Broker{
				Queues: []string{"vouchers"}, Ordered: true, Declare: true, Prefetch: 256,
			}, IdempotencyKey: [][]string{{"header:x-id"}, {"$.source", "$.id"}}, EventType: []string{"$.type"}, AggregateID: []string{"$.voucher"},
				AggregateIDMissing: "unordered"},
			{Name: "watch", GoName: "Watch", Number: 108, Type: "rabbitmq", Map: true, Broker: &model.Broker{
				Queues: []string{"w.00", "w.01", "w.02"}, Ordered: true, Stream: true, Offset: "first", Prefetch: 10,
			}},
		},
		Routes: []model.Route{
			{Events: []string{"order.*", "account.closed.v1"}, To: both},
			{Events: []string{"order.*", "*"}, To: both},
		},
		Catalogs: []model.Catalog{
			{Name: "billing", GoName: "Billing", Events: event("account.closed.v1", "payment.captured.v1", "scan.done.v1")},
			{Name: "fulfilment", GoName: "Fulfilment", Events: event("order.placed.v1", "order.shipped.v1")},
		},
	}
}
