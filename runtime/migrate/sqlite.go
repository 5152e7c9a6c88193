package migrate

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/lanebox/lanebox/runtime/internal/immediate"
)

// SQLite applies s to an SQLite database. The write lock of the file is the
// migration lock.
func SQLite(ctx context.Context, db *sql.DB, s Set) (Report, error) {
	s.Schema = ""
	tx, err := immediate.Begin(ctx, db)
	if err != nil {
		return Report{}, fmt.Errorf("migrate: %w", err)
	}
	defer tx.Rollback() // does nothing after the commit
	r, err := s.apply(ctx, &sqliteDB{tx: tx, prefix: s.Prefix})
	if err == nil && !s.DryRun {
		err = tx.Commit()
	}
	if err != nil {
		return Report{}, fmt.Errorf("migrate: %w", err)
	}
	return r, nil
}

type sqliteDB struct {
	tx     *sql.Tx
	prefix string
}

// table returns the quoted name of a table.
func (d *sqliteDB) table(name string) string { return quote(d.prefix + name) }

// quote quotes an identifier, which is the same in both databases.
func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

func (d *sqliteDB) prepare(ctx context.Context) error {
	var encoding string
	if err := d.tx.QueryRowContext(ctx, "PRAGMA encoding").Scan(&encoding); err != nil {
		return err
	}
	if encoding != "UTF-8" {
		return fmt.Errorf("the database's encoding is %s; lanebox needs UTF-8, because keys are compared byte for byte", encoding)
	}
	return d.run(ctx, `CREATE TABLE IF NOT EXISTS `+d.table("lanebox_migration")+` (
  name       TEXT    PRIMARY KEY,
  checksum   TEXT    NOT NULL,
  applied_at INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER))
)`)
}

func (d *sqliteDB) run(ctx context.Context, text string) error {
	_, err := d.tx.ExecContext(ctx, text)
	return err
}

func (d *sqliteDB) recorded(ctx context.Context) (map[string]string, error) {
	done, err := recordedIn(ctx, d.tx, d.table("lanebox_migration"))
	if err != nil {
		return nil, foreignIfColumn(err, d.prefix, "")
	}
	return done, nil
}

// foreignIfColumn turns "no such column" of the migration table into a
// ForeignTableError.
func foreignIfColumn(err error, prefix, schema string) error {
	if strings.Contains(err.Error(), "no such column") {
		return &ForeignTableError{Table: prefix + "lanebox_migration", Schema: schema}
	}
	return err
}

func (d *sqliteDB) record(ctx context.Context, name, sum string) error {
	_, err := d.tx.ExecContext(ctx, `INSERT INTO `+d.table("lanebox_migration")+` (name, checksum) VALUES (?, ?)
ON CONFLICT (name) DO UPDATE SET checksum = excluded.checksum, applied_at = excluded.applied_at`, name, sum)
	return err
}

func (d *sqliteDB) columns(ctx context.Context, table string) ([]string, error) {
	return namesOf(ctx, d.tx, `SELECT name FROM pragma_table_info(?)`, table)
}

func (d *sqliteDB) scopes(ctx context.Context) ([]Scope, error) {
	return scopesIn(ctx, d.tx, d.table("lane_scope"))
}

func (d *sqliteDB) load(ctx context.Context, s Scope) (Load, error) {
	var l Load
	err := d.tx.QueryRowContext(ctx, loadQuery(s, d.table, "?1"), s.Number).Scan(&l.Waiting, &l.Held, &l.Dead)
	return l, err
}

// loadQuery counts what a scope holds; it is the same text in both databases.
// number is the placeholder of the scope's number.
func loadQuery(s Scope, table func(string) string, number string) string {
	queue, dead, column := "inbox", "inbox_dead", "scope"
	switch s.Kind {
	case KindDestination:
		queue, dead, column = "outbox", "outbox_dead", "destination"
	case KindPushSource:
		column = "source"
	}
	held := `SELECT count(*) FROM ` + table("lane_hold") + ` AS h WHERE h.scope = ` + number
	if s.Kind == KindPushSource { // its lanes belong to all push sources
		held = `SELECT count(*) FROM ` + table(queue) + ` AS q JOIN ` + table("lane_hold") + ` AS h
 ON h.scope = q.scope AND h.lane = q.lane AND h.sequence = q.sequence WHERE q.source = ` + number
	}
	return `SELECT (SELECT count(*) FROM ` + table(queue) + ` AS q WHERE q.` + column + ` = ` + number + `), (` + held + `),
 (SELECT count(*) FROM ` + table(dead) + ` AS x WHERE x.` + column + ` = ` + number + `)`
}

// scopeTables are the tables that know a scope by its number.
var scopeTables = []string{"lane_bucket", "lane_hold", "lane_owner", "lane_version", "lane_scope"}

func (d *sqliteDB) drop(ctx context.Context, s Scope) error {
	for _, t := range scopeTables {
		if _, err := d.tx.ExecContext(ctx, `DELETE FROM `+d.table(t)+` WHERE scope = ?1`, s.Number); err != nil {
			return err
		}
	}
	return nil
}
