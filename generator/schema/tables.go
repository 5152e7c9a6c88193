package schema

import (
	"slices"
	"time"

	"gopkg.in/yaml.v3"
)

// The tables: every key of every mapping, once. They refer to each other through
// init, since types nest.
var (
	fileTable        table[File]
	goTable          table[Go]
	databaseTable    table[Database]
	keyTable         table[Key]
	eventTable       table[Event]
	fieldTable       table[Field]
	typeTable        table[Type]
	enumValueTable   table[EnumValue]
	sourceTable      table[Source]
	destinationTable table[Destination]
	retryTable       table[Retry]
	routeTable       table[Route]
)

// whole makes a table the reader of a mapping.
func (t *table[T]) whole() reader[T] {
	return reader[T]{
		read: t.read,
		json: func() object { return object{"$ref": "#/$defs/" + t.title} },
	}
}

const (
	serviceCode = "addresses and secrets come from the service's code, not from the schema"
	typeDoc     = `A type: string, bool, int32, int64, float64, decimal, bytes, time, date, duration, uuid, json or a key's name, with ? if optional; [T] is a list.`
)

func init() {
	fileTable = table[File]{title: "schema", doc: "A lanebox schema.", properties: []property[File]{
		must(prop("version", "The version of the schema language: 1.", number, func(f *File) *Value[int64] { return &f.Version })),
		prop("go", "Where generated Go code goes.", goTable.whole(), func(f *File) *Go { return &f.Go }),
		prop("dialects", "The databases to generate for.", dialects, func(f *File) *[]Text { return &f.Dialects }),
		prop("database", "How tables are named.", databaseTable.whole(), func(f *File) *Database { return &f.Database }),
		prop("keys", "Ordering keys; each becomes a Go type of its own.", entries("key", func(k *Key) *Text { return &k.Name }, keyTable.whole), func(f *File) *[]Key { return &f.Keys }),
		prop("events", "Event types by topic.", entries("event", func(e *Event) *Text { return &e.Name }, eventTable.whole), func(f *File) *[]Event { return &f.Events }),
		prop("sources", "Where inbox messages come from.", entries("source", func(s *Source) *Text { return &s.Name }, sourceTable.whole), func(f *File) *[]Source { return &f.Sources }),
		prop("destinations", "Where outbox messages go to.", entries("destination", func(d *Destination) *Text { return &d.Name }, destinationTable.whole), func(f *File) *[]Destination { return &f.Destinations }),
		prop("routes", "Which topics go to which destinations.", sequence(routeReader), func(f *File) *[]Route { return &f.Routes }),
		prop("catalogs", "Publishers limited to some events.", entries("catalog", func(c *Catalog) *Text { return &c.Name }, catalogReader), func(f *File) *[]Catalog { return &f.Catalogs }),
	}}
	goTable = table[Go]{title: "go", doc: "Where generated Go code goes.", properties: []property[Go]{
		prop("package", "The package name; default events.", name, func(g *Go) *Text { return &g.Package }),
		prop("out", "The folder, relative to the schema; default internal/ and the package name.", name, func(g *Go) *Text { return &g.Out }),
	}}
	databaseTable = table[Database]{title: "database", doc: "How tables are named.", properties: []property[Database]{
		prop("schema", "The database schema; default public, in SQL Server dbo.", name, func(d *Database) *Text { return &d.Schema }),
		prop("prefix", "Put before every table name.", anyText, func(d *Database) *Text { return &d.Prefix }),
	}, explained: map[string]string{"url": serviceCode, "dsn": serviceCode, "password": serviceCode, "host": serviceCode}}
	keyTable = table[Key]{title: "key", doc: "An ordering key.", properties: []property[Key]{
		{name: "type", doc: "A scalar type, or a list of parts: [tenant_id, account_id: int64].", read: readKeyType, json: keyTypeJSON},
		noting(prop("enum", "The values of an enum key.", sequence(enumValueReader), func(k *Key) *[]EnumValue { return &k.Enum }), func(k *Key) *Mark { return &k.EnumAt }),
		prop("go_type", "A Go type of the service: import path, dot, name.", name, func(k *Key) *Text { return &k.GoType }),
		prop("go_kind", "What the go_type is based on.", words("string", "int64"), func(k *Key) *Text { return &k.GoKind }),
		prop("const", "One fixed key: strict total order, one lane.", name, func(k *Key) *Text { return &k.Const }),
		prop("prefix", "Put before the encoded key, to keep ids of two aggregates apart.", anyText, func(k *Key) *Text { return &k.Prefix }),
		prop("version", "dense: numbered by the database; $.field: the payload's own.", name, func(k *Key) *Text { return &k.Version }),
		prop("aggregate", "The aggregate type.", name, func(k *Key) *Text { return &k.Aggregate }),
		prop("doc", "A description.", prose, func(k *Key) *Text { return &k.Doc }),
		prop("go_name", "The name of the Go type.", name, func(k *Key) *Text { return &k.GoName }),
	}}
	eventTable = table[Event]{title: "event", doc: "An event type.", properties: []property[Event]{
		prop("doc", "A description.", prose, func(e *Event) *Text { return &e.Doc }),
		prop("key", "The field, or the declared key, that orders the event.", keyUse, func(e *Event) **KeyUse { return &e.Key }),
		noting(prop("fields", "The members of the payload.", ref("fields", fieldsReader), func(e *Event) *[]Field { return &e.Fields }), func(e *Event) *Mark { return &e.Object }),
		prop("go_type", "The service's own type: import path, dot, name.", name, func(e *Event) *Text { return &e.GoType }),
		prop("payload", "How the payload is encoded; default json.", words("json", "binary"), func(e *Event) *Text { return &e.Payload }),
		prop("replay", "Whether dead letters may be replayed; default free.", words("free", "approved", "never"), func(e *Event) *Text { return &e.Replay }),
		prop("version", "For go_type events: the Go selector of the version.", name, func(e *Event) *Text { return &e.Version }),
		prop("go_name", "The name of the Go type and of the publish method.", name, func(e *Event) *Text { return &e.GoName }),
	}}
	fieldTable = table[Field]{title: "field", doc: typeDoc, properties: append([]property[Field]{
		prop("doc", "A description.", prose, func(f *Field) *Text { return &f.Doc }),
		prop("go_name", "The name of the Go field.", name, func(f *Field) *Text { return &f.GoName }),
	}, typeProperties(func(f *Field) *Type { return &f.Type })...)}
	typeTable = table[Type]{title: "element", doc: typeDoc, properties: typeProperties(func(t *Type) *Type { return t })}
	enumValueTable = table[EnumValue]{title: "value", doc: "A value of an enum.", properties: []property[EnumValue]{
		must(prop("value", "The value.", name, func(v *EnumValue) *Text { return &v.Value })),
		prop("go_name", "The end of the constant's name.", name, func(v *EnumValue) *Text { return &v.GoName }),
	}}
	sourceTable = table[Source]{title: "source", doc: "A source of inbox messages.", properties: append([]property[Source]{
		must(prop("type", "The transport.", transports, func(s *Source) *Text { return &s.Type })),
		prop("mode", "push: relayed into the outbox (default); pull: handed to a handler.", words("push", "pull"), func(s *Source) *Text { return &s.Mode }),
		prop("path", "Where an HTTP source is mounted.", name, func(s *Source) *Text { return &s.Path }),
		noting(prop("idempotency_key_path", "Where the idempotency key is found.", keyRules, func(s *Source) *[][]Text { return &s.IdempotencyKeyPath }), func(s *Source) *Mark { return &s.Extraction }),
		noting(prop("event_type_path", "Where the event type is found.", rules, func(s *Source) *[]Text { return &s.EventTypePath }), func(s *Source) *Mark { return &s.Extraction }),
		noting(prop("aggregate_id_path", "Where the aggregate id, which orders messages, is found.", rules, func(s *Source) *[]Text { return &s.AggregateIDPath }), func(s *Source) *Mark { return &s.Extraction }),
		prop("aggregate_id_missing", "What happens without an aggregate id: reject (default) or unordered.", words("reject", "unordered"), func(s *Source) *Text { return &s.AggregateIDMissing }),
		noting(prop("events", "The events that a pull source hands to its handler.", oneOrMore, func(s *Source) *[]Text { return &s.Events }), func(s *Source) *Mark { return &s.EventsAt }),
		prop("other", "Whether a pull source takes every event type; its handler's Other gets those that events does not list.", yes, func(s *Source) *Value[bool] { return &s.Other }),
		prop("map", "Whether a hook of the service turns messages into events.", yes, func(s *Source) *Value[bool] { return &s.Map }),
		prop("receipts", "How long idempotency keys outlive their messages; default 7d.", duration, func(s *Source) *Value[time.Duration] { return &s.Receipts }),
		prop("max_bytes", "The largest body; default 1MiB.", size, func(s *Source) *Value[int64] { return &s.MaxBytes }),
		prop("doc", "A description.", prose, func(s *Source) *Text { return &s.Doc }),
		prop("was", "The name this source had before.", name, func(s *Source) *Text { return &s.Was }),
		prop("go_name", "The name in Go.", name, func(s *Source) *Text { return &s.GoName }),
	}, slices.Concat(
		brokerProperties("source", func(s *Source) *Broker { return &s.Broker }),
		deliveryProperties(func(s *Source) *Delivery { return &s.Delivery }))...),
		explained: explainedFlow(map[string]string{"verify": serviceCode})}
	destinationTable = table[Destination]{title: "destination", doc: "A destination of outbox messages.", properties: append([]property[Destination]{
		must(prop("type", "The transport.", transports, func(d *Destination) *Text { return &d.Type })),
		prop("doc", "A description.", prose, func(d *Destination) *Text { return &d.Doc }),
		prop("was", "The name this destination had before.", name, func(d *Destination) *Text { return &d.Was }),
		prop("go_name", "The name in Go.", name, func(d *Destination) *Text { return &d.GoName }),
	}, slices.Concat(
		brokerProperties("destination", func(d *Destination) *Broker { return &d.Broker }),
		deliveryProperties(func(d *Destination) *Delivery { return &d.Delivery }))...),
		explained: explainedFlow(map[string]string{"address": serviceCode})}
	retryTable = table[Retry]{title: "retry", doc: "The retry policy.", properties: []property[Retry]{
		prop("max_attempts", "Recorded deliveries before a message is dead; default 20.", number, func(r *Retry) *Value[int64] { return &r.MaxAttempts }),
		prop("base", "The first backoff; default 1s.", duration, func(r *Retry) *Value[time.Duration] { return &r.Base }),
		prop("cap", "The longest backoff; default 5m.", duration, func(r *Retry) *Value[time.Duration] { return &r.Cap }),
	}}
	routeTable = table[Route]{title: "route", doc: "Topics and where they go.", properties: []property[Route]{
		must(prop("events", `Topics; * stands for any text: "order.*".`, oneOrMore, func(r *Route) *[]Text { return &r.Events })),
		must(prop("to", "Destinations.", oneOrMore, func(r *Route) *[]Text { return &r.To })),
	}}
}

