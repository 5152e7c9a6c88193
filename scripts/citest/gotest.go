//go:build unix

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// counts sums up what go test reported.
type counts struct {
	passed          int
	failed, skipped []string
	// absent counts the tests that were skipped because no SQL Server is given.
	absent int
}

// sqlServer names the server of some tests, and noSQLServer is what they say when
// they are skipped without it: the one thing that tests may miss, since it cannot
// be installed everywhere. See runtime/storetest/testmssql.
const (
	sqlServer   = "LANEBOX_TEST_SQLSERVER_URL"
	noSQLServer = "SQL Server: " + sqlServer + " is not set"
)

// A testEvent is a line of go test -json.
type testEvent struct {
	Action  string
	Package string
	Test    string
	Output  string
}

// goTest runs go test and fails when a test failed, or was skipped: a skipped
// suite proves nothing. The output of tests that pass is not shown.
func (s *suite) goTest(ctx context.Context, args ...string) error {
	r := s.reporter()
	failedBefore, skippedBefore := len(s.count.failed), len(s.count.skipped)
	err := s.stream(ctx, r.read, "go", append([]string{"test", "-json"}, args...)...)
	failed, skipped := len(s.count.failed)-failedBefore, len(s.count.skipped)-skippedBefore
	switch {
	case failed > 0:
		return fmt.Errorf("%d tests failed", failed)
	case err != nil:
		return err
	case skipped > 0:
		return fmt.Errorf("%d tests were skipped", skipped)
	case r.ran == 0:
		return errors.New("no test ran")
	}
	return nil
}

// A reporter turns events into what a person wants to read.
type reporter struct {
	counts *counts
	ran    int
	output map[string][]string // by package and test
	failed map[string]bool     // packages with a failed test
	// mayMiss says that no SQL Server was given.
	mayMiss bool
}

func (s *suite) reporter() reporter {
	given := slices.ContainsFunc(s.env, func(v string) bool { return strings.HasPrefix(v, sqlServer+"=") && v != sqlServer+"=" })
	return reporter{counts: &s.count, output: map[string][]string{}, failed: map[string]bool{}, mayMiss: !given}
}

func (r *reporter) read(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			var e testEvent
			if json.Unmarshal([]byte(line), &e) == nil {
				r.event(e)
			} else {
				fmt.Print(line)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *reporter) event(e testEvent) {
	name := e.Package + " " + e.Test
	switch e.Action {
	case "build-output":
		fmt.Print(e.Output)
	case "output":
		r.output[name] = append(r.output[name], e.Output)
	case "pass", "fail", "skip":
		if e.Test != "" {
			r.test(name, e)
		} else {
			r.pkg(name, e)
		}
		delete(r.output, name)
	}
}

// test notes the end of a test. A test with sub-tests counts beside them.
func (r *reporter) test(name string, e testEvent) {
	r.ran++
	switch e.Action {
	case "pass":
		r.counts.passed++
	case "fail":
		r.counts.failed = append(r.counts.failed, name)
		r.failed[e.Package] = true
		fmt.Print(strings.Join(r.output[name], ""))
	case "skip":
		if r.mayMiss && slices.ContainsFunc(r.output[name], saysNoSQLServer) {
			r.counts.absent++
			return
		}
		r.counts.skipped = append(r.counts.skipped, name)
		fmt.Print(strings.Join(r.output[name], ""))
	}
}

// saysNoSQLServer reports whether a line of output says that there is no SQL
// Server, and nothing else.
func saysNoSQLServer(line string) bool {
	_, text, found := strings.Cut(strings.TrimSpace(line), ".go:") // the place where the test was skipped
	if !found {
		return false
	}
	_, text, _ = strings.Cut(text, ": ")
	return text == noSQLServer
}

// pkg notes the end of a package. Its output holds what no test owns: a panic,
// a data race outside of tests, a build that failed. A panic leaves tests
// without an end; their output is shown too.
func (r *reporter) pkg(name string, e testEvent) {
	if e.Action != "fail" {
		for _, line := range r.output[name] {
			if strings.HasPrefix(line, "ok ") {
				fmt.Print(line)
			}
		}
		return
	}
	for other, lines := range r.output {
		if other != name && strings.HasPrefix(other, e.Package+" ") {
			r.counts.failed = append(r.counts.failed, other+" (did not end)")
			r.failed[e.Package] = true
			fmt.Print(strings.Join(lines, ""))
		}
	}
	fmt.Print(strings.Join(r.output[name], ""))
	if !r.failed[e.Package] {
		r.counts.failed = append(r.counts.failed, e.Package)
	}
}
