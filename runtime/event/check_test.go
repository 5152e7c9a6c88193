package event_test

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
)

type color string

func (c color) Valid() bool { return c == "red" }

type loud struct{ Text string }

func (l *loud) Validate() error {
	if l.Text == "loud" {
		return errors.New("too loud")
	}
	return nil
}

func TestChecks(t *testing.T) {
	for name, c := range map[string]struct {
		good, bad error
	}{
		"text":     {event.CheckText("é\x00"), event.CheckText("\xff")},
		"number":   {event.CheckNumber(0.1), event.CheckNumber(math.NaN())},
		"infinity": {nil, event.CheckNumber(math.Inf(-1))},
		"time":     {event.CheckTime(time.Unix(0, 0)), event.CheckTime(time.Time{})},
		"year":     {nil, event.CheckTime(time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC))},
		"date":     {event.CheckDate(event.Date{Year: 1, Month: 1, Day: 1}), event.CheckDate(event.Date{})},
		"uuid":     {event.CheckUUID(event.NewUUID()), event.CheckUUID(event.UUID{})},
		"json":     {event.CheckRawJSON(json.RawMessage(`null`)), event.CheckRawJSON(json.RawMessage(`{} {}`))},
		"json utf": {nil, event.CheckRawJSON(json.RawMessage("\"\xff\""))},
		"no json":  {event.CheckOptionalRawJSON(nil), event.CheckRawJSON(nil)},
		"enum":     {event.CheckEnum(color("red")), event.CheckEnum(color(""))},
		"key":      {event.CheckTypedKey(event.RawKey("k")), event.CheckTypedKey(event.RawKey(strings.Repeat("k", 256)))},
		"own":      {event.CheckOwn(loud{}), event.CheckOwn(loud{"loud"})},
		"own none": {event.CheckOwn(1), nil},
		"optional": {event.CheckOptional(nil, event.CheckText), event.CheckOptional(new("\xff"), event.CheckText)},
		"list":     {event.CheckEach([]string{"a"}, event.CheckText), event.CheckEach([]string{"a", "\xff"}, event.CheckText)},
		"map":      {event.CheckValues(map[string]int{"a": 1}, event.CheckAny), event.CheckValues(map[string]int{"\xff": 1}, event.CheckAny)},
	} {
		if c.good != nil {
			t.Errorf("%s: a good value is refused: %v", name, c.good)
		}
		if c.bad == nil && name != "own none" {
			t.Errorf("%s: a bad value is accepted", name)
		}
	}
}

func TestFieldErrorsNameTheirPath(t *testing.T) {
	inner := event.CheckField("sku", errors.New("is bad"))
	list := event.CheckEach([]int{0, 1}, func(i int) error {
		if i == 1 {
			return inner
		}
		return nil
	})
	err := event.CheckField("order", event.CheckField("lines", list))
	if err == nil || err.Error() != "order.lines[1].sku: is bad" {
		t.Errorf("error %v", err)
	}
	if event.CheckField("x", nil) != nil {
		t.Error("no error became one")
	}
	err = event.CheckField("m", event.CheckValues(map[string]string{"b": "\xff", "a": "\xff"}, event.CheckText))
	if err == nil || err.Error() != `m["a"]: is not valid UTF-8` {
		t.Errorf("the first key is not reported: %v", err)
	}
}

func TestCodec(t *testing.T) {
	type payload struct {
		Text string `json:"text"`
		N    int64  `json:"n"`
	}
	text, err := event.EncodeJSON(&payload{"<&>", 9007199254740993})
	if err != nil || string(text) != `{"text":"<&>","n":9007199254740993}` {
		t.Errorf("encoded %s, %v", text, err)
	}
	back, err := event.DecodeJSON[payload]([]byte("\xef\xbb\xbf"+string(text)), nil)
	if err != nil || back.N != 9007199254740993 {
		t.Errorf("decoded %+v, %v", back, err)
	}
	for _, bad := range []string{"", "{", `{} {}`, `{"n":1.5}`, `{"n":9223372036854775808}`, `[]`} {
		if _, err := event.DecodeJSON[payload]([]byte(bad), nil); err == nil {
			t.Errorf("%q was decoded", bad)
		}
	}
	if _, err := event.EncodeJSON(new(math.NaN())); err == nil {
		t.Error("NaN was encoded")
	}
}

func TestMatchTopic(t *testing.T) {
	for _, c := range []struct {
		pattern, topic string
		want           bool
	}{
		{"order.*", "order.placed.v1", true}, {"order.*", "order.", true}, {"order.*", "order", false}, {"*", "", true},
		{"*.v1", "order.placed.v1", true}, {"*.v1", "order.v1.v2", false}, {"a*b*c", "axbxbxc", true}, {"a*b*c", "axc", false},
		{"order.placed", "order.placed", true}, {"order.placed", "order_placed", false}, {"a?c", "abc", false}, {"[ab]", "a", false},
		{"**", "x", true}, {"", "", true}, {"", "x", false},
	} {
		if got := event.MatchTopic(c.pattern, c.topic); got != c.want {
			t.Errorf("pattern %q, topic %q: %v", c.pattern, c.topic, got)
		}
	}
	if !event.MatchAnyTopic("b", "a", "b") || event.MatchAnyTopic("b") {
		t.Error("MatchAnyTopic")
	}
}

func TestRawKeyOf(t *testing.T) {
	if event.RawKeyOf(nil) != "" || event.RawKeyOf(event.RawKey("k")) != "k" {
		t.Error("RawKeyOf")
	}
	if v, err := event.ParseKeyText[event.UUID](nil); err != nil || !v.IsZero() {
		t.Errorf("empty text: %v, %v", v, err)
	}
	if _, err := event.ParseKeyText[event.UUID]([]byte("x")); err == nil {
		t.Error("bad text was accepted")
	}
}
