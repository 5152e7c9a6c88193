package resolve

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"unicode"
)

var headerName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+\\-.^_`|~]+$")

// ruleProblem says why s is no extraction rule, or "". A path is a JSONPath that
// leads to at most one value.
func ruleProblem(s string) string {
	if name, ok := strings.CutPrefix(s, "header:"); ok {
		if !headerName.MatchString(strings.TrimSpace(name)) {
			return "does not name an HTTP header"
		}
		return ""
	}
	rest, ok := strings.CutPrefix(s, "$")
	switch {
	case !ok:
		return "is neither a path nor a header"
	case rest == "":
		return "is the whole body, not a value in it"
	case len(s) > 1000:
		return "is too long"
	}
	for rest != "" {
		step, problem := pathStep(rest)
		if problem != "" {
			return problem
		}
		rest = rest[step:]
	}
	return ""
}

var (
	dotName  = regexp.MustCompile(`^\.[A-Za-z_\x{80}-\x{10FFFF}][A-Za-z0-9_\x{80}-\x{10FFFF}]*`)
	index    = regexp.MustCompile(`^\[[ ]*(?:0|[1-9][0-9]{0,8})[ ]*\]`)
	quoted   = regexp.MustCompile(`^\[[ ]*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)')[ ]*\]`)
	manifold = regexp.MustCompile(`^(?:\.\.|\.?\*|\[[ ]*(?:\*|\?|:|-?[0-9]*[ ]*:|-))`)
)

// pathStep returns the length of the step that s begins with, or what is wrong
// with it.
func pathStep(s string) (int, string) {
	for _, r := range s {
		if unicode.IsControl(r) {
			return 0, "contains a control character"
		}
	}
	if m := dotName.FindString(s); m != "" {
		if next := s[len(m):]; next != "" && next[0] != '.' && next[0] != '[' {
			return 0, fmt.Sprintf("has an odd character after %q; write such a name as ['name']", m)
		}
		return len(m), ""
	}
	if m := index.FindString(s); m != "" {
		return len(m), ""
	}
	if m := quoted.FindStringSubmatch(s); m != nil {
		if !validEscapes(m[1] + m[2]) {
			return 0, "has a quoted name with a wrong escape"
		}
		return len(m[0]), ""
	}
	if manifold.MatchString(s) {
		return 0, "may lead to several values"
	}
	return 0, fmt.Sprintf("cannot be understood from %q on", s)
}

// validEscapes reports whether the escapes of a quoted name are those of JSON, or
// an escaped single quote.
func validEscapes(s string) bool {
	s = strings.ReplaceAll(s, `\\`, `\u005c`)
	s = strings.ReplaceAll(s, `\'`, `'`)
	s = strings.ReplaceAll(s, `\"`, `\u0022`)
	s = strings.ReplaceAll(s, `"`, `\u0022`)
	return json.Valid([]byte(`"` + s + `"`))
}
