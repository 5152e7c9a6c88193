package resolve

import (
	"fmt"
	"go/token"
	"path"
	"slices"
	"strings"
	"unicode"

	"github.com/lanebox/lanebox/generator/diag"
	"github.com/lanebox/lanebox/generator/model"
	"github.com/lanebox/lanebox/generator/naming"
	"github.com/lanebox/lanebox/generator/schema"
)

// scalars are the built-in types that have a name, in the order messages list
// them.
var scalars = []model.Kind{
	model.String, model.Bool, model.Int32, model.Int64, model.Float64, model.Decimal, model.Bytes,
	model.Time, model.Date, model.Duration, model.UUID, model.JSON,
}

// elsewhere are the names that other languages give to these types.
var elsewhere = map[string]model.Kind{
	"text": model.String, "varchar": model.String, "str": model.String,
	"int": model.Int64, "integer": model.Int64, "long": model.Int64, "bigint": model.Int64, "uint64": model.Int64, "uint": model.Int64,
	"int16": model.Int32, "int8": model.Int32, "short": model.Int32, "smallint": model.Int32, "uint32": model.Int64,
	"boolean": model.Bool, "float": model.Float64, "double": model.Float64, "float32": model.Float64, "real": model.Float64,
	"number": model.Decimal, "numeric": model.Decimal, "money": model.Decimal,
	"timestamp": model.Time, "timestamptz": model.Time, "datetime": model.Time, "instant": model.Time,
	"interval": model.Duration, "guid": model.UUID, "binary": model.Bytes, "bytea": model.Bytes, "blob": model.Bytes,
	"any": model.JSON, "jsonb": model.JSON, "object": model.JSON,
}

// keyReasons say why a type cannot be an ordering key.
var keyReasons = map[model.Kind]string{
	model.Bool:     "true and false are all there is, so there would be two lanes",
	model.Float64:  "equal numbers can be written in different ways (1, 1.0, 1e0)",
	model.Decimal:  "equal numbers can be written in different ways (1.5, 1.50)",
	model.Bytes:    "a key is text; encode the bytes in a string field",
	model.Time:     "equal times can be written in different zones and precisions; use date or a string",
	model.Duration: "it names nothing that events could be ordered by",
	model.JSON:     "equal values can be written in different ways",
	model.Object:   "a key is scalar; name one of its members as a field of the event, or declare a composite key",
	model.List:     "a key is scalar",
	model.Map:      "a key is scalar",
	model.Foreign:  "its key must be declared with the same go_type and a go_kind",
}

// isScalarKey reports whether a plain key can have this type.
func isScalarKey(k model.Kind) bool {
	return slices.Contains([]model.Kind{model.String, model.UUID, model.Int32, model.Int64, model.Date, model.Enum, model.Foreign}, k)
}

// describe names a type for messages.
func describe(t model.Type) string {
	s := string(t.Kind)
	switch t.Kind {
	case model.KeyRef:
		s = t.Key.Name
	case model.Foreign:
		s = t.GoType.Import + "." + t.GoType.Name
	case model.List:
		s = "[" + describe(*t.Elem) + "]"
	case model.Map:
		s = "{map: " + describe(*t.Elem) + "}"
	}
	if t.Optional {
		s += "?"
	}
	return s
}

// typ resolves a type expression. goName is what nested types are called after,
// what names the owner in messages. It returns false if it reported something or
// the loader did.
func (r *resolver) typ(t *schema.Type, goName, what string) (model.Type, bool) {
	out := model.Type{Optional: t.Optional}
	ok := true
	switch t.Form {
	case schema.BadForm:
		return out, false
	case schema.NameForm:
		ok = r.named(t, what, &out)
	case schema.ListForm, schema.MapForm:
		out.Kind = model.List
		if t.Form == schema.MapForm {
			out.Kind = model.Map
		}
		elem, elemOK := r.typ(t.Elem, goName, what)
		if elem.Optional {
			r.report(t.Elem.Mark, "optional-element", "leave such elements out, or use json", "%s: an element cannot be optional", what)
			elem.Optional = false
		}
		out.Elem, ok = &elem, elemOK
	case schema.EnumForm:
		out.Kind = model.Enum
		out.Enum, ok = r.enum(t.Enum, t.Mark, goName, what)
	case schema.ObjectForm:
		out.Kind = model.Object
		if goName != "" && !r.claim(r.pkg, goName, "the type of "+what, t.Mark) {
			ok = false
		}
		var fieldsOK bool
		out.Struct, fieldsOK = r.object(t.Fields, goName, what)
		ok = ok && fieldsOK
	case schema.GoForm:
		out.Kind = model.Foreign
		out.GoType = r.goType(t.GoType, what)
		ok = out.GoType != nil
	}
	if t.GoKind.Set && t.Form != schema.GoForm {
		r.report(t.GoKind.Mark, "no-effect", "remove it", "%s: go_kind belongs to go_type", what)
	}
	return out, ok
}

