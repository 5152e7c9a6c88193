package gocode

import (
	"errors"
	"fmt"
	"go/token"
	"regexp"
	"strings"
	"unicode"

	"github.com/lanebox/lanebox/generator/dialect"
	"github.com/lanebox/lanebox/generator/model"
	"github.com/lanebox/lanebox/generator/naming"
)

// check finds what would make the generated code wrong or not compile. The
// resolver has refused most of it with better words; this is the last line.
func (g *generator) check() error {
	c := &checker{g: g, pkg: naming.NewScope(naming.PackageNames...)}
	c.keys()
	c.events()
	c.types()
	c.catalogs()
	c.flows()
	return errors.Join(c.errs...)
}

type checker struct {
	g    *generator
	pkg  *naming.Scope
	errs []error
}

func (c *checker) errorf(pos model.Pos, format string, args ...any) {
	where := c.g.m.File
	if pos.Line > 0 {
		where = fmt.Sprintf("%s:%d:%d", where, pos.Line, pos.Column)
	}
	c.errs = append(c.errs, fmt.Errorf("%s: %s", where, fmt.Sprintf(format, args...)))
}

// claim takes an exported name in a scope.
func (c *checker) claim(s *naming.Scope, id, what string, pos model.Pos) {
	if err := naming.CheckExported(id); err != nil {
		c.errorf(pos, "%s: Go name %q: %v", what, id, err)
		return
	}
	if err := s.Claim(id, naming.Use{What: what, Pos: pos}); err != nil {
		c.errorf(pos, "%v; set go_name", err)
	}
}

func (c *checker) keys() {
	for i := range c.g.m.Keys {
		k := &c.g.m.Keys[i]
		what := fmt.Sprintf("key %q", k.Name)
		c.claim(c.pkg, k.GoName, what, k.Pos)
		c.claim(c.pkg, "New"+k.GoName, "the constructor of "+what, k.Pos)
		used := naming.NewScope()
		for _, p := range k.Parts {
			if !token.IsIdentifier(p.GoName) || used.Claim(p.GoName, naming.Use{What: "a part"}) != nil {
				c.errorf(k.Pos, "%s: %q cannot be the name of a parameter", what, p.GoName)
			}
			c.goType(p.Type, k.Pos, what)
		}
	}
}

func (c *checker) events() {
	publisher := naming.NewScope(naming.PublisherNames...)
	for i := range c.g.m.Events {
		e := &c.g.m.Events[i]
		what := fmt.Sprintf("event %q", e.Topic)
		c.claim(c.pkg, e.GoName, what, e.Pos)
		c.claim(c.pkg, "Topic"+e.GoName, "the topic of "+what, e.Pos)
		c.claim(c.pkg, "Decode"+e.GoName, "the decoder of "+what, e.Pos)
		c.claim(publisher, e.GoName, what, e.Pos)
		if e.GoType != nil {
			c.claim(c.pkg, "New"+e.GoName, "the constructor of "+what, e.Pos)
			c.foreign(e.GoType, what)
		}
		for _, s := range append(e.KeyFields, e.VersionField) {
			if s != "" && !selector.MatchString(s) {
				c.errorf(e.KeyPos, "%s: %q is not a Go selector such as OrderID or Order.ID()", what, s)
			}
		}
		if e.Key != nil && len(e.KeyFields) != len(e.Key.Parts) && !(e.KeyTyped && len(e.KeyFields) == 1) {
			c.errorf(e.KeyPos, "%s: key %q has %d parts, not %d", what, e.Key.Name, len(e.Key.Parts), len(e.KeyFields))
		}
	}
	for i := range c.g.m.Catalogs {
		cat := &c.g.m.Catalogs[i]
		c.claim(publisher, cat.GoName, fmt.Sprintf("catalog %q", cat.Name), cat.Pos)
	}
}

var selector = regexp.MustCompile(`^[\pL_][\pL\p{Nd}_]*(\(\))?(\.[\pL_][\pL\p{Nd}_]*(\(\))?)*$`)

func (c *checker) types() {
	structOf := map[*model.Struct]*model.Event{}
	for i := range c.g.m.Events {
		if e := &c.g.m.Events[i]; e.Struct != nil {
			structOf[e.Struct] = e
		}
	}
	for _, s := range c.g.structs {
		what, pos := fmt.Sprintf("object %s", s.GoName), model.Pos{}
		if len(s.Fields) > 0 {
			pos = s.Fields[0].Pos
		}
		if e := structOf[s]; e == nil {
			c.claim(c.pkg, s.GoName, what, pos)
		} else if what = fmt.Sprintf("event %q", e.Topic); s.GoName != e.GoName {
			c.errorf(e.Pos, "%s: its struct is named %s, not %s", what, s.GoName, e.GoName)
		}
		c.fields(s, what)
	}
	for _, e := range c.g.enums {
		c.claim(c.pkg, e.GoName, "enum "+e.GoName, model.Pos{})
		for _, v := range e.Values {
			c.claim(c.pkg, v.GoName, fmt.Sprintf("value %q of enum %s", v.Value, e.GoName), model.Pos{})
		}
	}
}

