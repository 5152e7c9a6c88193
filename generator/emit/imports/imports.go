// Package imports arranges the imports of generated Go files.
package imports

import (
	"regexp"
	"slices"
	"strings"
)

var importBlock = regexp.MustCompile(`(?s)\nimport \(\n(.*?)\n\)\n`)

// Group puts the standard library first in the block of imports, and the
// rest behind an empty line, as goimports does. jennifer sorts all by their paths.
// own is an import path of the service; without it, paths without a dot are the
// standard library's.
func Group(source []byte, own string) []byte {
	at := importBlock.FindSubmatchIndex(source)
	if at == nil {
		return source // none, or a single one
	}
	var standard, others []string
	for line := range strings.Lines(string(source[at[2]:at[3]]) + "\n") {
		if IsStandard(line[strings.Index(line, `"`)+1:], own) {
			standard = append(standard, line)
		} else {
			others = append(others, line)
		}
	}
	if standard == nil || others == nil {
		return source
	}
	block := strings.Join(standard, "") + "\n" + strings.TrimSuffix(strings.Join(others, ""), "\n")
	return slices.Concat(source[:at[2]], []byte(block), source[at[3]:])
}

// IsStandard reports whether an import path looks like one of the standard
// library: its first element has no dot, and is not that of the service.
func IsStandard(importPath, own string) bool {
	first, _, _ := strings.Cut(strings.TrimRight(importPath, "\"\n"), "/")
	service, _, _ := strings.Cut(own, "/")
	return !strings.Contains(first, ".") && first != service
}
