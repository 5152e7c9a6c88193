package migrate

import (
	"fmt"
	"io/fs"
	"path"
	"strings"
)

// Files reads the steps and the repeatable part of a Set from the SQL files of a
// folder "migrations": NNNN_name.sql in the order of their names, and
// repeatable.sql.
func Files(fsys fs.FS) (Set, error) {
	var s Set
	names, err := fs.Glob(fsys, "migrations/*.sql") // sorted
	if err != nil {
		return s, fmt.Errorf("read migrations: %w", err)
	}
	for _, name := range names {
		text, err := fs.ReadFile(fsys, name)
		if err != nil {
			return s, fmt.Errorf("read migrations: %w", err)
		}
		if step := strings.TrimSuffix(path.Base(name), ".sql"); step == "repeatable" {
			s.Repeatable = string(text)
		} else {
			s.Steps = append(s.Steps, Step{Name: step, SQL: string(text)})
		}
	}
	return s, nil
}
