package cli

import (
	"context"
	"flag"
	"fmt"

	"github.com/lanebox/lanebox/generator"
)

func checkCommand() command {
	var format string
	return command{
		name:    "check",
		args:    "[--format text|json|github] [schema]",
		summary: "find every mistake in a schema, without generating",
		help: `Reads the schema (a file, or a folder with a lanebox.yaml; by default the
lanebox.yaml in the working directory) and reports all its mistakes at once,
each with file, line and column and with what to write instead. The exit status
is 1 if there is an error; warnings alone leave it at 0.

Check needs no Go module and no database. To see whether the generated files
are current, use lanebox generate --check.`,
		flags: func(f *flag.FlagSet) {
			f.StringVar(&format, "format", "text", "`form` of the findings: text, json, or github for annotations in GitHub Actions")
		},
		run: func(_ context.Context, c *call) error {
			if format != "text" && format != "json" && format != "github" {
				return usageError(fmt.Sprintf("unknown format %q: use text, json or github", format))
			}
			s, err := readSchema(c.args)
			if err != nil {
				return err
			}
			m, findings := generator.Check(s.name, s.data)
			switch format {
			case "json":
				err = findings.JSON(c.stdout)
			case "github":
				err = findings.GitHub(c.stdout)
			default:
				err = findings.Text(c.stdout, s.data)
				if err == nil && findings.Errors() == 0 {
					_, err = fmt.Fprintf(c.stdout, "%s: the schema is sound\n", summary(m))
				}
			}
			if err == nil && findings.Errors() > 0 {
				err = errFound
			}
			return err
		},
	}
}
