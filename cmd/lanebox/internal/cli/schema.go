package cli

import (
	"context"

	"github.com/lanebox/lanebox/generator/schema"
)

func schemaCommand() command {
	return command{
		name:    "schema",
		summary: "print the JSON Schema of lanebox.yaml, for editors",
		help: `Prints a JSON Schema of the schema file, made from the tables that the loader
itself uses, so that editors complete and check lanebox.yaml while it is typed:

  lanebox schema > lanebox.schema.json

and, as the first line of lanebox.yaml,

  # yaml-language-server: $schema=./lanebox.schema.json`,
		run: func(_ context.Context, c *call) error {
			if len(c.args) > 0 {
				return usageError("takes no arguments")
			}
			_, err := c.stdout.Write(schema.JSONSchema())
			return err
		},
	}
}