func (c *checker) fields(s *model.Struct, what string) {
	goNames, jsonNames := naming.NewScope(naming.StructNames...), naming.NewScope()
	for _, f := range s.Fields {
		whatField := fmt.Sprintf("field %q of %s", f.Name, what)
		c.claim(goNames, f.GoName, whatField, f.Pos)
		if !tagName(f.Name) {
			c.errorf(f.Pos, "%s: encoding/json cannot use this name", whatField)
		}
		// encoding/json reads names without regard to case, so two of them would
		// overwrite each other.
		if err := jsonNames.Claim(strings.ToLower(f.Name), naming.Use{What: whatField, Pos: f.Pos}); err != nil {
			c.errorf(f.Pos, "%v in JSON, where case does not count", err)
		}
		c.goType(f.Type, f.Pos, whatField)
	}
}

// tagName reports whether encoding/json accepts name in a struct tag.
func tagName(name string) bool {
	for _, r := range name {
		if !strings.ContainsRune("!#$%&()*+-./:;<=>?@[]^_{|}~ ", r) && !unicode.IsLetter(r) && !unicode.IsDigit(r) {
			return false
		}
	}
	return name != ""
}

func (c *checker) goType(t model.Type, pos model.Pos, what string) {
	switch t.Kind {
	case model.String, model.Bool, model.Int32, model.Int64, model.Float64, model.Decimal, model.Bytes, model.Time,
		model.Date, model.Duration, model.UUID, model.JSON, model.Enum, model.Object:
	case model.KeyRef:
		if len(t.Key.Parts) == 0 {
			c.errorf(pos, "%s: key %q is a constant and cannot be the type of a field", what, t.Key.Name)
		}
	case model.List, model.Map:
		c.goType(*t.Elem, pos, what)
	case model.Foreign:
		c.foreign(t.GoType, what)
	default:
		c.errorf(pos, "%s: unknown type %q", what, t.Kind)
	}
}

func (c *checker) foreign(t *model.GoType, what string) {
	if !token.IsIdentifier(t.Name) || !token.IsExported(t.Name) {
		c.errorf(t.Pos, "%s: %q is not an exported Go type", what, t.Name)
	}
	if t.Import == "" || strings.ContainsFunc(t.Import, func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r) || strings.ContainsRune("!\"#$%&'()*,:;<=>?[\\]^`{|}\ufffd", r)
	}) {
		c.errorf(t.Pos, "%s: %q is not an import path", what, t.Import)
	}
	for _, d := range dialect.Names() {
		if own := c.g.m.Go.Import + "/" + d; t.Import == own || strings.HasPrefix(t.Import, own+"/") {
			c.errorf(t.Pos, "%s: package %s is generated and imports package %s, so its types cannot be part of events", what, t.Import, c.g.m.Go.Package)
		}
	}
}

func (c *checker) catalogs() {
	for i := range c.g.m.Catalogs {
		cat := &c.g.m.Catalogs[i]
		what := fmt.Sprintf("catalog %q", cat.Name)
		c.claim(c.pkg, cat.GoName+"Publisher", "the publisher of "+what, cat.Pos)
		c.claim(c.pkg, cat.GoName+"Event", "the event interface of "+what, cat.Pos)
	}
}

// flows claims the names that sources and destinations need: in the events
// package, and as fields of the Config of the dialects.
func (c *checker) flows() {
	config := naming.NewScope(naming.ConfigNames...)
	for i := range c.g.m.Destinations {
		d := &c.g.m.Destinations[i]
		what := fmt.Sprintf("destination %q", d.Name)
		c.claim(c.pkg, d.GoName+"Destination", what, d.Pos)
		c.claim(c.pkg, d.GoName+"DestinationPolicy", "the policy of "+what, d.Pos)
		if d.Broker != nil {
			c.claim(c.pkg, d.GoName+"Topology", "the topology of "+what, d.Pos)
		}
		c.claim(config, d.GoName, what, d.Pos)
	}
	for i := range c.g.m.Sources {
		s := &c.g.m.Sources[i]
		what := fmt.Sprintf("source %q", s.Name)
		for _, n := range sourceNames(s) {
			c.claim(c.pkg, n, what, s.Pos)
		}
		for _, n := range configFields(s) {
			c.claim(config, n, what, s.Pos)
		}
	}
}

// sourceNames are the names of a source in the events package.
func sourceNames(s *model.Source) []string {
	list := []string{s.GoName + "Source", s.GoName + "Receiver"}
	if s.Type == "http" {
		list = append(list, s.GoName+"SourceConfig")
	}
	if s.Broker != nil {
		list = append(list, s.GoName+"Topology")
	}
	if s.Pull {
		list = append(list, s.GoName+"Handler", "Handle"+s.GoName, s.GoName+"SourcePolicy")
	}
	if s.Map {
		list = append(list, s.GoName+"Map", "Remap"+s.GoName)
	}
	return list
}

// configFields are the fields of a dialect's Config that a source needs.
func configFields(s *model.Source) []string {
	var list []string
	if s.Pull {
		list = append(list, s.GoName)
	}
	if s.Map {
		list = append(list, s.GoName+"Map")
	}
	if s.Type == "http" {
		list = append(list, s.GoName+"Verifier")
	}
	if s.Broker != nil {
		list = append(list, s.GoName+"From")
	}
	return list
}
