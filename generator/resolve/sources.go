package resolve

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/lanebox/lanebox/generator/model"
	"github.com/lanebox/lanebox/generator/schema"
)

// A sourceEntry is a resolved source.
type sourceEntry struct {
	source *model.Source
	name   schema.Text
}

// resolveSources resolves all sources, in file order.
func (r *resolver) resolveSources() {
	exists := func(name string) bool {
		return slices.ContainsFunc(r.file.Sources, func(s schema.Source) bool { return s.Name.V == name })
	}
	folded := map[string]schema.Text{}
	paths := map[string]schema.Text{}
	for i := range r.file.Sources {
		s := &r.file.Sources[i]
		what := fmt.Sprintf("source %q", s.Name.V)
		out := &model.Source{
			Pos: s.Name.Pos, Name: s.Name.V, Doc: cleanDoc(s.Doc.V), Type: s.Type.V, Was: s.Was.V,
			AggregateIDMissing: "reject",
		}
		r.transport("source", s.Type, &s.Broker, what)
		out.Broker = r.brokerSource(s, what)
		if s.Mode.Set && !r.word(s.Mode, what+": mode", "push", "pull") {
			// What is said of the other members should not be about the same mistake.
			s.Mode.V = "push"
			if s.EventsAt.Pos.Line != 0 || s.Delivery.At.Pos.Line != 0 || s.Other.V {
				s.Mode.V = "pull"
			}
		}
		out.Pull, out.Map, out.Other = s.Mode.V == "pull", s.Map.V, s.Other.V
		if out.GoName = r.flowName("source", s.Name, s.GoName, folded); out.GoName != "" {
			r.claimSource(s, out, what)
		}
		out.Number = r.number("source", s.Name, s.Was, exists)
		out.Receipts = r.span(s.Receipts, defaultReceipts, time.Minute, what+": receipts")
		out.MaxBytes = r.count(s.MaxBytes, defaultMaxBytes, maxBody, what+": max_bytes")
		r.extraction(s, out, what, paths)
		r.mode(s, out, what)
		r.sourceList = append(r.sourceList, &sourceEntry{source: out, name: s.Name})
	}
}

// claimSource takes the identifiers that generated code needs for a source.
func (r *resolver) claimSource(s *schema.Source, out *model.Source, what string) {
	var config []string
	pkg := []string{"Source", "Receiver"}
	if out.Type == "http" {
		config = append(config, out.GoName+"Verifier")
		pkg = append(pkg, "SourceConfig")
	}
	if out.Broker != nil {
		config = append(config, out.GoName+"From")
		pkg = append(pkg, "Topology")
	}
	if out.Pull {
		config = append(config, out.GoName)
		pkg = append(pkg, "Handler", "SourcePolicy")
	}
	if out.Map && !out.Pull {
		config = append(config, out.GoName+"Map")
		pkg = append(pkg, "Map")
	}
	for _, id := range config {
		if !r.claim(r.config, id, what, s.Name.Mark) {
			return
		}
	}
	for _, suffix := range pkg {
		r.claim(r.pkg, out.GoName+suffix, what, s.Name.Mark)
	}
	if out.Pull {
		r.claim(r.pkg, "Handle"+out.GoName, what, s.Name.Mark)
	}
	if out.Map && !out.Pull {
		r.claim(r.pkg, "Remap"+out.GoName, what, s.Name.Mark)
	}
}

// extraction resolves where an HTTP source is mounted, and what a source reads.
func (r *resolver) extraction(s *schema.Source, out *model.Source, what string, paths map[string]schema.Text) {
	switch {
	case s.Type.V == "handler":
		r.noExtraction(s, what)
		return
	case out.Broker != nil && s.Path.Set:
		r.report(s.Path.Mark, "no-effect", "remove it: only an http source is mounted somewhere", "%s is of type %s; path has no effect", what, s.Type.V)
	case s.Type.V == "http":
		r.mount(s, out, what, paths)
	case out.Broker == nil:
		return
	}
	r.aggregateMissing(s, out, what)
	for _, parts := range s.IdempotencyKeyPath {
		out.IdempotencyKey = append(out.IdempotencyKey, r.rules(parts, what+": idempotency_key_path"))
	}
	out.EventType = r.rules(s.EventTypePath, what+": event_type_path")
	out.AggregateID = r.rules(s.AggregateIDPath, what+": aggregate_id_path")
	if r.file.Faulty || out.Broker != nil {
		return // the messages of brokers have attributes
	}
	if len(s.IdempotencyKeyPath) == 0 {
		r.report(s.Name.Mark, "missing-key", "say where a message's own id is: $.id or header:x-idempotency-key", "%s has no %q", what, "idempotency_key_path")
	}
	if len(s.EventTypePath) == 0 {
		r.report(s.Name.Mark, "missing-key", "say where a message's type is: $.type or header:x-event-type", "%s has no %q", what, "event_type_path")
	}
}

