package extract

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func TestParsePathAccepts(t *testing.T) {
	for text, want := range map[string][]step{
		"$.a":                     {{name: "a"}},
		"$.a.b":                   {{name: "a"}, {name: "b"}},
		"$['a b']":                {{name: "a b"}},
		`$["a\"b"]`:               {{name: `a"b`}},
		`$['it\'s']`:              {{name: "it's"}},
		`$['\u00e9\ud83d\ude00']`: {{name: "é😀"}},
		"$.list[0]":               {{name: "list"}, {array: true}},
		"$[ 12 ].x":               {{index: 12, array: true}, {name: "x"}},
		"$.名前":                    {{name: "名前"}},
		"$._id9":                  {{name: "_id9"}},
		"$['']":                   {{name: ""}},
	} {
		p, err := ParsePath(text)
		if err != nil {
			t.Errorf("ParsePath(%q): %v", text, err)
			continue
		}
		if len(p.steps) != len(want) {
			t.Errorf("ParsePath(%q) = %+v", text, p.steps)
			continue
		}
		for i := range want {
			if p.steps[i] != want[i] {
				t.Errorf("ParsePath(%q) step %d = %+v, want %+v", text, i, p.steps[i], want[i])
			}
		}
	}
}

func TestParsePathRefuses(t *testing.T) {
	for text, reason := range map[string]string{
		"":               "starts with $",
		"a.b":            "starts with $",
		"$":              "names no field",
		"$.":             "name is missing",
		"$..a":           "several values",
		"$.*":            "several values",
		"$[*]":           "several values",
		"$[?@.a]":        "several values",
		"$[:2]":          "several values",
		"$[1:2]":         "one name or one index",
		"$['a','b']":     "one name or one index",
		"$[-1]":          "from the start",
		"$[01]":          "not an index",
		"$[99999999999]": "not an index",
		"$.event-id":     "['name']",
		"$.a b":          "['name']",
		"$.1a":           "['name']",
		"$a":             "expected . or [",
		"$['a":           "does not end",
		`$['a\q']`:       "wrong escape",
		`$['\ud800']`:    "wrong escape",
		"$['a\x00']":     "control character",
		"$.\xff":         "UTF-8",
		"$[a]":           "quoted name or an index",
		"$[":             "quoted name or an index",
	} {
		_, err := ParsePath(text)
		if err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("ParsePath(%q) = %v, want an error about %q", text, err, reason)
		}
	}
}

