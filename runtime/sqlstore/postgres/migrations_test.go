package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lanebox/lanebox/runtime/outbox"
	"github.com/lanebox/lanebox/runtime/storetest/testpg"
)

// repeatable applies the repeatable part again.
func (b *box) repeatable() error {
	b.t.Helper()
	text, err := os.ReadFile(filepath.Join("internal", "fixture", b.name, "postgres", "migrations", "repeatable.sql"))
	if err != nil {
		b.t.Fatal(err)
	}
	conn, err := b.pool.Acquire(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	defer conn.Release()
	_, err = conn.Conn().PgConn().Exec(b.t.Context(), string(text)).ReadAll()
	return err
}

func TestRepeatingMigrationsChangesNothing(t *testing.T) {
	forEach(t, func(t *testing.T, b *box) {
		b.publish(record("order.shipped.v1", "k", "1"))
		b.own(warehouse, "me")
		before := b.dump()
		if err := b.repeatable(); err != nil {
			t.Fatal(err)
		}
		if after := b.dump(); before != after {
			t.Errorf("before\n%s\nafter\n%s", before, after)
		}
		b.publish(record("order.shipped.v1", "k", "2"))
		if n := one[int](b, `SELECT count(*) FROM `+b.table("outbox")); n != 2 {
			t.Errorf("%d rows", n)
		}
	})
}

// The repeatable part waits for no writer: it takes no lock that an insert holds.
func TestRepeatingMigrationsWaitsForNobody(t *testing.T) {
	b := newBox(t, &fixtures[0], func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["lock_timeout"] = "5s" })
	tx := b.begin()
	if err := b.appender(tx).Append(t.Context(), []outbox.Record{record("order.shipped.v1", "k", "1")}); err != nil {
		t.Fatal(err)
	}
	if err := b.repeatable(); err != nil {
		t.Error(err)
	}
}

// catalog describes every object of a schema.
const catalog = `
SELECT format('column %s.%s %s %s %s %s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin, d.adrelid), l.collname)
  FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
  LEFT JOIN pg_collation AS l ON l.oid = a.attcollation
 WHERE c.relnamespace = $1::text::regnamespace AND a.attnum > 0
UNION ALL SELECT 'index ' || pg_get_indexdef(i.indexrelid) FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid WHERE c.relnamespace = $1::text::regnamespace
UNION ALL SELECT 'options ' || c.relname || c.reloptions::text FROM pg_class AS c WHERE c.relnamespace = $1::text::regnamespace AND c.reloptions IS NOT NULL
UNION ALL SELECT 'function ' || pg_get_functiondef(p.oid) FROM pg_proc AS p WHERE p.pronamespace = $1::text::regnamespace
UNION ALL SELECT 'trigger ' || pg_get_triggerdef(g.oid) FROM pg_trigger AS g JOIN pg_class AS c ON c.oid = g.tgrelid WHERE c.relnamespace = $1::text::regnamespace
UNION ALL SELECT 'view ' || pg_get_viewdef(c.oid) FROM pg_class AS c WHERE c.relnamespace = $1::text::regnamespace AND c.relkind = 'v'
 ORDER BY 1`

