// Package cli is the lanebox command: it turns arguments into one call and one
// exit status. Each verb has a file of its own.
package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/lanebox/lanebox/generator/diag"
)

// The exit statuses.
const (
	exitFine  = 0
	exitFound = 1 // something is wrong, or something was found
	exitUsage = 2
)

// A command is one verb.
type command struct {
	name    string
	args    string // how its arguments are written in the usage line
	summary string // one line for the list of verbs
	help    string // what --help explains, after the usage line
	// flags declares the verb's flags; nil if it has none.
	flags func(*flag.FlagSet)
	run   func(context.Context, *call) error
}

// A call is one use of a command.
type call struct {
	args           []string // without flags
	stdout, stderr io.Writer
}

// commands returns the verbs, in the order in which a newcomer meets them.
func commands() []command {
	return []command{
		initCommand(), generateCommand(), checkCommand(), schemaCommand(), migrateCommand(), versionCommand(),
	}
}

// A usageError is a mistake in the arguments.
type usageError string

func (e usageError) Error() string { return string(e) }

// errFound ends a command with status 1 after it has said what it found.
var errFound = errors.New("found something")

// Run carries out one command line, without the program's name, and returns the
// exit status: 0 if all is well, 1 if something is wrong or was found, 2 if the
// arguments make no sense. When ctx ends, Run stops and returns 1.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		printVerbs(stderr)
		return exitUsage
	}
	switch args[0] {
	case "help", "-h", "-help", "--help":
		return help(args[1:], stdout, stderr)
	case "-version", "--version":
		args[0] = "version"
	}
	cmd, err := lookUp(args[0])
	if err != nil {
		fmt.Fprintln(stderr, "lanebox:", err)
		return exitUsage
	}
	c := &call{stdout: stdout, stderr: stderr}
	set := flagSet(cmd)
	if c.args, err = parse(set, args[1:]); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			printHelp(stdout, cmd)
			return exitFine
		}
		err = usageError(err.Error())
	} else {
		err = cmd.run(ctx, c)
	}
	return status(ctx, cmd, err, stderr)
}

// status reports err and returns the exit status for it.
func status(ctx context.Context, cmd command, err error, stderr io.Writer) int {
	var usage usageError
	switch {
	case err == nil:
		return exitFine
	case errors.Is(err, errFound):
		return exitFound
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "lanebox %s: %v\nusage: lanebox %s %s\nRun lanebox %s --help for more.\n", cmd.name, err, cmd.name, cmd.args, cmd.name)
		return exitUsage
	case ctx.Err() != nil:
		fmt.Fprintf(stderr, "lanebox %s: interrupted\n", cmd.name)
		return exitFound
	}
	fmt.Fprintf(stderr, "lanebox %s: %v\n", cmd.name, err)
	return exitFound
}

func lookUp(name string) (command, error) {
	var names []string
	for _, cmd := range commands() {
		if cmd.name == name {
			return cmd, nil
		}
		names = append(names, cmd.name)
	}
	hint := diag.DidYouMean(name, names)
	if hint == "" {
		hint = "the verbs are " + strings.Join(names, ", ")
	}
	return command{}, fmt.Errorf("unknown verb %q: %s", name, hint)
}

func flagSet(cmd command) *flag.FlagSet {
	set := flag.NewFlagSet(cmd.name, flag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.Usage = func() {}
	if cmd.flags != nil {
		cmd.flags(set)
	}
	return set
}

// parse reads flags before, between and after the arguments, up to "--".
func parse(set *flag.FlagSet, args []string) (rest []string, err error) {
	for {
		if err := set.Parse(args); err != nil {
			return nil, err
		}
		taken := len(args) - set.NArg()
		if taken > 0 && args[taken-1] == "--" || set.NArg() == 0 {
			return append(rest, set.Args()...), nil
		}
		rest = append(rest, set.Arg(0))
		args = set.Args()[1:]
	}
}

// help explains one verb, or lists all.
func help(args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		printVerbs(stdout)
		return exitFine
	}
	cmd, err := lookUp(args[0])
	if err != nil {
		fmt.Fprintln(stderr, "lanebox:", err)
		return exitUsage
	}
	printHelp(stdout, cmd)
	return exitFine
}

func printVerbs(w io.Writer) {
	fmt.Fprint(w, `lanebox generates typed, ordered messaging for a Go service from a schema,
lanebox.yaml. The messages go through tables in the service's own database.

usage: lanebox <verb> [flags] [arguments]

`)
	for _, cmd := range commands() {
		fmt.Fprintf(w, "  %-10s %s\n", cmd.name, cmd.summary)
	}
	fmt.Fprint(w, "\nRun lanebox <verb> --help to learn about a verb.\nExit status: 0 all is well, 1 something is wrong or was found, 2 wrong usage.\n")
}

func printHelp(w io.Writer, cmd command) {
	fmt.Fprintf(w, "usage: lanebox %s\n\n%s\n", strings.TrimSpace(cmd.name+" "+cmd.args), strings.TrimSpace(cmd.help))
	title := "\nflags:\n"
	flagSet(cmd).VisitAll(func(f *flag.Flag) {
		value, usage := flag.UnquoteUsage(f)
		fmt.Fprintf(w, "%s  %-18s %s\n", title, strings.TrimSpace("--"+f.Name+" "+value), usage)
		title = ""
	})
}

// getenv is where commands read the environment.
var getenv = os.Getenv
