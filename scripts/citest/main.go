//go:build unix

// Citest runs everything that must hold before a change lands, in the order
// that fails fastest, and prints how long each step took. It is what make test
// runs; see -help for running single steps.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// A step is one part of the run.
type step struct {
	name string
	// byDefault says that the step runs when none is named.
	byDefault bool
	run       func(context.Context, *suite) error
}

var steps = []step{
	{"format", true, checkFormat},
	{"vet", true, vet},
	{"lint", true, lint},
	{"generated", true, checkGenerated},
	{"test", true, testRest},
	{"race", true, testRace},
	{"fuzz", true, fuzz},
	{"examples", true, examples},
	{"bench", false, bench},
	{"crash", false, crash},
	{"generate", false, generate},
}

// A suite is one run.
type suite struct {
	root     string // the repository
	tmp      string // removed at the end
	env      []string
	fuzzTime time.Duration
	count    counts
	lanebox  string // the command, built once; see command
}

func main() {
	fuzzTime := flag.Duration("fuzztime", 5*time.Second, "`duration` of each fuzz target")
	limit := flag.Duration("limit", time.Hour, "stop after this `duration`")
	flag.Usage = usage
	flag.Parse()
	chosen, err := choose(flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "citest:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	ctx, cancel := context.WithTimeoutCause(ctx, *limit, fmt.Errorf("not done within %s", *limit))
	defer cancel()
	if err := run(ctx, chosen, *fuzzTime); err != nil {
		fmt.Fprintln(os.Stderr, "citest:", err)
		stop()
		os.Exit(1)
	}
}

func usage() {
	w := flag.CommandLine.Output()
	fmt.Fprint(w, "usage: citest [flags] [step ...]\n\nsteps:")
	for _, s := range steps {
		fmt.Fprint(w, " ", s.name)
		if !s.byDefault {
			fmt.Fprint(w, " (only when named)")
		}
	}
	fmt.Fprint(w, "\n\nTests find PostgreSQL through LANEBOX_TEST_POSTGRES_URL. If that is not set, a\nserver is started from installed binaries, from freshly installed ones (apt-get,\nas root), or with docker compose, and stopped again at the end. RabbitMQ likewise\n(LANEBOX_TEST_RABBITMQ_URL), without docker compose.\n\n")
	flag.PrintDefaults()
}

func choose(names []string) ([]step, error) {
	var chosen []step
	for _, s := range steps {
		if slices.Contains(names, s.name) || len(names) == 0 && s.byDefault {
			chosen = append(chosen, s)
		}
	}
	for _, n := range names {
		if !slices.ContainsFunc(steps, func(s step) bool { return s.name == n }) {
			return nil, fmt.Errorf("no step %q", n)
		}
	}
	return chosen, nil
}

// run carries out the steps. A failed step does not keep the next from running,
// so that one run shows everything that is wrong.
func run(ctx context.Context, chosen []step, fuzzTime time.Duration) (err error) {
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp("", "lanebox-test-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	s := &suite{root: root, tmp: tmp, fuzzTime: fuzzTime}
	s.env = append(os.Environ(), "LANEBOX_TEST_REQUIRE=all")

	began := time.Now()
	var times []string
	timed := func(name string, f func() error) error {
		fmt.Printf("=== %s\n", name)
		start := time.Now()
		err := f()
		took := time.Since(start).Round(100 * time.Millisecond)
		verdict := "ok"
		if err != nil {
			verdict = "FAILED: " + err.Error()
		}
		times = append(times, fmt.Sprintf("%8s  %-10s %s", took, name, verdict))
		return err
	}

	if needsDatabase(chosen) {
		var stop, stopRabbit func()
		err := timed("postgres", func() (err error) {
			stop, err = s.providePostgres(ctx)
			return err
		})
		if err != nil {
			return fmt.Errorf("provide PostgreSQL: %w", err)
		}
		defer stop()
		s.provideNPM(ctx)
		err = timed("rabbitmq", func() (err error) {
			stopRabbit, err = s.provideRabbitMQ(ctx)
			return err
		})
		if err != nil {
			return fmt.Errorf("provide RabbitMQ: %w", err)
		}
		defer stopRabbit()
	}
	failed := 0
	for _, st := range chosen {
		if ctx.Err() != nil {
			break
		}
		if err := timed(st.name, func() error { return st.run(ctx, s) }); err != nil {
			fmt.Printf("--- %s: %v\n", st.name, err)
			failed++
		}
	}
	fmt.Printf("\n%s\n%8s  total\n", strings.Join(times, "\n"), time.Since(began).Round(100*time.Millisecond))
	for _, name := range s.count.skipped {
		fmt.Println("skipped:", name)
	}
	for _, name := range s.count.failed {
		fmt.Println("failed:", name)
	}
	if s.count.absent > 0 {
		fmt.Printf("SQL Server: not given, its suite did not run (%d tests; see %s)\n", s.count.absent, sqlServer)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if s.count.passed+len(s.count.failed) > 0 {
		fmt.Printf("%d passed, %d failed\n", s.count.passed, len(s.count.failed))
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d steps failed", failed, len(chosen))
	}
	return nil
}

func needsDatabase(chosen []step) bool {
	return slices.ContainsFunc(chosen, func(s step) bool {
		return slices.Contains([]string{"test", "race", "examples", "bench", "crash"}, s.name)
	})
}

// moduleRoot returns the folder of go.mod, above the working directory.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("no go.mod here or above")
		}
		dir = filepath.Dir(dir)
	}
}

// sourceFiles returns the files of the repository, relative to its root, that
// pass keep; folders that hold no source of ours are left out.
func (s *suite) sourceFiles(keep func(name string) bool) ([]string, error) {
	var files []string
	err := filepath.WalkDir(s.root, func(name string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := d.Name()
		if d.IsDir() {
			if name != s.root && (strings.HasPrefix(base, ".") || base == "testdata" || base == "vendor" || base == "node_modules") {
				return filepath.SkipDir
			}
			return nil
		}
		if rel, _ := filepath.Rel(s.root, name); keep(rel) {
			files = append(files, rel)
		}
		return nil
	})
	return files, err
}
