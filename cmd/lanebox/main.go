// Lanebox generates typed, ordered messaging through a service's own database
// from a schema. Run it with --help for its verbs.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/lanebox/lanebox/cmd/lanebox/internal/cli"
	"github.com/lanebox/lanebox/generator/sqlc"
)

func main() {
	sqlc.ChildMain() // the generator runs this program again as sqlc
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	status := cli.Run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}
