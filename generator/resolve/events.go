package resolve

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/lanebox/lanebox/generator/diag"
	"github.com/lanebox/lanebox/generator/model"
	"github.com/lanebox/lanebox/generator/naming"
	"github.com/lanebox/lanebox/generator/schema"
)

// maxTopic is the number of bytes of the longest topic.
const maxTopic = 255

// An eventEntry is a declared event and how it is used.
type eventEntry struct {
	event  *model.Event
	name   schema.Text
	pulled bool // a pull source handles it
	routed bool // a route names it, perhaps a broken one
}

// resolveEvents resolves all events, in file order.
func (r *resolver) resolveEvents() {
	for i := range r.file.Events {
		r.events = append(r.events, &eventEntry{event: r.event(&r.file.Events[i]), name: r.file.Events[i].Name})
	}
}

// event resolves one event.
func (r *resolver) event(e *schema.Event) *model.Event {
	what := fmt.Sprintf("event %q", e.Name.V)
	out := &model.Event{Pos: e.Name.Pos, Topic: e.Name.V, Doc: cleanDoc(e.Doc.V), Replay: "free"}
	if problem := topicProblem(e.Name.V, ""); problem != "" {
		r.report(e.Name.Mark, "topic", "", "%s %s", what, problem)
	} else {
		out.GoName = r.goName(what, e.Name, e.GoName, naming.Event)
	}
	r.word(e.Payload, what+": payload", "json", "binary")
	out.Binary = e.Payload.V == "binary"
	if r.word(e.Replay, what+": replay", "free", "approved", "never") {
		out.Replay = e.Replay.V
	}
	r.claimEvent(e, out.GoName, what)
	sound := r.payload(e, out, what)
	if e.Key != nil {
		r.eventKey(e, out, sound)
	}
	r.eventVersion(e, out, what, sound)
	return out
}

// claimEvent takes the identifiers that generated code needs for an event.
func (r *resolver) claimEvent(e *schema.Event, id, what string) {
	if id == "" {
		return
	}
	if !r.claim(r.pkg, id, what, e.Name.Mark) || !r.claim(r.publisher, id, what, e.Name.Mark) {
		return
	}
	r.claim(r.pkg, "Topic"+id, "the topic of "+what, e.Name.Mark)
	r.claim(r.pkg, "Decode"+id, "the decoder of "+what, e.Name.Mark)
	if e.GoType.Set {
		r.claim(r.pkg, "New"+id, "the constructor of "+what, e.Name.Mark)
	}
}

// payload resolves fields or go_type. It returns false if the payload is not
// known well enough to look for keys in it.
func (r *resolver) payload(e *schema.Event, out *model.Event, what string) bool {
	hasFields := e.Object.Pos.Line != 0
	switch {
	case hasFields && e.GoType.Set:
		r.report(e.GoType.Mark, "two-payloads", "keep one of them", "%s has both fields and go_type", what)
		return false
	case hasFields && out.Binary:
		r.report(e.Payload.Mark, "two-payloads", "remove the fields, or the payload line", "%s is binary, so it cannot have fields", what)
		return false
	case e.GoType.Set:
		out.GoType = r.goType(e.GoType, what)
		return true
	case out.Binary:
		return true
	case !hasFields:
		if !r.file.Faulty {
			r.report(e.Name.Mark, "no-payload", "add fields: {…} or go_type: …", "%s has neither fields nor go_type", what)
		}
		return false
	}
	var ok bool
	out.Struct, ok = r.object(e.Fields, out.GoName, what)
	out.Struct.Doc = out.Doc
	return ok
}

// topicProblem says why s cannot be a topic, or "". also are characters allowed
// besides.
func topicProblem(s, also string) string {
	switch {
	case s == "":
		return "has an empty name"
	case len(s) > maxTopic:
		return fmt.Sprintf("has a name of %d bytes; the limit is %d", len(s), maxTopic)
	}
	for _, c := range s {
		if !unicode.IsLetter(c) && !unicode.IsMark(c) && !unicode.IsDigit(c) && !strings.ContainsRune("._-:/+@#"+also, c) {
			return fmt.Sprintf("has a name that contains %q; use letters, digits and . _ - : / + @ #", c)
		}
	}
	return ""
}

