package resolve

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/lanebox/lanebox/generator/diag"
	"github.com/lanebox/lanebox/generator/model"
	"github.com/lanebox/lanebox/generator/naming"
	"github.com/lanebox/lanebox/generator/schema"
)

// maxKey is the number of bytes of the longest ordering key.
const maxKey = 255

// A keyEntry is a declared key. A broken one was reported; whoever refers to it
// keeps quiet.
type keyEntry struct {
	key    *model.Key
	broken bool
}

// isComposite reports a key with several parts.
func (k *keyEntry) isComposite() bool { return len(k.key.Parts) > 1 }

// isConstant reports a key with one fixed value.
func (k *keyEntry) isConstant() bool { return k.key.Const != "" }

// keyNames are the names of all declared keys, sorted.
func (r *resolver) keyNames() []string {
	names := make([]string, 0, len(r.file.Keys))
	for _, k := range r.file.Keys {
		names = append(names, k.Name.V)
	}
	slices.Sort(names)
	return names
}

// resolveKeys resolves plain keys first, since composite ones refer to them.
func (r *resolver) resolveKeys() {
	for _, composite := range []bool{false, true} {
		for i := range r.file.Keys {
			if k := &r.file.Keys[i]; (k.Composite.Pos.Line != 0) == composite {
				r.keys[k.Name.V] = r.key(k)
			}
		}
	}
}

// key resolves one key.
func (r *resolver) key(k *schema.Key) *keyEntry {
	what := fmt.Sprintf("key %q", k.Name.V)
	before := len(r.found)
	out := &model.Key{Pos: k.Name.Pos, Name: k.Name.V, Doc: cleanDoc(k.Doc.V), Aggregate: k.Aggregate.V, Prefix: k.Prefix.V, Const: k.Const.V}
	if problem := nameProblem(k.Name.V); problem != "" {
		r.report(k.Name.Mark, "name", "", "%s %s", what, problem)
		return &keyEntry{key: out, broken: true}
	}
	if slices.Contains(scalars, model.Kind(k.Name.V)) {
		r.report(k.Name.Mark, "key-name", "choose a name that says what it identifies", "%s has the name of a built-in type", what)
	}
	if out.GoName = r.goName(what, k.Name, k.GoName, naming.Exported); out.GoName != "" {
		r.claim(r.pkg, out.GoName, what, k.Name.Mark)
		r.claim(r.pkg, "New"+out.GoName, "the constructor of "+what, k.Name.Mark)
	}
	read := r.keyKind(k, out, what)
	r.keyTexts(k, what)
	out.Version = r.version(k.Version, what)
	return &keyEntry{key: out, broken: !read || len(r.found) > before}
}

// keyKind resolves what a key is made of. It returns false if that is unknown.
func (r *resolver) keyKind(k *schema.Key, out *model.Key, what string) bool {
	kinds := 0
	for _, set := range []bool{k.Type != nil, k.Composite.Pos.Line != 0, k.EnumAt.Pos.Line != 0, k.GoType.Set, k.Const.Set} {
		if set {
			kinds++
		}
	}
	const choice = "write one of type, enum, go_type and const"
	switch {
	case kinds > 1:
		r.report(k.Name.Mark, "key-kind", choice, "%s has more than one kind", what)
		return false
	case k.Composite.Pos.Line != 0:
		return r.parts(k, out, what)
	case k.Const.Set:
		return true
	case k.EnumAt.Pos.Line != 0:
		return r.plain(&schema.Type{Mark: k.EnumAt, Form: schema.EnumForm, Enum: k.Enum}, k.GoKind, out, what)
	case k.GoType.Set:
		return r.plain(&schema.Type{Mark: k.GoType.Mark, Form: schema.GoForm, GoType: k.GoType, GoKind: k.GoKind}, k.GoKind, out, what)
	case k.Type != nil:
		return r.plain(k.Type, k.GoKind, out, what)
	}
	if !r.file.Faulty {
		r.report(k.Name.Mark, "key-kind", choice, "%s has no type", what)
	}
	return false
}

// plain resolves a key of one part.
func (r *resolver) plain(t *schema.Type, kind schema.Text, out *model.Key, what string) bool {
	if kind.Set && t.Form != schema.GoForm {
		r.report(kind.Mark, "no-effect", "remove it", "%s: go_kind belongs to go_type", what)
	}
	if t.Form == schema.NameForm && slices.Contains(r.keyNames(), t.Name) && !slices.Contains(scalars, model.Kind(t.Name)) {
		r.report(t.Mark, "key-type", "use the key itself, or a built-in type", "%s cannot have another key as its type", what)
		return false
	}
	resolved, ok := r.partType(t, out.GoName, what)
	out.Parts = []model.KeyPart{{GoName: "value", Type: resolved}}
	return ok
}

// partType resolves the type of a key's part and refuses what cannot order.
func (r *resolver) partType(t *schema.Type, goName, what string) (model.Type, bool) {
	nested := ""
	if goName != "" {
		nested = goName + "Value"
	}
	if t.Form == schema.ObjectForm || t.Form == schema.ListForm || t.Form == schema.MapForm {
		kind := map[schema.Form]model.Kind{schema.ObjectForm: model.Object, schema.ListForm: model.List, schema.MapForm: model.Map}[t.Form]
		r.report(t.Mark, "key-type", keyReasons[kind], "%s cannot have type %s", what, kind)
		return model.Type{}, false
	}
	resolved, ok := r.typ(t, nested, what)
	switch {
	case !ok:
		return resolved, false
	case resolved.Optional:
		r.report(t.Mark, "key-type", "remove the ?", "%s cannot be optional: an event without it would have no lane", what)
		return resolved, false
	case resolved.Kind != model.KeyRef && !isScalarKey(resolved.Kind):
		r.report(t.Mark, "key-type", keyReasons[resolved.Kind], "%s cannot have type %s", what, resolved.Kind)
		return resolved, false
	case resolved.Kind == model.Foreign:
		return resolved, r.goKind(t, resolved.GoType, what)
	}
	return resolved, true
}

