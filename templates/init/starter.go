// Package starter holds the schema that lanebox init writes.
package starter

import _ "embed"

// Schema is the starter schema.
//
//go:embed lanebox.yaml
var Schema string
