package cli

import (
	"context"
	"fmt"
	"runtime/debug"

	"github.com/lanebox/lanebox/runtime"
)

func versionCommand() command {
	return command{
		name:    "version",
		summary: "print the version",
		help: `Prints the version of lanebox, of sqlc, which compiles the SQL, and of Go.
The module version says which release this is; the runtime version is the one
that generated code asks for.`,
		run: func(_ context.Context, c *call) error {
			if len(c.args) > 0 {
				return usageError("takes no arguments")
			}
			module, sqlc, goVersion := "(unknown)", "(unknown)", "(unknown)"
			if info, ok := debug.ReadBuildInfo(); ok {
				module, goVersion = versionOf(info, "github.com/lanebox/lanebox"), info.GoVersion
				sqlc = versionOf(info, "github.com/sqlc-dev/sqlc")
			}
			_, err := fmt.Fprintf(c.stdout, "lanebox %s (runtime %s, sqlc %s, %s)\n", module, runtime.Version, sqlc, goVersion)
			return err
		},
	}
}

// versionOf returns the version of a module in the build.
func versionOf(info *debug.BuildInfo, path string) string {
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path != path {
			continue
		}
		if m.Replace != nil && m.Replace.Version != "" {
			return m.Replace.Version
		}
		if m.Version != "" {
			return m.Version
		}
	}
	return "(devel)"
}