func objects(t *testing.T, conn *pgx.Conn, schema string) []string {
	t.Helper()
	rows, err := conn.Query(t.Context(), catalog, pgx.Identifier{schema}.Sanitize())
	if err != nil {
		t.Fatal(err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(found) < 80 {
		t.Fatal(len(found), err)
	}
	return found
}

// schema.sql, which sqlc and people read, and the migrations make the same; and
// so does goose, which sends one statement at a time.
func TestEveryWayMakesTheSameTables(t *testing.T) {
	for i := range fixtures {
		f := &fixtures[i]
		t.Run(f.name, func(t *testing.T) {
			dir := filepath.Join("internal", "fixture", f.name, "postgres")
			connect := func() *pgx.Conn {
				conn, err := pgx.Connect(t.Context(), testpg.URL(t))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { conn.Close(context.Background()) })
				return conn
			}
			migrated := newBox(t, f, nil)
			conn, err := migrated.pool.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			want := objects(t, conn.Conn(), f.schema)
			conn.Release()
			whole := connect()
			apply(t, whole, filepath.Join(dir, "schema.sql"))
			if got := objects(t, whole, f.schema); !slices.Equal(got, want) {
				t.Errorf("schema.sql makes\n%s\nthe migrations make\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			goose := connect()
			for _, step := range []string{"0001_outbox.sql", "0002_inbox.sql", "repeatable.sql"} {
				applyLikeGoose(t, goose, filepath.Join(dir, "migrations", step))
			}
			if got := objects(t, goose, f.schema); !slices.Equal(got, want) {
				t.Error("goose makes something else")
			}
		})
	}
}

// applyLikeGoose splits a file as goose does: at a semicolon that ends a line,
// except between StatementBegin and StatementEnd.
func applyLikeGoose(t *testing.T, conn *pgx.Conn, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "\n-- +goose Up\n") || strings.Contains(string(text), "{{") {
		t.Fatalf("%s is no migration of goose and tern", file)
	}
	var statement strings.Builder
	inside := false
	for line := range strings.Lines(string(text)) {
		switch {
		case strings.HasPrefix(line, "-- +goose StatementBegin"):
			inside = true
			continue
		case strings.HasPrefix(line, "-- +goose StatementEnd"):
			inside = false
		case strings.HasPrefix(line, "--"):
			continue
		default:
			statement.WriteString(line)
			if inside || !strings.HasSuffix(strings.TrimSpace(line), ";") {
				continue
			}
		}
		if _, err := conn.Exec(t.Context(), statement.String()); err != nil {
			t.Fatalf("%s: %v\n%s", file, err, statement.String())
		}
		statement.Reset()
	}
	if strings.TrimSpace(statement.String()) != "" {
		t.Errorf("%s ends within a statement", file)
	}
}

func TestRemovedScopesKeepTheirMessages(t *testing.T) {
	forEach(t, func(t *testing.T, b *box) {
		b.exec(`INSERT INTO ` + b.table("lane_scope") + ` VALUES (900, 'destination', 'old'), (901, 'push source', 'older'), (902, 'source', 'empty')`)
		b.exec(`INSERT INTO ` + b.table("lane_bucket") + ` (scope, bucket, lo, hi) SELECT s, 0, 0, 1 FROM unnest('{900,902}'::integer[]) AS s`)
		b.exec(`INSERT INTO ` + b.table("outbox") + ` (destination, lane, sequence, created_at, topic, payload) VALUES (900, 0, 1, now(), 't', '')`)
		b.exec(`INSERT INTO ` + b.table("inbox") + ` (scope, source, lane, sequence, created_at, event_type, payload) VALUES (1, 901, 0, 1, now(), 't', '')`)
		before := b.dump()
		var refused *pgconn.PgError
		if err := b.repeatable(); !errors.As(err, &refused) || refused.Code != "LB010" || !strings.Contains(refused.Message, "destination 'old', push source 'older'") {
			t.Errorf("got %v", err)
		}
		if after := b.dump(); before != after {
			t.Error("something changed")
		}
		b.exec(`DELETE FROM ` + b.table("inbox"))
		b.exec(`WITH d AS (DELETE FROM ` + b.table("outbox") + ` RETURNING *) INSERT INTO ` + b.table("outbox_dead") +
			` SELECT destination, lane, sequence, version, created_at, now(), 1, id, key, topic, payload, headers, 'r', 'e' FROM d`)
		if err := b.repeatable(); err != nil {
			t.Fatal(err)
		}
		if got := one[string](b, `SELECT string_agg(name, ',' ORDER BY name) FROM `+b.table("lane_scope")+` WHERE scope >= 900`); got != "old" {
			t.Errorf("left: %s; want the name that a dead letter needs", got)
		}
		if n := one[int](b, `SELECT count(*) FROM `+b.table("lane_bucket")+` WHERE scope >= 900`); n != 0 {
			t.Errorf("%d buckets left", n)
		}
	})
}

func TestCachedSequencesAreReset(t *testing.T) {
	b := newPlain(t)
	b.exec(`ALTER SEQUENCE outbox_sequence CACHE 50`)
	if err := b.repeatable(); err != nil {
		t.Fatal(err)
	}
	if n := one[int](b, `SELECT max(seqcache) FROM pg_sequence`); n != 1 {
		t.Errorf("cache %d", n)
	}
}

// When a schema begins or ceases to have binary payloads, the column follows.
func TestPayloadColumnFollowsTheSchema(t *testing.T) {
	forEach(t, func(t *testing.T, b *box) {
		b.publish(record("order.shipped.v1", "k", `{"a":"\\é"}`))
		for _, table := range []string{"outbox", "outbox_dead"} {
			if b.binary {
				b.exec(`ALTER TABLE ` + b.table(table) + ` ALTER COLUMN payload TYPE text USING convert_from(payload, 'UTF8')`)
			} else {
				b.exec(`ALTER TABLE ` + b.table(table) + ` ALTER COLUMN payload TYPE bytea USING convert_to(payload, 'UTF8')`)
			}
		}
		if err := b.repeatable(); err != nil {
			t.Fatal(err)
		}
		b.publish(record("order.shipped.v1", "k", "2"))
		if got := payloads(b.own(warehouse, "me").all()); !slices.Equal(got, []string{`{"a":"\\é"}`, "2"}) {
			t.Errorf("got %q", got)
		}
	})
}

// What the comments say a plain writer needs is enough, and needed.
func TestGrantsOfPlainWriters(t *testing.T) {
	b := newPlain(t)
	role := "lanebox_test_writer_" + strings.TrimPrefix(one[string](b, `SELECT current_database()`), "lanebox_test_")
	b.exec(`CREATE ROLE ` + role)
	t.Cleanup(func() {
		for _, statement := range []string{`DROP OWNED BY `, `DROP ROLE `} {
			if _, err := b.pool.Exec(context.Background(), statement+role); err != nil {
				t.Error(err)
			}
		}
	})
	write := func() error {
		return pgx.BeginFunc(t.Context(), b.pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), `SET LOCAL ROLE `+role); err != nil {
				return err
			}
			for _, topic := range []string{"order.placed.v1", "invoice.sent.v1"} {
				if _, err := tx.Exec(t.Context(), `INSERT INTO outbox (topic, key, payload) VALUES ($1, 'k', '1')`, topic); err != nil {
					return fmt.Errorf("%s: %w", topic, err)
				}
			}
			return nil
		})
	}
	for _, grant := range []string{`INSERT ON outbox`, `USAGE ON SEQUENCE outbox_sequence`, `SELECT, INSERT, UPDATE ON lane_version`} {
		if err := write(); err == nil {
			t.Errorf("written without %s", grant)
		}
		b.exec(`GRANT ` + grant + ` TO ` + role)
	}
	if err := write(); err != nil {
		t.Error(err)
	}
}
