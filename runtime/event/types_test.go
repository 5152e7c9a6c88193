package event_test

import (
	"encoding/json"
	"math"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
)

func TestDecimalKeepsItsDigits(t *testing.T) {
	for _, s := range []string{"0", "-0", "0.0", "1.50", "-12.5", "1e2", "1E+02", "0.1e-999", "123456789012345678901234567890.000000001"} {
		d, err := event.ParseDecimal(s)
		if err != nil || d.String() != s {
			t.Errorf("%s: %v, %v", s, d, err)
		}
		text, err := json.Marshal(d)
		if err != nil || string(text) != `"`+s+`"` {
			t.Errorf("%s: JSON %s, %v", s, text, err)
		}
		for _, form := range []string{string(text), s} { // a string and a number
			var back event.Decimal
			if err := json.Unmarshal([]byte(form), &back); err != nil || back != d {
				t.Errorf("%s read as %v, %v", form, back, err)
			}
		}
	}
}

func TestDecimalRefusesWhatIsNoNumber(t *testing.T) {
	for _, s := range []string{
		"", "-", "+1", "01", ".5", "5.", "1e", "1e+", "1e1000", "1e-1000", "1e99999999999999999999", "NaN", "Inf", "0x1", "1_0", " 1", "1 ",
		"1,5", "１", "1\x00", "--1", strings.Repeat("1", event.MaxDecimalBytes+1),
	} {
		if d, err := event.ParseDecimal(s); err == nil {
			t.Errorf("%q was read as %v", s, d)
		}
	}
	for _, s := range []string{`true`, `{}`, `[]`, `"x"`, `""`, `1e1000`} {
		var d event.Decimal
		if json.Unmarshal([]byte(s), &d) == nil {
			t.Errorf("%s was read as %v", s, d)
		}
	}
}

func TestZeroDecimalIsZero(t *testing.T) {
	var d event.Decimal
	if d.String() != "0" || d != event.MustDecimal("0") || d.Rat().Sign() != 0 {
		t.Errorf("zero Decimal %v", d)
	}
	if err := json.Unmarshal([]byte("null"), &d); err != nil || d != (event.Decimal{}) {
		t.Errorf("null: %v, %v", d, err)
	}
}

func TestNewDecimal(t *testing.T) {
	for _, c := range []struct {
		unscaled int64
		scale    int
		want     string
	}{
		{1250, 2, "12.50"}, {-5, 2, "-0.05"}, {0, 0, "0"}, {0, 2, "0.00"}, {7, 0, "7"},
		{math.MinInt64, 3, "-9223372036854775.808"}, {math.MaxInt64, 0, "9223372036854775807"},
	} {
		if got := event.NewDecimal(c.unscaled, c.scale); got.String() != c.want {
			t.Errorf("NewDecimal(%d, %d) is %v, want %s", c.unscaled, c.scale, got, c.want)
		}
	}
}

