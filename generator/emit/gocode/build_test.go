package gocode_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/lanebox/lanebox/generator/model"
)

// service returns a service around the output for a model with the rich model's
// destinations and sources.
func service(t *testing.T, model *model.Model) *module {
	t.Helper()
	m := newModule(t)
	m.writeFiles(emit(t, model))
	m.copyDir("testdata/service/orders", "orders")
	m.copyDir("testdata/service/carriers", "go-carriers/v2")
	fakeStores(m, model)
	return m
}

// TestRichModelWorks builds and vets the output for the rich model inside a
// service, and runs the service's tests of it.
func TestRichModelWorks(t *testing.T) {
	m := service(t, rich())
	m.copyDir("testdata/service/rich", "rich")
	m.copyDir("testdata/service/wiring", "wiring")
	m.must("vet", "./...")
	m.must("test", "./rich", "./wiring")
}

var want = regexp.MustCompile(`// want "((?:[^"\\]|\\.)*)"`)

// TestMistakesDoNotCompile builds the packages of testdata/mistakes, each with
// mistakes in the use of generated code, and compares the compiler's messages
// with the comments beside them. Every message must be expected.
func TestMistakesDoNotCompile(t *testing.T) {
	m := service(t, rich())
	files, err := filepath.Glob("testdata/mistakes/*.go.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no mistakes: %v", err)
	}
	expected := map[string]string{} // "mistakes/x/x.go:12" to text
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(filepath.Base(file), ".go.txt")
		path := fmt.Sprintf("mistakes/%s/%s.go", name, name)
		m.write(path, string(text))
		for i, line := range strings.Split(string(text), "\n") {
			if found := want.FindStringSubmatch(line); found != nil {
				expected[fmt.Sprintf("%s:%d", path, i+1)] = strings.ReplaceAll(found[1], `\"`, `"`)
			}
		}
	}
	output, _ := m.run("build", "./...")
	for _, message := range messages(output) {
		place := message.file + ":" + message.line
		text, ok := expected[place]
		switch {
		case !ok:
			t.Errorf("unexpected message: %s: %s", place, message.text)
		case !strings.Contains(message.text, text):
			t.Errorf("%s: the compiler says %q, want %q", place, message.text, text)
		}
		delete(expected, place)
	}
	for place, text := range expected {
		t.Errorf("%s compiles; want %q", place, text)
	}
}

// A message is one message of the compiler.
type message struct{ file, line, column, text string }

var messageLine = regexp.MustCompile(`(?m)^([^#\s:][^:\n]*):(\d+):(\d+): (.*(?:\n\t.*)*)`)

func messages(output string) []message {
	var list []message
	for _, f := range messageLine.FindAllStringSubmatch(output, -1) {
		list = append(list, message{filepath.ToSlash(f[1]), f[2], f[3], f[4]})
	}
	return list
}

// TestWrongSchemasDoNotCompile generates from schemas that do not fit the
// service's own types. The compiler must report the place in the schema.
func TestWrongSchemasDoNotCompile(t *testing.T) {
	shipped := func(m *model.Model) *model.Event {
		for i := range m.Events {
			if m.Events[i].GoName == "OrderShipped" {
				return &m.Events[i]
			}
		}
		panic("no event")
	}
	key := func(m *model.Model, name string) *model.Key {
		for i := range m.Keys {
			if m.Keys[i].Name == name {
				return &m.Keys[i]
			}
		}
		panic("no key")
	}
	m := service(t, rich())
	cases := map[string]struct {
		spoil func(m *model.Model)
		// place is where the schema is wrong, text what the compiler says there.
		place, text string
	}{
		"misspelled": {
			func(m *model.Model) { shipped(m).KeyFields = []string{"Ordr.ID()"} },
			"lanebox.yaml:41:10", "e.Ordr undefined (type *orders.Shipped has no field or method Ordr",
		},
		"case": {
			func(m *model.Model) { shipped(m).KeyFields = []string{"order.ID()"} },
			"lanebox.yaml:41:10", "e.order undefined (type *orders.Shipped has no field or method order, but does have field Order)",
		},
		"wrongtype": {
			func(m *model.Model) { shipped(m).KeyFields = []string{"Version"} },
			"lanebox.yaml:41:10", "cannot use e.Version (variable of type int32) as orders.ID value in argument to NewShipment",
		},
		"method": {
			func(m *model.Model) { shipped(m).KeyFields = []string{"Order.ID"} },
			"lanebox.yaml:41:10", "cannot use e.Order.ID (value of type func() orders.ID) as orders.ID value in argument to NewShipment",
		},
		"version": {
			func(m *model.Model) { shipped(m).VersionField = "Vers" },
			"lanebox.yaml:41:40", "e.Vers undefined",
		},
		"gotype": {
			func(m *model.Model) { shipped(m).GoType.Name = "Shiped" },
			"lanebox.yaml:40:14", "undefined: orders.Shiped",
		},
		"otherkey": { // the key of another aggregate in the schema
			func(m *model.Model) { shipped(m).Key = key(m, "user") },
			"lanebox.yaml:41:10", "as event.UUID value in argument to NewUser",
		},
		"gokind": { // a number would become a character
			func(m *model.Model) { key(m, "shipment").Parts[0].Type.GoType.Name = "No" },
			"lanebox.yaml:11:24", "orders.No does not satisfy ~string",
		},
		"keytype": {
			func(m *model.Model) { key(m, "mixed").Parts[0].Type.GoType.Name = "Order" },
			"lanebox.yaml:9:20", "orders.Order does not satisfy ~int64 | ~int",
		},
	}
	for name, c := range cases {
		wrong := rich()
		wrong.Go.Out, wrong.Go.Import = "wrong/"+name, "example.com/shop/wrong/"+name
		wrong.Dialects = nil
		c.spoil(wrong)
		m.writeFiles(emit(t, wrong))
	}
	output, _ := m.run("build", "-gcflags=-e", "./wrong/...")
	sections := strings.Split(output, "# example.com/shop/wrong/")
	for name, c := range cases {
		found := false
		for _, section := range sections {
			if !strings.HasPrefix(section, name+"\n") {
				continue
			}
			for _, message := range messages(section) {
				place := fmt.Sprintf("%s:%s:%s", filepath.Base(message.file), message.line, message.column)
				found = found || place == c.place && strings.Contains(message.text, c.text)
			}
			if !found {
				t.Errorf("%s: no %q at %s:\n%s", name, c.text, c.place, section)
				found = true
			}
		}
		if !found {
			t.Errorf("%s compiles", name)
		}
	}
}