// eventKey resolves what orders an event. sound says that its fields are known.
func (r *resolver) eventKey(e *schema.Event, out *model.Event, sound bool) {
	use := e.Key
	out.KeyPos = use.Name.Pos
	if use.Fields != nil {
		out.KeyPos = use.Fields[0].Pos
	}
	switch {
	case use.Fields != nil:
		r.explicitKey(e, out, sound)
	case e.GoType.Set:
		r.selectorKey(e, out)
	case out.Binary:
		r.binaryKey(e, out)
	default:
		r.fieldKey(e, out, sound)
	}
}

// binaryKey resolves the key of a binary event, which has no fields.
func (r *resolver) binaryKey(e *schema.Event, out *model.Event) {
	at := e.Key.Name
	k, ok := r.keys[at.V]
	switch {
	case !ok:
		r.report(at.Mark, "unknown-key-name", diag.DidYouMean(at.V, r.keyNames()), "event %q is binary and names no declared key: %q", e.Name.V, at.V)
	case k.broken:
	case !k.isConstant():
		r.report(at.Mark, "key-field", "give it a go_type, or order it by a constant key", "event %q is binary and has no field that could fill key %q", e.Name.V, at.V)
	default:
		out.Key = k.key
	}
}

// explicitKey resolves {key: [fields]}.
func (r *resolver) explicitKey(e *schema.Event, out *model.Event, sound bool) {
	use := e.Key
	k, ok := r.keys[use.Name.V]
	switch {
	case !ok:
		r.report(use.Name.Mark, "unknown-key-name", diag.DidYouMean(use.Name.V, r.keyNames()), "%q is not a declared key", use.Name.V)
		return
	case k.broken:
		return
	case out.Binary && !e.GoType.Set:
		r.report(use.Name.Mark, "key-field", "give it a go_type, or order it by a constant key", "event %q is binary and has no field that could fill key %q", e.Name.V, use.Name.V)
		return
	case len(use.Fields) != len(k.key.Parts):
		r.report(use.Name.Mark, "key-field", partList(k.key), "key %q takes %s, not %d", use.Name.V, fieldCount(len(k.key.Parts)), len(use.Fields))
		return
	}
	out.Key = k.key
	if e.GoType.Set {
		for _, f := range use.Fields {
			r.selector(f)
			out.KeyFields = append(out.KeyFields, f.V)
		}
		return
	}
	r.fill(e, out, use.Fields, sound)
}

// fieldCount spells a number of fields.
func fieldCount(n int) string {
	switch n {
	case 0:
		return "no field"
	case 1:
		return "one field"
	}
	return fmt.Sprintf("%d fields", n)
}