func TestDecimalCmp(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"1", "1.0", 0}, {"1e2", "100", 0}, {"-1", "1", -1}, {"0.1", "0.09", 1}, {"1e-999", "0", 1}} {
		if got := event.MustDecimal(c.a).Cmp(event.MustDecimal(c.b)); got != c.want {
			t.Errorf("%s against %s is %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

func TestDate(t *testing.T) {
	d := event.Date{Year: 2024, Month: time.February, Day: 29}
	text, err := json.Marshal(d)
	if err != nil || string(text) != `"2024-02-29"` {
		t.Errorf("JSON %s, %v", text, err)
	}
	var back event.Date
	if err := json.Unmarshal(text, &back); err != nil || back != d {
		t.Errorf("read %v, %v", back, err)
	}
	if got := event.DateOf(time.Date(2024, 3, 1, 1, 0, 0, 0, time.FixedZone("", 7200))); got != (event.Date{Year: 2024, Month: 3, Day: 1}) {
		t.Errorf("the day depends on the zone: %v", got)
	}
	if d.Compare(event.Date{Year: 2024, Month: 3, Day: 1}) != -1 || d.Compare(d) != 0 || d.Compare(event.Date{Year: 2023, Month: 12, Day: 31}) != 1 {
		t.Error("Compare")
	}
	for _, bad := range []event.Date{{}, {Year: 2023, Month: 2, Day: 29}, {Year: 10000, Month: 1, Day: 1}, {Year: -1, Month: 1, Day: 1}, {Year: 2024, Month: 13, Day: 1}, {Year: 2024, Month: 1}} {
		if bad.Validate() == nil {
			t.Errorf("%v is a date", bad)
		}
		if text, err := json.Marshal(bad); err == nil {
			t.Errorf("%v was written as %s", bad, text)
		}
	}
	for _, bad := range []string{"", "2024-2-9", "2023-02-29", "0000-01-01", "2024-01-01T00:00:00Z", "24-01-01", "2024-01-01 ", "-024-01-01", "12024-01-01"} {
		if d, err := event.ParseDate(bad); err == nil {
			t.Errorf("%q was read as %v", bad, d)
		}
	}
}

func TestDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"PT0S": 0, "PT1H30M": 90 * time.Minute, "PT0.25S": 250 * time.Millisecond, "-PT5S": -5 * time.Second, "PT0.000000001S": 1,
		"PT2562047H47M16.854775807S": math.MaxInt64, "-PT2562047H47M16.854775808S": math.MinInt64, "PT24H": 24 * time.Hour,
	} {
		d := event.Duration(want)
		if d.String() != text {
			t.Errorf("%v is %s, want %s", want, d, text)
		}
		if got, err := event.ParseDuration(text); err != nil || got != d || got.Std() != want {
			t.Errorf("%s is %v, %v, want %v", text, got, err, want)
		}
	}
	for text, want := range map[string]time.Duration{
		"P1D": 24 * time.Hour, "P2W": 14 * 24 * time.Hour, "P1W1DT1H1M1.5S": 8*24*time.Hour + time.Hour + time.Minute + 1500*time.Millisecond,
		"PT90M": 90 * time.Minute, "PT000S": 0, "-PT0S": 0,
	} {
		if got, err := event.ParseDuration(text); err != nil || got.Std() != want {
			t.Errorf("%s is %v, %v, want %v", text, got, err, want)
		}
	}
	for _, bad := range []string{
		"", "P", "PT", "P1DT", "-P", "1h", "PT1", "P1Y", "P1M", "PT1M1H", "PT1H1H", "PT1.5M", "PT.5S", "PT1.S", "PT0.0000000001S", "PT-1S", "+PT1S",
		"pt1s", "PT1S ", "P1H", "PT1D", "PT2562047H47M16.854775808S", "-PT2562047H47M16.854775809S", "PT99999999999999999999999S", "P1T1S", "PTT1S",
	} {
		if d, err := event.ParseDuration(bad); err == nil {
			t.Errorf("%q was read as %v", bad, d)
		}
	}
	if text, err := json.Marshal(event.Duration(time.Second)); err != nil || string(text) != `"PT1S"` {
		t.Errorf("JSON %s, %v", text, err)
	}
}

func FuzzDecimal(f *testing.F) {
	for _, s := range []string{"0", "-0.10", "1e5", "12345678901234567890", "01", "1e"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := event.ParseDecimal(s)
		if err != nil {
			return
		}
		if d.String() != s || !json.Valid([]byte(s)) {
			t.Fatalf("%q became %q", s, d)
		}
		want, ok := new(big.Rat).SetString(s)
		if !ok || d.Rat().Cmp(want) != 0 {
			t.Fatalf("%q is %v", s, d.Rat())
		}
		var back event.Decimal
		text, err := json.Marshal(d)
		if err != nil || json.Unmarshal(text, &back) != nil || back != d {
			t.Fatalf("%q written as %s, %v, read as %v", s, text, err, back)
		}
	})
}

func FuzzDate(f *testing.F) {
	for _, s := range []string{"2024-02-29", "0001-01-01", "9999-12-31", "2023-02-29", "x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := event.ParseDate(s)
		if err != nil {
			return
		}
		if d.String() != s || d.Validate() != nil || d.IsZero() {
			t.Fatalf("%q became %v, %v", s, d, d.Validate())
		}
	})
}

func FuzzDuration(f *testing.F) {
	for _, s := range []string{"PT1H", "-PT0.5S", "P1W2DT3H4M5.000000006S", "PT", "P1Y"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := event.ParseDuration(s)
		if err != nil {
			return
		}
		if back, err := event.ParseDuration(d.String()); err != nil || back != d {
			t.Fatalf("%q is %s, read again %v, %v", s, d, back, err)
		}
	})
}
