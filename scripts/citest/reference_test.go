//go:build unix

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The sql folder is found stale, incomplete and overfull, and is brought in line.
func TestReferenceSQL(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		full := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(full), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for _, dialect := range []string{"postgres", "sqlite", "sqlserver"} {
		write(referenceOutput+"/"+dialect+"/schema.sql", dialect)
		write(referenceOutput+"/"+dialect+"/migrations/0001_outbox.sql", dialect)
	}
	finds := func(want string) {
		t.Helper()
		if err := checkReferenceSQL(root); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the check says %v, want %q", err, want)
		}
	}
	current := func() {
		t.Helper()
		if err := writeReferenceSQL(root); err != nil {
			t.Fatal(err)
		}
		if err := checkReferenceSQL(root); err != nil {
			t.Errorf("after writing: %v", err)
		}
	}

	finds("sql/postgres/schema.sql")
	current()
	write("sql/migration/sqlite/0001_outbox.sql", "changed by hand")
	finds("sql/migration/sqlite/0001_outbox.sql is stale")
	current()
	write("sql/migration/sqlite/0002_old.sql", "")
	finds("sql/migration/sqlite/0002_old.sql is no longer generated")
	current()
	write("sql/README.md", "for people")
	current()
}
