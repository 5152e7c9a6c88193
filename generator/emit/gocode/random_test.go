package gocode_test

import (
	"fmt"
	"math/rand/v2"
	"path"
	"strings"
	"testing"

	"github.com/lanebox/lanebox/generator/emit/gocode"
	"github.com/lanebox/lanebox/generator/resolve"
	"github.com/lanebox/lanebox/generator/schema"
)

// oddWords are names that meet each other, Go's own and those of generated code.
var oddWords = strings.Fields(`a b id ID order Order event events topic decode new keyed publisher draft drafts key string
	error any nil type func range len all with_key routed push sources in k e p v tx TX ctx err opts value set own plain data
	text list x.y a-b aB AB v2 source destination receiver handler handle map remap policy config json time uuid date
	Validate unmarshal_json marshal_json String ordering_key parts valid main init read_byte Ä 日本 Ünï ǆ url URLs iota message`)

// A schemaMaker makes schemas at random.
type schemaMaker struct {
	*rand.Rand
	keys []string // plain ones
}

func (m *schemaMaker) name() string {
	name := oddWords[m.IntN(len(oddWords))]
	if m.IntN(2) == 0 {
		return name
	}
	return name + []string{".", "_"}[m.IntN(2)] + oddWords[m.IntN(len(oddWords))]
}

// list makes entries with names of their own, without regard to case.
func (m *schemaMaker) list(least, most int, entry func(name string) string) string {
	var list []string
	used := map[string]bool{}
	for range least + m.IntN(most-least+1) {
		if name := m.name(); !used[strings.ToLower(name)] {
			used[strings.ToLower(name)] = true
			list = append(list, fmt.Sprintf("%q: %s", name, entry(name)))
		}
	}
	return "{" + strings.Join(list, ", ") + "}"
}

func (m *schemaMaker) fieldType(depth int) string {
	switch m.IntN(9) {
	case 0:
		return "{enum: [" + oddWords[m.IntN(len(oddWords))] + "s, other]}"
	case 1:
		if depth < 3 {
			return "{fields: " + m.list(0, 3, func(string) string { return m.fieldType(depth + 1) }) + "}"
		}
	case 2:
		return "[" + m.fieldType(3) + "]"
	case 3:
		return "{map: " + m.fieldType(3) + "}"
	case 4:
		return "{go_type: time.Month}"
	case 5:
		if len(m.keys) > 0 {
			return fmt.Sprintf("%q", m.keys[m.IntN(len(m.keys))])
		}
	}
	return []string{"string", "json", "bytes", "decimal", `"time?"`, "date", "duration", "uuid"}[m.IntN(8)]
}

func (m *schemaMaker) schema() string {
	m.keys = nil
	keys := m.list(0, 3, func(name string) string {
		switch m.IntN(3) {
		case 0:
			return "{const: all}"
		case 1:
			return fmt.Sprintf("{type: [{%q: uuid}, {%q: int64}]}", m.name(), m.name())
		}
		m.keys = append(m.keys, name)
		return "{type: " + []string{"string", "uuid", "date", "int32"}[m.IntN(4)] + "}"
	})
	events := m.list(1, 4, func(string) string {
		if len(m.keys) > 0 && m.IntN(2) == 0 {
			key := m.keys[m.IntN(len(m.keys))]
			return fmt.Sprintf("{key: %q, fields: {%q: %q}}", key, key, key)
		}
		return "{fields: " + m.list(0, 5, func(string) string { return m.fieldType(0) }) + "}"
	})
	flow := m.name()
	return fmt.Sprintf("version: 1\ndialects: [postgres]\nkeys: %s\nevents: %s\ndestinations: {%q: %s}\nroutes: [{events: '*', to: %q}]\n"+
		"sources: {%q: %s, %q: %s}\ncatalogs: {%q: '*'}\n",
		keys, events, flow, m.destination(), flow, m.name(), m.source("mode: pull, events: '*', other: true"), m.name()+"2", m.source("map: true"), m.name())
}

// destination makes a destination of any type.
func (m *schemaMaker) destination() string {
	return []string{
		"{type: handler}", "{type: http}", "{type: kafka, topic: x}", "{type: nats, stream: X, subject: 'x.{key}'}",
		"{type: rabbitmq, ordered: true, shards: 3}", "{type: rabbitmq, ordered: false, queue: x}",
	}[m.IntN(6)]
}

// source makes a source of any type that has no path.
func (m *schemaMaker) source(more string) string {
	return fmt.Sprintf([]string{
		"{type: handler, %s}", "{type: kafka, topic: x, group: g, %s}", "{type: nats, stream: X, durable: d, %s}",
		"{type: rabbitmq, queue: x, aggregate_id_path: $.x, %s}", "{type: rabbitmq, shards: 2, shard_queue: x.%%d, stream: true, %s}",
	}[m.IntN(5)], more)
}

// TestRandomSchemasCompile makes schemas of odd names: each is refused with a
// place, or gives code that compiles and vets.
func TestRandomSchemasCompile(t *testing.T) {
	m, maker := newModule(t), &schemaMaker{Rand: rand.New(rand.NewPCG(1, 2))}
	compiled := 0
	for i := range 250 {
		src := maker.schema()
		file, found := schema.Load("lanebox.yaml", []byte(src))
		if file == nil {
			t.Fatalf("%v\n%s", found, src)
		}
		model, more := resolve.Resolve(file)
		if model == nil {
			if found.Errors()+more.Errors() == 0 {
				t.Errorf("refused without a reason:\n%s", src)
			}
			continue
		}
		model.Dialects = nil // their stores are not rendered here
		model.Go.Out = fmt.Sprintf("random/x%d", i)
		model.Go.Import = path.Join("example.com/shop", model.Go.Out)
		files, err := gocode.Emit(model)
		if err != nil {
			t.Errorf("the last line of defence had to refuse: %v\n%s", err, src)
		}
		m.writeFiles(files)
		compiled++
	}
	if compiled < 40 {
		t.Fatalf("only %d of 250 schemas were sound", compiled)
	}
	t.Logf("%d schemas compile", compiled)
	m.must("vet", "./random/...")
}
