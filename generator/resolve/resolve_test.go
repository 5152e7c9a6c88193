package resolve_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"gopkg.in/yaml.v3"

	"github.com/lanebox/lanebox/generator/model"
	"github.com/lanebox/lanebox/generator/naming"
)

// corpus returns all schemas of the corpus.
func corpus(t testing.TB, kind string) map[string][]byte {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("..", "testdata", kind, "*.txtar"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no corpus: %v", err)
	}
	schemas := map[string][]byte{}
	for _, path := range paths {
		archive, err := txtar.ParseFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range archive.Files {
			if strings.HasSuffix(f.Name, ".yaml") {
				schemas[f.Name] = f.Data
			}
		}
	}
	return schemas
}

// TestMappingOrderDoesNotMatter resolves shuffled schemas: but for the order of
// fields, which is the order of the struct, the model is the same.
func TestMappingOrderDoesNotMatter(t *testing.T) {
	for name, src := range corpus(t, "ok") {
		want, found := load(src)
		if want == nil {
			t.Fatal(found)
		}
		for seed := range uint64(20) {
			var document yaml.Node
			if err := yaml.Unmarshal(src, &document); err != nil {
				t.Fatal(err)
			}
			shuffle(document.Content[0], "", rand.New(rand.NewPCG(seed, 1)))
			shuffled, err := yaml.Marshal(&document)
			if err != nil {
				t.Fatal(err)
			}
			got, found := load(shuffled)
			if got == nil {
				t.Fatalf("%s: %v\n%s", name, found, shuffled)
			}
			if dump(got) != dump(want) {
				t.Fatalf("%s: shuffled schema\n%s\ngives\n%s\nwant\n%s", name, shuffled, dump(got), dump(want))
			}
		}
	}
}

// shuffle reorders all mappings but those of fields.
func shuffle(n *yaml.Node, key string, random *rand.Rand) {
	for i, child := range n.Content {
		name := key
		if n.Kind == yaml.MappingNode && i%2 == 1 {
			name = n.Content[i-1].Value
		}
		shuffle(child, name, random)
	}
	if n.Kind != yaml.MappingNode || key == "fields" {
		return
	}
	random.Shuffle(len(n.Content)/2, func(i, j int) {
		for k := range 2 {
			n.Content[2*i+k], n.Content[2*j+k] = n.Content[2*j+k], n.Content[2*i+k]
		}
	})
}

// TestPointersLeadIntoTheModel: whoever compares pointers finds the same thing.
func TestPointersLeadIntoTheModel(t *testing.T) {
	for name, src := range corpus(t, "ok") {
		m, _ := load(src)
		keys, events, destinations := pointers(m.Keys), pointers(m.Events), pointers(m.Destinations)
		check := func(ok bool, what string) {
			if !ok {
				t.Errorf("%s: %s is not in the model", name, what)
			}
		}
		for _, e := range m.Events {
			check(e.Key == nil || slices.Contains(keys, e.Key), "key of "+e.Topic)
			for _, d := range e.Destinations {
				check(slices.Contains(destinations, d), "destination of "+e.Topic)
			}
			if e.Struct != nil {
				for _, f := range e.Struct.Fields {
					check(f.Type.Key == nil || slices.Contains(keys, f.Type.Key), "key of field "+f.Name)
				}
			}
		}
		for _, k := range m.Keys {
			for _, p := range k.Parts {
				check(p.Type.Key == nil || slices.Contains(keys, p.Type.Key), "key of part "+p.Name)
			}
		}
		for _, s := range m.Sources {
			for _, e := range s.Events {
				check(slices.Contains(events, e), "event of source "+s.Name)
			}
		}
		for _, c := range m.Catalogs {
			for _, e := range c.Events {
				check(slices.Contains(events, e), "event of catalog "+c.Name)
			}
		}
		for _, r := range m.Routes {
			for _, d := range r.To {
				check(slices.Contains(destinations, d), "destination of a route")
			}
		}
	}
}

func pointers[T any](list []T) []*T {
	var out []*T
	for i := range list {
		out = append(out, &list[i])
	}
	return out
}

