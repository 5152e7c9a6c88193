package natsjs_test

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/outbox"
	"github.com/lanebox/lanebox/runtime/topology"
	"github.com/lanebox/lanebox/runtime/transport/natsjs"
)

// warehouse and orders are what generated code says of a schema.
var (
	warehouse = topology.NATSDestination{Name: "warehouse", Stream: "ORDERS", Subject: "orders.{key}.{type}", Declare: true}
	orders    = topology.NATSSource{Name: "orders", Stream: "ORDERS", Durable: "warehouse", Ordered: true, Start: "first"}
)

// A destination goes into the configuration of the generated package.
func ExampleNewDestination() {
	d, err := natsjs.NewDestination(natsjs.Config{
		URL:     "nats://10.0.0.1:4222,nats://10.0.0.2:4222",
		Options: []nats.Option{nats.UserCredentials("/run/secrets/nats.creds")},
		Source:  "/shop/orders",
	}, warehouse)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer d.Close()
	var _ outbox.Destination = d
}

// A source is run by the generated package; by hand it is one call.
func ExampleNewSource() {
	s, err := natsjs.NewSource(natsjs.Config{URL: "nats://10.0.0.1:4222"}, orders)
	if err != nil {
		fmt.Println(err)
		return
	}
	run := func(ctx context.Context, r *inbox.Receiver) error { return s.Run(ctx, r) }
	_ = run
	var _ inbox.Source = s
}
