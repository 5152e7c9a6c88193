// Package kafka carries messages over Kafka, in both directions, with the client
// franz-go.
//
// A [Destination] writes each message as one record in CloudEvents 1.0 binary
// mode: the value is the payload, byte for byte, attributes are headers (ce_id,
// ce_type, ce_partitionkey, …), and the ordering key is the record key, so that
// Kafka keeps the messages of a key in one partition. It writes with an
// idempotent producer and counts a message as safe when all in-sync replicas
// have it.
//
// It takes runs. Of a run, only what fits into one record batch is on its way at
// a time, and a broker takes a batch whole or not at all: so nothing behind a
// failed message is ever accepted, whatever else fails in the same partition at
// that moment.
//
// Raising a topic's number of partitions moves keys to other partitions, and so
// may reorder the messages of a key around that moment. Drain the destination
// first, or use a new topic. A change is noticed while running, and logged.
//
// A [Source] is a member of a consumer group. It stores the records of each
// partition in their order, several per transaction, and commits only the
// unbroken stored run. A rebalance at any moment may store a record twice, which
// the inbox drops, but never out of order: every member starts behind what was
// stored, and goes on record by record.
//
// The tests run on kfake, the in-memory cluster of franz-go. To run them on a real
// one:
//
//	LANEBOX_TEST_KAFKA_BROKERS=host:9092 go test ./runtime/transport/kafka/
package kafka
