package migrate

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// SQLServer applies s to a SQL Server database. The migration lock is an
// application lock that belongs to the transaction, so that nothing is left of
// it however the transaction ends. The schema is created when it is missing. A
// text may have several batches, with a line GO between them.
func SQLServer(ctx context.Context, db *sql.DB, s Set) (Report, error) {
	if s.Schema == "" {
		s.Schema = "dbo"
	}
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return Report{}, fmt.Errorf("migrate: %w", err)
	}
	defer tx.Rollback() // does nothing after the commit
	r, err := s.apply(ctx, &sqlserverDB{tx: tx, schema: s.Schema, prefix: s.Prefix, views: s.views()})
	if err == nil && !s.DryRun {
		err = tx.Commit()
	}
	if err != nil {
		return Report{}, fmt.Errorf("migrate: %w", err)
	}
	return r, nil
}

type sqlserverDB struct {
	tx             *sql.Tx
	schema, prefix string
	views          []string // that the set creates
}

// bracketed quotes an identifier.
func bracketed(name string) string { return "[" + strings.ReplaceAll(name, "]", "]]") + "]" }

// object returns the quoted name of a table or view, with its schema.
func (d *sqlserverDB) object(name string) string { return bracketed(d.schema) + "." + bracketed(name) }

// table returns the quoted name of one of lanebox's tables. Behind the views
// outbox and inbox stand tables of another name.
func (d *sqlserverDB) table(name string) string {
	if name == "outbox" || name == "inbox" {
		name += "_row"
	}
	return d.object(d.prefix + name)
}

// sqlserverLock waits for the migration lock.
const sqlserverLock = `SET XACT_ABORT ON;
DECLARE @granted int;
EXEC @granted = sp_getapplock @Resource = @resource, @LockMode = 'Exclusive', @LockOwner = 'Transaction', @LockTimeout = -1;
IF @granted < 0 THROW 51011, 'lanebox: the migration lock was not granted', 1;`

func (d *sqlserverDB) prepare(ctx context.Context) error {
	// A resource name has at most 255 characters, and is shown cut off by some
	// tools; the sum keeps it short and apart from all others.
	resource := "lanebox migrate " + checksum(d.object(d.prefix))
	if _, err := d.tx.ExecContext(ctx, sqlserverLock, sql.Named("resource", resource)); err != nil {
		return err
	}
	var found bool
	if err := d.tx.QueryRowContext(ctx, `SELECT CASE WHEN SCHEMA_ID(@name) IS NULL THEN 0 ELSE 1 END`, sql.Named("name", d.schema)).Scan(&found); err != nil {
		return err
	}
	if !found {
		if err := d.run(ctx, "CREATE SCHEMA "+bracketed(d.schema)); err != nil {
			return err
		}
	}
	columns, err := d.columns(ctx, d.prefix+"lanebox_migration")
	switch {
	case err != nil:
		return err
	case len(columns) == 0:
		return d.run(ctx, `CREATE TABLE `+d.table("lanebox_migration")+` (
  name       nvarchar(255) NOT NULL PRIMARY KEY,
  checksum   nvarchar(64)  NOT NULL,
  applied_at datetime2(7)  NOT NULL DEFAULT SYSUTCDATETIME()
)`)
	case !slices.Contains(columns, "name") || !slices.Contains(columns, "checksum"):
		return &ForeignTableError{Table: d.prefix + "lanebox_migration", Schema: d.schema}
	}
	return nil
}

// run executes the batches of a text, without parameters: only so may a batch
// create a view or a trigger.
func (d *sqlserverDB) run(ctx context.Context, text string) error {
	for _, batch := range batches(text) {
		if _, err := d.tx.ExecContext(ctx, batch); err != nil {
			return err
		}
	}
	return nil
}

func (d *sqlserverDB) recorded(ctx context.Context) (map[string]string, error) {
	done, err := recordedIn(ctx, d.tx, d.table("lanebox_migration"))
	if err != nil {
		return nil, err
	}
	return done, d.refuseForeignViews(ctx)
}

// refuseForeignViews returns a ForeignTableError when one of the names that the
// set gives to its views stands for something else: for a table, or for a view
// although lanebox has no tables here yet.
func (d *sqlserverDB) refuseForeignViews(ctx context.Context) error {
	tables, err := d.columns(ctx, d.prefix+"outbox_row")
	if err != nil {
		return err
	}
	for _, name := range d.views {
		var kind string
		err := d.tx.QueryRowContext(ctx, `SELECT COALESCE((SELECT RTRIM(o.type) FROM sys.objects AS o WHERE o.object_id = OBJECT_ID(@name)), '')`,
			sql.Named("name", d.object(name))).Scan(&kind)
		if err != nil {
			return err
		}
		if kind != "" && (kind != "V" || len(tables) == 0) {
			return &ForeignTableError{Table: name, Schema: d.schema}
		}
	}
	return nil
}

func (d *sqlserverDB) record(ctx context.Context, name, sum string) error {
	table := d.table("lanebox_migration")
	_, err := d.tx.ExecContext(ctx, `UPDATE `+table+` SET checksum = @checksum, applied_at = SYSUTCDATETIME() WHERE name = @name;
IF @@ROWCOUNT = 0 INSERT INTO `+table+` (name, checksum) VALUES (@name, @checksum);`, sql.Named("name", name), sql.Named("checksum", sum))
	return err
}

func (d *sqlserverDB) columns(ctx context.Context, table string) ([]string, error) {
	return namesOf(ctx, d.tx, `SELECT c.name FROM sys.columns AS c WHERE c.object_id = OBJECT_ID(@name)`, sql.Named("name", d.object(table)))
}

func (d *sqlserverDB) scopes(ctx context.Context) ([]Scope, error) {
	return scopesIn(ctx, d.tx, d.table("lane_scope"))
}

func (d *sqlserverDB) load(ctx context.Context, s Scope) (Load, error) {
	var l Load
	err := d.tx.QueryRowContext(ctx, loadQuery(s, d.table, "@number"), sql.Named("number", s.Number)).Scan(&l.Waiting, &l.Held, &l.Dead)
	return l, err
}

func (d *sqlserverDB) drop(ctx context.Context, s Scope) error {
	for _, t := range scopeTables {
		if _, err := d.tx.ExecContext(ctx, `DELETE FROM `+d.table(t)+` WHERE scope = @number`, sql.Named("number", s.Number)); err != nil {
			return err
		}
	}
	return nil
}

// viewLine is how lanebox's steps begin a view, perhaps with a schema and inside
// of a text literal.
var viewLine = regexp.MustCompile(`(?m)^\s*(?:EXEC\s*\(\s*N')?CREATE (?:OR ALTER )?VIEW (?:` + identifier + `\.)?` + identifier)

// views returns the names of the views that a set creates.
func (s *Set) views() []string {
	var names []string
	for _, text := range append(stepTexts(s.Steps), s.Repeatable) {
		for _, m := range viewLine.FindAllStringSubmatch(text, -1) {
			names = append(names, unquote(m[2]))
		}
	}
	return names
}

func stepTexts(steps []Step) []string {
	texts := make([]string, len(steps))
	for i, s := range steps {
		texts[i] = s.SQL
	}
	return texts
}
