package dialect

import "testing"

func TestPostgresQuotes(t *testing.T) {
	for name, want := range map[string]string{
		"outbox": "outbox", "lane_hold": "lane_hold", "_x9": "_x9", "public": "public",
		"Select": `"Select"`, "select": `"select"`, "user": `"user"`, "my schema": `"my schema"`, `a"b`: `"a""b"`, "9x": `"9x"`, "": `""`, "é": `"é"`, "a$b": `"a$b"`,
	} {
		if got := Postgres.Quote(name); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
	for text, want := range map[string]string{"a": "'a'", "it's": "'it''s'", `a\b`: `E'a\\b'`, `\'`: `E'\\'''`} {
		if got := Postgres.Literal(text); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
}

func TestSQLServerQuotes(t *testing.T) {
	for name, want := range map[string]string{"outbox": "[outbox]", "a]b": "[a]]b]", "[x]": "[[x]]]", "": "[]", `it's "x"`: `[it's "x"]`} {
		if got := SQLServer.Quote(name); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
	for text, want := range map[string]string{
		"a": "N'a'", "it's": "N'it''s'", `a\b`: `N'a\b'`, "ü😀": "N'ü😀'", "a\nGO\r'": "CONCAT(N'a', NCHAR(10), N'GO', NCHAR(13), N'''')",
	} {
		if got := SQLServer.Literal(text); got != want {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
}

func TestByName(t *testing.T) {
	for _, name := range []string{"postgres", "sqlite"} {
		if d, err := ByName(name); err != nil || d.Name != name {
			t.Errorf("%s: %v, %v", name, d, err)
		}
	}
	if _, err := ByName("oracle"); err == nil {
		t.Error("no error")
	}
}
