//go:build unix

package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestReporterCounts(t *testing.T) {
	events := `{"Action":"start","Package":"p"}
{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"pass","Package":"p","Test":"TestA/sub"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p","Test":"TestB"}
{"Action":"skip","Package":"p","Test":"TestC"}
{"Action":"fail","Package":"p"}
{"Action":"skip","Package":"no/tests"}
{"ImportPath":"q","Action":"build-output","Output":""}
{"Action":"fail","Package":"q","FailedBuild":"q"}
{"Action":"output","Package":"r","Test":"TestPanics","Output":""}
{"Action":"fail","Package":"r"}
{"Action":"pass","Package":"s","Test":"TestD"}
{"Action":"pass","Package":"s"}`
	var c counts
	r := reporter{counts: &c, output: map[string][]string{}, failed: map[string]bool{}}
	if err := r.read(strings.NewReader(events)); err != nil {
		t.Fatal(err)
	}
	if c.passed != 3 {
		t.Errorf("passed %d, want 3", c.passed)
	}
	if want := []string{"p TestB", "q", "r TestPanics (did not end)"}; !slices.Equal(c.failed, want) {
		t.Errorf("failed %q, want %q", c.failed, want)
	}
	if want := []string{"p TestC"}; !slices.Equal(c.skipped, want) {
		t.Errorf("skipped %q, want %q", c.skipped, want)
	}
}

// scratch returns a suite in a module with one test of the given body.
func scratch(t *testing.T, body string) *suite {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "a path with spaces")
	for name, text := range map[string]string{
		"go.mod":    "module example.com/scratch\n\ngo 1.26.0\n",
		"a_test.go": "package scratch\n\nimport \"testing\"\n\nfunc TestIt(t *testing.T) { " + body + " }\n",
	} {
		if err := os.MkdirAll(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	return &suite{root: dir, tmp: t.TempDir(), env: append(os.Environ(), "GOFLAGS=", "GOWORK=off")}
}

func TestGoTestFailsOnFailuresAndSkips(t *testing.T) {
	for body, want := range map[string]string{
		"":                                   "",
		`t.Error("no")`:                      "1 tests failed",
		`t.Skip("no server")`:                "1 tests were skipped",
		`var x int`:                          "1 tests failed", // does not build
		`go panic("in the back"); select {}`: "1 tests failed",
	} {
		got := ""
		if err := scratch(t, body).goTest(t.Context(), "./..."); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("test %q: got %q, want %q", body, got, want)
		}
	}
}

// Without a SQL Server its tests may be skipped, and no others; with one, none.
func TestOnlyTheAbsenceOfSQLServerIsForgiven(t *testing.T) {
	skip := `t.Skip("` + noSQLServer + `")`
	for _, c := range []struct {
		body, given, want string
		absent            int
	}{
		{skip, "", "", 1},
		{skip, "sqlserver://somewhere", "1 tests were skipped", 0},
		{`t.Skip("no disk: ` + noSQLServer + `")`, "", "1 tests were skipped", 0},
		{`t.Skip("` + noSQLServer + ` here")`, "", "1 tests were skipped", 0},
		{`t.Run("sub", func(t *testing.T) { ` + skip + ` }); t.Run("other", func(t *testing.T) { t.Skip("no") })`, "", "1 tests were skipped", 1},
	} {
		s := scratch(t, c.body)
		s.env = append(slices.DeleteFunc(s.env, func(v string) bool { return strings.HasPrefix(v, sqlServer+"=") }), sqlServer+"="+c.given)
		got := ""
		if err := s.goTest(t.Context(), "./..."); err != nil {
			got = err.Error()
		}
		if got != c.want || s.count.absent != c.absent {
			t.Errorf("test %q with server %q: got %q and %d absent, want %q and %d", c.body, c.given, got, s.count.absent, c.want, c.absent)
		}
	}
	text, err := os.ReadFile("../../runtime/storetest/testmssql/testmssql.go")
	if err != nil || !strings.Contains(string(text), `const Skipped = "`+noSQLServer+`"`) {
		t.Errorf("testmssql skips with another text: %v", err)
	}
}

func TestFormatStepFindsFiles(t *testing.T) {
	s := scratch(t, "")
	if err := os.WriteFile(filepath.Join(s.root, "a_test.go"), []byte("package scratch\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := checkFormat(t.Context(), s); err != nil {
		t.Errorf("formatted: %v", err)
	}
	if err := os.WriteFile(filepath.Join(s.root, "b.go"), []byte("package scratch\nvar   A = 1\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := checkFormat(t.Context(), s); err == nil {
		t.Error("an unformatted file was accepted")
	}
}

func TestChooseRefusesUnknownSteps(t *testing.T) {
	if _, err := choose([]string{"vet", "vett"}); err == nil {
		t.Error("no error")
	}
	chosen, err := choose(nil)
	if err != nil || chosen[0].name != "format" || slices.ContainsFunc(chosen, func(s step) bool { return s.name == "crash" }) {
		t.Errorf("default steps %v, %v", chosen, err)
	}
}

// The watchdog must stop the server and remove its folder even when the program
// that started it is killed: what it waits for is the end of a pipe.
func TestWatchdogStopsProcess(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a folder")
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	server := exec.Command("sleep", "600")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan error, 1)
	go func() { exited <- server.Wait() }()
	release, err := watchdog(server.Process.Pid, dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(server.Process.Pid, 0); err != nil {
		t.Errorf("stopped too early: %v", err)
	}
	release()
	select {
	case <-exited:
	case <-time.After(30 * time.Second):
		t.Error("process " + strconv.Itoa(server.Process.Pid) + " still runs")
		server.Process.Kill()
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("folder is still there: %v", err)
	}
}

func TestStepsStopWithTheContext(t *testing.T) {
	s := scratch(t, "select {}")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.goTest(ctx, "./...") }()
	cancel()
	select {
	case err := <-done:
		if err == nil {
			t.Error("no error")
		}
	case <-time.After(time.Minute):
		t.Error("still runs")
	}
}

func TestFunctionsOfTests(t *testing.T) {
	text := "func TestMain(m *testing.M) {\nfunc TestOne(t *testing.T) {\nfunc TestTwo(x *testing.T) { go f() }\nfunc testNone(t *testing.T) {\n"
	var names []string
	for _, m := range testFunc.FindAllStringSubmatch(text, -1) {
		names = append(names, m[1])
	}
	if got := strings.Join(names, " "); got != "TestOne TestTwo" {
		t.Errorf("found %q", got)
	}
}
