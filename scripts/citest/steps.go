//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// staticcheck is the linter, pinned.
const staticcheck = "honnef.co/go/tools/cmd/staticcheck@v0.8.2"

func checkFormat(ctx context.Context, s *suite) error {
	files, err := s.sourceFiles(func(name string) bool { return strings.HasSuffix(name, ".go") })
	if err != nil {
		return err
	}
	gofmt := "gofmt"
	if goroot, err := s.output(ctx, "go", "env", "GOROOT"); err == nil {
		if name := filepath.Join(strings.TrimSpace(goroot), "bin", "gofmt"); isFile(name) {
			gofmt = name
		}
	}
	unformatted, err := s.output(ctx, gofmt, append([]string{"-l", "-s"}, files...)...)
	if err != nil {
		return err
	}
	if unformatted != "" {
		fmt.Print(unformatted)
		return errors.New("run gofmt -s -w on the files above")
	}
	return nil
}

func isFile(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.Mode().IsRegular()
}

func vet(ctx context.Context, s *suite) error { return s.do(ctx, "go", "vet", "./...") }

func lint(ctx context.Context, s *suite) error { return s.do(ctx, "go", "run", staticcheck, "./...") }

// schemas returns the schema files whose generated code is committed.
func (s *suite) schemas() ([]string, error) {
	return s.sourceFiles(func(name string) bool {
		return filepath.Base(name) == "lanebox.yaml" && !strings.HasPrefix(name, "templates"+string(filepath.Separator))
	})
}

// buildLanebox builds the command once per run.
func (s *suite) buildLanebox(ctx context.Context) error {
	if s.lanebox != "" {
		return nil
	}
	bin := filepath.Join(s.tmp, "lanebox")
	if err := s.do(ctx, "go", "build", "-o", bin, "./cmd/lanebox"); err != nil {
		return err
	}
	s.lanebox = bin
	return nil
}

// checkGenerated fails when generated files are stale: those of every schema, and
// the SQL of the reference schema that is kept for readers, which sqlc compiles
// as it stands.
func checkGenerated(ctx context.Context, s *suite) error {
	return errors.Join(
		s.eachSchema(ctx, "--check"),
		checkReferenceSQL(s.root),
		s.do(ctx, "go", "run", "github.com/sqlc-dev/sqlc/cmd/sqlc", "compile"))
}

func generate(ctx context.Context, s *suite) error {
	if err := s.eachSchema(ctx); err != nil {
		return err
	}
	return writeReferenceSQL(s.root)
}

