package kafka

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Defaults of Config.
const (
	DefaultTimeout      = 10 * time.Second
	DefaultMaxRun       = 256
	DefaultMaxBuffered  = 100_000
	DefaultBatchBytes   = 1_000_012
	DefaultMaxRecords   = 256
	DefaultMaxStoring   = 8
	DefaultRetryBackoff = 5 * time.Second
)

// Config says how a cluster is reached. The zero value of every field but Brokers
// is a sensible default.
type Config struct {
	// Brokers are some of the cluster's addresses, host:port.
	Brokers []string
	// Options are further settings of the connections: TLS, SASL, a dialer, hooks.
	// What order and safety depend on is set over them; options that cannot be
	// undone, such as kgo.DisableIdempotentWrite, are refused.
	Options []kgo.Opt
	// Source is the CloudEvents source attribute, a URI reference that names the
	// sending service; default "lanebox".
	Source string
	// Logger hears of what an operator should know; nil means slog.Default.
	Logger *slog.Logger

	// Timeout bounds one run of a destination with its answer, and how long a source
	// may take to commit when partitions leave it; default 10 s. Keep it below the
	// time that a delivery may take. A source that ends waits at most 5 s for the
	// cluster.
	Timeout time.Duration
	// MaxRun is the longest run a destination takes; default 256.
	MaxRun int
	// MaxBuffered is how many records of a destination may wait for an answer;
	// default 100,000. Beyond it, sends are told to come later.
	MaxBuffered int
	// MaxBytes is the largest payload that is sent; 0 means as much as a batch
	// takes. A larger one is a permanent failure.
	MaxBytes int
	// BatchBytes is the largest record batch; default 1,000,012, a little less than
	// what topics take by default (max.message.bytes). A record that is larger with
	// its headers is a permanent failure.
	BatchBytes int
	// Linger is how long a partition waits for more records before it sends; default
	// 0. Records that come while a request is on its way are sent together anyway.
	Linger time.Duration

	// MaxRecords is how many records of a partition a source stores in one
	// transaction; default 256. MaxStoring is how many partitions it stores at a
	// time; default 8.
	MaxRecords, MaxStoring int
	// RetryBackoff is the longest pause of a source between two tries to store;
	// default 5 s.
	RetryBackoff time.Duration
}

func (c *Config) complete() error {
	c.Source = cmp.Or(c.Source, "lanebox")
	c.Timeout = cmp.Or(c.Timeout, DefaultTimeout)
	c.MaxRun = cmp.Or(c.MaxRun, DefaultMaxRun)
	c.MaxBuffered = cmp.Or(c.MaxBuffered, DefaultMaxBuffered)
	c.BatchBytes = cmp.Or(c.BatchBytes, DefaultBatchBytes)
	c.MaxRecords = cmp.Or(c.MaxRecords, DefaultMaxRecords)
	c.MaxStoring = cmp.Or(c.MaxStoring, DefaultMaxStoring)
	c.RetryBackoff = cmp.Or(c.RetryBackoff, DefaultRetryBackoff)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	switch {
	case len(c.Brokers) == 0 || slices.Contains(c.Brokers, ""):
		return errors.New("no broker is named: set Brokers to at least one host:port")
	case min(c.MaxRun, c.MaxBuffered, c.MaxRecords, c.MaxStoring) < 0 || c.MaxBytes < 0 || min(c.Timeout, c.Linger, c.RetryBackoff) < 0:
		return errors.New("limits must not be negative")
	case c.BatchBytes < minBatchBytes || c.BatchBytes > maxBatchBytes:
		return fmt.Errorf("BatchBytes is %d; it must be between %d and %d", c.BatchBytes, minBatchBytes, maxBatchBytes)
	}
	return nil
}

// Bounds of BatchBytes.
const (
	minBatchBytes = 4 << 10
	maxBatchBytes = 512 << 20
)

// maxOverhead is the longest time that the client takes as a timeout of requests.
const maxOverhead = 15 * time.Minute

// connection returns the options of every client: defaults, what the service sets
// over them, and what it cannot change.
func (c *Config) connection() []kgo.Opt {
	options := []kgo.Opt{
		kgo.WithLogger(clientLog{c.Logger}),
		kgo.RetryBackoffFn(retryBackoff),
		kgo.MetadataMinAge(250 * time.Millisecond),
		kgo.RequestTimeoutOverhead(min(max(time.Second, c.Timeout/2), maxOverhead)),
		kgo.FetchMaxBytes(16 << 20),
	}
	options = append(options, c.Options...)
	return append(options, kgo.SeedBrokers(c.Brokers...))
}

// retryBackoff keeps the client's retries frequent enough that an outage of a
// broker ends for every partition soon after the broker is back.
func retryBackoff(tries int) time.Duration {
	return min(50*time.Millisecond<<min(tries, 5), time.Second)
}

// refusedOptions are options that break what this package promises and cannot be
// set back, with what they break.
var refusedOptions = []struct {
	option any
	isSet  func(value any) bool
	why    string
}{
	{kgo.DisableIdempotentWrite, isTrue, "DisableIdempotentWrite lets a retry overtake what was sent before"},
	{kgo.AllowIdempotentProduceCancellation, isTrue, "AllowIdempotentProduceCancellation gives up records whose fate is open"},
	{kgo.TransactionalID, isText, "TransactionalID belongs to one process, and replicas would fence each other"},
	{kgo.ManualFlushing, isTrue, "ManualFlushing keeps records back"},
	{kgo.StreamingCompression, isTrue, "StreamingCompression divides runs over batches"},
	{kgo.DefaultProduceTopicAlways, isTrue, "DefaultProduceTopicAlways changes the topic"},
	{kgo.ConsumeRegex, isTrue, "ConsumeRegex takes topic names for patterns"},
}

func isTrue(v any) bool { is, _ := v.(bool); return is }

func isText(v any) bool {
	switch v := v.(type) {
	case string:
		return v != ""
	case *string:
		return v != nil
	}
	return false
}

// newClient makes a client, unless its options are refused.
func newClient(options []kgo.Opt) (*kgo.Client, error) {
	client, err := kgo.NewClient(options...)
	if err != nil {
		return nil, err
	}
	for _, r := range refusedOptions {
		if r.isSet(client.OptValue(r.option)) {
			client.Close()
			return nil, fmt.Errorf("the option cannot be used: kgo.%s", r.why)
		}
	}
	return client, nil
}

var topicName = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,249}$`)

// checkTopic reports why a topic of that name cannot exist.
func checkTopic(topic string) error {
	if !topicName.MatchString(topic) || topic == "." || topic == ".." {
		return fmt.Errorf("%q is not the name of a topic", topic)
	}
	return nil
}

// address returns the cluster's seeds and a path in a normal form.
func address(brokers []string, path string) string {
	seeds := make([]string, len(brokers))
	for i, b := range brokers {
		if seeds[i] = strings.ToLower(b); !strings.Contains(b, ":") {
			seeds[i] += ":9092"
		}
	}
	slices.Sort(seeds)
	return "kafka://" + strings.Join(slices.Compact(seeds), ",") + "/" + path
}

// clientLog passes what the client logs on, one level lower: the client retries
// by itself, and this package reports what comes of it.
type clientLog struct{ logger *slog.Logger }

// Level implements kgo.Logger.
func (clientLog) Level() kgo.LogLevel { return kgo.LogLevelWarn }

// Log implements kgo.Logger.
func (l clientLog) Log(_ kgo.LogLevel, text string, pairs ...any) {
	l.logger.Debug("kafka client: "+text, pairs...)
}
