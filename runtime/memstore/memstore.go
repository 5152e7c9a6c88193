// Package memstore keeps outbox and inbox in memory. It is a complete model of
// what the SQL stores promise: transactions whose key locks are held to commit,
// sequence numbers drawn under the lock, routes and fan-out, dense versions,
// receipts, buckets with leases and fencing tokens, holds, dead letters, replay
// and heartbeats. Tests of services and of the loops run against it, with the
// real clock, in testing/synctest, or with a Clock that is set by hand, and
// inject faults into it (see DB.Intercept).
//
// Nothing survives the process. A DB is safe for concurrent use; a Tx belongs
// to one goroutine.
package memstore

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/lane"
)

// A Config describes what the schema of a service would.
type Config struct {
	// Now is the database's clock; nil means time.Now. It is called while the
	// DB is locked and must not call back into it.
	Now func() time.Time
	// Scopes are the destinations, the pull sources and the common push scope.
	Scopes []Scope
	// Topics are the events of the schema. A topic that is not listed has no
	// rules and still needs a route.
	Topics []Topic
	// Routes send topics to destinations.
	Routes []Route
	// Binary says that payloads of the outbox need not be UTF-8 text.
	Binary bool
}

// A Scope is one set of lanes.
type Scope struct {
	Number lane.Scope
	// Name serves error messages.
	Name string
	// Inbox says that the scope holds a pull source's messages, or those of all
	// push sources, rather than a destination's.
	Inbox bool
	// Buckets is the number of buckets, a power of two of at most 128; 0 means
	// 128.
	Buckets int
}

// A Topic is one event of the schema.
type Topic struct {
	Name string
	// Keyed says that the event declares a key: it is refused without one.
	Keyed bool
	// Dense numbers the messages of each lane 1, 2, 3 and so on.
	Dense bool
}

// A Route sends every topic that matches one of the globs to destinations. In a
// glob * stands for any run of characters.
type Route struct {
	Globs []string
	To    []lane.Scope
}

// A DB is the model of one database.
type DB struct {
	now    func() time.Time
	binary bool
	topics map[string]Topic
	routes []Route

	mu       sync.Mutex
	scopes   map[lane.Scope]*scope
	sequence int64
	locks    map[lockKey]*lock
	versions map[versionKey]int64
	receipts map[receiptKey]receipt
	logs     map[logKey]int64
	wakers   map[chan struct{}]bool
	fault    func(Call) Fault
}

type versionKey struct {
	scope lane.Scope
	key   string
}

type receiptKey struct {
	source int32
	key    string
}

// A logKey names a log that a source reads.
type logKey struct {
	source int32
	log    string
}

type receipt struct {
	digest   [sha256.Size]byte
	received time.Time
	gone     time.Time // when a purge found the message gone; zero: not yet
}

// since returns the time that the retention counts from.
func (r receipt) since() time.Time {
	if !r.gone.IsZero() {
		return r.gone
	}
	return r.received
}

// New returns an empty database.
func New(c Config) (*DB, error) {
	db := &DB{
		now: c.Now, binary: c.Binary, routes: c.Routes,
		topics:   map[string]Topic{},
		scopes:   map[lane.Scope]*scope{},
		locks:    map[lockKey]*lock{},
		versions: map[versionKey]int64{},
		receipts: map[receiptKey]receipt{},
		logs:     map[logKey]int64{},
		wakers:   map[chan struct{}]bool{},
	}
	if db.now == nil {
		db.now = time.Now
	}
	for _, t := range c.Topics {
		db.topics[t.Name] = t
	}
	for _, s := range c.Scopes {
		n := s.Buckets
		if n == 0 {
			n = 128
		}
		if n < 1 || n > 128 || n&(n-1) != 0 {
			return nil, fmt.Errorf("scope %s has %d buckets; it must be a power of two of at most 128", s.Name, n)
		}
		if s.Number == 0 {
			return nil, fmt.Errorf("scope %s has number 0, which means none", s.Name)
		}
		if db.scopes[s.Number] != nil {
			return nil, fmt.Errorf("scopes %s and %s have the same number %d", db.scopes[s.Number].name, s.Name, s.Number)
		}
		db.scopes[s.Number] = newScope(s, n)
	}
	for _, r := range c.Routes {
		for _, to := range r.To {
			if sc := db.scopes[to]; sc == nil || sc.inbox {
				return nil, fmt.Errorf("route %v leads to scope %d, which is no destination", r.Globs, to)
			}
		}
	}
	return db, nil
}

// destinations returns where a topic goes, each destination once.
func (db *DB) destinations(topic string) []*scope {
	var to []*scope
	seen := map[lane.Scope]bool{}
	for _, r := range db.routes {
		if !event.MatchAnyTopic(topic, r.Globs...) {
			continue
		}
		for _, n := range r.To {
			if !seen[n] {
				seen[n] = true
				to = append(to, db.scopes[n])
			}
		}
	}
	return to
}

// laneOf is the lane function of this database: a hash of the key alone. The
// lowest bit keeps keyed lanes off the unordered ones.
func laneOf(seed int32, key string) int64 {
	h := sha256.New()
	var s [4]byte
	binary.BigEndian.PutUint32(s[:], uint32(seed))
	h.Write(s[:])
	h.Write([]byte(key))
	return int64(binary.BigEndian.Uint64(h.Sum(nil))) | 1
}

// LaneOf returns the lane of a key in a scope of the outbox; for tests.
func (db *DB) LaneOf(key string) int64 { return laneOf(0, key) }

// newScope makes a scope whose buckets are the top bits of the lane.
func newScope(c Scope, buckets int) *scope {
	s := &scope{
		name: c.Name, number: c.Number, inbox: c.Inbox,
		shift: 64 - uint(bits.TrailingZeros(uint(buckets))),
		lanes: map[int64][]*row{}, holds: map[int64]map[int64]*hold{},
		owners: map[string]time.Time{},
	}
	for i := range buckets {
		b := int64(i - buckets/2)
		if buckets == 1 {
			s.buckets = append(s.buckets, &bucket{number: 0, lo: -1 << 63, hi: 1<<63 - 1})
			continue
		}
		lo := b << s.shift
		s.buckets = append(s.buckets, &bucket{number: lane.Bucket(b), lo: lo, hi: lo + int64(1)<<s.shift - 1})
	}
	return s
}

// unorderedLane returns the unordered lane of a random bucket.
func (s *scope) unorderedLane() int64 {
	return s.buckets[rand.IntN(len(s.buckets))].lo
}

// bucketOf returns the bucket that a lane belongs to.
func (s *scope) bucketOf(l int64) *bucket {
	if len(s.buckets) == 1 {
		return s.buckets[0]
	}
	return s.buckets[int(l>>s.shift)+len(s.buckets)/2]
}

// bucket returns a bucket by its number, or nil.
func (s *scope) bucket(n lane.Bucket) *bucket {
	for _, b := range s.buckets {
		if b.number == n {
			return b
		}
	}
	return nil
}

// checkKey applies the rules that the insert trigger of a SQL store applies.
func checkKey(topic Topic, key string) error {
	if key == "" {
		if topic.Keyed {
			return &event.ConfigurationError{Topic: topic.Name, Reason: "key is empty, but the event declares a key"}
		}
		return nil
	}
	if err := event.CheckKey(key); err != nil {
		return &event.ConfigurationError{Topic: topic.Name, Reason: err.Error()}
	}
	return nil
}