// partList spells the parts of a key, for hints.
func partList(k *model.Key) string {
	var names []string
	for _, p := range k.Parts {
		if p.Name != "" {
			names = append(names, p.Name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("its parts are %s", strings.Join(names, ", "))
}

// selector checks a Go selector of a go_type event.
func (r *resolver) selector(t schema.Text) {
	for _, part := range strings.Split(t.V, ".") {
		if err := naming.CheckExported(strings.TrimSuffix(part, "()")); err != nil {
			r.report(t.Mark, "selector", "write a field or method of the Go type: OrderID, Order.ID or Order.ID()", "%q is not a Go selector: %v", t.V, err)
			return
		}
	}
}

// selectorKey resolves the key of a go_type event given by one name: a key, or a
// selector that ends in the Go name of a key.
func (r *resolver) selectorKey(e *schema.Event, out *model.Event) {
	use := e.Key
	if k, ok := r.keys[use.Name.V]; ok {
		out.Key = k.key
		out.KeyFields = r.impliedSelectors(k, use.Name)
		return
	}
	last := use.Name.V[strings.LastIndexByte(use.Name.V, '.')+1:]
	last = strings.TrimSuffix(last, "()")
	var candidates []string
	broken := false
	for _, k := range r.keys {
		if k.key.GoName == last && len(k.key.Parts) == 1 {
			r.selector(use.Name)
			out.Key, out.KeyFields = k.key, []string{use.Name.V}
			return
		}
		broken = broken || k.broken
		candidates = append(candidates, k.key.GoName)
	}
	if broken {
		return // it may be the one
	}
	hint := diag.DidYouMean(last, candidates)
	if hint == "" {
		hint = fmt.Sprintf("write key: {key_name: %s} with a declared key", use.Name.V)
	}
	r.report(use.Name.Mark, "unknown-key-name", hint, "no declared key has the Go type %s", last)
}

// impliedSelectors are the selectors that a key's own names make.
func (r *resolver) impliedSelectors(k *keyEntry, at schema.Text) []string {
	var list []string
	for _, p := range k.key.Parts {
		name := p.Name
		if name == "" {
			name = k.key.Name
		}
		id, err := naming.Exported(name)
		if err != nil && !k.broken {
			r.report(at.Mark, "selector", fmt.Sprintf("write key: {%s: [selectors]}", k.key.Name), "key %q does not say which Go field fills %q", k.key.Name, name)
		}
		list = append(list, id)
	}
	return list
}

// fieldKey resolves the key of an event with fields, given by one name.
func (r *resolver) fieldKey(e *schema.Event, out *model.Event, sound bool) {
	use := e.Key
	k, isKey := r.keys[use.Name.V]
	if isKey && k.broken {
		return
	}
	if isKey && k.isConstant() {
		out.Key = k.key
		return
	}
	if isKey && k.isComposite() {
		out.Key = k.key
		var fields []schema.Text
		for _, p := range k.key.Parts {
			fields = append(fields, schema.Text{Mark: use.Name.Mark, V: p.Name, Set: true})
		}
		r.fill(e, out, fields, sound)
		return
	}
	f := findField(e.Fields, use.Name.V)
	switch {
	case out.Struct == nil:
		return // the payload was reported
	case f == nil:
		r.notAField(e, use.Name, isKey)
		return
	}
	member := findMember(out.Struct, use.Name.V)
	switch {
	case member == nil || f.Type.Form == schema.BadForm || member.Type.Kind == "":
		return // reported with the field
	case member.Type.Kind == model.KeyRef:
		out.Key = member.Type.Key
	case isKey:
		out.Key = k.key
	case isScalarKey(member.Type.Kind):
		r.implicitKey(use.Name, member)
		return
	default:
		r.notScalar(use.Name, member)
		return
	}
	r.fill(e, out, []schema.Text{use.Name}, sound)
}

// implicitKey reports a key field whose key is not declared.
func (r *resolver) implicitKey(at schema.Text, member *model.Field) {
	hint := fmt.Sprintf("declare it: keys: {%s: {type: %s}}", member.Name, member.Type.Kind)
	switch member.Type.Kind {
	case model.Enum:
		hint = fmt.Sprintf("declare it: keys: {%s: {enum: […]}}, and use %s as the field's type", member.Name, member.Name)
	case model.Foreign:
		hint = fmt.Sprintf("declare it: keys: {%s: {go_type: %s, go_kind: string}}", member.Name, describe(model.Type{Kind: model.Foreign, GoType: member.Type.GoType}))
	}
	if names := r.keyNames(); len(names) > 0 && diag.Suggest(member.Name, names) != "" {
		hint = fmt.Sprintf("declare it, or write key: {%s: %s}", diag.Suggest(member.Name, names), member.Name)
	}
	r.report(at.Mark, "undeclared-key", hint, "field %q orders events, but no key of this name is declared", member.Name)
}

// notScalar reports a key field whose type cannot order.
func (r *resolver) notScalar(at schema.Text, member *model.Field) {
	reason := keyReasons[member.Type.Kind]
	r.report(at.Mark, "key-type", reason, "field %q has type %s and cannot be a key", member.Name, describe(member.Type))
}

// notAField reports a key that is no field of its event.
func (r *resolver) notAField(e *schema.Event, at schema.Text, isKey bool) {
	var candidates []string
	for _, f := range e.Fields {
		candidates = append(candidates, f.Name.V)
	}
	fields := slices.Clone(candidates)
	hint := diag.DidYouMean(at.V, candidates)
	for _, f := range e.Fields {
		if isKey && f.Type.Form == schema.NameForm && f.Type.Name == at.V {
			hint = fmt.Sprintf("did you mean %q?", f.Name.V)
		}
	}
	if hint == "" {
		for _, k := range r.keys {
			if k.isConstant() || k.isComposite() {
				candidates = append(candidates, k.key.Name)
			}
		}
		hint = diag.DidYouMean(at.V, candidates)
	}
	if hint == "" && isKey {
		hint = fmt.Sprintf("write key: {%s: field}", at.V)
	}
	if hint == "" && len(e.Fields) > 0 && len(e.Fields) <= 8 {
		hint = "its fields are " + strings.Join(fields, ", ")
	}
	r.report(at.Mark, "key-field", hint, "key %q is not a field of %s", at.V, e.Name.V)
}

// fill checks the fields that fill the parts of out.Key and records them.
func (r *resolver) fill(e *schema.Event, out *model.Event, fields []schema.Text, sound bool) {
	for i, name := range fields {
		part := out.Key.Parts[i]
		f := findField(e.Fields, name.V)
		if f == nil {
			if part.Name == name.V && e.Key.Fields == nil {
				r.report(name.Mark, "key-field", fmt.Sprintf("add the field, or write key: {%s: [fields]}", out.Key.Name), "key %q needs field %q, which %s does not have", out.Key.Name, name.V, e.Name.V)
				continue
			}
			r.notAField(e, name, false)
			continue
		}
		member := findMember(out.Struct, name.V)
		if member == nil || member.Type.Kind == "" || f.Type.Form == schema.BadForm {
			continue
		}
		out.KeyFields = append(out.KeyFields, member.GoName)
		r.fits(out, name, member, part)
	}
	if !sound {
		out.KeyFields = nil
	}
}

// fits checks the type of a field against the key's part that it fills.
func (r *resolver) fits(out *model.Event, name schema.Text, member *model.Field, part model.KeyPart) {
	t := member.Type
	typed := t.Kind == model.KeyRef && t.Key == out.Key
	if t.Optional {
		r.report(name.Mark, "key-optional", "remove the ? from its type", "field %q is optional and cannot be a key: an event without it would have no lane", member.Name)
		return
	}
	if t.Kind == model.List || t.Kind == model.Map || t.Kind == model.Object || t.Kind != model.KeyRef && !isScalarKey(t.Kind) {
		r.notScalar(name, member)
		return
	}
	if typed && len(out.Key.Parts) == 1 {
		out.KeyTyped = true
		return
	}
	if !sameType(t, part.Type) {
		want := describe(part.Type)
		if part.Type.Kind == model.Enum && t.Kind == model.Enum {
			want = "the enum of the key itself"
		}
		use := want
		if len(out.Key.Parts) == 1 {
			use = out.Key.Name
		}
		hint := fmt.Sprintf("give the field the type %s", use)
		r.report(name.Mark, "key-mismatch", hint, "field %q has type %s, but key %q takes %s", member.Name, describe(t), out.Key.Name, want)
	}
}

// sameType reports whether a field of type t can be handed to a constructor that
// takes want. Enums are types of their own, so a field's enum is never a key's.
func sameType(t, want model.Type) bool {
	if t.Kind != want.Kind {
		return false
	}
	switch t.Kind {
	case model.Enum:
		return false
	case model.KeyRef:
		return t.Key == want.Key
	case model.Foreign:
		return t.GoType.Import == want.GoType.Import && t.GoType.Name == want.GoType.Name
	}
	return true
}

func findField(fields []schema.Field, name string) *schema.Field {
	if i := slices.IndexFunc(fields, func(f schema.Field) bool { return f.Name.V == name }); i >= 0 {
		return &fields[i]
	}
	return nil
}

func findMember(s *model.Struct, name string) *model.Field {
	if s == nil {
		return nil
	}
	if i := slices.IndexFunc(s.Fields, func(f model.Field) bool { return f.Name == name }); i >= 0 {
		return &s.Fields[i]
	}
	return nil
}

// eventVersion finds the member that carries the version of the aggregate.
func (r *resolver) eventVersion(e *schema.Event, out *model.Event, what string, sound bool) {
	rule := ""
	if out.Key != nil {
		rule = out.Key.Version.Field
	}
	if e.Version.Set {
		switch {
		case !e.GoType.Set:
			r.report(e.Version.Mark, "no-effect", "write version: $.field on the key", "%s: version belongs to go_type events", what)
		case out.Key != nil && rule == "":
			r.report(e.Version.Mark, "no-effect", "write version: $.field on the key", "%s names a version, but key %q has no version: $.field", what, out.Key.Name)
		case out.Key == nil && e.Key == nil:
			r.report(e.Version.Mark, "no-effect", "", "%s names a version, but has no key", what)
		default:
			r.selector(e.Version)
			out.VersionField, out.VersionPos = e.Version.V, e.Version.Pos
		}
		return
	}
	switch {
	case rule == "":
	case e.GoType.Set:
		r.report(e.Key.Name.Mark, "version-field", "add version: with the Go field that carries it", "%s does not say where the version of key %q is", what, out.Key.Name)
	case out.Binary:
		r.report(e.Key.Name.Mark, "version-field", "use version: dense", "%s is binary and has no field that could carry the version of key %q", what, out.Key.Name)
	case sound:
		r.versionMember(e, out, rule)
	}
}

// versionMember follows the key's version path through the payload.
func (r *resolver) versionMember(e *schema.Event, out *model.Event, rule string) {
	s := out.Struct
	var selector []string
	steps := strings.Split(rule, ".")
	for i, step := range steps {
		member := findMember(s, step)
		if member == nil {
			var names []string
			for _, f := range s.Fields {
				names = append(names, f.Name)
			}
			r.report(e.Key.Name.Mark, "version-field", diag.DidYouMean(step, names), "key %q takes its version from $.%s, which %s does not have", out.Key.Name, rule, e.Name.V)
			return
		}
		selector = append(selector, member.GoName)
		last := i == len(steps)-1
		switch {
		case member.Type.Optional:
			r.report(e.Key.Name.Mark, "version-field", "remove the ? from its type", "the version of key %q, $.%s, is optional in %s", out.Key.Name, rule, e.Name.V)
			return
		case last && member.Type.Kind != model.Int32 && member.Type.Kind != model.Int64:
			r.report(e.Key.Name.Mark, "version-field", "use int64", "the version of key %q, $.%s, has type %s in %s", out.Key.Name, rule, describe(member.Type), e.Name.V)
			return
		case last:
			out.VersionField, out.VersionPos = strings.Join(selector, "."), member.Pos
		case member.Type.Kind != model.Object:
			r.report(e.Key.Name.Mark, "version-field", "", "the version of key %q, $.%s, leads through %q, which is no object in %s", out.Key.Name, rule, step, e.Name.V)
			return
		}
		s = member.Type.Struct
	}
}

// word checks a value out of a fixed list. It returns whether the value is set
// and in the list.
func (r *resolver) word(t schema.Text, what string, list ...string) bool {
	if !t.Set {
		return false
	}
	if slices.Contains(list, t.V) {
		return true
	}
	r.report(t.Mark, "unknown-word", diag.OneOf(t.V, list), "%s cannot be %q", what, t.V)
	return false
}
