package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/storetest/testpg"
)

func TestClassify(t *testing.T) {
	state := func(code string) error {
		return fmt.Errorf("wrapped: %w", &pgconn.PgError{Code: code, Message: "m", Detail: "topic: t"})
	}
	configuration := func(err error) bool {
		var c *event.ConfigurationError
		return errors.As(err, &c) && c.Topic == "t" && c.Reason == "m"
	}
	retryable := func(err error) bool {
		var r *event.RetryableError
		return errors.As(err, &r) && r.Op == "op"
	}
	connection := func(err error) bool { return errors.Is(err, ErrConnection) }
	missing := func(err error) bool { return strings.Contains(err.Error(), "Migrate") }
	neither := func(err error) bool {
		return !missing(err) && !configuration(err) && !retryable(err) && !connection(err)
	}
	for _, c := range []struct {
		err  error
		want func(error) bool
	}{
		{state("LB001"), configuration}, {state("LB002"), configuration}, {state("LB003"), configuration},
		{state("LB004"), configuration}, {state("LB005"), configuration}, {state("LB010"), neither},
		{state("40P01"), retryable}, {state("40001"), retryable}, {state("55P03"), retryable},
		{state("57P01"), connection}, {state("08006"), connection}, {state("23505"), neither}, {state("57014"), neither}, {state("42P01"), missing},
		{io.ErrUnexpectedEOF, connection}, {&net.OpError{Op: "read", Err: errors.New("reset")}, connection},
		{context.Canceled, neither}, {fmt.Errorf("timeout: %w", context.DeadlineExceeded), neither}, {errors.New("other"), neither},
	} {
		got := Classify("op", c.err)
		if !c.want(got) {
			t.Errorf("%v became %v", c.err, got)
		}
		if !configuration(got) && !errors.Is(got, c.err) {
			t.Errorf("%v lost its cause: %v", c.err, got)
		}
		if again := Classify("outer", got); (configuration(got) || retryable(got)) && again != got {
			t.Errorf("classified twice: %v", again)
		}
	}
	if Classify("op", nil) != nil {
		t.Error("nil became an error")
	}
}

func TestRetryGivesUp(t *testing.T) {
	tries := 0
	err := retry(t.Context(), func() error { tries++; return &event.RetryableError{Op: "x", Err: io.EOF} })
	if tries != 3 || err == nil {
		t.Errorf("%d tries, %v", tries, err)
	}
	tries = 0
	if err := retry(t.Context(), func() error { tries++; return io.EOF }); tries != 1 || err == nil {
		t.Errorf("%d tries, %v", tries, err)
	}
}

func TestStricterIsolationIsRefused(t *testing.T) {
	url := testpg.URL(t)
	for level, ok := range map[string]bool{"read committed": true, "repeatable read": false, "serializable": false} {
		pool := testpg.Pool(t, url, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["default_transaction_isolation"] = level })
		if err := CheckIsolation(t.Context(), pool); (err == nil) != ok {
			t.Errorf("%s: %v", level, err)
		}
	}
}

// Planner settings end with their statement; a statement that fails leaves its
// connection usable.
func TestClaimsLeaveNothingBehind(t *testing.T) {
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeExec} {
		pool := testpg.Pool(t, testpg.URL(t), func(c *pgxpool.Config) {
			c.MaxConns, c.ConnConfig.DefaultQueryExecMode = 1, mode
		})
		ctx := t.Context()
		db := Claims(pool)
		var pid, again int
		var setting string
		if err := db.QueryRow(ctx, `SELECT pg_backend_pid(), current_setting('enable_seqscan')`).Scan(&pid, &setting); err != nil || setting != "off" {
			t.Errorf("%s: %s, %v", mode, setting, err)
		}
		if err := db.QueryRow(ctx, `SELECT 1 / $1::integer`, 0).Scan(&again); err == nil {
			t.Errorf("%s: no error", mode)
		}
		if _, err := db.Exec(ctx, `SELECT no_such_function()`); err == nil {
			t.Errorf("%s: no error", mode)
		}
		if rows, err := db.Query(ctx, `SELECT generate_series(1, 3)`); err != nil {
			t.Error(err)
		} else if n, err := pgx.CollectRows(rows, pgx.RowTo[int]); len(n) != 3 || err != nil {
			t.Errorf("%s: %v, %v", mode, n, err)
		}
		if err := db.QueryRow(ctx, `SELECT 1 WHERE false`).Scan(&again); !errors.Is(err, pgx.ErrNoRows) {
			t.Errorf("%s: %v", mode, err)
		}
		if err := pool.QueryRow(ctx, `SELECT pg_backend_pid(), current_setting('enable_seqscan')`).Scan(&again, &setting); err != nil || setting != "on" || again != pid {
			t.Errorf("%s: seqscan %s, session %d then %d, %v", mode, setting, pid, again, err)
		}
	}
}

// An error at the end of the statement's transaction is the statement's error.
func TestClaimsReportTheCommit(t *testing.T) {
	pool := testpg.Pool(t, testpg.URL(t), nil)
	ctx := t.Context()
	for _, sql := range []string{
		`CREATE TABLE unsure (n integer, CONSTRAINT once UNIQUE (n) DEFERRABLE INITIALLY DEFERRED)`, `INSERT INTO unsure VALUES (1)`,
	} {
		if _, err := pool.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	var n int
	if err := Claims(pool).QueryRow(ctx, `INSERT INTO unsure VALUES (1) RETURNING n`).Scan(&n); err == nil {
		t.Error("a commit that failed was not reported")
	}
}