// TestQueueBoxSpelling: both spellings of a source mean the same.
func TestQueueBoxSpelling(t *testing.T) {
	schemas := corpus(t, "ok")
	camel, _ := load(schemas["queuebox.yaml"])
	snake, _ := load(schemas["snake.yaml"])
	if !reflect.DeepEqual(camel, snake) {
		t.Errorf("camelCase gives\n%s\nsnake_case gives\n%s", dump(camel), dump(snake))
	}
}

// TestRenameKeepsTheNumber: was carries the number of stored rows over.
func TestRenameKeepsTheNumber(t *testing.T) {
	const text = "version: 1\ndialects: [postgres]\ndestinations: {%s}\nroutes: [{events: \"*\", to: %s}]\n"
	before, _ := load(fmt.Appendf(nil, text, "old: {type: http}", "old"))
	after, found := load(fmt.Appendf(nil, text, "new: {type: http, was: old}", "new"))
	if after == nil {
		t.Fatal(found)
	}
	if a, b := before.Destinations[0].Number, after.Destinations[0].Number; a != b {
		t.Errorf("number was %d and is %d", a, b)
	}
}

// TestNumberCollision finds two names with one number and puts them into a schema.
func TestNumberCollision(t *testing.T) {
	names := map[int32]string{}
	for i := 0; ; i++ {
		name := fmt.Sprintf("d%d", i)
		number := naming.Number("destination", name)
		first, taken := names[number]
		if !taken {
			names[number] = name
			continue
		}
		src := fmt.Sprintf("version: 1\ndialects: [postgres]\ndestinations:\n  %s: {type: http}\n  %s: {type: http}\nroutes: [{events: \"*\", to: [%[1]s, %[2]s]}]\n", first, name)
		want := fmt.Sprintf("lanebox.yaml:5:3: destination %q and destination %q (line 4) have the same number %d in the database (rename one of them)", name, first, number)
		if m, found := load([]byte(src)); m != nil || len(found) != 1 || found[0].String() != want {
			t.Errorf("got %v, want %s", found, want)
		}
		return
	}
}

// TestLongTexts checks limits that no readable corpus shows.
func TestLongTexts(t *testing.T) {
	for name, c := range map[string]struct{ src, want string }{
		"topic":       {"events: {%s: {fields: {}}}\ndestinations: {d: {type: http}}\nroutes: [{events: \"*\", to: d}]", "has a name of 256 bytes; the limit is 255"},
		"pattern":     {"events: {}\ndestinations: {d: {type: http}}\nroutes: [{events: [%s], to: d}]", "has a name of 256 bytes; the limit is 255"},
		"field":       {"events: {a.b: {fields: {%s: string}}}\ndestinations: {d: {type: http}}\nroutes: [{events: \"*\", to: d}]", "has a name of 256 bytes; the limit is 255"},
		"destination": {"destinations: {%s: {type: http}}", "has a name of 256 bytes; the limit is 63"},
		"shard":       {"destinations: {d: {type: rabbitmq, ordered: true, shards: 10, shard_queue: \"%%d%s\"}}", "has 257 bytes; the limit is 255"},
		"routing key": {"destinations: {d: {type: rabbitmq, exchange: x, routing_key: %s}}", "longer than 255 bytes"},
		"subject":     {"destinations: {d: {type: nats, stream: x, subject: %s}}", "longer than 255 bytes"},
		"kafka topic": {"destinations: {d: {type: kafka, topic: %s}}", "topic has 256 bytes; the limit is 249"},
		"group":       {"sources: {s: {type: kafka, topic: x, group: %s}}", "group has 256 bytes; the limit is 200"},
		"const":       {"keys: {k: {const: %s}}", "const has 256 bytes; the limit is 255"},
		"prefix":      {"keys: {k: {type: string, prefix: %s}}", "prefix has 256 bytes; the limit is 127"},
		"together":    {"keys: {k: {const: %[2]s, prefix: %[2]s, doc: %[1]s}}", "prefix has 128 bytes; the limit is 127"},
	} {
		src := "version: 1\ndialects: [postgres]\n" + fmt.Sprintf(c.src+"%.0[2]s", strings.Repeat("a", 256), strings.Repeat("a", 128))
		_, found := load([]byte(src))
		if !slices.ContainsFunc(strings.Split(found.Err().Error(), "\n"), func(s string) bool { return strings.Contains(s, c.want) }) {
			t.Errorf("%s: got %v, want %s", name, found, c.want)
		}
	}
}

