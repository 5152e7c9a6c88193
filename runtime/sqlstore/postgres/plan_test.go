package postgres_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lanebox/lanebox/runtime/lane"
)

// A recorder remembers the last statement that was sent in a batch.
type recorder struct {
	mu   sync.Mutex
	sql  string
	args []any
}

func (r *recorder) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (r *recorder) TraceBatchQuery(_ context.Context, _ *pgx.Conn, data pgx.TraceBatchQueryData) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sql, r.args = data.SQL, data.Args
}

func (r *recorder) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

func (r *recorder) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (r *recorder) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// A plan is what EXPLAIN ANALYZE said of a statement.
type plan struct {
	text    string
	buffers int
	seqScan []string
}

// explain runs a statement with a generic plan that was made when prepare ran.
type explainer struct {
	t    testing.TB
	conn *pgx.Conn
}

func newExplainer(b *box) *explainer {
	config, err := pgx.ParseConfig(b.url)
	if err != nil {
		b.t.Fatal(err)
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	conn, err := pgx.ConnectConfig(b.t.Context(), config)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { conn.Close(context.Background()) })
	e := &explainer{b.t, conn}
	e.exec(`SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_bitmapscan = off; SET jit = off`)
	return e
}

func (e *explainer) exec(sql string) {
	e.t.Helper()
	if _, err := e.conn.Exec(e.t.Context(), sql); err != nil {
		e.t.Fatalf("%s: %v", sql, err)
	}
}

func (e *explainer) prepare(name, sql string) {
	e.t.Helper()
	e.exec(`PREPARE q_` + name + ` AS ` + sql)
}

// run executes a prepared statement; what it changed is rolled back.
func (e *explainer) run(name string, args []any) plan {
	e.t.Helper()
	var holes []string
	for i := range args {
		holes = append(holes, fmt.Sprintf("$%d", i+1))
	}
	var text []byte
	tx, err := e.conn.Begin(e.t.Context())
	if err != nil {
		e.t.Fatal(err)
	}
	defer tx.Rollback(e.t.Context())
	err = tx.QueryRow(e.t.Context(), `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE q_`+name+`(`+strings.Join(holes, ", ")+`)`, args...).Scan(&text)
	if err != nil {
		e.t.Fatal(err)
	}
	var root []map[string]any
	if err := json.Unmarshal(text, &root); err != nil {
		e.t.Fatal(err)
	}
	p := plan{text: string(text)}
	top := root[0]["Plan"].(map[string]any)
	p.buffers = int(top["Shared Hit Blocks"].(float64) + top["Shared Read Blocks"].(float64))
	walkPlan(top, func(node map[string]any) {
		if node["Node Type"] == "Seq Scan" {
			p.seqScan = append(p.seqScan, node["Relation Name"].(string))
		}
	})
	return p
}

func walkPlan(node map[string]any, visit func(map[string]any)) {
	visit(node)
	children, _ := node["Plans"].([]any)
	for _, c := range children {
		walkPlan(c.(map[string]any), visit)
	}
}

// fill stores n messages for the warehouse without the trigger: the plan does
// not depend on who wrote a row. Shapes: uniform over 10,000 keys; a hot key
// with nine tenths of everything; nine tenths in lanes that wait.
func (b *box) fill(shape string, n int) {
	b.t.Helper()
	key := map[string]string{
		"uniform": `'k' || (i % 10000)`,
		"hot":     `CASE WHEN i % 10 < 9 THEN 'hot' ELSE 'k' || (i % 10000) END`,
		"blocked": `CASE WHEN i % 10 < 9 THEN 'b' || (i % 5000) ELSE 'k' || (i % 10000) END`,
		"keyless": `NULL`,
	}[shape]
	b.exec(`TRUNCATE outbox, lane_hold`)
	b.exec(`INSERT INTO outbox (destination, lane, sequence, created_at, key, topic, payload)
SELECT 101, coalesce(outbox_lane(m.key), (floor(random() * 128)::bigint - 64) << 57), m.i, now(), m.key, 'order.shipped.v1', repeat('x', 200)
  FROM (SELECT i, `+key+` AS key FROM generate_series(1, $1::bigint) AS g(i)) AS m ORDER BY 2, 3`, n)
	if shape == "blocked" {
		b.exec(`INSERT INTO lane_hold (scope, lane, sequence, attempts, due_at)
SELECT 101, o.lane, min(o.sequence), 1, now() + interval '1 hour' FROM outbox AS o WHERE o.key LIKE 'b%' GROUP BY o.lane`)
	}
}

