// Package migrate brings a database to the state that a schema asks for.
//
// A schema has numbered steps, which are applied once each and never change,
// and one repeatable part (routes, triggers, buckets, views), which is applied
// whenever its text changed. Everything happens in one transaction under a
// lock: two services that start together migrate once, and a failure leaves
// nothing behind.
//
// # By hand
//
// The numbered files are plain SQL and can be applied with psql, sqlite3, goose
// or tern just as well; they leave no record. The next run of this package
// recognises such a step by its tables: when every table that the step creates
// exists and has all the columns that the step gives it, the step is adopted,
// recorded and reported. A table of one of these names that lacks a column was
// made by somebody else, and is refused. The repeatable file can be applied
// again and again by any tool.
package migrate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// A Set is everything that one schema needs in one database.
type Set struct {
	// Schema is the database schema of the tables; SQLite has none and ignores it.
	Schema string
	// Prefix stands before the name of every table.
	Prefix string
	// Steps are applied in this order.
	Steps []Step
	// Repeatable is applied when its text changed. It must be safe to repeat.
	Repeatable string
	// Scopes are the destinations and sources of the schema.
	Scopes []Scope
	// DryRun undoes everything at the end; the report says what was tried.
	DryRun bool
}

// A Step is one numbered file. Its text never changes once it was released.
type Step struct {
	Name string // "0001_outbox"
	SQL  string
}

// The kinds of scopes.
const (
	// KindDestination is an outbox destination; its number is the destination's.
	KindDestination = "destination"
	// KindSource is a pull source; it has lanes of its own.
	KindSource = "source"
	// KindPush is the one scope of lanes that all push sources share.
	KindPush = "push"
	// KindPushSource is a push source. It has no lanes of its own; it is listed
	// so that a source that was removed from the schema is noticed.
	KindPushSource = "push source"
)

// A Scope is a destination, a source, or what all push sources share.
type Scope struct {
	Number int32
	Kind   string
	Name   string
}

// A Report says what a run did.
type Report struct {
	// Applied are the steps that this run applied.
	Applied []string
	// Adopted are the steps that another tool had applied.
	Adopted []string
	// Repeated says that the repeatable part had changed and was applied.
	Repeated bool
	// Dropped are the scopes that were removed because the schema no longer has
	// them and nothing waited in them.
	Dropped []Scope
}

// String returns the report as one line.
func (r Report) String() string {
	var parts []string
	if len(r.Applied) > 0 {
		parts = append(parts, "applied "+strings.Join(r.Applied, ", "))
	}
	if len(r.Adopted) > 0 {
		parts = append(parts, "adopted "+strings.Join(r.Adopted, ", "))
	}
	for _, s := range r.Dropped {
		parts = append(parts, fmt.Sprintf("dropped %s %q", s.Kind, s.Name))
	}
	if len(parts) == 0 && !r.Repeated {
		parts = append(parts, "nothing to apply")
	}
	return strings.Join(append(parts, "routes, triggers and buckets are current"), "; ")
}

// repeatableName is the name under which the repeatable part is recorded.
const repeatableName = "repeatable"

// A database is an open transaction that holds the migration lock.
type database interface {
	// prepare makes sure that the migration table exists.
	prepare(ctx context.Context) error
	// run executes a text of several statements.
	run(ctx context.Context, sql string) error
	// recorded returns the checksums of what was applied.
	recorded(ctx context.Context) (map[string]string, error)
	record(ctx context.Context, name, checksum string) error
	// columns returns the columns of a table or view; none if it does not exist.
	columns(ctx context.Context, table string) ([]string, error)
	scopes(ctx context.Context) ([]Scope, error)
	// load counts what a scope still holds.
	load(ctx context.Context, s Scope) (Load, error)
	drop(ctx context.Context, s Scope) error
}

