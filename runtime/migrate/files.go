package migrate

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// Files reads a set from the files of a folder named migrations: the numbered
// steps in the order of their names, and repeatable.sql. Tables and scopes are
// the caller's to fill in.
func Files(files fs.FS) (Set, error) {
	names, err := fs.Glob(files, "migrations/*.sql")
	if err != nil {
		return Set{}, fmt.Errorf("read migrations: %w", err)
	}
	slices.Sort(names)
	var s Set
	for _, name := range names {
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return Set{}, fmt.Errorf("read migrations: %w", err)
		}
		step := strings.TrimSuffix(path.Base(name), ".sql")
		if step == repeatableName {
			s.Repeatable = string(text)
		} else {
			s.Steps = append(s.Steps, Step{Name: step, SQL: string(text)})
		}
	}
	if len(s.Steps) == 0 || s.Repeatable == "" {
		return Set{}, errors.New("read migrations: the numbered steps or repeatable.sql are missing")
	}
	return s, nil
}
