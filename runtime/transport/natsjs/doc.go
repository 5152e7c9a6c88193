// Package natsjs carries messages over NATS JetStream, in both directions, with
// the client github.com/nats-io/nats.go.
//
// A [Destination] publishes each message to a stream in CloudEvents 1.0 binary
// mode, waits for the stream's acknowledgement, and names the stream that it
// expects. Nats-Msg-Id is the message id with the destination's name, so that the
// server drops what is repeated within the stream's duplicate window, and not what
// another destination of the same stream sends of the same message. Nothing is kept
// back while the connection is lost: what could not be sent is reported as such.
//
// A subject comes from a template: "orders.{key}.{type}". A key or header is one
// token, whatever it holds: letters, digits, '-' and '_' stay, every other byte is
// written %XX, and no key at all is "~". The dots of a type separate tokens. A
// message without the header of a placeholder is never sent.
//
// A [Source] pulls from a durable consumer, stores in stream order, several
// messages per transaction, and acknowledges after the commit; the server
// confirms the acknowledgement.
//
// # Order in the inbox
//
// A stream is ordered, a consumer's deliveries are not: what a puller that died
// had not acknowledged comes back only after the acknowledgement wait, while newer
// messages flow to the next puller. An ordered source therefore stores a message
// only when all messages of the stream before it, as far as the consumer filters
// them in, are stored. How far that is, it writes into the inbox in the very
// transaction that stores the messages: the position. A delivery follows the
// position
//
//   - when its sequence is the next one; or
//   - when it is a first delivery and its number at the consumer is one more than
//     that of the delivery before, and all of those came to this process: a
//     consumer hands out first deliveries in stream order; or
//   - when the stream itself, asked for the first message behind the position,
//     answers with this one. If it answers with an earlier one, that is stored
//     first, as the stream returned it. Its own delivery comes later, is found
//     to be a repeat, and is acknowledged.
//
// Whatever replicas do, each transaction is an unbroken piece of the stream that
// begins behind a piece committed before, so the messages of an aggregate are
// first stored in stream order, and repeats are dropped by their receipts. This
// needs no lease. One puller at a time is a matter of economy: the consumer pins
// one (priority policy pinned_client, nats-server 2.11 or newer), and another one
// takes over when it is silent for Config.Takeover.
//
// A position belongs to one life of a stream: a stream that was deleted and made
// again begins anew, and a consumer that was deleted is made again behind the
// position. A message whose sequence is not behind the position is never skipped
// but offered to the inbox, which knows what it has by its receipts.
//
// Without order (topology.NATSSource.Ordered false) all replicas pull side by side
// and no position is kept.
//
// # What the server must grant
//
// Beside publishing: $JS.API.STREAM.INFO and CONSUMER.INFO, CONSUMER.MSG.NEXT,
// $JS.ACK and, for ordered sources, STREAM.MSG.GET and CONSUMER.UNPIN; to declare,
// STREAM.CREATE and CONSUMER.CREATE. An acknowledged message survives a crash of
// the server's process; that it survives a loss of power is up to the server's
// sync_interval and the stream's replicas.
package natsjs
