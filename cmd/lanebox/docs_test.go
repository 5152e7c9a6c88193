package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/lanebox/lanebox/generator"
)

// A block is a fenced block of a document. Its info string says how it is
// tested; TestDocBlocksAreTested refuses a block that no test takes.
type block struct {
	file string // relative to the repository
	line int    // of the first line of text
	info string
	text string
}

func (b block) String() string { return b.file + ":" + strconv.Itoa(b.line) }

// docFiles are the documents, relative to the repository.
func docFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(repository(t), "docs", "*.md"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no documents: %v", err)
	}
	names := []string{"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "sql/README.md"}
	for _, f := range files {
		names = append(names, "docs/"+filepath.Base(f))
	}
	return names
}

// readRepo returns the text of a file of the repository.
func readRepo(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository(t), filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// docBlocks returns the fenced blocks of all documents.
func docBlocks(t *testing.T) []block {
	t.Helper()
	var list []block
	for _, name := range docFiles(t) {
		var open *block
		for i, line := range strings.Split(readRepo(t, name), "\n") {
			switch {
			case open == nil && strings.HasPrefix(line, "```"):
				open = &block{file: name, line: i + 2, info: strings.TrimPrefix(line, "```")}
			case open != nil && line == "```":
				list = append(list, *open)
				open = nil
			case open != nil:
				open.text += line + "\n"
			}
		}
		if open != nil {
			t.Errorf("%s: the block is not closed", open)
		}
	}
	return list
}

// blocksOf returns the blocks with one of the info strings, at least one.
func blocksOf(t *testing.T, infos ...string) []block {
	t.Helper()
	var list []block
	for _, b := range docBlocks(t) {
		for _, info := range infos {
			if b.info == info {
				list = append(list, b)
			}
		}
	}
	if len(list) == 0 {
		t.Fatalf("no document has a block %q", infos)
	}
	return list
}

func TestDocBlocksAreTested(t *testing.T) {
	for _, b := range docBlocks(t) {
		switch b.info {
		case "yaml", "yaml refused", "go", "sql", "sql sqlserver", "console repository", "console psql", "text":
		case "yaml kubernetes":
			if err := yaml.Unmarshal([]byte(b.text), new(any)); err != nil {
				t.Errorf("%s: %v", b, err)
			}
		case "yaml file=lanebox.yaml", "go file=cmd/shop/main.go", "console tutorial", "console postgres", "console tools":
			if b.file != "README.md" {
				t.Errorf("%s: only the README has a tutorial", b)
			}
		default:
			t.Errorf("%s: no test takes blocks with the info string %q", b, b.info)
		}
	}
}

// complete adds to a fragment what makes it a whole schema. The fragment stays in
// front, so that positions hold.
func complete(t *testing.T, b block) []byte {
	t.Helper()
	var fragment map[string]yaml.Node
	if err := yaml.Unmarshal([]byte(b.text), &fragment); err != nil {
		t.Fatalf("%s: %v", b, err)
	}
	target := "warehouse"
	if node, ok := fragment["destinations"]; ok {
		target = node.Content[0].Value
	}
	text := b.text
	for _, section := range [][2]string{
		{"version", "version: 1"},
		{"dialects", "dialects: [postgres]"},
		{"keys", "keys: {order_id: {type: string}}"},
		{"events", "events: {order.placed.v1: {fields: {note: string}}}"},
		{"destinations", "destinations: {warehouse: {type: http}}"},
		{"routes", "routes: [{events: ['*'], to: [" + target + "]}]"},
	} {
		if _, ok := fragment[section[0]]; !ok {
			text += section[1] + "\n"
		}
	}
	return []byte(text)
}

// checkText returns what check says about a schema, and the number of errors.
func checkText(t *testing.T, src []byte) (string, int) {
	t.Helper()
	_, findings := generator.Check("lanebox.yaml", src)
	var text strings.Builder
	if err := findings.Text(&text, src); err != nil {
		t.Fatal(err)
	}
	return text.String(), findings.Errors()
}

// Schemas in documents are sound; those that are said to be refused are refused
// with the words of the text block behind them.
func TestDocSchemas(t *testing.T) {
	list := docBlocks(t)
	for i, b := range list {
		switch b.info {
		case "yaml", "yaml file=lanebox.yaml":
			if text, errors := checkText(t, complete(t, b)); errors > 0 {
				t.Errorf("%s: the schema is refused:\n%s", b, text)
			}
		case "yaml refused":
			if i+1 == len(list) || list[i+1].info != "text" || list[i+1].file != b.file {
				t.Errorf("%s: no text block with the findings follows", b)
				continue
			}
			got, errors := checkText(t, complete(t, b))
			for _, line := range strings.Split(strings.TrimSpace(list[i+1].text), "\n") {
				if errors == 0 || !strings.Contains("\n"+got, "\n"+line+"\n") {
					t.Errorf("%s: check does not say\n%s\nbut\n%s", list[i+1], line, got)
				}
			}
		}
	}
}

var (
	docLink    = regexp.MustCompile(`\[([^\]]*)\]\(([^)\s]+)\)`)
	codeSpan   = regexp.MustCompile("^`([A-Z][A-Za-z0-9]+)`$")
	fenced     = regexp.MustCompile("(?ms)^```.*?^```$")
	heading    = regexp.MustCompile(`(?m)^#+ (.*)$`)
	notInSlugs = regexp.MustCompile(`[^\pL\pN _-]`)
)

// slugs returns the anchors of a document's headings, as GitHub makes them.
func slugs(text string) map[string]bool {
	found := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		found[strings.ReplaceAll(notInSlugs.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")] = true
	}
	return found
}

// Links lead to files and headings of the repository that exist.
func TestDocLinks(t *testing.T) {
	for _, name := range docFiles(t) {
		for _, m := range docLink.FindAllStringSubmatch(fenced.ReplaceAllString(readRepo(t, name), ""), -1) {
			if strings.Contains(m[2], "://") {
				continue
			}
			target, anchor, _ := strings.Cut(m[2], "#")
			full := name
			if target != "" {
				full = filepath.ToSlash(filepath.Join(filepath.Dir(name), target))
			}
			if _, err := os.Stat(filepath.Join(repository(t), full)); err != nil {
				t.Errorf("%s: link %s: %v", name, m[2], err)
			} else if anchor != "" && !slugs(readRepo(t, full))[anchor] {
				t.Errorf("%s: link %s: %s has no such heading", name, m[2], full)
			}
		}
	}
}

// Tests that documents name stand in the files that the names link to.
func TestDocTestsExist(t *testing.T) {
	for _, name := range docFiles(t) {
		for _, m := range docLink.FindAllStringSubmatch(readRepo(t, name), -1) {
			span := codeSpan.FindStringSubmatch(m[1])
			if span == nil || !strings.HasSuffix(m[2], ".go") {
				continue
			}
			file := filepath.ToSlash(filepath.Join(filepath.Dir(name), m[2]))
			if _, err := os.Stat(filepath.Join(repository(t), file)); err != nil {
				continue // TestDocLinks says so
			}
			if !proves(t, span[1], file) {
				t.Errorf("%s: %s has no test %s", name, file, span[1])
			}
		}
	}
}

// proves reports whether a file has the test: a test function, or the function
// of a case of the suite for stores.
func proves(t *testing.T, test, file string) bool {
	t.Helper()
	function := test + "("
	if !strings.HasPrefix(test, "Test") && !strings.HasPrefix(test, "Benchmark") && !strings.HasPrefix(test, "Fuzz") {
		suite := readRepo(t, "runtime/storetest/storetest.go")
		m := regexp.MustCompile(`\{"` + test + `", (\w+)\[Tx\]\}`).FindStringSubmatch(suite)
		if m == nil {
			return false
		}
		function = m[1] + "["
	}
	return strings.Contains(readRepo(t, file), "\nfunc "+function)
}

// The README proves every guarantee with a test.
func TestEveryGuaranteeHasATest(t *testing.T) {
	rows := map[string]int{}
	for _, line := range strings.Split(readRepo(t, "README.md"), "\n") {
		cells := strings.Split(line, "|")
		if len(cells) != 5 {
			continue
		}
		rows[strings.TrimSpace(cells[1])] = len(docLink.FindAllString(cells[3], -1))
	}
	for i := 1; i <= 11; i++ {
		if rows["G"+strconv.Itoa(i)] == 0 {
			t.Errorf("G%d has no row with a test in README.md", i)
		}
	}
	if rows[""] == 0 {
		t.Error("README.md names no test for wrong keys")
	}
}

// What a newcomer is told to run in the repository exists.
func TestDocRepositoryCommands(t *testing.T) {
	makefile := readRepo(t, "Makefile")
	for _, b := range blocksOf(t, "console repository") {
		for _, line := range strings.Split(strings.TrimSpace(b.text), "\n") {
			if dir, ok := strings.CutPrefix(line, "$ go run ./"); ok {
				if !strings.Contains(readRepo(t, dir+"/main.go"), "\nfunc main() {") {
					t.Errorf("%s: %s is no program", b, dir)
				}
			} else if target, ok := strings.CutPrefix(line, "$ make "); !ok || !strings.Contains(makefile, "\n"+target+":") {
				t.Errorf("%s: %q is not a command of this repository", b, line)
			}
		}
	}
}