func find(t *testing.T, path, body string) (string, error) {
	t.Helper()
	p, err := ParsePath(path)
	if err != nil {
		t.Fatal(err)
	}
	d, err := ParseDocument([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return d.Find(p)
}

func TestFindKeepsTheTextAsWritten(t *testing.T) {
	for _, c := range []struct{ path, body, want string }{
		{"$.id", `{"id":"a"}`, "a"},
		{"$.id", "\ufeff {\"id\" : \"a\" }", "a"},
		{"$.id", `{"id":9007199254740993}`, "9007199254740993"},
		{"$.id", `{"id":18446744073709551615}`, "18446744073709551615"},
		{"$.id", `{"id":1.0}`, "1.0"},
		{"$.id", `{"id":1e3}`, "1e3"},
		{"$.id", `{"id":0}`, "0"},
		{"$.id", `{"id": -0 ,"x":1}`, "-0"},
		{"$.id", `{"id":"null"}`, "null"},
		{"$.id", `{"id":" a "}`, " a "},
		{"$.id", `{"\u0069d":"a\u00e9\ud83d\ude00\n\/"}`, "aé😀\n/"},
		{"$.a.b", `{"x":{"b":1},"a":{"c":[{"b":2}],"b":"3"}}`, "3"},
		{"$['a b']", `{"a b":"x"}`, "x"},
		{"$.list[1].id", `{"list":[{"id":"p"},{"id":"q"}]}`, "q"},
		{"$[0]", `[ 7 , 8]`, "7"},
		{"$.z", `{"b":1,"a":1.0,"a":2,"z":"}\"{"}`, `}"{`},
	} {
		got, err := find(t, c.path, c.body)
		if err != nil || got != c.want {
			t.Errorf("%s in %s = %q, %v; want %q", c.path, c.body, got, err, c.want)
		}
	}
}

func TestFindNeverMakesAKeyOfNothing(t *testing.T) {
	for _, c := range []struct{ path, body, reason string }{
		{"$.id", `{}`, "$.id is missing"},
		{"$.id", `{"ID":"a"}`, "missing"},
		{"$.id", `{"id":null}`, "null"},
		{"$.id", `{"id":""}`, "empty"},
		{"$.id", `{"id":{}}`, "object"},
		{"$.id", `{"id":[1]}`, "list"},
		{"$.id", `{"id":true}`, "boolean"},
		{"$.id", `{"id":false}`, "boolean"},
		{"$.id", `[1]`, "an object was expected"},
		{"$.id", `null`, "an object was expected"},
		{"$.a.b", `{"a":"x"}`, "an object was expected"},
		{"$.a[2]", `{"a":[1,2]}`, "shorter"},
		{"$.a[0]", `{"a":[]}`, "shorter"},
		{"$.a[0]", `{"a":{"0":1}}`, "a list was expected"},
	} {
		got, err := find(t, c.path, c.body)
		var none *NoValueError
		if !errors.As(err, &none) || !strings.Contains(err.Error(), c.reason) {
			t.Errorf("%s in %s = %q, %v; want no value: %s", c.path, c.body, got, err, c.reason)
		}
	}
}

func TestFindRefusesToGuess(t *testing.T) {
	for _, c := range []struct{ path, body, reason string }{
		{"$.a", `{"a":1,"a":2}`, "occurs twice"},
		{"$.a", `{"a":1,"\u0061":1}`, "occurs twice"},
		{"$.a.b", `{"a":{"b":1},"a":{"b":1}}`, "occurs twice"},
		{"$.a", `{"a":"\ud800"}`, "Unicode"},
		{"$.a", `{"a":"\udc00\ud800"}`, "Unicode"},
		{"$.a", `{"a":"\ud800\u0041"}`, "Unicode"},
		{"$.a", "{\"a\":\"\xff\"}", "Unicode"},
	} {
		got, err := find(t, c.path, c.body)
		var invalid *InvalidError
		if !errors.As(err, &invalid) || !strings.Contains(err.Error(), c.reason) {
			t.Errorf("%s in %s = %q, %v; want a refusal: %s", c.path, c.body, got, err, c.reason)
		}
	}
}

func TestParseDocumentRefusesOtherThings(t *testing.T) {
	for _, body := range []string{"", " ", "{", `{"a":1}x`, "{'a':1}", "\xff\xfe{\x00}\x00", "{\"a\":NaN}",
		strings.Repeat("[", 20000) + strings.Repeat("]", 20000)} {
		if _, err := ParseDocument([]byte(body)); err == nil {
			t.Errorf("ParseDocument(%.20q) succeeded", body)
		}
	}
}

func message(t *testing.T, body string, header map[string][]string) Message {
	t.Helper()
	d, err := ParseDocument([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return Message{Body: d, Header: func(name string) ([]string, error) {
		if name == "broken" {
			return nil, errors.New("has a wrong escape")
		}
		return header[name], nil
	}}
}

func rules(t *testing.T, texts ...string) []Rule {
	t.Helper()
	var out []Rule
	for _, text := range texts {
		r, err := ParseRule(text)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

func TestFirst(t *testing.T) {
	m := message(t, `{"a":null,"b":"x","o":{}}`, map[string][]string{
		"x-id": {"h"}, "twice": {"1", "1"}, "empty": {""}, "bytes": {"\xff"}})
	for _, c := range []struct {
		rules []string
		want  string
		err   string
	}{
		{[]string{"$.b"}, "x", ""},
		{[]string{"$.a", "$.o", "$.none", "$.b"}, "x", ""},
		{[]string{"$.a", "header:X-Id"}, "h", ""},
		{[]string{"header:none", "header:empty", "$.b"}, "x", ""},
		{[]string{"header:twice", "$.b"}, "", "header twice occurs more than once"},
		{[]string{"header:bytes", "$.b"}, "", "header bytes is not valid UTF-8"},
		{[]string{"header:broken", "$.b"}, "", "header broken has a wrong escape"},
		{[]string{"$.a", "header:none"}, "", "$.a is null; header none is missing"},
	} {
		got, err := First(rules(t, c.rules...), m)
		if got != c.want || (err == nil) != (c.err == "") || err != nil && err.Error() != c.err {
			t.Errorf("First(%v) = %q, %v; want %q, %q", c.rules, got, err, c.want, c.err)
		}
	}
}

func TestFirstJoinedKeepsTuplesApart(t *testing.T) {
	both := [][]Rule{rules(t, "$.a", "$.b"), rules(t, "$.c")}
	seen := map[string]string{}
	for _, body := range []string{`{"a":"x|y","b":"z"}`, `{"a":"x","b":"y|z"}`, `{"a":"x\\","b":"y"}`, `{"a":"x","b":"\\y"}`} {
		key, err := FirstJoined(both, message(t, body, nil))
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := seen[key]; ok {
			t.Errorf("%s and %s have the same key %q", body, other, key)
		}
		seen[key] = body
	}
	if key, err := FirstJoined(both, message(t, `{"a":"x","c":"only"}`, nil)); err != nil || key != "only" {
		t.Errorf("alternative = %q, %v", key, err)
	}
	if _, err := FirstJoined(both, message(t, `{"a":"x"}`, nil)); err == nil || err.Error() != "$.b is missing; $.c is missing" {
		t.Errorf("error = %v", err)
	}
	if _, err := FirstJoined(both, message(t, `{"a":1,"a":2,"b":1,"c":1}`, nil)); err == nil {
		t.Error("an ambiguous part was passed over")
	}
}

func TestParseRuleRefuses(t *testing.T) {
	for _, text := range []string{"", "id", "header:", "header:a b", "header:a\r\nb", "header:é", "Header:x"} {
		if _, err := ParseRule(text); err == nil {
			t.Errorf("ParseRule(%q) succeeded", text)
		}
	}
}

func FuzzFind(f *testing.F) {
	f.Add("$.a.b", `{"a":{"b":"x"}}`)
	f.Add("$['a b'][0]", `{"a b":[9007199254740993]}`)
	f.Add("$.a", `{"a":"\ud83d\ude00","a":null}`)
	f.Fuzz(func(t *testing.T, path, body string) {
		p, err := ParsePath(path)
		if err != nil {
			return
		}
		if again, err := ParsePath(p.String()); err != nil || len(again.steps) != len(p.steps) {
			t.Fatalf("ParsePath(%q) differs the second time: %v", path, err)
		}
		d, err := ParseDocument([]byte(body))
		if err != nil {
			return
		}
		got, err := d.Find(p)
		if err == nil && got == "" {
			t.Fatalf("%q in %q gave an empty value", path, body)
		}
		if want, ok := simpleFind(p, body); err == nil && (!ok || want != got) {
			t.Fatalf("%q in %q = %q; encoding/json says %q, %v", path, body, got, want, ok)
		}
	})
}

// simpleFind does the same with encoding/json, less strictly.
func simpleFind(p Path, body string) (string, bool) {
	raw := json.RawMessage(strings.TrimPrefix(body, "\ufeff"))
	for _, s := range p.steps {
		if s.array {
			var list []json.RawMessage
			if json.Unmarshal(raw, &list) != nil || s.index >= len(list) {
				return "", false
			}
			raw = list[s.index]
			continue
		}
		var object map[string]json.RawMessage
		if json.Unmarshal(raw, &object) != nil {
			return "", false
		}
		raw = object[s.name]
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text, true
	}
	var number json.Number
	return string(raw), json.Unmarshal(raw, &number) == nil
}
