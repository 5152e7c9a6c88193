// Package sqlcodetest builds the small model that the tests of the SQL dialects
// share: it uses every feature that changes the SQL or the stores.
package sqlcodetest

import (
	"time"

	"github.com/lanebox/lanebox/generator/model"
)

// Numbers of the model's scopes and sources.
const (
	Warehouse int32 = 101
	Ledger    int32 = 102
	Audit     int32 = 103
	Payments  int32 = 201 // pull
	Refunds   int32 = 202 // pull
	Orders    int32 = 301 // push
	Shipments int32 = 302 // push
)

// Model returns a new model that generates the given dialects into
// "internal/events". Its routes: order.* goes to the warehouse,
// order.placed.v1 to the ledger as well (a fan-out); invoice.sent.v1, numbered
// densely, to the ledger and the audit; task.due.v1, without a key, and
// everything below free.% to the audit.
func Model(dialects ...string) *model.Model {
	orderID := &model.Key{Name: "order_id", GoName: "OrderID", Aggregate: "Order",
		Parts: []model.KeyPart{{GoName: "value", Type: model.Type{Kind: model.String}}}}
	invoiceID := &model.Key{Name: "invoice_id", GoName: "InvoiceID", Version: model.Version{Dense: true},
		Parts: []model.KeyPart{{GoName: "value", Type: model.Type{Kind: model.String}}}}
	m := &model.Model{
		File:     "lanebox.yaml",
		Go:       model.Go{Package: "events", Out: "internal/events"},
		Dialects: dialects,
		Keys:     []model.Key{*invoiceID, *orderID},
		Destinations: []model.Destination{
			destination("audit", "Audit", Audit), destination("ledger", "Ledger", Ledger), destination("warehouse", "Warehouse", Warehouse),
		},
		Sources: []model.Source{
			source("orders", "Orders", Orders, false), source("payments", "Payments", Payments, true),
			source("refunds", "Refunds", Refunds, true), source("shipments", "Shipments", Shipments, false),
		},
	}
	audit, ledger, warehouse := &m.Destinations[0], &m.Destinations[1], &m.Destinations[2]
	m.Events = []model.Event{
		{Topic: "invoice.sent.v1", GoName: "InvoiceSent", Key: invoiceID, KeyFields: []string{"InvoiceID"},
			Destinations: []*model.Destination{audit, ledger}},
		{Topic: "order.placed.v1", GoName: "OrderPlaced", Key: orderID, KeyFields: []string{"OrderID"},
			Destinations: []*model.Destination{ledger, warehouse}},
		{Topic: "order.shipped.v1", GoName: "OrderShipped", Key: orderID, KeyFields: []string{"OrderID"},
			Destinations: []*model.Destination{warehouse}},
		{Topic: "task.due.v1", GoName: "TaskDue", Destinations: []*model.Destination{audit}},
	}
	m.Routes = []model.Route{
		{Events: []string{"order.*"}, To: []*model.Destination{warehouse}},
		{Events: []string{"order.placed.v1"}, To: []*model.Destination{ledger}},
		{Events: []string{"invoice.sent.v1"}, To: []*model.Destination{audit, ledger}},
		{Events: []string{"task.due.v1", "free_%.*"}, To: []*model.Destination{audit}},
	}
	return m
}

func destination(name, goName string, number int32) model.Destination {
	return model.Destination{Name: name, GoName: goName, Number: number, Type: "handler", Delivery: delivery()}
}

func source(name, goName string, number int32, pull bool) model.Source {
	return model.Source{Name: name, GoName: goName, Number: number, Type: "handler", Pull: pull, Receipts: 7 * 24 * time.Hour,
		Delivery: delivery()}
}

func delivery() model.Delivery {
	return model.Delivery{Concurrency: 16, MaxUnsettled: 256, Timeout: 10 * time.Second, Lease: 15 * time.Second,
		MaxAttempts: 20, RetryBase: time.Second, RetryCap: 5 * time.Minute}
}
