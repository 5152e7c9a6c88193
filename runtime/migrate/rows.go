package migrate

import (
	"context"
	"database/sql"
)

// each calls scan for every row of a query.
func each(ctx context.Context, tx *sql.Tx, scan func(*sql.Rows) error, query string, args ...any) error {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// recordedIn returns the checksums in a migration table by name. table is its
// quoted name.
func recordedIn(ctx context.Context, tx *sql.Tx, table string) (map[string]string, error) {
	done := map[string]string{}
	err := each(ctx, tx, func(rows *sql.Rows) error {
		var name, sum string
		err := rows.Scan(&name, &sum)
		done[name] = sum
		return err
	}, `SELECT name, checksum FROM `+table)
	return done, err
}

// namesOf returns the single column of a query.
func namesOf(ctx context.Context, tx *sql.Tx, query string, args ...any) ([]string, error) {
	var names []string
	err := each(ctx, tx, func(rows *sql.Rows) error {
		var name string
		err := rows.Scan(&name)
		names = append(names, name)
		return err
	}, query, args...)
	return names, err
}

// scopesIn returns the scopes of a table whose quoted name is table.
func scopesIn(ctx context.Context, tx *sql.Tx, table string) ([]Scope, error) {
	var scopes []Scope
	err := each(ctx, tx, func(rows *sql.Rows) error {
		var s Scope
		err := rows.Scan(&s.Number, &s.Kind, &s.Name)
		scopes = append(scopes, s)
		return err
	}, `SELECT scope, kind, name FROM `+table+` ORDER BY kind, name`)
	return scopes, err
}
