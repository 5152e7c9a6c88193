package resolve

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/lanebox/lanebox/generator/diag"
	"github.com/lanebox/lanebox/generator/dialect"
	"github.com/lanebox/lanebox/generator/naming"
	"github.com/lanebox/lanebox/generator/schema"
)

const (
	maxIdentifier = 63 // bytes of a PostgreSQL identifier
	// maxPrefix leaves room for lanebox's own names behind the prefix.
	maxPrefix = 24
)

// settings resolves version, go, dialects and database.
func (r *resolver) settings() {
	f := r.file
	if f.Version.Set && f.Version.V != 1 {
		r.report(f.Version.Mark, "version", "write version: 1", "version %d of the schema language is not known to this lanebox", f.Version.V)
	}
	r.goSettings(f.Go)
	r.dialects(f.Dialects)
	r.database(f.Database)
}

// goSettings resolves the package and its folder.
func (r *resolver) goSettings(g schema.Go) {
	r.model.Go.Package = "events"
	if g.Package.Set {
		r.model.Go.Package = g.Package.V
		if err := naming.CheckPackage(g.Package.V); err != nil {
			r.report(g.Package.Mark, "go-package", "", "%q cannot be the name of a generated package: %v", g.Package.V, err)
		}
	}
	r.model.Go.Out = "internal/" + r.model.Go.Package
	if !g.Out.Set {
		return
	}
	r.model.Go.Out = path.Clean(g.Out.V)
	switch {
	case strings.Contains(g.Out.V, `\`):
		r.report(g.Out.Mark, "go-out", "write / between folders", "go: out %q contains a backslash", g.Out.V)
	case path.IsAbs(g.Out.V) || len(g.Out.V) > 1 && g.Out.V[1] == ':':
		r.report(g.Out.Mark, "go-out", "write a path relative to the schema", "go: out %q is an absolute path", g.Out.V)
	case !outPath.MatchString(r.model.Go.Out):
		r.report(g.Out.Mark, "go-out", "use ASCII letters, digits and -._~", "go: out %q cannot be part of an import path", g.Out.V)
	case slices.Contains(strings.Split(r.model.Go.Out, "/"), "vendor"):
		r.report(g.Out.Mark, "go-out", "name a folder of its own, such as internal/events", "go: out %q lies in a vendor folder, which holds the packages of others", g.Out.V)
	case r.model.Go.Out == "." || strings.HasSuffix(r.model.Go.Out, ".."):
		r.report(g.Out.Mark, "go-out", "name a folder of its own, such as internal/events", "go: out %q is not a folder that generated code can have to itself", g.Out.V)
	}
}

var outPath = regexp.MustCompile(`^[A-Za-z0-9\-._~/+]+$`)

// dialects resolves the databases to generate for.
func (r *resolver) dialects(list []schema.Text) {
	if len(list) == 0 && !r.file.Faulty {
		r.report(schema.Mark{}, "no-dialect", "write dialects: [postgres]", `the schema has no "dialects"`)
	}
	for _, d := range list {
		switch {
		case !slices.Contains(dialect.Names(), d.V):
			r.report(d.Mark, "unknown-dialect", diag.OneOf(d.V, dialect.Names()), "unknown dialect %q", d.V)
		case slices.Contains(r.model.Dialects, d.V):
			r.report(d.Mark, "duplicate", "", "duplicate dialect %q", d.V)
		default:
			r.model.Dialects = append(r.model.Dialects, d.V)
		}
	}
	slices.Sort(r.model.Dialects)
}

// database resolves the names of tables.
func (r *resolver) database(d schema.Database) {
	if d.Schema.Set {
		r.model.Database.Schema = d.Schema.V
		if problem := r.schemaProblem(d.Schema.V); problem != "" {
			r.report(d.Schema.Mark, "database-name", "", "database: schema %q %s", d.Schema.V, problem)
		}
	}
	r.model.Database.Prefix = d.Prefix.V
	if d.Prefix.V == "" {
		return
	}
	switch {
	case !tablePrefix.MatchString(d.Prefix.V):
		r.report(d.Prefix.Mark, "database-name", "use ASCII letters, digits and _, and begin with a letter", "database: prefix %q cannot begin a table name", d.Prefix.V)
	case len(d.Prefix.V) > maxPrefix:
		r.report(d.Prefix.Mark, "database-name", "", "database: prefix has %d bytes; the limit is %d, so that all names fit into %d", len(d.Prefix.V), maxPrefix, maxIdentifier)
	case strings.HasPrefix(strings.ToLower(d.Prefix.V), "sqlite_"), strings.HasPrefix(strings.ToLower(d.Prefix.V), "pg_"):
		r.report(d.Prefix.Mark, "database-name", "", "database: prefix %q is reserved by the database", d.Prefix.V)
	}
}

var tablePrefix = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// reservedSchemas are the schemas that belong to SQL Server itself.
var reservedSchemas = []string{"sys", "guest", "db_owner", "db_accessadmin", "db_backupoperator", "db_datareader", "db_datawriter",
	"db_ddladmin", "db_denydatareader", "db_denydatawriter", "db_securityadmin"}

// schemaProblem says why s cannot name a database schema, or "". Names that need
// quotes in SQL are fine.
func (r *resolver) schemaProblem(s string) string {
	switch {
	case slices.Contains(r.model.Dialects, "sqlserver") && slices.Contains(reservedSchemas, strings.ToLower(s)):
		return "is reserved by SQL Server"
	case s == "":
		return "is empty"
	case len(s) > maxIdentifier:
		return fmt.Sprintf("has %d bytes; the limit is %d", len(s), maxIdentifier)
	case strings.TrimSpace(s) != s:
		return "begins or ends with a blank"
	case strings.HasPrefix(strings.ToLower(s), "pg_"), strings.ToLower(s) == "information_schema":
		return "is reserved by the database"
	}
	for _, c := range s {
		if !unicode.IsLetter(c) && !unicode.IsDigit(c) && !strings.ContainsRune("_- ", c) {
			return fmt.Sprintf("contains %q; use letters, digits, _, - and blanks", c)
		}
	}
	return ""
}

// lineEnds turns every character that some reader takes for a line end into LF.
var lineEnds = strings.NewReplacer("\r\n", "\n", "\r", "\n", "\u0085", "\n", "\u2028", "\n", "\u2029", "\n", "\v", "\n", "\f", "\n")

// cleanDoc makes a description safe to print line by line behind a comment mark,
// whatever it contains.
func cleanDoc(s string) string {
	if s == "" {
		return ""
	}
	lines := strings.Split(lineEnds.Replace(strings.ToValidUTF8(s, "\uFFFD")), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(strings.Map(func(c rune) rune {
			switch {
			case c == '\t':
				return ' '
			case unicode.IsControl(c), c == 0xFEFF, unicode.In(c, unicode.Bidi_Control):
				return -1
			}
			return c
		}, line), " ")
	}
	return strings.Trim(strings.Join(lines, "\n"), "\n")
}
