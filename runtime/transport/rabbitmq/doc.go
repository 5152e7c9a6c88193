// Package rabbitmq sends messages to RabbitMQ and receives them from it, over
// AMQP 0.9.1 and in the order of their keys.
//
// A [Destination] publishes persistent messages with confirms and the mandatory
// flag: Send returns nil when the broker has confirmed the message and routed it
// to a queue. The confirm, or the return before it, belongs to one message without
// doubt: a channel with a message that was given up takes no other. When the broker
// ends a channel for what one of its messages is, each of them is published again on
// a channel of its own, so that only the one pays for it.
//
// An ordered destination spreads keys over shards: queues with a single active
// consumer each, bound to a headers exchange. [Shard] decides by the key alone, so
// that the routing key is free for a template. A message without a key goes to the
// shards in turn. What the destination declares is declared again with every new
// connection, and after a message found no queue.
//
// A [Source] stores what it takes from its queues, several messages in one
// transaction, and acknowledges after the commit. It never returns a message to
// its queue: a database that fails makes it wait, and what can never be handled is
// stored among the dead letters. The order within a queue holds in the inbox
// however many processes consume it, as long as one of them at a time is active,
// because each of them stores an unbroken piece that begins behind what has been
// acknowledged. Therefore every queue of an ordered source must have
// x-single-active-consumer; one that exists without it is refused. A stream has no
// such setting and needs none: its position is stored with the messages.
//
// A message travels as a CloudEvent: its attributes are headers with the prefix
// "cloudEvents_", its other headers go under their own name behind "lanebox-".
//
// One thing cannot be seen from here: if a shard's queue is deleted while other
// queues are bound to the destination's exchange as well, the broker confirms a
// message that only they received, until the next connection declares the queue
// again. Bind other readers to an exchange of their own behind it and do not delete
// queues in use.
//
// A stream that is deleted while its source runs, or is missing when it starts, has
// another life when one of its name is made again: that is read from its beginning.
// It cannot be seen that a stream was deleted and made again in between: its offsets
// begin anew, and the source passes over those up to the position that it recorded.
package rabbitmq