// named resolves the name of a scalar type or key.
func (r *resolver) named(t *schema.Type, what string, out *model.Type) bool {
	if slices.Contains(scalars, model.Kind(t.Name)) {
		out.Kind = model.Kind(t.Name)
		return true
	}
	k, ok := r.keys[t.Name]
	if !ok {
		r.unknownType(t, what)
		return false
	}
	if len(k.key.Parts) != 1 {
		if !k.broken {
			r.report(t.Mark, "key-as-type", "list the parts as fields", "%s: key %q is no plain key and cannot be a field's type", what, t.Name)
		}
		return false
	}
	out.Kind, out.Key = model.KeyRef, k.key
	return !k.broken
}

// unknownType reports a name that is no type, unless it is a key that failed.
func (r *resolver) unknownType(t *schema.Type, what string) {
	hint := ""
	if kind, ok := elsewhere[strings.ToLower(t.Name)]; ok {
		hint = fmt.Sprintf("did you mean %q?", kind)
	}
	if hint == "" {
		candidates := r.keyNames()
		for _, s := range scalars {
			candidates = append(candidates, string(s))
		}
		hint = diag.DidYouMean(t.Name, candidates)
	}
	if hint == "" {
		hint = "use a built-in type or the name of a declared key"
	}
	r.report(t.Mark, "unknown-type", hint, "%s: unknown type %q", what, t.Name)
}

// object resolves the members of an object.
func (r *resolver) object(fields []schema.Field, goName, what string) (*model.Struct, bool) {
	s := &model.Struct{GoName: goName}
	goNames := naming.NewScope(naming.StructNames...)
	jsonNames := map[string]schema.Text{}
	ok := true
	for i := range fields {
		f := &fields[i]
		whatField := fmt.Sprintf("field %q of %s", f.Name.V, what)
		if problem := memberProblem(f.Name.V); problem != "" {
			r.report(f.Name.Mark, "field-name", "", "%s %s", whatField, problem)
			ok = false
			continue
		}
		if first, taken := jsonNames[strings.ToLower(f.Name.V)]; taken {
			r.report(f.Name.Mark, "name-collision", "JSON decoders in Go do not tell case apart", "%s and field %q (line %d) differ only in case", whatField, first.V, first.Pos.Line)
			ok = false
			continue
		}
		jsonNames[strings.ToLower(f.Name.V)] = f.Name
		id := r.goName(whatField, f.Name, f.GoName, naming.Exported)
		nested := ""
		if id == "" || !r.claim(goNames, id, whatField, f.Name.Mark) {
			ok = false
		} else if goName != "" {
			nested = goName + id
		}
		t, typeOK := r.typ(&f.Type, nested, whatField)
		if !typeOK {
			ok, t.Kind = false, "" // whoever looks at the field keeps quiet
		}
		if t.Struct != nil {
			t.Struct.Doc = cleanDoc(f.Doc.V)
		}
		if t.Enum != nil {
			t.Enum.Doc = cleanDoc(f.Doc.V)
		}
		s.Fields = append(s.Fields, model.Field{Pos: f.Name.Pos, Name: f.Name.V, GoName: id, Doc: cleanDoc(f.Doc.V), Type: t})
	}
	return s, ok
}

// memberProblem says why s cannot be the name of a JSON member in a Go struct, or
// "".
func memberProblem(s string) string {
	switch {
	case s == "":
		return "has an empty name"
	case s == "-":
		return "has a name that leaves a field out of JSON in Go"
	case len(s) > 255:
		return fmt.Sprintf("has a name of %d bytes; the limit is 255", len(s))
	}
	for _, c := range s {
		if !unicode.IsLetter(c) && !unicode.IsDigit(c) && !strings.ContainsRune("!#$%&()*+-./:;<=>?@[]^_{|}~ ", c) {
			return fmt.Sprintf("contains %q, which no JSON member of a Go struct can", c)
		}
	}
	return ""
}

