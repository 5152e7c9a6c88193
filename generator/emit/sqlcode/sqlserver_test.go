package sqlcode_test

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sqlc-dev/teesql/parser"

	"github.com/lanebox/lanebox/generator/dialect"
	"github.com/lanebox/lanebox/generator/emit/sqlcode"
	"github.com/lanebox/lanebox/generator/emit/sqlcode/sqlcodetest"
	"github.com/lanebox/lanebox/generator/model"
	"github.com/lanebox/lanebox/generator/output"
)

// sqlServerModels are models that change the SQL in every way that a schema can.
func sqlServerModels() map[string]*model.Model {
	models := map[string]*model.Model{}
	for name, change := range map[string]func(*model.Model){
		"plain":  func(*model.Model) {},
		"binary": func(m *model.Model) { m.Binary = true },
		"quoted": func(m *model.Model) {
			m.Database = model.Database{Schema: `it's ]"my" [odd]] schema\`, Prefix: "Select ]'--/*"}
			m.Binary = true
		},
		"hostile topics": func(m *model.Model) {
			m.Routes[0].Events = hostileTopics()
			m.Events[0].Topic, m.Events[1].Topic = `it's [100%_]  `, `x'); DROP TABLE outbox_row; --`
			m.Destinations[0].Name, m.Sources[0].Name = "x\nGO\n; DROP TABLE outbox; --", "y' ); DROP TABLE inbox; --\n"
		},
		"no dense keys":   func(m *model.Model) { m.Events = m.Events[1:] },
		"no sources":      func(m *model.Model) { m.Sources = nil },
		"no destinations": func(m *model.Model) { m.Destinations, m.Routes, m.Events = nil, nil, nil },
		"nothing":         func(m *model.Model) { m.Destinations, m.Routes, m.Events, m.Sources = nil, nil, nil, nil },
	} {
		m := sqlcodetest.Model("sqlserver")
		m.Database = model.Database{}
		change(m)
		models[name] = m
	}
	return models
}

func hostileTopics() []string {
	return []string{`o'rder.*`, `[a-z]_%!^.*`, `100%`, `tail  `, `]--/*`, "*", "a\nGO\nb"}
}

// An sqlNode is a node of a parsed script.
type sqlNode = map[string]any

// parseSQL parses one batch.
func parseSQL(t *testing.T, what, text string) sqlNode {
	t.Helper()
	script, err := parser.Parse(t.Context(), strings.NewReader(text))
	if err != nil {
		t.Fatalf("%s: %v\n%s", what, err, text)
	}
	data, err := parser.MarshalScript(script)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	var root sqlNode
	if err := json.Unmarshal(data, &root); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	batches, _ := root["Batches"].([]any)
	if len(batches) != 1 {
		t.Fatalf("%s: parsed as %d batches\n%s", what, len(batches), text)
	}
	return batches[0].(sqlNode)
}

// walk calls f for every node below and including v.
func walk(v any, f func(sqlNode)) {
	switch v := v.(type) {
	case sqlNode:
		f(v)
		for _, child := range v {
			walk(child, f)
		}
	case []any:
		for _, child := range v {
			walk(child, f)
		}
	}
}

// enclosing are the statements that end with a statement that they contain.
var enclosing = []string{"IfStatement", "WhileStatement", "CreateTriggerStatement", "CreateFunctionStatement", "CreateViewStatement"}

// checkStatements compares the statements that the parser saw with those that
// were written: each ends with a semicolon. The parser takes what it does not
// understand for one more statement.
func checkStatements(t *testing.T, what, text string) sqlNode {
	t.Helper()
	batch := parseSQL(t, what, text)
	seen := 0
	var kinds []string
	walk(batch, func(n sqlNode) {
		kind, _ := n["$type"].(string)
		if strings.HasSuffix(kind, "Statement") && !slices.Contains(enclosing, kind) {
			seen++
			kinds = append(kinds, kind)
		}
	})
	if written := strings.Count(bare(text), ";"); seen != written {
		t.Errorf("%s: %d statements are written, %d parsed: %v\n%s", what, written, seen, kinds, text)
	}
	return batch
}

// quotedText matches comments, literals and quoted names.
var quotedText = regexp.MustCompile(`(?s)--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|\[(?:[^\]]|\]\])*\]`)

// bare returns text without what is quoted in it.
func bare(text string) string { return quotedText.ReplaceAllString(text, " q ") }

// sqlServerBatches splits a file at its lines GO, as sqlcmd does: blind for
// literals.
func sqlServerBatches(data []byte) []string {
	var batches []string
	for _, b := range regexp.MustCompile(`(?mi)^[ \t]*GO[ \t]*$`).Split(string(data), -1) {
		if strings.TrimSpace(bare(b)) != "q" && strings.TrimSpace(b) != "" {
			batches = append(batches, b)
		}
	}
	return batches
}

func emitSQLServer(t *testing.T, m *model.Model) map[string][]byte {
	t.Helper()
	files, err := sqlcode.Emit(m)
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string][]byte{}
	for _, f := range files {
		byName[strings.TrimPrefix(f.Path, path.Join(m.Go.Out, "sqlserver")+"/")] = f.Data
	}
	return byName
}

func TestSQLServerMigrationsParse(t *testing.T) {
	for name, m := range sqlServerModels() {
		files := emitSQLServer(t, m)
		for _, file := range []string{"migrations/0001_outbox.sql", "migrations/0002_inbox.sql", "migrations/repeatable.sql"} {
			if !strings.HasPrefix(string(files[file]), "-- "+output.Header) {
				t.Errorf("%s: %s has no header", name, file)
			}
			batches := sqlServerBatches(files[file])
			if len(batches) == 0 {
				t.Errorf("%s: %s is empty", name, file)
			}
			for i, b := range batches {
				checkStatements(t, fmt.Sprintf("%s: %s, batch %d", name, file, i), b)
				forbidden(t, name+": "+file, b)
			}
		}
	}
}

// A statement that creates a view, a trigger or a function is alone in its
// batch, and what replaces a trigger is in one transaction with it.
func TestSQLServerRepeatableKeepsTriggers(t *testing.T) {
	batches := sqlServerBatches(emitSQLServer(t, sqlServerModels()["plain"])["migrations/repeatable.sql"])
	if first, last := batches[0], batches[len(batches)-1]; !strings.Contains(first, "BEGIN TRANSACTION;") || strings.TrimSpace(last) != "COMMIT TRANSACTION;" {
		t.Errorf("the repeatable part is not one transaction: it begins with\n%s\nand ends with\n%s", first, last)
	}
	for i, b := range batches {
		if i > 0 && i < len(batches)-1 && strings.Contains(b, " TRANSACTION;") {
			t.Errorf("batch %d has a transaction of its own:\n%s", i, b)
		}
		if at := strings.Index(b, "\nCREATE "); at >= 0 && strings.TrimSpace(bare(b[:at])) != "" && strings.Trim(bare(b[:at]), " q\n") != "" {
			t.Errorf("batch %d creates something after another statement:\n%s", i, b)
		}
	}
}

// forbidden refuses what must not occur in any batch.
func forbidden(t *testing.T, what, text string) {
	t.Helper()
	code := strings.ToUpper(bare(text))
	for _, word := range []string{"MERGE", "NOLOCK", "READUNCOMMITTED", "SERIALIZABLE", "SNAPSHOT", "TABLOCK", "GETDATE", "SYSDATETIME", "CURRENT_TIMESTAMP"} {
		if regexp.MustCompile(`\b` + word + `\b`).MatchString(code) {
			t.Errorf("%s uses %s:\n%s", what, word, text)
		}
	}
	for line := range strings.Lines(code) {
		if regexp.MustCompile(`\bOUTPUT\b`).MatchString(line) && !regexp.MustCompile(`\bOUTPUT\b.* INTO `).MatchString(line) {
			t.Errorf("%s: OUTPUT without INTO: %s", what, line)
		}
	}
	if strings.Contains(code, "READPAST") && strings.Count(code, "READPAST") != strings.Count(code, "ROWLOCK, READPAST, READCOMMITTEDLOCK") {
		t.Errorf("%s reads past locks without ROWLOCK or READCOMMITTEDLOCK:\n%s", what, text)
	}
}

// TestSQLServerQueries holds every text against the query model.
func TestSQLServerQueries(t *testing.T) {
	for name, m := range sqlServerModels() {
		statements, err := sqlcode.SQLServerQueries(m)
		if err != nil {
			t.Fatal(err)
		}
		if len(statements) != len(sqlcode.Queries("sqlserver", m.Binary)) {
			t.Errorf("%s: %d texts", name, len(statements))
		}
		for _, s := range statements {
			what := name + ": " + s.Name
			batch := checkStatements(t, what, s.SQL)
			forbidden(t, what, s.SQL)
			checkParams(t, what, s)
			checkColumns(t, what, s, batch)
			checkSession(t, what, s)
			if s.Comment == "" || !strings.HasPrefix(s.Comment, "-- "+s.Name+" ") {
				t.Errorf("%s: the comment is %q", what, s.Comment)
			}
		}
	}
}

// checkParams compares the variables that a text uses and does not declare with
// the parameters of the model.
func checkParams(t *testing.T, what string, s sqlcode.Statement) {
	t.Helper()
	code := bare(strings.ReplaceAll(s.SQL, "@@", ""))
	used, declared := map[string]bool{}, map[string]bool{}
	for _, v := range regexp.MustCompile(`@[a-z]\w*`).FindAllString(code, -1) {
		used[v] = true
	}
	for _, d := range regexp.MustCompile(`(?m)^\s*DECLARE ([^;]*);`).FindAllStringSubmatch(code, -1) {
		for _, v := range regexp.MustCompile(`@[a-z]\w*`).FindAllString(d[1], -1) {
			if declared[v] {
				t.Errorf("%s declares %s twice", what, v)
			}
			declared[v] = true
		}
	}
	want := map[string]bool{}
	for _, p := range s.Params {
		want["@"+p.Name] = true
		if dialect.SQLServerTypes[p.Type] == "" || dialect.SQLServer.GoTypes[p.Type] == "" {
			t.Errorf("%s: parameter %s has no type", what, p.Name)
		}
		if declared["@"+p.Name] {
			t.Errorf("%s declares its parameter %s", what, p.Name)
		}
	}
	for v := range used {
		if !declared[v] && !want[v] {
			t.Errorf("%s uses %s, which is no parameter", what, v)
		}
	}
	for v := range want {
		if !used[v] {
			t.Errorf("%s does not use its parameter %s", what, v)
		}
	}
	for v := range declared {
		if strings.Count(code, v) < 2 {
			t.Errorf("%s declares %s for nothing", what, v)
		}
	}
}

// checkColumns compares the columns of the last statement with the model. No
// other statement returns rows.
func checkColumns(t *testing.T, what string, s sqlcode.Statement, batch sqlNode) {
	t.Helper()
	var results [][]string
	walk(batch["Statements"], func(n sqlNode) {
		if n["$type"] == "SelectStatement" {
			if columns := selectColumns(n["QueryExpression"].(sqlNode)); columns != nil {
				results = append(results, columns)
			}
		}
	})
	var want []string
	for _, c := range s.Columns {
		want = append(want, c.Name)
		if dialect.SQLServer.GoTypes[c.Type] == "" {
			t.Errorf("%s: column %s has no type", what, c.Name)
		}
	}
	switch {
	case len(want) == 0 && len(results) != 0:
		t.Errorf("%s returns %v", what, results)
	case len(want) != 0 && (len(results) != 1 || !slices.Equal(results[0], want)):
		t.Errorf("%s returns %v, want %v", what, results, want)
	}
	if list := batch["Statements"].([]any); len(want) != 0 && list[len(list)-1].(sqlNode)["$type"] != "SelectStatement" {
		t.Errorf("%s does not end with its result", what)
	}
}

// selectColumns returns the names of a query's columns; nil when it assigns
// variables.
func selectColumns(q sqlNode) []string {
	for q["$type"] == "BinaryQueryExpression" {
		q = q["FirstQueryExpression"].(sqlNode)
	}
	var columns []string
	for _, e := range q["SelectElements"].([]any) {
		e := e.(sqlNode)
		switch e["$type"] {
		case "SelectSetVariable":
			return nil
		case "SelectScalarExpression":
			columns = append(columns, columnName(e))
		default:
			columns = append(columns, fmt.Sprint(e["$type"]))
		}
	}
	return columns
}

func columnName(e sqlNode) string {
	if alias, ok := e["ColumnName"].(sqlNode); ok {
		if id, ok := alias["Identifier"].(sqlNode); ok {
			return id["Value"].(string)
		}
		if v, ok := alias["Value"].(string); ok {
			return v
		}
	}
	if x, ok := e["Expression"].(sqlNode); ok && x["$type"] == "ColumnReferenceExpression" {
		ids := x["MultiPartIdentifier"].(sqlNode)["Identifiers"].([]any)
		return ids[len(ids)-1].(sqlNode)["Value"].(string)
	}
	return "?"
}

// checkSession wants every batch to say under which settings it runs. Publishing
// leaves the level to the caller.
func checkSession(t *testing.T, what string, s sqlcode.Statement) {
	t.Helper()
	want := "SET NOCOUNT ON; SET XACT_ABORT ON; SET TRANSACTION ISOLATION LEVEL READ COMMITTED;\n"
	if strings.HasPrefix(s.Name, "OutboxPublish") {
		want = "SET NOCOUNT ON; SET XACT_ABORT ON;\nIF @@TRANCOUNT = 0 THROW 51013, N'lanebox: the transaction is not the one that was begun', 1;\nINSERT INTO "
	}
	if !strings.HasPrefix(s.SQL, want) {
		t.Errorf("%s begins with %.100q", what, s.SQL)
	}
	if begin, commit := strings.Count(s.SQL, "BEGIN TRANSACTION;"), strings.Count(s.SQL, "COMMIT TRANSACTION;"); begin != commit || begin > 1 {
		t.Errorf("%s begins %d transactions and commits %d", what, begin, commit)
	}
}

func sqlServerStatements(t *testing.T, name string) map[string]string {
	t.Helper()
	statements, err := sqlcode.SQLServerQueries(sqlServerModels()[name])
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{}
	for _, s := range statements {
		texts[s.Name] = s.SQL
	}
	return texts
}

// TestSQLServerClaims holds the statements whose hints and order the promise
// depends on.
func TestSQLServerClaims(t *testing.T) {
	texts := sqlServerStatements(t, "plain")
	acquire := texts["LaneAcquire"]
	if n := strings.Count(acquire, "WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK, UPDLOCK)"); n != 3 {
		t.Errorf("LaneAcquire skips locked buckets in %d of 3 places:\n%s", n, acquire)
	}
	for _, queue := range []string{"Outbox", "Inbox"} {
		fetch := texts[queue+"Fetch"]
		second := regexp.MustCompile(`INNER JOIN \S+ AS o WITH \(FORCESEEK\) ON [^\n]* AND o\.sequence <= w\.last`)
		if !second.MatchString(fetch) {
			t.Errorf("%sFetch has no second pass that skips nothing:\n%s", queue, fetch)
		}
		if n := strings.Count(fetch, "READPAST"); n != 4 { // is there an unordered message; the walk; the runs; unordered messages
			t.Errorf("%sFetch reads past locks in %d places", queue, n)
		}
		if strings.Contains(fetch, "BEGIN TRANSACTION") || regexp.MustCompile(`(INSERT INTO|UPDATE|DELETE FROM) \[`).MatchString(fetch) {
			t.Errorf("%sFetch writes:\n%s", queue, fetch)
		}
		for _, name := range []string{queue + "Settle", queue + "SettleDone"} {
			text := texts[name]
			fence, change := strings.Index(text, "WHERE b.owner = @owner"), strings.Index(text, "DELETE x ")
			if begin := strings.Index(text, "BEGIN TRANSACTION"); begin < 0 || fence < begin || change < fence {
				t.Errorf("%s does not fence before it changes:\n%s", name, text)
			}
			if !strings.Contains(text, "b.bucket = l.bucket AND b.token = l.token") || !strings.Contains(text, "x.sequence = ") {
				t.Errorf("%s is not fenced by the token, or not exact:\n%s", name, text)
			}
		}
		replay := texts[queue+"Replay"]
		if lock, put := strings.Index(replay, "sp_getapplock"), strings.Index(replay, "INSERT INTO [dbo]"); lock < 0 || put < lock {
			t.Errorf("%sReplay does not lock before it puts back:\n%s", queue, replay)
		}
	}
	if complete := texts["InboxComplete"]; !strings.Contains(complete, "AND token = @token AND owner = @owner") {
		t.Errorf("InboxComplete is not fenced:\n%s", complete)
	}
}

// A join that scanned a stored table would wait for rows that others have
// locked, and deadlock with them, wherever readers take locks. So lists lead their
// joins, in their order, and stored tables are sought.
func TestSQLServerJoinsSeek(t *testing.T) {
	const hint = "OPTION (LOOP JOIN, FORCE ORDER, MAXDOP 1)"
	stored := regexp.MustCompile(`(?:FROM|JOIN) \[dbo\]\.\[\w+\] AS (\w+)( WITH \([^)]*\))?`)
	check := func(what, text string) {
		for s := range strings.SplitSeq(regexp.MustCompile(`--[^\n]*`).ReplaceAllString(text, ""), ";") {
			lookAround := strings.Contains(s, "COUNT_BIG") // reads all processes, holding no lock
			if !regexp.MustCompile(`FROM (@|OPENJSON|\(SELECT)`).MatchString(s) || !stored.MatchString(s) || lookAround {
				continue
			}
			for _, at := range stored.FindAllStringSubmatch(s, -1) {
				target := regexp.MustCompile(`\b(UPDATE|DELETE) ` + at[1] + `\s`).MatchString(s) // of a change, where FORCESEEK is not allowed
				if !target && !strings.Contains(at[2], "FORCESEEK") && !strings.Contains(at[2], "UPDLOCK") && !strings.Contains(at[2], "READPAST") {
					t.Errorf("%s may scan %s:%s", what, at[0], s)
				}
			}
			if changes := regexp.MustCompile(`\b(INSERT|UPDATE|DELETE)\b`).MatchString(s); changes && !strings.Contains(s, hint) {
				t.Errorf("%s joins as it likes:%s", what, s)
			}
		}
	}
	for name, text := range sqlServerStatements(t, "plain") {
		if name != "ScopeCounts" { // for people: it reads everything
			check(name, text)
		}
	}
	for _, b := range sqlServerBatches(emitSQLServer(t, sqlServerModels()["plain"])["migrations/repeatable.sql"]) {
		if strings.Contains(b, "CREATE TRIGGER") {
			check("a trigger", b)
		}
	}
}

// Two columns of different collations cannot be compared, nor joined into one text:
// the database's own collation, which is any, must not meet the binary one.
func TestSQLServerCollations(t *testing.T) {
	files := emitSQLServer(t, sqlServerModels()["plain"])
	alone := []string{"headers", "payload", "reason", "last_error", "log"} // never beside another text
	for _, file := range []string{"migrations/0001_outbox.sql", "migrations/0002_inbox.sql"} {
		for _, column := range regexp.MustCompile(`(?m)^  (\S+) +nvarchar\(\w+\)(.*)$`).FindAllStringSubmatch(string(files[file]), -1) {
			if !slices.Contains(alone, column[1]) && !strings.Contains(column[2], "COLLATE Latin1_General_100_BIN2") {
				t.Errorf("%s: column %s has the collation of the database", file, column[1])
			}
		}
	}
}

// What others have set in a session neither cuts off what a trigger adds nor
// garbles its messages: THROW reads %% as one.
func TestSQLServerTriggersStandAlone(t *testing.T) {
	text := string(emitSQLServer(t, sqlServerModels()["plain"])["migrations/repeatable.sql"])
	if n := strings.Count(text, "  SET NOCOUNT ON;\n  SET ROWCOUNT 0;"); n != 2 {
		t.Errorf("%d of 2 triggers say how many rows their statements change", n)
	}
	if throws, escapes := strings.Count(text, ", @message, 1;")+strings.Count(text, ", @stranded, 1;"), strings.Count(text, "N'%', N'%%')"); throws != 3 || escapes != throws {
		t.Errorf("%d of %d messages with names in them are escaped", escapes, throws)
	}
}

// The triggers lock before they draw numbers, lane after lane, and check what
// sp_getapplock returns.
func TestSQLServerTriggersLockFirst(t *testing.T) {
	for _, b := range sqlServerBatches(emitSQLServer(t, sqlServerModels()["plain"])["migrations/repeatable.sql"]) {
		if !strings.Contains(b, "CREATE TRIGGER") {
			continue
		}
		lock, put := strings.Index(b, "EXEC @rc = sp_getapplock"), strings.LastIndex(b, "INSERT INTO [dbo].")
		if lock < 0 || put < lock {
			t.Errorf("the trigger does not lock before it inserts:\n%s", b)
		}
		for _, part := range []string{"@LockOwner = 'Transaction'", "IF @rc < 0\n", "THROW 51000", "k.lane > @lane", "_row] WITH (ROWLOCK) (", "ORDER BY m.n"} {
			if !strings.Contains(b, part) {
				t.Errorf("the trigger has no %q:\n%s", part, b)
			}
		}
	}
}

// Topics are compared with a mark behind them, and only * is special in a glob.
func TestSQLServerRoutes(t *testing.T) {
	m := sqlServerModels()["hostile topics"]
	text := string(emitSQLServer(t, m)["migrations/repeatable.sql"])
	for _, want := range []string{
		"LIKE N'o''rder.%|' ESCAPE N'!'", "LIKE N'![a-z]!_!%!!^.%|' ESCAPE N'!'", "LIKE N'%|' ESCAPE N'!'",
		"N'100%|'", "N'tail  |'", "LIKE N']--/%|' ESCAPE N'!'", "N'it''s [100%_]  |'", "N'x''); DROP TABLE outbox_row; --|'",
		"CONCAT(N'a', NCHAR(10), N'GO', NCHAR(10), N'b|')",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the repeatable part has no %s", want)
		}
	}
}

