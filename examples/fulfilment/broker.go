package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/lanebox/lanebox/examples/fulfilment/orders"
	"github.com/lanebox/lanebox/examples/fulfilment/warehouse"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/outbox"
	"github.com/lanebox/lanebox/runtime/topology"
	"github.com/lanebox/lanebox/runtime/transport/natsjs"
	"github.com/lanebox/lanebox/runtime/transport/rabbitmq"
)

// A Carrier is a broker between the two services.
type Carrier interface {
	// Destination returns what the order service sends to.
	Destination(*slog.Logger) (Destination, error)
	// Source returns what the warehouse receives from.
	Source(*slog.Logger) (inbox.Source, error)
}

// A Destination has a connection that must be closed.
type Destination interface {
	outbox.Destination
	io.Closer
}

// RabbitMQ is the carrier that the schemas describe.
type RabbitMQ struct {
	URL string
	To  topology.RabbitMQDestination
	At  topology.RabbitMQSource
}

// NewRabbitMQ returns the carrier with the names that the schemas give.
func NewRabbitMQ(url string) RabbitMQ { return RabbitMQ{url, orders.Warehouse, warehouse.Orders} }

// Destination implements Carrier.
func (r RabbitMQ) Destination(l *slog.Logger) (Destination, error) {
	return rabbitmq.NewDestination(rabbitmq.Config{URL: r.URL, Source: "/examples/orders", Logger: l}, r.To)
}

// Source implements Carrier.
func (r RabbitMQ) Source(l *slog.Logger) (inbox.Source, error) {
	return rabbitmq.NewSource(rabbitmq.Config{URL: r.URL, Logger: l}, r.At)
}

// reachable returns why the broker cannot be used.
func (r RabbitMQ) reachable() error {
	conn, err := amqp.DialConfig(r.URL, amqp.Config{Dial: amqp.DefaultDial(2 * time.Second)})
	if err != nil {
		return err
	}
	return conn.Close()
}

// NATS is the carrier where there is no RabbitMQ: the services do not notice the
// difference, since a box takes any destination and any source.
type NATS struct{ URL string }

// Destination implements Carrier.
func (n NATS) Destination(l *slog.Logger) (Destination, error) {
	return natsjs.NewDestination(natsjs.Config{URL: n.URL, Source: "/examples/orders", Timeout: 2 * time.Second, Logger: l},
		topology.NATSDestination{Name: orders.Warehouse.Name, Stream: "ORDERS", Subject: "orders.{key}.{type}", Declare: true})
}

// Source implements Carrier.
func (n NATS) Source(l *slog.Logger) (inbox.Source, error) {
	return natsjs.NewSource(natsjs.Config{URL: n.URL, Takeover: 2 * time.Second, Logger: l},
		topology.NATSSource{Name: warehouse.Orders.Name, Stream: "ORDERS", Durable: "warehouse", Ordered: true})
}

// embedNATS starts a NATS server in this process, with its files in dir. A port of 0 is any
// free one.
func embedNATS(dir string, port int) (url string, stop func(), err error) {
	if port == 0 {
		port = server.RANDOM_PORT
	}
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: port, JetStream: true, StoreDir: dir, NoLog: true, NoSigs: true})
	if err != nil {
		return "", nil, err
	}
	go s.Start()
	if !s.ReadyForConnections(20 * time.Second) {
		s.Shutdown()
		return "", nil, fmt.Errorf("the NATS server does not start on port %d", port)
	}
	return s.ClientURL(), func() { s.Shutdown(); s.WaitForShutdown() }, nil
}

// choose returns RabbitMQ if it can be reached, and otherwise an embedded NATS
// server. name is what to tell the user.
func choose(url, dir string) (c Carrier, name string, stop func(), err error) {
	r := NewRabbitMQ(url)
	problem := r.reachable()
	if problem == nil {
		return r, fmt.Sprintf("RabbitMQ, %d shards", len(r.To.ShardQueues)), func() {}, nil
	}
	if os.Getenv(rabbitEnv) != "" {
		slog.Warn("RabbitMQ cannot be reached; an embedded NATS server takes its place", "variable", rabbitEnv, "error", problem)
	}
	url, stop, err = embedNATS(dir, 0)
	return NATS{url}, "an embedded NATS server", stop, err
}
