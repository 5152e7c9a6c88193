package natsjs

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// ErrClosed is returned by Send after Close. Nothing was sent.
var ErrClosed = errors.New("the destination is closed")

// Defaults of Config.
const (
	DefaultTimeout  = 10 * time.Second
	DefaultAckWait  = 30 * time.Second
	DefaultTakeover = 15 * time.Second
	DefaultBatch    = 256
)

// maxBatchBytes ends a transaction of a source early: it bounds what is held in
// memory beside the messages the server sent ahead.
const maxBatchBytes = 16 << 20

// A Config says how to reach JetStream. Either URL or Conn is needed, everything
// else may be left out.
type Config struct {
	// URL names the servers, separated by commas: "nats://10.0.0.1:4222". A server
	// that is down delays nothing at start: the connection is made in the background
	// and again whenever it is lost, for ever.
	URL string
	// Options are further options of that connection: credentials, TLS, a name.
	// Reconnecting and its buffer are not theirs to decide.
	Options []nats.Option
	// Conn is a ready-made connection, instead of URL. It must have been made with
	// nats.ReconnectBufSize(-1), since a message that waits in a buffer for the next
	// connection would overtake others, and should have nats.MaxReconnects(-1). It
	// is not closed here.
	Conn *nats.Conn
	// Domain or APIPrefix address JetStream behind a leaf node or in another
	// account.
	Domain, APIPrefix string
	// Source is the CloudEvents source attribute, a URI reference that names the
	// sending service; default "lanebox".
	Source string
	// Timeout bounds waiting for one acknowledgement or one answer of the server;
	// default 10 s. Keep it below the time that a delivery may take.
	Timeout time.Duration
	// MaxBytes is the largest payload that is sent; 0 means what the server takes,
	// headers included. A larger one is a permanent failure.
	MaxBytes int

	// Batch is how many messages a source pulls at a time, and stores in one
	// transaction at most; default 256.
	Batch int
	// AckWait is after what time a consumer that is made here delivers a message
	// again that nobody acknowledged or works on; default 30 s.
	AckWait time.Duration
	// Takeover is after what time of silence of the pinned puller a consumer that is
	// made here lets another one pull; default 15 s, at least 1 s.
	Takeover time.Duration
	// MaxAckPending bounds the unacknowledged messages of a consumer that is made
	// here; 0 means four batches for an ordered one, otherwise the server's default.
	MaxAckPending int

	// Logger hears of lost connections and of what is repeated; nil means
	// slog.Default().
	Logger *slog.Logger
}

func (c *Config) complete() error {
	c.Source = cmp.Or(c.Source, "lanebox")
	c.Timeout = cmp.Or(c.Timeout, DefaultTimeout)
	c.Batch = cmp.Or(c.Batch, DefaultBatch)
	c.AckWait = cmp.Or(c.AckWait, DefaultAckWait)
	c.Takeover = cmp.Or(c.Takeover, DefaultTakeover)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	switch {
	case c.Timeout < 0 || c.MaxBytes < 0 || c.Batch < 0 || c.AckWait < 0 || c.MaxAckPending < 0:
		return errors.New("limits must not be negative")
	case c.Takeover < time.Second:
		return fmt.Errorf("a Takeover of %v is too short; the shortest is 1s", c.Takeover)
	case c.Domain != "" && c.APIPrefix != "":
		return errors.New("give a Domain or an APIPrefix, not both")
	case (c.URL == "") == (c.Conn == nil):
		return errors.New("give a URL or a Conn")
	case foreignScheme(c.URL) != "":
		return fmt.Errorf("%s:// is not how NATS is reached; write nats://, tls://, ws:// or wss://", foreignScheme(c.URL))
	case c.Conn != nil && c.Conn.Opts.ReconnectBufSize >= 0:
		return errors.New("the connection keeps what is published while it is lost, and would send it late: make it with nats.ReconnectBufSize(-1)")
	}
	return nil
}

// foreignScheme returns the scheme of a server that is not one of NATS; "" if all
// are.
func foreignScheme(urls string) string {
	for server := range strings.SplitSeq(urls, ",") {
		scheme, _, found := strings.Cut(strings.TrimSpace(server), "://")
		if found && !slices.Contains([]string{"nats", "tls", "ws", "wss"}, strings.ToLower(scheme)) {
			return scheme
		}
	}
	return ""
}

// jetStream returns the JetStream of a connection.
func (c *Config) jetStream(conn *nats.Conn) (jetstream.JetStream, error) {
	options := []jetstream.JetStreamOpt{jetstream.WithDefaultTimeout(c.Timeout)}
	switch {
	case c.Domain != "":
		return jetstream.NewWithDomain(conn, c.Domain, options...)
	case c.APIPrefix != "":
		return jetstream.NewWithAPIPrefix(conn, c.APIPrefix, options...)
	}
	return jetstream.New(conn, options...)
}

// api returns what the subjects of JetStream's own requests begin with.
func (c *Config) api() string {
	switch {
	case c.Domain != "":
		return "$JS." + c.Domain + ".API."
	case c.APIPrefix != "":
		return strings.TrimSuffix(c.APIPrefix, ".") + "."
	}
	return jetstream.DefaultAPIPrefix
}