// enum resolves the values of an enum.
func (r *resolver) enum(values []schema.EnumValue, at schema.Mark, goName, what string) (*model.EnumType, bool) {
	e := &model.EnumType{GoName: goName}
	ok := true
	if goName != "" && !r.claim(r.pkg, goName, "the type of "+what, at) {
		ok = false
	}
	if len(values) == 0 && !r.file.Faulty {
		r.report(at, "empty-enum", "", "%s: an enum needs at least one value", what)
		ok = false
	}
	first := map[string]schema.Text{}
	for _, v := range values {
		whatValue := fmt.Sprintf("value %q of %s", v.Value.V, what)
		switch before, taken := first[v.Value.V]; {
		case !v.Value.Set:
			ok = false
			continue
		case taken:
			r.report(v.Value.Mark, "duplicate", "", "duplicate value %q of %s (first at line %d)", v.Value.V, what, before.Pos.Line)
			ok = false
			continue
		case v.Value.V == "" || strings.ContainsFunc(v.Value.V, unicode.IsControl):
			r.report(v.Value.Mark, "enum-value", "", "%s is empty or contains a control character", whatValue)
			ok = false
			continue
		}
		first[v.Value.V] = v.Value
		id, found := r.enumConstant(v, goName, whatValue)
		ok = ok && found
		e.Values = append(e.Values, model.EnumValue{Value: v.Value.V, GoName: id})
	}
	return e, ok
}

// enumConstant chooses and claims the constant of a value. Without a type name,
// which was reported before, there is none.
func (r *resolver) enumConstant(v schema.EnumValue, goName, what string) (string, bool) {
	suffix, at := naming.Suffix(v.Value.V), v.Value.Mark
	if v.GoName.Set {
		suffix, at = v.GoName.V, v.GoName.Mark
	}
	hint := fmt.Sprintf("write {value: %q, go_name: …}", v.Value.V)
	if suffix == "" || !token.IsIdentifier("X"+suffix) {
		r.report(at, "go-name", hint, "%s has no Go name", what)
		return "", false
	}
	if goName == "" {
		return "", false
	}
	id := goName + suffix
	if err := r.pkg.Claim(id, naming.Use{What: what, Pos: v.Value.Pos}); err != nil {
		r.report(v.Value.Mark, "name-collision", hint, "%v", err)
		return "", false
	}
	return id, true
}

// standard are the packages of the standard library whose path is one word.
var standard = map[string]bool{
	"bufio": true, "bytes": true, "cmp": true, "context": true, "crypto": true, "embed": true, "encoding": true, "errors": true,
	"expvar": true, "flag": true, "fmt": true, "hash": true, "html": true, "image": true, "io": true, "iter": true, "log": true,
	"maps": true, "math": true, "mime": true, "net": true, "os": true, "path": true, "plugin": true, "reflect": true,
	"regexp": true, "runtime": true, "slices": true, "sort": true, "strconv": true, "strings": true, "structs": true,
	"sync": true, "syscall": true, "testing": true, "time": true, "unicode": true, "unique": true, "unsafe": true, "weak": true,
}

// goType resolves "import/path.Name", or reports why it cannot.
func (r *resolver) goType(t schema.Text, what string) *model.GoType {
	const example = "write the import path, a dot and the name: github.com/acme/shop/orders.Shipped"
	if !t.Set {
		return nil
	}
	dir, last := path.Split(t.V)
	dot := strings.LastIndexByte(last, '.')
	fail := func(format string, args ...any) *model.GoType {
		r.report(t.Mark, "go-type", example, "%s: go_type %q %s", what, t.V, fmt.Sprintf(format, args...))
		return nil
	}
	if dot <= 0 {
		return fail("has no import path or no name")
	}
	g := &model.GoType{Pos: t.Pos, Import: dir + last[:dot], Name: last[dot+1:]}
	switch {
	case !token.IsIdentifier(g.Name) || !token.IsExported(g.Name):
		return fail("does not end in an exported name")
	case path.Clean(g.Import) != g.Import, strings.HasPrefix(g.Import, "/"), strings.HasPrefix(g.Import, "."):
		return fail("has no absolute import path")
	case strings.ContainsFunc(g.Import, func(c rune) bool {
		return !unicode.IsLetter(c) && !unicode.IsDigit(c) && !strings.ContainsRune("-._~/+", c)
	}):
		return fail("contains a character that no import path has")
	case !strings.ContainsAny(g.Import, "./") && !standard[g.Import]:
		r.warn(t.Mark, "go-type", example, "%s: go_type %q: the standard library has no package %s", what, t.V, g.Import)
	}
	return g
}
