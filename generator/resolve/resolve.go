// Package resolve turns a loaded schema into a model: it checks everything that
// can be checked without a database or the service's code, fills in every default
// and chooses every name. All findings are reported at once.
//
// # Keys
//
//   - A key is plain ({type: string}, {enum: [eu, us]} or {go_type: …, go_kind:
//     string}), composite ({type: [tenant_id, account_id: int64]}) or constant
//     ({const: ledger}).
//   - A plain key is a string, uuid, int32, int64, date, enum, or a go_type based
//     on string or int64. Other types are refused: equal values could have
//     different bytes, or one value is all there is.
//   - A part of a composite key has the type written behind its name, or else the
//     plain key of that name, or else string.
//   - Every key becomes a Go type. A plain key's name is a type for fields.
//
// # What orders an event
//
//   - key: X names a field X. If the field has a key's type, that key orders the
//     event. If it has a plain type, the key of the name X does, and the types
//     must agree. A field without a key is an error: keys are declared.
//   - key: X may instead name a constant key, or a composite key whose parts are
//     fields of the event. A constant or composite key wins over a field of the
//     same name.
//   - key: {X: field} and key: {X: [field, field]} name the key and its fields.
//   - The field is a member of the payload itself, required, and scalar.
//   - In a go_type event the fields are Go selectors: OrderID, Order.ID or
//     Order.ID(). key: OrderID uses the key whose Go type is OrderID. The Go
//     compiler checks them in the service. The name of a key alone stands for
//     the selectors that its parts' names make.
//   - A binary event without go_type has no fields, so only a constant key can
//     order it.
//
// # Routes
//
// In routes, catalogs and the events of a pull source, * stands for any text,
// dots included; nothing else is special. A route must match an event of the
// schema. If there are push sources, whose types are not known here, or no events
// at all, it may also match none. An event must be routed or be handled by a
// pull source.
//
// # Names
//
// Go names follow package naming; go_name overrides one. A nested type is called
// after its parent: OrderPlacedAddress for field address of order.placed.v1.
// A pull source and a destination cannot have one name, since both become fields
// of the service's configuration.
package resolve

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"

	"github.com/lanebox/lanebox/generator/diag"
	"github.com/lanebox/lanebox/generator/model"
	"github.com/lanebox/lanebox/generator/naming"
	"github.com/lanebox/lanebox/generator/schema"
)

// Resolve returns the model of a schema, or nil if the list holds an error or the
// file is faulty. The list is sorted and does not repeat what loading found.
func Resolve(f *schema.File) (*model.Model, diag.List) {
	r := &resolver{
		file:         f,
		model:        &model.Model{File: path.Base(f.Name)},
		pkg:          naming.NewScope(naming.PackageNames...),
		publisher:    naming.NewScope(naming.PublisherNames...),
		config:       naming.NewScope(naming.ConfigNames...),
		keys:         map[string]*keyEntry{},
		sources:      map[string]bool{},
		destinations: map[string]*model.Destination{},
		numbers:      map[int32]naming.Use{},
		meant:        map[string]bool{},
	}
	r.settings()
	r.resolveKeys()
	r.resolveEvents()
	r.resolveDestinations()
	r.resolveSources()
	r.resolveRoutes()
	r.resolveCatalogs()
	r.checkFlows()
	found := r.found.Sorted()
	if f.Faulty || found.Errors() > 0 {
		return nil, found
	}
	return r.finish(), found
}

// A resolver collects the model and the findings.
type resolver struct {
	file  *schema.File
	model *model.Model
	found diag.List

	pkg       *naming.Scope // identifiers of the events package
	publisher *naming.Scope // methods of its publisher
	config    *naming.Scope // fields of the service's configuration

	keys         map[string]*keyEntry
	events       []*eventEntry // in file order, the broken ones too
	destinations map[string]*model.Destination
	sources      map[string]bool
	numbers      map[int32]naming.Use
	allShards    int // of all flows so far
	// meant are the names that a misspelled reference was probably meant to be; what
	// is said of them besides would be about the same mistake.
	meant map[string]bool

	destinationList []*model.Destination // in file order
	sourceList      []*sourceEntry
	catalogList     []model.Catalog
}