// deliveryProperties are the keys of a delivery policy, inside a destination or a
// pull source.
func deliveryProperties[T any](member func(*T) *Delivery) []property[T] {
	properties := []property[T]{
		prop("concurrency", "Lanes in flight at one time; default 16.", number, func(t *T) *Value[int64] { return &member(t).Concurrency }),
		prop("max_unsettled", "Messages answered but not yet settled; bounds what a crash repeats. Default 256.", number, func(t *T) *Value[int64] { return &member(t).MaxUnsettled }),
		prop("settle", "batch (default), or each: before the lane's next message starts.", words("batch", "each"), func(t *T) *Text { return &member(t).Settle }),
		prop("timeout", "The longest delivery or handler call; default 10s.", duration, func(t *T) *Value[time.Duration] { return &member(t).Timeout }),
		prop("lease", "How long lanes are leased; longer than timeout. Default 15s.", duration, func(t *T) *Value[time.Duration] { return &member(t).Lease }),
		prop("retry", "The retry policy.", retryTable.whole(), func(t *T) *Retry { return &member(t).Retry }),
		prop("on_dead", "release (default): later messages pass a dead one; park: they wait for an operator.", words("release", "park"), func(t *T) *Text { return &member(t).OnDead }),
	}
	for i := range properties {
		properties[i] = noting(properties[i], func(t *T) *Mark { return &member(t).At })
	}
	return properties
}

// dialects reads the list of databases.
var dialects = reader[[]Text]{
	read: oneOrMore.read,
	json: func() object {
		return listOf(object{"type": "string", "enum": []string{"postgres", "sqlite", "sqlserver"}})
	},
}

// routeReader reads a route and where it begins.
func routeReader() reader[Route] {
	return reader[Route]{json: routeTable.whole().json, read: func(l *loader, n *yaml.Node, _ string, r *Route) {
		r.Mark = l.mark(n)
		routeTable.read(l, n, "a route", r)
	}}
}

// catalogReader reads the events of a catalog.
func catalogReader() reader[Catalog] {
	return reader[Catalog]{json: oneOrMore.json, read: func(l *loader, n *yaml.Node, what string, c *Catalog) {
		oneOrMore.read(l, n, what, &c.Events)
	}}
}