func (s *suite) eachSchema(ctx context.Context, flags ...string) error {
	schemas, err := s.schemas()
	if err != nil {
		return err
	}
	if len(schemas) == 0 {
		return errors.New("no lanebox.yaml with committed code was found")
	}
	if err := s.buildLanebox(ctx); err != nil {
		return err
	}
	var errs []error
	for _, name := range schemas {
		args := append([]string{"generate"}, flags...)
		if err := s.do(ctx, s.lanebox, append(args, name)...); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// packages returns the module's packages, those that run under the race
// detector and the rest. Concurrency lives in the runtime and in what is
// generated; the command links a C parser and has none.
func (s *suite) packages(ctx context.Context) (race, rest []string, err error) {
	out, err := s.output(ctx, "go", "list", "./...")
	if err != nil {
		return nil, nil, err
	}
	module, err := s.output(ctx, "go", "list", "-m")
	if err != nil {
		return nil, nil, err
	}
	prefix := strings.TrimSpace(module) + "/"
	for _, p := range strings.Fields(out) {
		if strings.HasPrefix(p, prefix+"runtime") || strings.HasPrefix(p, prefix+"examples") {
			race = append(race, p)
		} else {
			rest = append(rest, p)
		}
	}
	return race, rest, nil
}

func testRest(ctx context.Context, s *suite) error {
	_, rest, err := s.packages(ctx)
	if err != nil {
		return err
	}
	err = s.goTest(ctx, append([]string{"-count=1", "-timeout=20m"}, rest...)...)
	return errors.Join(err, s.testWithoutRace(ctx))
}

var (
	withoutRace = regexp.MustCompile(`(?m)^//go:build !race$`)
	testFunc    = regexp.MustCompile(`(?m)^func (Test\w+)\(\w+ \*testing\.T\)`) // TestMain is none
)

// testWithoutRace runs the tests of files that the race detector leaves out.
func (s *suite) testWithoutRace(ctx context.Context) error {
	files, err := s.sourceFiles(func(name string) bool { return strings.HasSuffix(name, "_test.go") })
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range files {
		text, err := os.ReadFile(filepath.Join(s.root, name))
		if err != nil {
			return err
		}
		if !withoutRace.Match(text) {
			continue
		}
		var tests []string
		for _, m := range testFunc.FindAllSubmatch(text, -1) {
			tests = append(tests, string(m[1]))
		}
		if len(tests) == 0 {
			continue // helpers of tests
		}
		errs = append(errs, s.goTest(ctx, "-count=1", "-timeout=20m", "-run=^("+strings.Join(tests, "|")+")$", "./"+filepath.ToSlash(filepath.Dir(name))))
	}
	return errors.Join(errs...)
}

func testRace(ctx context.Context, s *suite) error {
	race, _, err := s.packages(ctx)
	if err != nil {
		return err
	}
	if len(race) == 0 {
		return nil
	}
	return s.goTest(ctx, append([]string{"-race", "-count=1", "-timeout=25m"}, race...)...)
}

var fuzzTarget = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`)

// fuzz runs every fuzz target of the repository for a moment.
func fuzz(ctx context.Context, s *suite) error {
	files, err := s.sourceFiles(func(name string) bool { return strings.HasSuffix(name, "_test.go") })
	if err != nil {
		return err
	}
	var errs []error
	targets := 0
	for _, name := range files {
		text, err := os.ReadFile(filepath.Join(s.root, name))
		if err != nil {
			return err
		}
		for _, m := range fuzzTarget.FindAllSubmatch(text, -1) {
			targets++
			target, dir := string(m[1]), "./"+filepath.ToSlash(filepath.Dir(name))
			err := s.do(ctx, "go", "test", "-run=^$", "-fuzz=^"+target+"$", "-fuzztime="+s.fuzzTime.String(), dir)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s in %s: %w", target, dir, err))
			}
		}
	}
	if targets == 0 {
		return errors.New("no fuzz target was found")
	}
	return errors.Join(errs...)
}

// examples runs the commands that the README asks a newcomer to run.
func examples(ctx context.Context, s *suite) error {
	return errors.Join(
		s.do(ctx, "go", "run", "./examples/orders"),
		s.do(ctx, "go", "run", "./examples/fulfilment"))
}

// bench runs every benchmark of the repository.
func bench(ctx context.Context, s *suite) error {
	dirs, err := s.testFolders(regexp.MustCompile(`(?m)^func Benchmark\w+\(`))
	if err != nil || len(dirs) == 0 {
		return errors.Join(err, errors.New("no benchmark was found"))
	}
	return s.do(ctx, "go", append([]string{"test", "-run=^$", "-bench=.", "-benchmem", "-timeout=60m"}, dirs...)...)
}

// crash runs the tests that kill processes, with many more kills than a run of
// all tests has.
func crash(ctx context.Context, s *suite) error {
	s.env = append(s.env, "LANEBOX_TEST_FULL=1")
	dirs, err := s.testFolders(regexp.MustCompile(`(?m)^func Test\w*(Crash|Kill)\w*\(`))
	if err != nil || len(dirs) == 0 {
		return errors.Join(err, errors.New("no crash test was found"))
	}
	return s.goTest(ctx, append([]string{"-count=1", "-timeout=60m", "-run=Crash|Kill"}, dirs...)...)
}

// testFolders returns the folders with a test file that matches, as package
// patterns, sorted.
func (s *suite) testFolders(want *regexp.Regexp) ([]string, error) {
	files, err := s.sourceFiles(func(name string) bool { return strings.HasSuffix(name, ".go") })
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, name := range files {
		text, err := os.ReadFile(filepath.Join(s.root, name))
		if err != nil {
			return nil, err
		}
		if strings.HasSuffix(name, "_test.go") && want.Match(text) {
			dirs = append(dirs, "./"+filepath.ToSlash(filepath.Dir(name)))
		}
	}
	slices.Sort(dirs)
	return slices.Compact(dirs), nil
}
