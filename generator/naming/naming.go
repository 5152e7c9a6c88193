// Package naming turns schema names into Go identifiers and stable numbers.
//
// A name is split into words at everything that is neither letter nor digit and
// where camel case begins a word. Each word is capitalised, or written in capitals
// if it is one of a fixed list of initialisms, so user_id, user-id, userId and
// UserID all become UserID. The list never changes within a major version, since
// a change would rename what services compile against; go_name in the schema
// overrides a single name.
//
// Whether two names collide is decided on the final identifier, in a Scope.
package naming

import (
	"fmt"
	"go/token"
	"strings"
	"unicode"
	"unicode/utf8"
)

// initialisms are the words written in capitals: golint's list, and plurals.
var initialisms = map[string]string{
	"acl": "ACL", "api": "API", "ascii": "ASCII", "cpu": "CPU", "css": "CSS", "dns": "DNS", "eof": "EOF",
	"guid": "GUID", "html": "HTML", "http": "HTTP", "https": "HTTPS", "id": "ID", "ip": "IP", "json": "JSON",
	"lhs": "LHS", "qps": "QPS", "ram": "RAM", "rhs": "RHS", "rpc": "RPC", "sla": "SLA", "smtp": "SMTP",
	"sql": "SQL", "ssh": "SSH", "tcp": "TCP", "tls": "TLS", "ttl": "TTL", "udp": "UDP", "ui": "UI",
	"uid": "UID", "uri": "URI", "url": "URL", "utf8": "UTF8", "uuid": "UUID", "vm": "VM", "xml": "XML",
	"xmpp": "XMPP", "xsrf": "XSRF", "xss": "XSS",
	"ids": "IDs", "ips": "IPs", "uids": "UIDs", "uris": "URIs", "urls": "URLs", "uuids": "UUIDs", "apis": "APIs",
}

// Words splits a name into its words, as written.
func Words(name string) []string {
	var words []string
	var word []rune
	flush := func() {
		if len(word) > 0 {
			words = append(words, string(word))
			word = nil
		}
	}
	runes := []rune(strings.ToValidUTF8(name, " "))
	for i, r := range runes {
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) {
			flush()
			continue
		}
		if unicode.IsUpper(r) && len(word) > 0 {
			previous := word[len(word)-1]
			next := rune(0)
			if i+1 < len(runes) {
				next = runes[i+1]
			}
			// A capital begins a word after a small letter or digit, and is the
			// last of a run of capitals if a small letter follows: HTTPServer.
			if !unicode.IsUpper(previous) || unicode.IsLower(next) && !pluralEnd(runes, i) {
				flush()
			}
		}
		word = append(word, r)
	}
	flush()
	return words
}

// pluralEnd reports whether the capital at i ends an initialism whose plural s
// follows, as in userIDs.
func pluralEnd(runes []rune, i int) bool {
	return i+1 < len(runes) && runes[i+1] == 's' && (i+2 == len(runes) || !unicode.IsLower(runes[i+2]))
}

// join capitalises words and puts them together.
func join(words []string) string {
	var b strings.Builder
	for _, w := range words {
		b.WriteString(capital(w))
	}
	return b.String()
}

// capital writes one word as it stands inside an identifier.
func capital(word string) string {
	if s, ok := initialisms[strings.ToLower(word)]; ok {
		return s
	}
	r, size := utf8.DecodeRuneInString(word)
	return string(unicode.ToUpper(r)) + word[size:]
}

// Exported returns the exported Go identifier for a schema name, or an error that
// says why there is none.
func Exported(name string) (string, error) {
	id := join(Words(name))
	return id, CheckExported(id)
}

// Suffix returns the identifier for a name that is put behind an exported one, so
// that it may begin with anything. It is empty if name has no letter or digit.
func Suffix(name string) string { return join(Words(name)) }

// CheckExported reports why id cannot be an exported Go identifier, or nil.
func CheckExported(id string) error {
	if id == "" {
		return fmt.Errorf("it has no letter or digit")
	}
	r, _ := utf8.DecodeRuneInString(id)
	switch {
	case unicode.IsDigit(r):
		return fmt.Errorf("a Go name cannot begin with a digit")
	case !token.IsIdentifier(id):
		return fmt.Errorf("%q is not a Go identifier", id)
	case !unicode.IsUpper(r):
		return fmt.Errorf("a Go name that begins with %q is not exported", r)
	}
	return nil
}

// Event returns the exported Go identifier for a topic. The version at its end
// is left out if it is v1: order.placed.v1 is OrderPlaced, order.placed.v2 is
// OrderPlacedV2.
func Event(topic string) (string, error) {
	if stem, ok := strings.CutSuffix(topic, ".v1"); ok && stem != "" {
		topic = stem
	}
	return Exported(topic)
}

// Parameter returns an unexported Go identifier that shadows no keyword, no
// predeclared name and no package that generated code imports, for a schema
// name. A name without letters yields "value".
func Parameter(name string) string {
	words := Words(name)
	for len(words) > 0 && !startsWithLetter(words[0]) {
		words = words[1:]
	}
	if len(words) == 0 {
		return "value"
	}
	id := strings.ToLower(words[0]) + join(words[1:])
	if token.IsExported(id) {
		return "value" // a capital without a small form
	}
	if token.IsKeyword(id) || shadowed[id] {
		id += "Value"
	}
	return id
}

func startsWithLetter(s string) bool {
	r, _ := utf8.DecodeRuneInString(s)
	return unicode.IsLetter(r)
}

// shadowed are the names that a parameter must not hide.
var shadowed = set(
	// predeclared
	"any", "bool", "byte", "comparable", "complex64", "complex128", "error", "float32", "float64", "int", "int8",
	"int16", "int32", "int64", "rune", "string", "uint", "uint8", "uint16", "uint32", "uint64", "uintptr",
	"true", "false", "iota", "nil", "append", "cap", "clear", "close", "complex", "copy", "delete", "imag", "len",
	"make", "max", "min", "new", "panic", "print", "println", "real", "recover",
	// packages of generated code
	"base64", "bytes", "context", "cmp", "embed", "errors", "event", "events", "fmt", "http", "inbox", "json", "lane",
	"lanebox", "maps", "migrate", "outbox", "pgx", "pgxpool", "postgres", "runtime", "schedule", "slices", "sql",
	"sqlite", "strconv", "strings", "sync", "time", "utf8", "uuid", "webhook",
	// what constructors use themselves
	"ctx", "tx", "err", "k", "e",
)

func set(names ...string) map[string]bool {
	m := make(map[string]bool, len(names))
	for _, n := range names {
		m[n] = true
	}
	return m
}

// CheckPackage reports why name cannot be the name of a generated Go package, or
// nil.
func CheckPackage(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("it is empty")
	case token.IsKeyword(name):
		return fmt.Errorf("it is a Go keyword")
	case !token.IsIdentifier(name) || name == "_":
		return fmt.Errorf("it is not a Go identifier")
	case name == "main":
		return fmt.Errorf("package main cannot be imported")
	case strings.ToLower(name) != name:
		return fmt.Errorf("package names are lower case")
	case strings.HasSuffix(name, "_test"):
		return fmt.Errorf("_test marks test packages")
	case shadowed[name] && name != "events" && name != "event":
		return fmt.Errorf("it is the name of something that the generated code uses")
	}
	return nil
}
