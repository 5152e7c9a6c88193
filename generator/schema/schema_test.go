package schema_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"gopkg.in/yaml.v3"

	"github.com/lanebox/lanebox/generator/schema"
)

var update = flag.Bool("update", false, "write what the JSON Schema should be")

// TestBytes checks what no text corpus can hold.
func TestBytes(t *testing.T) {
	utf16 := []byte{0xff, 0xfe}
	for _, c := range "version: 1\n" {
		utf16 = append(utf16, byte(c), 0)
	}
	for name, c := range map[string]struct {
		src  string
		want string // of the only finding; "" for none
	}{
		"empty":                {"", "x.yaml:1:1: the schema is empty"},
		"blank":                {" \n\n", "x.yaml:1:1: the schema is empty"},
		"byte order mark":      {"\ufeffversion: 1\n", ""},
		"mark alone":           {"\ufeff", "x.yaml:1:1: the schema is empty"},
		"mark inside":          {"version: 1\ngo: {package: \ufeffx}\n", "x.yaml:2:15: a byte order mark (U+FEFF) may stand only at the start of the file"},
		"CRLF":                 {"version: 1\r\ngo:\r\n  pakage: x\r\n", "x.yaml:3:3: unknown key \"pakage\" in go"},
		"CR":                   {"version: 1\rgo:\r  pakage: x\r", "x.yaml:3:3: unknown key \"pakage\" in go"},
		"NEL and LS":           {"version: 1\u0085go:\u2028  pakage: x", "x.yaml:3:3: unknown key \"pakage\" in go"},
		"NUL":                  {"version: 1\ngo: {package: \"a\x00\"}", "x.yaml:2:17: the schema contains the control character U+0000"},
		"escape character":     {"version: 1 # \x1b[2J", "x.yaml:1:14: the schema contains the control character U+001B"},
		"Latin-1":              {"version: 1\n# caf\xe9", "x.yaml:2:6: byte 0xe9 is not UTF-8"},
		"replacement":          {"version: 1\n# caf\ufffd", ""},
		"UTF-16":               {string(utf16), "x.yaml:1:1: the schema is UTF-16"},
		"UTF-16 big endian":    {"\xfe\xff\x00v", "x.yaml:1:1: the schema is UTF-16"},
		"tab in indentation":   {"version: 1\ngo:\n\tpackage: x", "x.yaml:3:1: not valid YAML: found character that cannot start any token"},
		"tab after a value":    {"version: 1\t# fine\n", ""},
		"later document":       {"version: 1\n---\n", "x.yaml:2:1: a second document begins here"},
		"broken document":      {"version: 1\n---\na: [\n", "x.yaml:3:4: not valid YAML: did not find expected node content"},
		"end of document":      {"---\nversion: 1\n...\n", ""},
		"directive":            {"%YAML 1.1\n---\nversion: 1\n", ""},
		"too deep":             {"version: 1\ndatabase: " + strings.Repeat("[", 200) + strings.Repeat("]", 200), "x.yaml:2:75: the schema is nested more than 64 levels deep"},
		"far too deep":         {strings.Repeat("[", 20_000), "x.yaml:1:1: not valid YAML: exceeded max depth of 10000"},
		"too large":            {"# " + strings.Repeat("x", 9<<20), "x.yaml:1:1: the schema has 9437186 bytes; the limit is 8388608"},
		"non-ASCII before":     {"version: 1\ngo: {\"ключ\": 1}", "x.yaml:2:6: unknown key \"ключ\" in go"},
		"after non-ASCII":      {"version: 1\ngo: {package: \"日本\", pakage: x}", "x.yaml:2:21: unknown key \"pakage\" in go"},
		"version as text":      {"version: \"1\"", "x.yaml:1:10: version must be a whole number, not \"1\""},
		"negative":             {"version: -1", "x.yaml:1:10: version must be a whole number that is not negative, not \"-1\""},
		"no version":           {"go: {}", "x.yaml:1:1: the schema has no \"version\""},
		"camelCase everywhere": {"version: 1\ndestinations: {d: {type: http, maxUnsettled: 1, retry: {maxAttempts: 2}, onDead: park}}", ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, found := schema.Load("x.yaml", []byte(c.src))
			var got []string
			for _, d := range found {
				got = append(got, fmt.Sprintf("%s:%d:%d: %s", d.File, d.Pos.Line, d.Pos.Column, d.Message))
			}
			if strings.Join(got, "\n") != c.want {
				t.Errorf("got  %s\nwant %s", strings.Join(got, "\n"), c.want)
			}
		})
	}
}