// aggregateMissing resolves what happens to a message without an aggregate id.
func (r *resolver) aggregateMissing(s *schema.Source, out *model.Source, what string) {
	ruled := len(s.AggregateIDPath) > 0
	if out.Broker != nil && !ruled {
		out.AggregateIDMissing = ""
	}
	if r.word(s.AggregateIDMissing, what+": aggregate_id_missing", "reject", "unordered") {
		out.AggregateIDMissing = s.AggregateIDMissing.V
		if !ruled && out.Broker == nil && !r.file.Faulty {
			r.report(s.AggregateIDMissing.Mark, "no-effect", "add aggregate_id_path", "%s: aggregate_id_missing has no effect without aggregate_id_path", what)
		}
	}
}

// noExtraction refuses what only a source that reads messages needs.
func (r *resolver) noExtraction(s *schema.Source, what string) {
	for _, t := range []struct {
		name string
		at   schema.Mark
		set  bool
	}{
		{"path", s.Path.Mark, s.Path.Set},
		{"a path to extract", s.Extraction, s.Extraction.Pos.Line != 0},
		{"aggregate_id_missing", s.AggregateIDMissing.Mark, s.AggregateIDMissing.Set},
		{"max_bytes", s.MaxBytes.Mark, s.MaxBytes.Set},
	} {
		if t.set {
			r.report(t.at, "no-effect", "remove it: the caller gives key, type and aggregate id", "%s is a handler; %s has no effect", what, t.name)
		}
	}
}

// mount checks the HTTP path of a source.
func (r *resolver) mount(s *schema.Source, out *model.Source, what string, paths map[string]schema.Text) {
	p := s.Path.V
	out.Path = p
	if !s.Path.Set {
		if !r.file.Faulty {
			r.report(s.Name.Mark, "missing-key", "add path: /"+strings.ToLower(s.Name.V), "%s has no %q", what, "path")
		}
		return
	}
	const hint = "write a path such as /orders"
	switch first, taken := paths[p]; {
	case !strings.HasPrefix(p, "/"):
		r.report(s.Path.Mark, "path", hint, "%s: path %q does not begin with /", what, p)
	case path.Clean(p) != p:
		r.report(s.Path.Mark, "path", fmt.Sprintf("write %q", path.Clean(p)), "%s: path %q is not in its shortest form", what, p)
	case strings.ContainsFunc(p, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("/-._~", c)
	}):
		r.report(s.Path.Mark, "path", "use ASCII letters, digits and / - . _ ~", "%s: path %q contains a character that would have to be escaped", what, p)
	case taken:
		r.report(s.Path.Mark, "duplicate", "", "%s: path %q is taken (first at line %d)", what, p, first.Pos.Line)
	default:
		paths[p] = s.Path
	}
}

// rules checks extraction rules and returns them as text.
func (r *resolver) rules(list []schema.Text, what string) []string {
	var out []string
	for _, t := range list {
		if problem := ruleProblem(t.V); problem != "" {
			r.report(t.Mark, "extraction-rule", "write a path such as $.order.id, $.items[0].id or $['odd name'], or header:name", "%s: %q %s", what, t.V, problem)
			continue
		}
		if slices.Contains(out, t.V) {
			r.report(t.Mark, "duplicate", "", "%s: duplicate rule %q", what, t.V)
			continue
		}
		out = append(out, t.V)
	}
	return out
}

// mode checks what belongs to push or pull sources alone.
func (r *resolver) mode(s *schema.Source, out *model.Source, what string) {
	if !out.Pull {
		if s.EventsAt.Pos.Line != 0 {
			r.report(s.EventsAt, "no-effect", "routes decide where its messages go; or add mode: pull", "%s is a push source and has no %q", what, "events")
		}
		if s.Delivery.At.Pos.Line != 0 {
			r.report(s.Delivery.At, "no-effect", "set it on the destinations; or add mode: pull", "%s is a push source and has no delivery policy", what)
		}
		if out.Other {
			r.report(s.Other.Mark, "no-effect", "routes decide which types it takes; or add mode: pull", "%s is a push source and has no %q", what, "other")
		}
		return
	}
	out.Delivery = r.delivery(&s.Delivery, what)
	if s.Map.V {
		r.report(s.Map.Mark, "no-effect", "remove one of them", "%s is a pull source, whose handler does what map is for", what)
	}
	out.Events = r.selected(s.Events, what)
	for _, e := range r.events {
		e.pulled = e.pulled || slices.Contains(out.Events, e.event)
	}
	for _, e := range out.Events {
		if out.Other && e.GoName == "Other" {
			r.report(s.Other.Mark, "name-collision", "give the event another go_name", "%s: event %s would share the handler's method Other", what, e.Topic)
		}
	}
	if len(s.Events) == 0 && !out.Other && !r.file.Faulty {
		r.report(s.Name.Mark, "missing-key", "list the events that its handler takes, or write other: true", "%s is a pull source and has no %q", what, "events")
	}
}