// finish puts the lists into the model, in an order that does not depend on the
// order of mappings.
func (r *resolver) finish() *model.Model {
	m := r.model
	for _, k := range r.keys {
		m.Keys = append(m.Keys, *k.key)
	}
	slices.SortFunc(m.Keys, func(a, b model.Key) int { return cmp.Compare(a.Name, b.Name) })
	for _, e := range r.events {
		byName := func(a, b *model.Destination) int { return cmp.Compare(a.Name, b.Name) }
		slices.SortFunc(e.event.Destinations, byName)
		m.Events = append(m.Events, *e.event)
		m.Binary = m.Binary || e.event.Binary
	}
	slices.SortFunc(m.Events, func(a, b model.Event) int { return cmp.Compare(a.Topic, b.Topic) })
	for _, s := range r.sourceList {
		m.Sources = append(m.Sources, *s.source)
	}
	slices.SortFunc(m.Sources, func(a, b model.Source) int { return cmp.Compare(a.Name, b.Name) })
	for _, d := range r.destinationList {
		m.Destinations = append(m.Destinations, *d)
	}
	slices.SortFunc(m.Destinations, func(a, b model.Destination) int { return cmp.Compare(a.Name, b.Name) })
	m.Catalogs = r.catalogList
	slices.SortFunc(m.Catalogs, func(a, b model.Catalog) int { return cmp.Compare(a.Name, b.Name) })
	relink(m)
	return m
}

// relink makes every pointer point into the model's own lists.
func relink(m *model.Model) {
	keys := map[string]*model.Key{}
	for i := range m.Keys {
		keys[m.Keys[i].Name] = &m.Keys[i]
	}
	events := map[string]*model.Event{}
	for i := range m.Events {
		events[m.Events[i].Topic] = &m.Events[i]
	}
	destinations := map[string]*model.Destination{}
	for i := range m.Destinations {
		destinations[m.Destinations[i].Name] = &m.Destinations[i]
	}
	for i := range m.Keys {
		for j := range m.Keys[i].Parts {
			relinkType(&m.Keys[i].Parts[j].Type, keys)
		}
	}
	for i := range m.Events {
		e := &m.Events[i]
		if e.Key != nil {
			e.Key = keys[e.Key.Name]
		}
		if e.Struct != nil {
			relinkStruct(e.Struct, keys)
		}
		for j, d := range e.Destinations {
			e.Destinations[j] = destinations[d.Name]
		}
	}
	for i := range m.Sources {
		relinkEvents(m.Sources[i].Events, events)
	}
	for i := range m.Catalogs {
		relinkEvents(m.Catalogs[i].Events, events)
	}
	for i := range m.Routes {
		for j, d := range m.Routes[i].To {
			m.Routes[i].To[j] = destinations[d.Name]
		}
	}
}

func relinkEvents(list []*model.Event, events map[string]*model.Event) {
	for i, e := range list {
		list[i] = events[e.Topic]
	}
}

func relinkStruct(s *model.Struct, keys map[string]*model.Key) {
	for i := range s.Fields {
		relinkType(&s.Fields[i].Type, keys)
	}
}

func relinkType(t *model.Type, keys map[string]*model.Key) {
	switch {
	case t.Key != nil:
		t.Key = keys[t.Key.Name]
	case t.Elem != nil:
		relinkType(t.Elem, keys)
	case t.Struct != nil:
		relinkStruct(t.Struct, keys)
	}
}

// report adds an error at m.
func (r *resolver) report(m schema.Mark, code, hint, format string, args ...any) {
	r.add(diag.Error, m, code, hint, fmt.Sprintf(format, args...))
}

// warn adds a warning at m.
func (r *resolver) warn(m schema.Mark, code, hint, format string, args ...any) {
	r.add(diag.Warning, m, code, hint, fmt.Sprintf(format, args...))
}

func (r *resolver) add(severity diag.Severity, m schema.Mark, code, hint, message string) {
	if m.Pos.Line == 0 {
		m = schema.Mark{Pos: model.Pos{Line: 1, Column: 1}, Length: 1}
	}
	r.found = append(r.found, diag.Diagnostic{
		File: r.file.Name, Pos: m.Pos, Length: m.Length, Severity: severity, Code: code, Message: message, Hint: hint,
	})
}

// claim takes a Go identifier in a scope, or reports who has it.
func (r *resolver) claim(scope *naming.Scope, id, what string, m schema.Mark) bool {
	err := scope.Claim(id, naming.Use{What: what, Pos: m.Pos})
	if err != nil {
		hint := "set go_name on one of them"
		var collision *naming.CollisionError
		if errors.As(err, &collision) && collision.First.Pos.Line == 0 {
			hint = "set go_name" // the other one is not in the schema
		}
		r.report(m, "name-collision", hint, "%v", err)
	}
	return err == nil
}

// goName returns the exported Go name of something: the override, or what make
// makes of its name.
func (r *resolver) goName(what string, name, override schema.Text, make func(string) (string, error)) string {
	if override.Set {
		if err := naming.CheckExported(override.V); err != nil {
			r.report(override.Mark, "go-name", "write an exported Go identifier", "go_name %q of %s cannot be used: %v", override.V, what, err)
			return ""
		}
		return override.V
	}
	id, err := make(name.V)
	if err != nil {
		r.report(name.Mark, "go-name", "set go_name", "%s has no Go name: %v", what, err)
		return ""
	}
	return id
}
