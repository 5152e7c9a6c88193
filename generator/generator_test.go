package generator_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/format"
	"math/rand/v2"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/lanebox/lanebox/generator"
	"github.com/lanebox/lanebox/generator/output"
	"github.com/lanebox/lanebox/generator/sqlc"
	starter "github.com/lanebox/lanebox/templates/init"
)

func TestMain(m *testing.M) {
	sqlc.ChildMain()
	os.Exit(m.Run())
}

func importPath(dir string) (string, error) { return path.Join("example.com/shop", dir), nil }

// brokers are flows that the reference schema does not have, by the section that
// they belong to.
var brokers = map[string]string{
	"sources": `
  manifests: {type: rabbitmq, shards: 4, shard_queue: "carrier.%02d.q", aggregate_id_path: $.ship, map: true}
  claims: {type: rabbitmq, mode: pull, queue: claims, stream: true, offset: last, events: [payment.captured.v1], other: true}
  clicks: {type: kafka, topics: [web, app], group: shop}
  gauges: {type: nats, mode: pull, stream: GAUGES, subjects: ["gauge.*.a", "gauge.*.b"], durable: shop, events: [order.placed.v1]}
`,
	"destinations": `
  shipping: {type: rabbitmq, ordered: true, shards: 8, routing_key: "{tenant}.order.{key}.{type}", delivery_limit: 9, dead_letter_exchange: dead}
  printing: {type: rabbitmq, queue: printing, ordered: false, message_ttl: 90s}
  journal: {type: kafka, topic: journal}
  stream: {type: nats, stream: SHOP, subject: "shop.{header:tenant}.{type}", duplicates: 5m}
`,
	"routes": `
  - {events: ["order.*"], to: [shipping, journal, stream]}
  - {events: ["print.*"], to: [printing]}
`,
}

// reference returns the schema that uses every feature.
func reference(t testing.TB) []byte {
	t.Helper()
	src, err := os.ReadFile("../examples/reference/lanebox.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := string(src)
	for section, more := range brokers {
		before, after, found := strings.Cut(text, "\n"+section+":\n")
		if !found {
			t.Fatalf("the reference schema has no %s", section)
		}
		text = before + "\n" + section + ":" + more + after
	}
	return []byte(text)
}

// generate returns the files of a schema that must be sound.
func generate(t testing.TB, src []byte, skipSQLC bool) []output.File {
	t.Helper()
	o := generator.Options{Import: importPath, SkipSQLC: skipSQLC}
	result, found, err := generator.Generate(context.Background(), "lanebox.yaml", src, o)
	if err != nil {
		t.Fatal(err)
	}
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	return result.Files
}

// same compares files and names the first that differs.
func same(t *testing.T, what string, got, want []output.File) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d files, want %d", what, len(got), len(want))
	}
	for i := range want {
		if got[i].Path != want[i].Path {
			t.Fatalf("%s: file %s, want %s", what, got[i].Path, want[i].Path)
		}
		if !bytes.Equal(got[i].Data, want[i].Data) {
			c := output.Change{State: output.Stale, Path: got[i].Path, Old: want[i].Data, New: got[i].Data}
			t.Fatalf("%s: another %s:\n%s", what, got[i].Path, c.Diff())
		}
	}
}

func TestGenerateIsDeterministic(t *testing.T) {
	src := reference(t)
	want := generate(t, src, false)
	same(t, "second run with sqlc", generate(t, src, false), want)
	want = generate(t, src, true)
	for i := range 20 {
		same(t, fmt.Sprintf("run %d", i+2), generate(t, src, true), want)
	}
}

// lineComment is where a file says which line of the schema it stands for; that
// is the one thing that may change when declarations change places.
var lineComment = regexp.MustCompile(`lanebox\.yaml:\d+:\d+`)

func withoutLines(files []output.File) []output.File {
	for i := range files {
		files[i].Data = lineComment.ReplaceAll(files[i].Data, []byte("lanebox.yaml"))
	}
	return files
}

func TestOrderOfMappingsPlaysNoPart(t *testing.T) {
	src := reference(t)
	want := withoutLines(generate(t, src, true))
	for seed := range uint64(20) {
		var doc yaml.Node
		if err := yaml.Unmarshal(src, &doc); err != nil {
			t.Fatal(err)
		}
		shuffle(&doc, rand.New(rand.NewPCG(seed, 1)))
		shuffled, err := yaml.Marshal(&doc)
		if err != nil {
			t.Fatal(err)
		}
		same(t, fmt.Sprintf("seed %d", seed), withoutLines(generate(t, shuffled, true)), want)
	}
}

// shuffle changes the order of all mappings but those whose order is that of the
// fields of a struct.
func shuffle(n *yaml.Node, r *rand.Rand) {
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i].Value, n.Content[i+1]
		if key == "fields" || key == "object" {
			for _, field := range value.Content {
				shuffle(field, r)
			}
		} else {
			shuffle(value, r)
		}
	}
	if n.Kind != yaml.MappingNode {
		for _, c := range n.Content {
			shuffle(c, r)
		}
		return
	}
	r.Shuffle(len(n.Content)/2, func(i, j int) {
		for k := range 2 {
			n.Content[2*i+k], n.Content[2*j+k] = n.Content[2*j+k], n.Content[2*i+k]
		}
	})
}

