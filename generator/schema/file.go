// Package schema reads lanebox.yaml into a tree that knows where everything was
// written. It checks the form alone: keys that exist, values of the right shape,
// nothing twice. What the schema means is package resolve's matter.
//
// One set of tables (tables.go) says which keys a mapping has; the loader and the
// JSON Schema for editors both come from it.
//
// # Spelling
//
// Keys are written in snake_case; camelCase is accepted for every key. A YAML
// file that several tools would read differently is refused instead of guessed
// at: anchors, aliases, merge keys, tags, several documents, duplicate keys, and
// plain scalars such as no, 012, 1e3, 12:30:45, 2026-01-01 or ~ where text is
// meant.
//
// # Types
//
// A type is written as
//
//	string            a scalar, or the name of a declared key
//	string?           the same, optional
//	[string]          a list; the only spelling
//	{map: int64}      a map with string keys
//	{enum: [a, b]}    an enum; a value may be {value: "A+", go_name: APlus}
//	{fields: {…}}     an object
//	{go_type: github.com/acme/shop/orders.ID}
//
// and a field that needs more than a type is a mapping: {type: [string],
// optional: true, doc: …, go_name: …}.
//
// # Paths
//
// The extraction rules of a source are a path into the JSON body ($.a.b,
// $.items[0].id, $['odd name']) or header:name. A list means that the first
// that finds a value wins; in idempotency_key_path, a list inside the list is a
// key of several parts.
package schema

import (
	"time"

	"github.com/lanebox/lanebox/generator/model"
)

// A Mark is a stretch of the schema's text on one line.
type Mark struct {
	Pos    model.Pos
	Length int // in runes
}

// A Value is a scalar and where it was written.
type Value[T any] struct {
	Mark
	V   T
	Set bool // false: not written
}

// Text is a string scalar.
type Text = Value[string]

// A File is a loaded schema. Lists keep the order of the file.
type File struct {
	// Name is the name the file was loaded under.
	Name string
	// Faulty says that loading found errors, so that parts may be missing.
	Faulty bool
	// End is the last place of the file.
	End model.Pos

	Version      Value[int64]
	Go           Go
	Dialects     []Text
	Database     Database
	Keys         []Key
	Events       []Event
	Sources      []Source
	Destinations []Destination
	Routes       []Route
	Catalogs     []Catalog
}

// Go says where generated code goes.
type Go struct{ Package, Out Text }

// Database names the tables.
type Database struct{ Schema, Prefix Text }

// A Key is a declared ordering key.
type Key struct {
	Name      Text
	Type      *Type     // nil: composite, constant or enum
	Parts     []KeyPart // composite
	Composite Mark      // where the list of parts begins
	Enum      []EnumValue
	EnumAt    Mark
	GoType    Text
	GoKind    Text
	Const     Text
	Prefix    Text
	Version   Text
	Aggregate Text
	Doc       Text
	GoName    Text
}

// A KeyPart is a component of a composite key.
type KeyPart struct {
	Name Text
	Type *Type // nil: not written
}

// An Event is a declared event.
type Event struct {
	Name    Text
	Doc     Text
	GoName  Text
	GoType  Text
	Key     *KeyUse // nil: none
	Fields  []Field
	Object  Mark // where the fields begin; zero if there are none
	Payload Text
	Replay  Text
	Version Text
}

// A KeyUse says what orders an event: a field or a key by its name, or, written
// {key: field} or {key: [fields]}, a key with the fields that fill it.
type KeyUse struct {
	Name   Text
	Fields []Text // nil in the short form
}

// A Field is a member of an object.
type Field struct {
	Name   Text
	Doc    Text
	GoName Text
	Type   Type
}

// A Form is how a type is written.
type Form uint8

// The forms of types. The zero Form is a type that could not be read.
const (
	BadForm Form = iota
	NameForm
	ListForm
	MapForm
	EnumForm
	ObjectForm
	GoForm
)

// A Type is a type expression.
type Type struct {
	Mark
	Form     Form
	Name     string // NameForm, without the question mark
	Optional bool
	Elem     *Type       // ListForm, MapForm
	Enum     []EnumValue // EnumForm
	Fields   []Field     // ObjectForm
	GoType   Text        // GoForm
	GoKind   Text        // GoForm
}

// An EnumValue is a value of an enum.
type EnumValue struct{ Value, GoName Text }

// A Source is a declared source.
type Source struct {
	Name               Text
	Type               Text
	Mode               Text
	Path               Text
	IdempotencyKeyPath [][]Text
	EventTypePath      []Text
	AggregateIDPath    []Text
	Extraction         Mark // the first of the three paths; zero if there is none
	AggregateIDMissing Text
	Events             []Text
	EventsAt           Mark
	Other              Value[bool]
	Map                Value[bool]
	Receipts           Value[time.Duration]
	MaxBytes           Value[int64]
	Delivery           Delivery
	Doc                Text
	Was                Text
	GoName             Text
	Broker             Broker
}

// A Destination is a declared destination.
type Destination struct {
	Name     Text
	Type     Text
	Delivery Delivery
	Doc      Text
	Was      Text
	GoName   Text
	Broker   Broker
}

// Delivery is the policy of a delivering loop.
type Delivery struct {
	At           Mark // the first key of the policy; zero if none is written
	Concurrency  Value[int64]
	MaxUnsettled Value[int64]
	Settle       Text
	Timeout      Value[time.Duration]
	Lease        Value[time.Duration]
	Retry        Retry
	OnDead       Text
}

// Retry is the retry policy.
type Retry struct {
	MaxAttempts Value[int64]
	Base        Value[time.Duration]
	Cap         Value[time.Duration]
}

// A Route sends topics to destinations.
type Route struct {
	Mark
	Events []Text
	To     []Text
}

// A Catalog limits a publisher to some events.
type Catalog struct {
	Name   Text
	Events []Text
}
