// Package webhook carries messages over HTTP, in both directions.
//
// A [Destination] sends each message as one POST request in CloudEvents 1.0
// binary mode: the body is the payload, byte for byte, and the attributes are
// headers (ce-id, ce-type, ce-partitionkey, …). Requests are signed as Standard
// Webhooks are. Only a 2xx status counts as safe at the other side.
//
// A [Source] takes one message per POST request, verifies who sent it, finds its
// idempotency key, event type and aggregate id, and answers 2xx only after the
// message was committed to the inbox. It does not set time limits on reading:
// serve it with an http.Server whose ReadHeaderTimeout, ReadTimeout and
// MaxHeaderBytes are set, so that slow senders cannot hold connections.
//
// What a Destination sends, a Source without extraction rules understands: the
// message arrives with the same id, type, key and bytes.
package webhook
