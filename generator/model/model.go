// Package model is what a schema means once it is proved sound: every default
// filled in, every reference resolved, every Go and SQL name chosen. It holds no
// YAML, no Go text and no SQL text. A Model is built by package resolve and is
// not changed afterwards; its lists are in a fixed order that does not depend on
// the order of mappings in the YAML file, except where the order means something.
package model

import (
	"cmp"
	"time"
)

// A Pos is a place in the schema file; lines and columns start at 1, columns
// count runes.
type Pos struct{ Line, Column int }

// A Model is a whole schema.
type Model struct {
	// File is the schema's base name, for headers and line comments.
	File string
	Go   Go
	// Dialects are the databases to generate for, sorted: "postgres", "sqlite",
	// "sqlserver".
	Dialects []string
	Database Database
	// Binary says that an event declares a binary payload, so that the outbox
	// stores bytes instead of text.
	Binary bool

	Keys         []Key         // sorted by name
	Events       []Event       // sorted by topic
	Sources      []Source      // sorted by name
	Destinations []Destination // sorted by name
	Routes       []Route       // in schema order
	Catalogs     []Catalog     // sorted by name
}

// Go says where generated Go code goes.
type Go struct {
	Package string // package name of the event package
	Out     string // slash-separated, relative to the schema file
	Import  string // import path of Out; known only when generating into a module
	// Packages are the names of packages that go_type refers to, by import path, as
	// far as they are known.
	Packages map[string]string
}

// Database names the tables.
type Database struct {
	Schema string // the database schema for all dialects; "" means the default of each
	Prefix string // put before every table name
}

// SchemaIn returns the name of the database schema that holds the tables in a
// dialect. SQLite has none and ignores it.
func (d Database) SchemaIn(dialect string) string {
	if dialect == "sqlserver" {
		return cmp.Or(d.Schema, "dbo")
	}
	return cmp.Or(d.Schema, "public")
}

// A Key is a typed ordering key.
type Key struct {
	Pos       Pos
	Name      string // as in the schema
	GoName    string // the key's Go type
	Doc       string
	Aggregate string // aggregate type, "" if none
	// Parts has one element for a plain key, several for a composite one. A
	// constant key has none. The key's constructor is "New" + GoName and takes
	// the parts in this order.
	Parts  []KeyPart
	Const  string // not "" for key {const: …}: strict total order, one lane
	Prefix string // put before the encoded key
	// Version is how the aggregate's version is known.
	Version Version
}

// A KeyPart is one component of a key.
type KeyPart struct {
	Name   string // the component's name in the schema; "" in a plain key
	GoName string // parameter name in the key's constructor; no keyword, no common import
	// Type is string, uuid, int32, int64, enum, date or a go_type; in a composite
	// key also another, plain key (KeyRef), which is joined as its own ordering
	// key. It is never optional.
	Type Type
}

// Version says where versions come from.
type Version struct {
	Dense bool   // numbered per lane by the database
	Field string // path below the payload, "" if none: "version" for $.version
}

// An Event is one event type.
type Event struct {
	Pos    Pos
	Topic  string // "order.placed.v1"
	GoName string // "OrderPlaced"
	Doc    string
	// Struct describes the payload. For a go_type event it is nil.
	Struct *Struct
	GoType *GoType
	// Binary says that the payload is raw bytes (payload: binary). Without a
	// go_type the event has no fields, and its key, if any, is constant. A go_type
	// marshals itself (encoding.BinaryMarshaler).
	Binary bool

	// Key is the key that orders the event; nil if it has none.
	Key *Key
	// KeyFields are the Go selectors of the event that fill the key's parts, one
	// each, such as "OrderID" or, in go_type events, what the schema says:
	// "OrderID", "Order.ID" or "Order.ID()". Their types are the parts' types,
	// unless KeyTyped. Empty for constant keys.
	KeyFields []string
	// KeyPos is where the schema names the (first) key field.
	KeyPos Pos
	// KeyTyped says that the one key field already has the key's Go type. It is
	// false for go_type events: there the field has the type of the key's part.
	KeyTyped bool
	// VersionField is the Go selector of the version, an int32 or int64 ("Version",
	// "Meta.Version"); "" if none. VersionPos is where the schema names it.
	VersionField string
	VersionPos   Pos

	// Replay is "free", "approved" or "never".
	Replay string
	// Destinations the event is routed to, sorted; each once. Empty for an event
	// that is only received by pull sources and cannot be published.
	Destinations []*Destination
}

// A Struct is an object type with a Go name of its own.
type Struct struct {
	GoName string
	Doc    string
	Fields []Field // in schema order
}