// apply brings db to the state of s.
func (s *Set) apply(ctx context.Context, db database) (Report, error) {
	var r Report
	if err := db.prepare(ctx); err != nil {
		return r, err
	}
	done, err := db.recorded(ctx)
	if err != nil {
		return r, err
	}
	if err := s.checkRecorded(done); err != nil {
		return r, err
	}
	for _, step := range s.Steps {
		if err := s.step(ctx, db, step, done, &r); err != nil {
			return r, err
		}
	}
	if err := s.dropScopes(ctx, db, &r); err != nil {
		return r, err
	}
	sum := checksum(s.Repeatable)
	if done[repeatableName] == sum {
		return r, nil
	}
	if err := db.run(ctx, s.Repeatable); err != nil {
		return r, fmt.Errorf("apply routes, triggers and buckets: %w", err)
	}
	r.Repeated = true
	return r, db.record(ctx, repeatableName, sum)
}

// checkRecorded refuses a database that is newer than s, has steps in another
// order, or was made by other texts.
func (s *Set) checkRecorded(done map[string]string) error {
	known := map[string]bool{repeatableName: true}
	missing := ""
	for _, step := range s.Steps {
		known[step.Name] = true
		sum, ok := done[step.Name]
		if !ok {
			missing = step.Name
			continue
		}
		if missing != "" {
			return fmt.Errorf("step %s is recorded as applied, but the earlier step %s is not: apply it by hand, or restore the table %slanebox_migration", step.Name, missing, s.Prefix)
		}
		if sum != checksum(step.SQL) {
			return &ChangedStepError{Step: step.Name, Recorded: sum, Have: checksum(step.SQL)}
		}
	}
	var newer []string
	for name := range done {
		if !known[name] {
			newer = append(newer, name)
		}
	}
	if len(newer) > 0 {
		slices.Sort(newer)
		return &NewerDatabaseError{Steps: newer}
	}
	return nil
}

// step applies one step, or adopts it.
func (s *Set) step(ctx context.Context, db database, step Step, done map[string]string, r *Report) error {
	if _, ok := done[step.Name]; ok {
		return nil
	}
	applied, err := s.recognise(ctx, db, step)
	if err != nil {
		return err
	}
	if applied {
		r.Adopted = append(r.Adopted, step.Name)
	} else {
		if err := db.run(ctx, step.SQL); err != nil {
			return fmt.Errorf("apply %s: %w", step.Name, err)
		}
		r.Applied = append(r.Applied, step.Name)
	}
	return db.record(ctx, step.Name, checksum(step.SQL))
}

// recognise reports whether another tool applied the step. Tables that somebody
// else made, and steps that were applied in part, are errors.
func (s *Set) recognise(ctx context.Context, db database, step Step) (bool, error) {
	var found, missing []string
	for _, t := range created(step.SQL) {
		columns, err := db.columns(ctx, t.name)
		if err != nil {
			return false, err
		}
		if len(columns) == 0 {
			missing = append(missing, t.name)
			continue
		}
		found = append(found, t.name)
		for _, c := range t.columns {
			if !slices.Contains(columns, c) {
				return false, &ForeignTableError{Table: t.name, Schema: s.Schema}
			}
		}
	}
	if len(found) > 0 && len(missing) > 0 {
		return false, fmt.Errorf("step %s was applied in part: %s exist, %s do not; apply the rest of the file by hand, or drop what it created",
			step.Name, strings.Join(found, ", "), strings.Join(missing, ", "))
	}
	return len(found) > 0, nil
}

// dropScopes removes the scopes that the schema no longer has, and refuses when
// one of them still holds messages.
func (s *Set) dropScopes(ctx context.Context, db database, r *Report) error {
	have, err := db.scopes(ctx)
	if err != nil {
		return err
	}
	for _, old := range have {
		if slices.ContainsFunc(s.Scopes, func(n Scope) bool { return n.Number == old.Number && n.Kind == old.Kind }) {
			continue
		}
		load, err := db.load(ctx, old)
		if err != nil {
			return err
		}
		if load != (Load{}) {
			return &RemovedScopeError{Scope: old, Load: load}
		}
		if err := db.drop(ctx, old); err != nil {
			return err
		}
		r.Dropped = append(r.Dropped, old)
	}
	return nil
}

// checksum returns the SHA-256 sum of a text, in hexadecimal.
func checksum(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}
