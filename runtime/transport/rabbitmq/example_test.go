package rabbitmq_test

import (
	"fmt"

	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/outbox"
	"github.com/lanebox/lanebox/runtime/topology"
	"github.com/lanebox/lanebox/runtime/transport/rabbitmq"
)

// warehouse and orders are what generated code says of a schema.
var (
	warehouse = topology.RabbitMQDestination{
		Name: "warehouse", Exchange: "warehouse.x", Ordered: true,
		ShardQueues: []string{"warehouse.shard.00.q", "warehouse.shard.01.q"},
		RoutingKey:  "{header:tenant}.order.{key}.{type}",
	}
	orders = topology.RabbitMQSource{
		Name: "orders", Queues: warehouse.ShardQueues, Ordered: true, Declare: true,
	}
)

// A destination goes into the configuration of the generated package.
func ExampleNewDestination() {
	d, err := rabbitmq.NewDestination(rabbitmq.Config{
		URL:    "amqps://orders:secret@mq-1.example:5671/shop",
		More:   []string{"amqps://orders:secret@mq-2.example:5671/shop"},
		Source: "/shop/orders",
	}, warehouse)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer d.Close()
	var _ outbox.Destination = d
	fmt.Println(d.Address())
	// Output: amqps://mq-1.example:5671/shop/warehouse.x
}

// A source is run by the generated package; by hand it is source.Run(ctx, receiver).
func ExampleNewSource() {
	source, err := rabbitmq.NewSource(rabbitmq.Config{URL: "amqp://warehouse:secret@mq-1.example/shop"}, orders)
	if err != nil {
		fmt.Println(err)
		return
	}
	var _ inbox.Source = source
	fmt.Println(source.Stats().Stored)
	// Output: 0
}

// Which shard a key goes to never changes.
func ExampleShard() {
	fmt.Println(rabbitmq.Shard("order-1", 8))
	// Output: 5
}