// A Field is one member of an object.
type Field struct {
	Pos    Pos
	Name   string // JSON name
	GoName string
	Doc    string
	Type   Type
}

// A Kind is the kind of a type.
type Kind string

// The kinds of types.
const (
	String   Kind = "string"
	Bool     Kind = "bool"
	Int32    Kind = "int32"
	Int64    Kind = "int64"
	Float64  Kind = "float64"
	Decimal  Kind = "decimal"
	Bytes    Kind = "bytes"
	Time     Kind = "time"
	Date     Kind = "date"
	Duration Kind = "duration"
	UUID     Kind = "uuid"
	JSON     Kind = "json"
	Enum     Kind = "enum"
	Object   Kind = "object"
	List     Kind = "list"
	Map      Kind = "map" // string keys
	KeyRef   Kind = "key" // a declared key's Go type
	Foreign  Kind = "go_type"
)

// A Type is the type of a field, a list element, a map value or a key part.
type Type struct {
	Kind     Kind
	Optional bool // a pointer in Go (not for lists, maps, bytes and json); never of an element
	Enum     *EnumType
	Struct   *Struct // for Object
	Elem     *Type   // for List and Map
	Key      *Key    // for KeyRef
	GoType   *GoType // for Foreign
}

// An EnumType is a set of strings with a Go type of its own.
type EnumType struct {
	GoName string
	Doc    string
	Values []EnumValue // in schema order
}

// An EnumValue is one value of an enum.
type EnumValue struct {
	Value  string
	GoName string // the constant, already prefixed with the type's name
}

// A GoType is a type of the service's own.
type GoType struct {
	Pos    Pos
	Import string // "github.com/acme/shop/orders"
	Name   string // "Shipped"
	// Kind is "string" or "int64" for key types (go_kind in the schema); "" for
	// events and fields.
	Kind Kind
}

// A Source is where inbox messages come from. A pull source's GoName differs from
// those of destinations, since both become fields of one Config.
type Source struct {
	Pos  Pos
	Name string
	// GoName is "Payments" for source payments; a pull source's handler interface
	// is GoName + "Handler", a mapping hook's field GoName + "Map".
	GoName string
	Doc    string
	Number int32  // stable hash of the name, or of the name given with was
	Type   string // "http", "handler" or one of Brokers
	Pull   bool
	// Path is where an HTTP source is mounted: "/orders".
	Path string
	// The extraction rules, first match wins: "$.eventId" or "header:x-id". An
	// idempotency key may be composite: all rules of one inner list are joined.
	IdempotencyKey [][]string
	EventType      []string
	AggregateID    []string
	// AggregateIDMissing is "reject" or "unordered"; "" for a broker's source that
	// has neither rules nor a wish: "unordered".
	AggregateIDMissing string
	// Events are the events a pull source hands to its handler, sorted by topic.
	Events []*Event
	// Other says that a pull source takes every event type: its handler has a
	// method Other for those that Events does not list.
	Other bool
	// Map says that a push source has a generated mapping hook.
	Map bool
	// Receipts is how long idempotency keys are remembered after their message
	// has gone.
	Receipts time.Duration
	MaxBytes int64    // largest body after decompression
	Delivery Delivery // pull mode only
	Was      string   // value of was, "" if none
	Broker   *Broker  // nil unless Type is one of Brokers
}

// A Destination is where outbox messages go to.
type Destination struct {
	Pos      Pos
	Name     string
	GoName   string
	Doc      string
	Number   int32
	Type     string // "http", "handler" or one of Brokers
	Delivery Delivery
	Was      string  // value of was, "" if none
	Broker   *Broker // nil unless Type is one of Brokers
}

// Delivery is the policy of one delivering loop.
type Delivery struct {
	Concurrency  int
	MaxUnsettled int
	SettleEach   bool
	Timeout      time.Duration // of one delivery or handler call
	Lease        time.Duration
	MaxAttempts  int
	RetryBase    time.Duration
	RetryCap     time.Duration
	ParkDead     bool // on_dead: park
}

// A Route sends topics to destinations.
type Route struct {
	Pos    Pos
	Events []string // topics or globs ("order.*"), as written
	To     []*Destination
}

// A Catalog limits a publisher to some events.
type Catalog struct {
	Pos  Pos
	Name string
	// GoName is "Billing" for catalog billing; its publisher is GoName + "Publisher".
	GoName string
	Events []*Event // sorted by topic
}

// PushScope is the number of the scope that all push sources share. It is the
// stable hash of a name that no schema can use.
const PushScope int32 = 1