// A claim, a settlement and a renewal read through the primary keys only, and
// what they read does not grow with the backlog, also when the plan was made
// while the tables were empty.
func TestClaimPlans(t *testing.T) {
	r := &recorder{}
	b := newBox(t, &fixtures[0], func(c *pgxpool.Config) { c.ConnConfig.Tracer = r })
	b.exec(`ALTER TABLE outbox SET UNLOGGED`)
	b.exec(`ALTER TABLE outbox SET (autovacuum_enabled = off)`)
	c := b.own(warehouse, "me")
	statements := map[string]func(rows []lane.Row){
		"fetch": func([]lane.Row) { p := c.start(); p.MaxRows = 500; p.MaxRun = 16; c.fetch(p) },
		"done":  func(rows []lane.Row) { c.settle(outcomes(rows, lane.Done)...) },
		"mixed": func(rows []lane.Row) { c.settle(outcomes(rows, lane.Retry)...) },
		"keep": func([]lane.Row) {
			if _, err := b.store.Keep(t.Context(), lane.KeepParams{Owner: "me", TTL: ttl, Scopes: []lane.ScopeLeases{{Scope: warehouse, Leases: c.leases}}}); err != nil {
				t.Fatal(err)
			}
		},
	}
	empty := newExplainer(b)
	texts, noRows := map[string]string{}, []lane.Row{{Bucket: c.leases[0].Bucket}}
	for name, send := range statements {
		send(noRows)
		texts[name] = r.sql
		empty.prepare(name, r.sql)
		empty.run(name, r.args)
	}
	limits := map[string]int{"fetch": 12000, "done": 6000, "mixed": 9000, "keep": 3000}
	for _, shape := range []string{"uniform", "hot", "blocked", "keyless"} {
		for _, n := range []int{1000, backlog(shape)} {
			b.fill(shape, n)
			p := c.start()
			p.MaxRows, p.MaxRun = 500, 16
			rows := c.fetch(p).Rows
			for _, analyzed := range []bool{false, true} {
				if analyzed {
					b.exec(`ANALYZE outbox, lane_hold, lane_bucket`)
				}
				b.exec(`VACUUM lane_bucket, lane_hold`) // of what measuring itself left behind
				later := newExplainer(b)
				for name, text := range texts {
					later.prepare(name, text)
					tx := argumentsOf(t, r, b, func() { statements[name](rows) })
					for _, e := range []*explainer{empty, later} {
						got := e.run(name, tx)
						t.Logf("%s, %d rows, %s, analyzed=%v: %d buffers", shape, n, name, analyzed, got.buffers)
						for _, table := range got.seqScan {
							if table == "outbox" || table == "lane_hold" {
								t.Errorf("%s, %d rows, %s: sequential scan of %s\n%s", shape, n, name, table, got.text)
							}
						}
						if got.buffers > limits[name] {
							t.Errorf("%s, %d rows, %s (analyzed=%v, plan from an empty table=%v): %d buffers\n%s", shape, n, name, analyzed, e == empty, got.buffers, got.text)
						}
					}
				}
			}
		}
	}
}

// argumentsOf returns the arguments of a statement without what it changes: the
// owner is another one.
func argumentsOf(t testing.TB, r *recorder, b *box, send func()) []any {
	t.Helper()
	b.exec(`UPDATE lane_bucket SET token = token + 1`) // fenced: changes nothing
	send()
	b.exec(`UPDATE lane_bucket SET token = token - 1`)
	return r.args
}

func outcomes(rows []lane.Row, o lane.Outcome) []lane.Settlement {
	var s []lane.Settlement
	for _, r := range rows {
		s = append(s, outcome(r, o))
	}
	return s
}

// backlog is the size that a shape grows to.
func backlog(shape string) int {
	if shape == "keyless" {
		return 100_000
	}
	return 1_000_000
}