// TestShardsAreBounded: a schema of nothing but shards does not fill memory.
func TestShardsAreBounded(t *testing.T) {
	var b strings.Builder
	b.WriteString("version: 1\ndialects: [postgres]\ndestinations:\n")
	for i := range 100 {
		fmt.Fprintf(&b, "  d%d: {type: rabbitmq, ordered: true, shards: 1000}\n", i)
	}
	_, found := load([]byte(b.String()))
	want := `destination "d20": the schema has more than 20000 shards`
	if found.Errors() != 80 || !strings.Contains(found.Err().Error(), want) {
		t.Errorf("got %d errors, want 80 with %s:\n%v", found.Errors(), want, found.Err())
	}
}

// TestDescriptionsAreHarmless: no description ends a comment that a line begins.
func TestDescriptionsAreHarmless(t *testing.T) {
	src := "version: 1\ndialects: [postgres]\nevents:\n  a.b:\n    doc: \"a\\rb\\0c\\u2028d\\e[2Je \\ufeff f\\u202e */ -- ` \\n\\n\"\n    fields: {}\n" +
		"destinations: {d: {type: http}}\nroutes: [{events: a.b, to: d}]\n"
	m, found := load([]byte(src))
	if m == nil {
		t.Fatal(found)
	}
	if got, want := m.Events[0].Doc, "a\nbc\nd[2Je  f */ -- `"; got != want {
		t.Errorf("doc is %q, want %q", got, want)
	}
}

// bigSchema has n events of 12 fields.
func bigSchema(n int) []byte {
	var b strings.Builder
	b.WriteString("version: 1\ndialects: [postgres, sqlite]\nkeys:\n  order_id: {type: string}\nevents:\n")
	for i := range n {
		fmt.Fprintf(&b, "  order.step%d.v1:\n    doc: Step %d.\n    key: order_id\n    fields:\n      order_id: order_id\n", i, i)
		for f := range 10 {
			fmt.Fprintf(&b, "      field_%d: string?\n", f)
		}
		b.WriteString("      state: {enum: [new, paid, shipped]}\n")
	}
	b.WriteString("destinations:\n  warehouse: {type: http}\nroutes:\n  - {events: \"order.*\", to: warehouse}\n")
	return []byte(b.String())
}

func TestManyEvents(t *testing.T) {
	m, found := load(bigSchema(500))
	if m == nil || len(found) != 0 {
		t.Fatal(found)
	}
	if len(m.Events) != 500 || !slices.IsSortedFunc(m.Events, func(a, b model.Event) int { return strings.Compare(a.Topic, b.Topic) }) {
		t.Errorf("%d events, or not sorted", len(m.Events))
	}
}

func BenchmarkResolve500Events(b *testing.B) {
	src := bigSchema(500)
	b.ReportAllocs()
	for b.Loop() {
		if m, found := load(src); m == nil {
			b.Fatal(found)
		}
	}
}

// FuzzSchema: loading and resolving never panics, every finding is inside the
// file, and a model comes without errors.
func FuzzSchema(f *testing.F) {
	for _, kind := range []string{"ok", "bad"} {
		for _, src := range corpus(f, kind) {
			f.Add(src)
		}
	}
	if raw, err := os.ReadFile(filepath.Join("..", "..", "go.mod")); err == nil {
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		m, found := load(src)
		checkPositions(t, src, found)
		if (m == nil) != (found.Errors() > 0) {
			t.Fatalf("model %v with %d errors: %v", m != nil, found.Errors(), found)
		}
		if m != nil {
			_ = dump(m)
		}
		var b strings.Builder
		if err := found.Text(&b, src); err != nil {
			t.Fatal(err)
		}
	})
}
