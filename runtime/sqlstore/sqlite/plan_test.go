package sqlite_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// whole matches a step of a plan that reads a table that grows with the backlog
// from end to end, or a whole scope of it. Named x, s and c are also parts of a
// statement itself, so a scan of those is looked at by its table's columns.
var whole = regexp.MustCompile(`^SCAN (?:o|i|d|r|h|p|w|outbox|inbox|outbox_dead|inbox_dead|inbox_receipt|lane_hold)$|` +
	`^SEARCH \w+ USING .*\((?:destination|scope|source)=\?\)$`)

// small are the steps that read a scope's few buckets and heartbeats, or stop at
// the first row.
var small = map[string]string{
	"LaneExpired": "SEARCH b,SEARCH f", "LaneForget": "SEARCH w", "LaneLeave": "SCAN w",
	"LaneShare": "SEARCH w,SEARCH b,SEARCH f,SEARCH e,SEARCH o,SEARCH i",
}

// TestQueriesAnswerFromIndexes reads the plan of every generated query: none but
// the counts for people may read what grows with the backlog.
func TestQueriesAnswerFromIndexes(t *testing.T) {
	b := newBox(t)
	text, err := os.ReadFile("internal/shop/sqlite/internal/db/queries.sql.gen.go")
	b.check(err)
	queries := regexp.MustCompile("(?s)const \\w+ = `-- name: (\\w+) :\\w+\n(.*?)\n`").FindAllStringSubmatch(string(text), -1)
	if len(queries) < 30 {
		t.Fatalf("found only %d queries", len(queries))
	}
	for _, q := range queries {
		if q[1] == "ScopeCounts" {
			continue
		}
		for _, step := range b.plan(q[2]) {
			words := strings.Fields(step)
			if whole.MatchString(step) && !strings.Contains(small[q[1]]+",", words[0]+" "+words[1]+",") {
				t.Errorf("%s: %s", q[1], step)
			}
			if strings.Contains(step, "TEMP B-TREE") && !strings.HasSuffix(q[1], "Replay") && q[1] != "InboxPurgeReceipts" && q[1] != "InboxMarkGone" {
				t.Errorf("%s sorts: %s", q[1], step)
			}
		}
	}
}

// plan returns the steps of a query's plan.
func (b *box) plan(query string) []string {
	b.Helper()
	rows, err := b.db.QueryContext(b.ctx, "EXPLAIN QUERY PLAN "+query, make([]any, strings.Count(query, "?"))...)
	b.check(err)
	defer rows.Close()
	var steps []string
	for rows.Next() {
		var id, parent, unused int
		var step string
		b.check(rows.Scan(&id, &parent, &unused, &step))
		steps = append(steps, step)
	}
	b.check(rows.Err())
	return steps
}
