package sqlqueue

import "fmt"

// Missing wraps an error that says that a table does not exist. Most often it is
// one of lanebox's, in a database that was not migrated.
func Missing(op string, err error) error {
	return fmt.Errorf("%s: %w; if the table is lanebox's, call Migrate first, or run lanebox migrate", op, err)
}