// goKind fills in what a key's go_type is based on.
func (r *resolver) goKind(t *schema.Type, g *model.GoType, what string) bool {
	switch t.GoKind.V {
	case "string":
		g.Kind = model.String
	case "int64":
		g.Kind = model.Int64
	case "":
		r.report(t.Mark, "go-kind", "add go_kind: string or go_kind: int64", "%s: go_type needs a go_kind", what)
		return false
	default:
		r.report(t.GoKind.Mark, "go-kind", "use string or int64", "%s: go_kind %q cannot order", what, t.GoKind.V)
		return false
	}
	return true
}

// parts resolves the parts of a composite key.
func (r *resolver) parts(k *schema.Key, out *model.Key, what string) bool {
	if len(k.Parts) < 2 && !r.file.Faulty {
		r.report(k.Composite, "key-type", "write type: string for a plain key", "%s needs at least two parts", what)
		return false
	}
	scope := naming.NewScope()
	first := map[string]schema.Text{}
	ok := true
	for _, p := range k.Parts {
		whatPart := fmt.Sprintf("part %q of %s", p.Name.V, what)
		if before, taken := first[p.Name.V]; taken {
			r.report(p.Name.Mark, "duplicate", "", "duplicate part %q of %s (first at line %d)", p.Name.V, what, before.Pos.Line)
			ok = false
			continue
		}
		first[p.Name.V] = p.Name
		part := model.KeyPart{Name: p.Name.V, GoName: naming.Parameter(p.Name.V)}
		if err := scope.Claim(part.GoName, naming.Use{What: whatPart, Pos: p.Name.Pos}); err != nil {
			r.report(p.Name.Mark, "name-collision", "rename one of them", "%v", err)
			ok = false
		}
		var partOK bool
		part.Type, partOK = r.compositePart(p, out.GoName, whatPart)
		ok = ok && partOK
		out.Parts = append(out.Parts, part)
	}
	return ok
}

// compositePart resolves the type of one part: as written, or the plain key of
// its name, or string.
func (r *resolver) compositePart(p schema.KeyPart, goName, what string) (model.Type, bool) {
	if p.Type != nil {
		if goName != "" {
			goName += naming.Suffix(p.Name.V)
		}
		if p.Type.Form == schema.EnumForm {
			r.report(p.Type.Mark, "key-type", "declare it as a key of its own and name that", "%s cannot be an enum that no field can have", what)
			return model.Type{}, false
		}
		t, ok := r.partType(p.Type, goName, what)
		return t, ok && p.Type.Form != schema.BadForm
	}
	k, ok := r.keys[p.Name.V]
	if !ok || len(k.key.Parts) != 1 {
		return model.Type{Kind: model.String}, !ok || !k.broken
	}
	return model.Type{Kind: model.KeyRef, Key: k.key}, !k.broken
}

// keyTexts checks the texts that become part of keys and headers.
func (r *resolver) keyTexts(k *schema.Key, what string) {
	for _, t := range []struct {
		name  string
		text  schema.Text
		limit int
	}{{"const", k.Const, maxKey}, {"prefix", k.Prefix, maxKey / 2}, {"aggregate", k.Aggregate, maxKey}} {
		switch {
		case !t.text.Set:
		case t.text.V == "" && t.name != "prefix":
			r.report(t.text.Mark, "key-text", "", "%s: %s is empty", what, t.name)
		case strings.ContainsFunc(t.text.V, unicode.IsControl):
			r.report(t.text.Mark, "key-text", "", "%s: %s contains a control character", what, t.name)
		case len(t.text.V) > t.limit:
			r.report(t.text.Mark, "key-text", "", "%s: %s has %d bytes; the limit is %d", what, t.name, len(t.text.V), t.limit)
		}
	}
	if k.Const.Set && len(k.Prefix.V)+len(k.Const.V) > maxKey {
		r.report(k.Const.Mark, "key-text", "", "%s: prefix and const have %d bytes; the limit of a key is %d", what, len(k.Prefix.V)+len(k.Const.V), maxKey)
	}
}

var dottedPath = regexp.MustCompile(`^\$(\.[\pL_][\pL\p{Nd}_-]*)+$`)

// version resolves dense or $.field.
func (r *resolver) version(v schema.Text, what string) model.Version {
	switch {
	case !v.Set:
	case v.V == "dense":
		return model.Version{Dense: true}
	case dottedPath.MatchString(v.V):
		return model.Version{Field: strings.TrimPrefix(v.V, "$.")}
	default:
		r.report(v.Mark, "version-rule", diag.OneOf(v.V, []string{"dense", "$.version"}), "%s: version %q is not a rule", what, v.V)
	}
	return model.Version{}
}

// nameProblem says why s cannot name a key, source, destination or catalog, or "".
func nameProblem(s string) string {
	switch {
	case s == "":
		return "has an empty name"
	case len(s) > maxIdentifier:
		return fmt.Sprintf("has a name of %d bytes; the limit is %d", len(s), maxIdentifier)
	}
	for _, c := range s {
		if !unicode.IsLetter(c) && !unicode.IsDigit(c) && !strings.ContainsRune("_-.", c) {
			return fmt.Sprintf("has a name that contains %q; use letters, digits, _, - and .", c)
		}
	}
	return ""
}