// TestMistakeIsAmongTheFirst misspells a type that the generated code uses many
// times: the compiler stops after ten messages, and the place in the schema must
// be among them.
func TestMistakeIsAmongTheFirst(t *testing.T) {
	m := service(t, rich())
	wrong := rich()
	wrong.Go.Out, wrong.Go.Import, wrong.Dialects = "many", "example.com/shop/many", nil
	for i := range wrong.Events {
		if wrong.Events[i].GoName == "OrderShipped" {
			wrong.Events[i].GoType.Name = "Shiped"
			for _, name := range []string{"One", "Two", "Three", "Four"} {
				wrong.Catalogs = append(wrong.Catalogs, model.Catalog{Name: name, GoName: name, Events: []*model.Event{&wrong.Events[i]}})
			}
		}
	}
	m.writeFiles(emit(t, wrong))
	output, _ := m.run("build", "./many")
	if !strings.Contains(output, "too many errors") || !strings.Contains(output, "lanebox.yaml:40:14: undefined: orders.Shiped") {
		t.Errorf("the place in the schema is not among the first messages:\n%s", output)
	}
}

// TestNewerGeneratedCodeDoesNotCompile asks for a version that this runtime does
// not have.
func TestNewerGeneratedCodeDoesNotCompile(t *testing.T) {
	m := service(t, rich())
	for _, f := range emit(t, rich()) {
		if strings.HasSuffix(f.Path, "/schema.gen.go") {
			text := string(f.Data)
			newer := strings.Replace(text, "lbruntime.IsAtLeastVersion0_1", "lbruntime.IsAtLeastVersion99_0", 1)
			if newer == text {
				t.Fatal("the generated code asks for no version")
			}
			m.write(f.Path, newer)
		}
	}
	output, err := m.run("build", "./internal/events")
	list := messages(output)
	if err == nil || len(list) != 1 || filepath.Base(list[0].file) != "schema.gen.go" || list[0].text != "undefined: lbruntime.IsAtLeastVersion99_0" {
		t.Errorf("error %v:\n%s", err, output)
	}
}

// TestSmallModelsCompile leaves out one thing after the other.
func TestSmallModelsCompile(t *testing.T) {
	m := service(t, rich())
	for name, cut := range map[string]func(m *model.Model){
		"nothing": func(m *model.Model) {
			m.Keys, m.Events, m.Sources, m.Destinations, m.Routes, m.Catalogs = nil, nil, nil, nil, nil, nil
		},
		"publishing": func(m *model.Model) { m.Sources = nil },
		"nocatalogs": func(m *model.Model) { m.Catalogs, m.Sources = nil, m.Sources[:2] },
		"onesource":  func(m *model.Model) { m.Sources = m.Sources[:1] },
		"pull":       func(m *model.Model) { m.Sources = m.Sources[2:3] },
		"onlyreceiving": func(m *model.Model) {
			m.Destinations, m.Routes, m.Catalogs, m.Events = nil, nil, nil, m.Events[4:5]
			m.Sources[2].Events = m.Sources[2].Events[:1]
		},
		"plain": func(m *model.Model) {
			m.Keys, m.Sources, m.Catalogs = nil, nil, nil
			m.Events = m.Events[5:6]
		},
	} {
		small := rich()
		cut(small)
		small.Go.Out, small.Go.Import = "small/"+name, "example.com/shop/small/"+name
		m.writeFiles(emit(t, small))
		fakeStores(m, small)
	}
	m.must("vet", "./small/...")
}
