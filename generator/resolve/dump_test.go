package resolve_test

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/lanebox/lanebox/generator/model"
)

// dump prints a model, one thing a line, without positions.
func dump(m *model.Model) string {
	d := new(dumper)
	d.line(0, "package %s in %s, %s, database %q.%q, binary %v", m.Go.Package, m.Go.Out, strings.Join(m.Dialects, " "), m.Database.SchemaIn(m.Dialects[0]), m.Database.Prefix, m.Binary)
	for i := range m.Keys {
		d.key(&m.Keys[i])
	}
	for i := range m.Events {
		d.event(&m.Events[i])
	}
	for i := range m.Sources {
		d.source(&m.Sources[i])
	}
	for i := range m.Destinations {
		x := &m.Destinations[i]
		d.line(0, "destination %s %s #%d %s%s%s", x.Name, x.GoName, x.Number, x.Type, opt(" was ", x.Was), quote(" doc ", x.Doc))
		d.broker(x.Broker)
		d.delivery(x.Delivery)
	}
	for _, r := range m.Routes {
		var to []string
		for _, x := range r.To {
			to = append(to, x.Name)
		}
		d.line(0, "route %q to %s", r.Events, strings.Join(to, " "))
	}
	for _, c := range m.Catalogs {
		d.line(0, "catalog %s %s: %s", c.Name, c.GoName, topics(c.Events))
	}
	return d.b.String()
}

type dumper struct{ b strings.Builder }

func (d *dumper) line(depth int, format string, args ...any) {
	fmt.Fprintf(&d.b, "%s%s\n", strings.Repeat("  ", depth), fmt.Sprintf(format, args...))
}

func opt(label, s string) string {
	if s == "" {
		return ""
	}
	return label + s
}

func quote(label, s string) string {
	if s == "" {
		return ""
	}
	return label + fmt.Sprintf("%q", s)
}

func topics(events []*model.Event) string {
	var list []string
	for _, e := range events {
		list = append(list, e.Topic)
	}
	return strings.Join(list, " ")
}

func (d *dumper) key(k *model.Key) {
	version := opt(" version $.", k.Version.Field)
	if k.Version.Dense {
		version = " version dense"
	}
	d.line(0, "key %s %s%s%s%s%s%s", k.Name, k.GoName, quote(" const ", k.Const), quote(" prefix ", k.Prefix), opt(" aggregate ", k.Aggregate), version, quote(" doc ", k.Doc))
	for _, p := range k.Parts {
		d.line(1, "part %q %s %s", p.Name, p.GoName, typeText(p.Type))
		d.nested(2, p.Type)
	}
}

func (d *dumper) event(e *model.Event) {
	key := ""
	if e.Key != nil {
		key = fmt.Sprintf(" key %s(%s)", e.Key.Name, strings.Join(e.KeyFields, ", "))
		if e.KeyTyped {
			key += " typed"
		}
	}
	var to []string
	for _, x := range e.Destinations {
		to = append(to, x.Name)
	}
	payload := ""
	if e.GoType != nil {
		payload = " go_type " + e.GoType.Import + "." + e.GoType.Name
	}
	if e.Binary {
		payload += " binary"
	}
	d.line(0, "event %s %s%s%s%s replay %s to [%s]%s", e.Topic, e.GoName, payload, key, opt(" version ", e.VersionField), e.Replay, strings.Join(to, " "), quote(" doc ", e.Doc))
	d.object(1, e.Struct)
}

func (d *dumper) object(depth int, s *model.Struct) {
	if s == nil {
		return
	}
	for _, f := range s.Fields {
		d.line(depth, "%q %s %s%s", f.Name, f.GoName, typeText(f.Type), quote(" doc ", f.Doc))
		d.nested(depth+1, f.Type)
	}
}

func (d *dumper) nested(depth int, t model.Type) {
	switch {
	case t.Elem != nil:
		d.nested(depth, *t.Elem)
	case t.Enum != nil:
		for _, v := range t.Enum.Values {
			d.line(depth, "%s = %q", v.GoName, v.Value)
		}
	case t.Struct != nil:
		d.object(depth, t.Struct)
	}
}

func typeText(t model.Type) string {
	s := string(t.Kind)
	switch {
	case t.Elem != nil:
		s += "<" + typeText(*t.Elem) + ">"
	case t.Enum != nil:
		s += " " + t.Enum.GoName
	case t.Struct != nil:
		s += " " + t.Struct.GoName
	case t.Key != nil:
		s += " " + t.Key.GoName
	case t.GoType != nil:
		s += " " + t.GoType.Import + "." + t.GoType.Name + opt(" ", string(t.GoType.Kind))
	}
	if t.Optional {
		s += "?"
	}
	return s
}

func (d *dumper) source(s *model.Source) {
	mode := "push"
	if s.Pull {
		mode = "pull"
	}
	if s.Map {
		mode += " map"
	}
	d.line(0, "source %s %s #%d %s %s%s%s%s", s.Name, s.GoName, s.Number, s.Type, mode, opt(" at ", s.Path), opt(" was ", s.Was), quote(" doc ", s.Doc))
	d.broker(s.Broker)
	d.line(1, "key %q type %q aggregate %q missing %s receipts %s max %d", s.IdempotencyKey, s.EventType, s.AggregateID, s.AggregateIDMissing, s.Receipts, s.MaxBytes)
	if s.Pull {
		d.line(1, "events %s%s", topics(s.Events), map[bool]string{true: " and others"}[s.Other])
		d.delivery(s.Delivery)
	}
}

// broker prints the fields that are not zero.
func (d *dumper) broker(b *model.Broker) {
	if b == nil {
		return
	}
	var list []string
	for field, value := range reflect.ValueOf(*b).Fields() {
		if !value.IsZero() {
			text := fmt.Sprint(value)
			if value.Kind() == reflect.Slice || value.Kind() == reflect.String {
				text = fmt.Sprintf("%q", value)
			}
			list = append(list, field.Name+" "+text)
		}
	}
	d.line(1, "broker %s", strings.Join(list, ", "))
}

func (d *dumper) delivery(x model.Delivery) {
	d.line(1, "concurrency %d unsettled %d each %v timeout %s lease %s attempts %d base %s cap %s park %v",
		x.Concurrency, x.MaxUnsettled, x.SettleEach, x.Timeout, x.Lease, x.MaxAttempts, x.RetryBase, x.RetryCap, x.ParkDead)
}