// TestFindingsAreBounded: a file of nothing but mistakes does not fill memory.
func TestFindingsAreBounded(t *testing.T) {
	_, found := schema.Load("x.yaml", []byte("version: 1\n"+wrongKeys(5000)))
	if len(found) != 1000 {
		t.Errorf("%d findings, want 1000", len(found))
	}
}

func wrongKeys(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "wrong%d: 1\n", i)
	}
	return b.String()
}

// TestJSONSchema checks that the JSON Schema is well formed and takes and refuses
// what the loader does.
func TestJSONSchema(t *testing.T) {
	raw := schema.JSONSchema()
	if again := schema.JSONSchema(); !bytes.Equal(raw, again) {
		t.Error("two calls differ")
	}
	var root map[string]any
	if err := json.Unmarshal(raw, &root); err != nil {
		t.Fatal(err)
	}
	if root["$schema"] != "https://json-schema.org/draft/2020-12/schema" {
		t.Errorf("$schema is %v", root["$schema"])
	}
	v := &validator{t: t, root: root}
	v.refs(root)
	paths, err := filepath.Glob(filepath.Join("..", "testdata", "ok", "*.txtar"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no corpus: %v", err)
	}
	for _, path := range paths {
		archive, err := txtar.ParseFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range archive.Files {
			if strings.HasSuffix(f.Name, ".yaml") {
				if problem := v.check(root, decode(t, f.Data), "$"); problem != "" {
					t.Errorf("%s %s: %s", path, f.Name, problem)
				}
			}
		}
	}
	for _, bad := range []string{
		"dialects: [postgres]",
		"{version: 1, databse: {}}",
		"{version: 1, dialects: [oracle]}",
		"{version: 1, destinations: {d: {}}}",
		"{version: 1, destinations: {d: {type: http, timeout: 5}}}",
		"{version: 1, destinations: {d: {type: http, on_dead: drop}}}",
		"{version: 1, events: {a.b: {feilds: {}}}}",
		"{version: 1, events: {a.b: {fields: {x: [string, string]}}}}",
		"{version: 1, routes: [{events: x}]}",
		"{version: 1, sources: {s: {type: http, event_type_path: type}}}",
		"{version: 1, destinations: {d: {type: sqs}}}",
		"{version: 1, destinations: {d: {type: kafka, topics: [x]}}}",
		"{version: 1, destinations: {d: {type: rabbitmq, stream: 1}}}",
		"{version: 1, sources: {s: {type: rabbitmq, routingKey: x}}}",
	} {
		if v.check(root, decode(t, []byte(bad)), "$") == "" {
			t.Errorf("accepted: %s", bad)
		}
		if _, found := schema.Load("x.yaml", []byte(bad)); found.Errors() == 0 && !strings.Contains(bad, "type") && !strings.Contains(bad, "oracle") {
			t.Errorf("the loader accepted: %s", bad)
		}
	}
}

func decode(t *testing.T, src []byte) any {
	t.Helper()
	var v any
	if err := yaml.Unmarshal(src, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// TestJSONSchemaIsCurrent compares with the committed file that editors load.
func TestJSONSchemaIsCurrent(t *testing.T) {
	path := filepath.Join("testdata", "lanebox.schema.json")
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := schema.JSONSchema(); !bytes.Equal(got, want) {
		if *update {
			if err := os.WriteFile(path, got, 0o644); err != nil {
				t.Fatal(err)
			}
			return
		}
		t.Errorf("%s is stale; run go test ./generator/schema -update", path)
	}
}

// TestLoadKeepsPlaces checks the marks that messages point at.
func TestLoadKeepsPlaces(t *testing.T) {
	f, found := schema.Load("x.yaml", []byte("version: 1\nevents:\n  \"a.b\":\n    key: 'it''s'\n    fields: {x: [int64]}\n"))
	if found.Errors() > 0 || f.Faulty {
		t.Fatal(found)
	}
	e := f.Events[0]
	for _, c := range []struct {
		got  schema.Mark
		want [3]int
	}{
		{e.Name.Mark, [3]int{3, 3, 5}},
		{e.Key.Name.Mark, [3]int{4, 10, 7}},
		{e.Fields[0].Type.Mark, [3]int{5, 17, 1}},
		{e.Fields[0].Type.Elem.Mark, [3]int{5, 18, 5}},
	} {
		if got := [3]int{c.got.Pos.Line, c.got.Pos.Column, c.got.Length}; got != c.want {
			t.Errorf("mark %v, want %v", got, c.want)
		}
	}
	if !reflect.DeepEqual(e.Key.Name.V, "it's") {
		t.Errorf("key %q", e.Key.Name.V)
	}
}
