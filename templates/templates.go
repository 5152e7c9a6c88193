// Package templates holds the text templates of generated SQL and of generated
// stores, one folder per dialect.
package templates

import "embed"

// FS holds every template: sql/<dialect>/*.tmpl and go/<dialect>/*.tmpl.
//
//go:embed sql/*/*.tmpl go/*/*.tmpl
var FS embed.FS