func TestFilesAreFitToCommit(t *testing.T) {
	for _, f := range generate(t, reference(t), false) {
		if !output.Generated(f.Data) {
			t.Errorf("%s does not start with the header", f.Path)
		}
		if !strings.HasPrefix(f.Path, "internal/events/") {
			t.Errorf("%s lies outside of go.out", f.Path)
		}
		if ext := path.Ext(f.Path); ext == ".go" {
			if !strings.HasSuffix(f.Path, ".gen.go") {
				t.Errorf("%s does not end in .gen.go", f.Path)
			}
			if formatted, err := format.Source(f.Data); err != nil || !bytes.Equal(formatted, f.Data) {
				t.Errorf("%s is not formatted: %v", f.Path, err)
			}
		}
		for _, odd := range []string{os.TempDir() + "/", "/work", "\r"} {
			if bytes.Contains(f.Data, []byte(odd)) {
				t.Errorf("%s contains %q", f.Path, odd)
			}
		}
		if !bytes.HasSuffix(f.Data, []byte("\n")) || bytes.HasSuffix(f.Data, []byte("\n\n")) {
			t.Errorf("%s does not end in one newline", f.Path)
		}
	}
}

func TestStarterSchemaIsSound(t *testing.T) {
	m, found := generator.Check("lanebox.yaml", []byte(starter.Schema))
	if len(found) > 0 {
		t.Fatalf("the schema that lanebox init writes has findings:\n%v", found)
	}
	if len(m.Events) != 3 || len(m.Keys) != 2 || len(m.Sources) != 1 || len(m.Destinations) != 1 {
		t.Errorf("got %d events, %d keys, %d sources, %d destinations", len(m.Events), len(m.Keys), len(m.Sources), len(m.Destinations))
	}
}

func TestFindingsComeWithoutFiles(t *testing.T) {
	src := strings.Replace(starter.Schema, "key: order_id", "key: order_idd", 1)
	result, found, err := generator.Generate(t.Context(), "some dir/lanebox.yaml", []byte(src), generator.Options{Import: importPath})
	if result != nil || err != nil || found.Errors() == 0 {
		t.Fatalf("result %v, error %v, findings %v", result, err, found)
	}
	if !strings.HasPrefix(found[0].String(), "some dir/lanebox.yaml:") || !strings.Contains(found[0].String(), "order_idd") {
		t.Errorf("finding %q", found[0])
	}
}

func TestImportErrorIsPassedOn(t *testing.T) {
	broken := errors.New("no module")
	o := generator.Options{Import: func(dir string) (string, error) {
		if dir != "internal/events" {
			t.Errorf("asked for %q", dir)
		}
		return "", broken
	}}
	result, _, err := generator.Generate(t.Context(), "lanebox.yaml", []byte(starter.Schema), o)
	if result != nil || !errors.Is(err, broken) {
		t.Errorf("result %v, error %v", result, err)
	}
}

func TestGenerateStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err := generator.Generate(ctx, "lanebox.yaml", []byte(starter.Schema), generator.Options{Import: importPath})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestSQLNeedsNoModule(t *testing.T) {
	result, found, err := generator.SQL("lanebox.yaml", []byte(starter.Schema))
	if err != nil || len(found) > 0 {
		t.Fatal(err, found)
	}
	full := generate(t, []byte(starter.Schema), true)
	for _, f := range result.Files {
		i := slices.IndexFunc(full, func(g output.File) bool { return g.Path == f.Path })
		if path.Ext(f.Path) != ".sql" || i < 0 || !bytes.Equal(full[i].Data, f.Data) {
			t.Errorf("%s is not what Generate makes", f.Path)
		}
	}
	if len(result.Files) == 0 {
		t.Error("no SQL")
	}
}

// manyEvents returns a schema of n events with twelve fields each.
func manyEvents(n int) []byte {
	var b strings.Builder
	b.WriteString("version: 1\ngo: {package: events, out: internal/events}\ndialects: [postgres, sqlite]\nkeys:\n")
	for i := range n / 10 {
		fmt.Fprintf(&b, "  key%d_id: {type: string}\n", i)
	}
	b.WriteString("events:\n")
	for i := range n {
		fmt.Fprintf(&b, "  domain%d.thing%d.happened.v1:\n    doc: Thing %d happened.\n    key: key%d_id\n    fields:\n      key%d_id: key%d_id\n", i%10, i, i, i%(n/10), i%(n/10), i%(n/10))
		for j, typ := range []string{"string", "int64", "decimal", "time", "uuid?", "bool", "[string]", "{map: int64}", "json", "{enum: [a, b]}", "date"} {
			fmt.Fprintf(&b, "      field_%d: %s\n", j, typ)
		}
	}
	b.WriteString("destinations: {warehouse: {type: http}}\nroutes:\n  - {events: [\"domain*.**\"], to: [warehouse]}\n")
	return []byte(b.String())
}

// The aim is under one second without sqlc and under three with it.
func BenchmarkGenerate500Events(b *testing.B) {
	src := manyEvents(500)
	for _, skip := range []bool{true, false} {
		b.Run(map[bool]string{true: "without sqlc", false: "with sqlc"}[skip], func(b *testing.B) {
			for b.Loop() {
				generate(b, src, skip)
			}
		})
	}
}

// TestFolderOfAnotherPackage wants the output where other code lies.
func TestFolderOfAnotherPackage(t *testing.T) {
	o := generator.Options{Import: importPath, SkipSQLC: true, PackageName: func(p string) (string, bool) { return "orders", true }}
	result, _, err := generator.Generate(context.Background(), "lanebox.yaml", reference(t), o)
	want := `lanebox.yaml: go.out "internal/events" is the folder of package orders, which cannot hold package events as well; name a folder of its own`
	if result != nil || err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}
