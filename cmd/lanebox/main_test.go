package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/lanebox/lanebox/generator/sqlc"
	"github.com/lanebox/lanebox/runtime/storetest/testmssql"
)

// asLanebox makes the test program behave as the command, so that tests can run
// it without building it.
const asLanebox = "LANEBOX_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	sqlc.ChildMain()
	if os.Getenv(asLanebox) == "1" {
		main()
		return
	}
	if os.Getenv(asPsql) == "1" {
		if err := psqlMain(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	testscript.Main(m, map[string]func(){"lanebox": main})
}

// TestScripts runs testdata/script, which is the manual of the command as well.
func TestScripts(t *testing.T) {
	repo := repository(t)
	sums, err := os.ReadFile(filepath.Join(repo, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	goEnv := goEnvironment(t)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Vars = append(env.Vars, goEnv...)
			env.Setenv("REPO", repo)
			env.Setenv("LANEBOX_TEST_POSTGRES_URL", os.Getenv("LANEBOX_TEST_POSTGRES_URL"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"service": func(ts *testscript.TestScript, neg bool, args []string) {
				service(ts, repo, string(sums), args)
			},
			"replace":   replace,
			"snapshot":  snapshot,
			"postgres":  postgresDatabase,
			"sqlserver": sqlserverDatabase,
			"query":     query,
		},
		Condition: func(name string) (bool, error) {
			switch name {
			case "postgres":
				// Where everything is required, the script goes on and fails.
				return os.Getenv("LANEBOX_TEST_POSTGRES_URL") != "" || os.Getenv("LANEBOX_TEST_REQUIRE") == "all", nil
			case "sqlserver":
				return os.Getenv(testmssql.Variable) != "", nil
			}
			return false, fmt.Errorf("unknown condition %q", name)
		},
	})
}

// goEnvironment passes on where the go command keeps things, so that scripts
// share its caches.
func goEnvironment(t *testing.T) []string {
	t.Helper()
	names := []string{"GOCACHE", "GOMODCACHE", "GOPROXY", "GOSUMDB", "GOFLAGS", "GOTOOLCHAIN", "GOPATH", "CGO_ENABLED"}
	out, err := exec.Command("go", append([]string{"env"}, names...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	var env []string
	for i, value := range strings.Split(strings.TrimSuffix(string(out), "\n"), "\n") {
		env = append(env, names[i]+"="+value)
	}
	return env
}
