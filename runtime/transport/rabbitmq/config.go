package rabbitmq

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Defaults of Config.
const (
	DefaultMaxInFlight  = 64
	DefaultMaxBytes     = 16 << 20
	DefaultDialTimeout  = 10 * time.Second
	DefaultWriteTimeout = 30 * time.Second
	DefaultHeartbeat    = 10 * time.Second
)

// Config says how to reach a broker. The zero value of every field but URL is a
// sensible default.
type Config struct {
	// URL is where the broker is: "amqp://user:password@host:5672/vhost", or amqps
	// for TLS.
	URL string
	// More are URLs of further nodes of the same cluster; they are tried in turn.
	More []string
	// TLS is used for amqps; nil means the system's defaults.
	TLS *tls.Config
	// Dial, if it is set, makes connections instead of URL and More, for example
	// with credentials that change. It must end when ctx does. The connection must
	// not recover by itself. URL then only names the broker.
	Dial func(ctx context.Context) (*amqp.Connection, error)
	// ConnectionName is shown by the broker; default "lanebox".
	ConnectionName string
	// Source is the CloudEvents source attribute, a URI reference that names the
	// sending service; default "lanebox".
	Source string
	// MaxInFlight is how many messages a destination has on their way at a time;
	// default 64. Set it to the destination's concurrency.
	MaxInFlight int
	// MaxBytes is the largest payload that a destination sends; default 16 MiB, as
	// RabbitMQ 4 allows. A larger one is a permanent failure.
	MaxBytes int
	// DialTimeout bounds making a connection and declaring what is needed on it;
	// default 10 s.
	DialTimeout time.Duration
	// WriteTimeout is after how long a write that makes no progress ends its
	// connection; default 30 s.
	WriteTimeout time.Duration
	// Heartbeat is how often the two sides hear of each other at least; default
	// 10 s. A connection without a sign of life for longer is given up.
	Heartbeat time.Duration
	// Logger hears of lost connections and of what a source finds wrong; nil means
	// slog.Default().
	Logger *slog.Logger
}

func (c *Config) complete() error {
	c.ConnectionName = cmp.Or(c.ConnectionName, "lanebox")
	c.Source = cmp.Or(c.Source, "lanebox")
	c.MaxInFlight = cmp.Or(c.MaxInFlight, DefaultMaxInFlight)
	c.MaxBytes = cmp.Or(c.MaxBytes, DefaultMaxBytes)
	c.DialTimeout = cmp.Or(c.DialTimeout, DefaultDialTimeout)
	c.WriteTimeout = cmp.Or(c.WriteTimeout, DefaultWriteTimeout)
	c.Heartbeat = cmp.Or(c.Heartbeat, DefaultHeartbeat)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	switch {
	case c.MaxInFlight < 0 || c.MaxBytes < 0 || c.DialTimeout < 0 || c.WriteTimeout < 0:
		return errors.New("limits must not be negative")
	case c.Heartbeat < time.Second:
		return errors.New("the heartbeat must be at least one second")
	case len(c.Source) > maxShort:
		return fmt.Errorf("the source attribute has %d bytes; the limit is %d", len(c.Source), maxShort)
	case c.URL == "" && c.Dial == nil:
		return errors.New("the URL is empty")
	}
	for _, text := range c.urls() {
		if err := checkURL(text); err != nil {
			return err
		}
	}
	return nil
}

// urls returns the URLs in the order in which they are tried.
func (c *Config) urls() []string {
	if c.URL == "" {
		return c.More
	}
	return append([]string{c.URL}, c.More...)
}

// checkURL refuses what cannot be an AMQP URL. Its errors do not repeat the URL,
// which may hold a password.
func checkURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return errors.New("a URL cannot be read")
	case u.Scheme != "amqp" && u.Scheme != "amqps":
		return errors.New("a URL must begin with amqp:// or amqps://")
	case u.Hostname() == "":
		return errors.New("a URL names no host")
	}
	if _, err := amqp.ParseURI(text); err != nil {
		return errors.New("a URL cannot be read as an AMQP URI")
	}
	return nil
}

// address returns where c.URL leads, in a normal form without user, password and
// parameters; "" if it is not known.
func (c *Config) address() string {
	if c.URL == "" {
		return ""
	}
	u, err := amqp.ParseURI(c.URL)
	if err != nil {
		return ""
	}
	host := net.JoinHostPort(strings.ToLower(u.Host), strconv.Itoa(u.Port))
	return u.Scheme + "://" + host + "/" + url.PathEscape(u.Vhost)
}