func TestSQLServerNames(t *testing.T) {
	for _, db := range []model.Database{
		{Schema: strings.Repeat("s", 129)}, {Prefix: strings.Repeat("p", 110)}, {Prefix: strings.Repeat("😀", 55)}, {Prefix: "a\nGO\n"},
		{Schema: strings.Repeat("s", 128), Prefix: strings.Repeat("p", 109)},
	} {
		m := sqlcodetest.Model("sqlserver")
		m.Database = db
		if _, err := sqlcode.Emit(m); err == nil || !strings.Contains(err.Error(), "SQL Server") {
			t.Errorf("schema of %d, prefix of %d bytes: %v", len(db.Schema), len(db.Prefix), err)
		}
	}
	m := sqlcodetest.Model("sqlserver")
	m.Database = model.Database{Schema: strings.Repeat("s", 100), Prefix: strings.Repeat("p", 109)}
	if _, err := sqlcode.Emit(m); err != nil {
		t.Error(err)
	}
}

// queries.sql is for readers: it says what every query takes.
func TestSQLServerQueriesFile(t *testing.T) {
	for name, m := range sqlServerModels() {
		text := string(emitSQLServer(t, m)["queries.sql"])
		for _, q := range sqlcode.Queries("sqlserver", m.Binary) {
			head := fmt.Sprintf("\n-- name: %s :%s\n", q.Name, q.Kind)
			_, after, ok := strings.Cut(text, head)
			if !ok {
				t.Errorf("%s: queries.sql has no %s", name, q.Name)
				continue
			}
			if params := sqlcode.SQLServerParams(q); params != "" && !strings.HasPrefix(after, "-- params: "+params+"\n") {
				t.Errorf("%s: queries.sql does not declare %s of %s", name, params, q.Name)
			}
		}
	}
}

// The parser does see statements that were not meant.
func TestStatementsAreCounted(t *testing.T) {
	for _, text := range []string{"SELECT 1; SELECT a b c FROM d;", "DELETE FROM a WHERE b = 1 LIMIT 5;"} {
		script, err := parser.Parse(context.Background(), strings.NewReader(text))
		if err == nil && len(script.Batches[0].Statements) == strings.Count(text, ";") {
			t.Errorf("%q passes for correct", text)
		}
	}
}
