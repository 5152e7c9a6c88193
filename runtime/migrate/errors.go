package migrate

import (
	"fmt"
	"strings"
)

// A ForeignTableError says that a table of lanebox's name exists that lanebox
// did not make. Nothing was changed.
type ForeignTableError struct {
	Table string
	// Schema is the database schema; empty in SQLite.
	Schema string
}

func (e *ForeignTableError) Error() string {
	where := ""
	if e.Schema != "" {
		where = " in schema " + e.Schema
	}
	return fmt.Sprintf("table %s exists already%s and was not made by lanebox: set database.prefix (or database.schema) in lanebox.yaml, generate again, and migrate", e.Table, where)
}

// A ChangedStepError says that a step was applied with another text than this
// program has. Nothing was changed.
type ChangedStepError struct {
	Step           string
	Recorded, Have string // checksums
}

func (e *ChangedStepError) Error() string {
	return fmt.Sprintf("step %s was applied with another text (checksum %.12s, now %.12s): numbered steps never change; restore the file as it was", e.Step, e.Recorded, e.Have)
}

// A NewerDatabaseError says that the database was migrated by a newer program.
// Nothing was changed.
type NewerDatabaseError struct{ Steps []string }

func (e *NewerDatabaseError) Error() string {
	return fmt.Sprintf("the database is newer than this program: it has %s; run the newer program, or generate again with the lanebox that made it", strings.Join(e.Steps, ", "))
}

// Load is what a scope still holds.
type Load struct {
	Waiting int64 // messages in the outbox or inbox
	Held    int64 // of them, those on hold
	Dead    int64 // messages in the dead letters
}

// A RemovedScopeError says that the schema no longer has a destination or source
// that still holds messages. Nothing was changed.
type RemovedScopeError struct {
	Scope Scope
	Load  Load
}

func (e *RemovedScopeError) Error() string {
	what := fmt.Sprintf("%s %q is", e.Scope.Kind, e.Scope.Name)
	if e.Scope.Kind == KindPush {
		what = "the last push source is"
	}
	return fmt.Sprintf("%s no longer in the schema, but %d messages wait there (%d on hold) and %d are dead letters: "+
		"put it back until they are delivered, replayed or deleted; if it was renamed, say `was: %s` on the new one",
		what, e.Load.Waiting, e.Load.Held, e.Load.Dead, e.Scope.Name)
}
