package event

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"time"
)

// MaxDecimalBytes is the longest text of a Decimal.
const MaxDecimalBytes = 128

// maxDecimalExponent bounds the exponent of a Decimal, so that turning a short
// text into a number cannot use unbounded memory.
const maxDecimalExponent = 999

// A Decimal is a decimal number that keeps its literal digits: "1.50" stays
// "1.50" and is never rounded to a binary fraction. In JSON it is a string,
// because many readers would round a number; a JSON number is read as well, digit
// for digit. Two Decimals are == when their texts are equal; Cmp compares the
// numbers. The zero Decimal is 0.
type Decimal struct{ text string }

// ParseDecimal reads the JSON number syntax: an optional minus sign, digits
// without a leading zero, optionally a fraction and an exponent between -999 and
// 999; at most MaxDecimalBytes bytes.
func ParseDecimal(s string) (Decimal, error) {
	if len(s) > MaxDecimalBytes {
		return Decimal{}, fmt.Errorf("decimal has %d bytes; the limit is %d", len(s), MaxDecimalBytes)
	}
	if !isNumber(s) {
		return Decimal{}, fmt.Errorf("%q is not a decimal number", s)
	}
	if s == "0" {
		s = "" // so that 0 equals the zero Decimal
	}
	return Decimal{s}, nil
}

// MustDecimal is ParseDecimal for constants: it panics where ParseDecimal fails.
func MustDecimal(s string) Decimal {
	d, err := ParseDecimal(s)
	if err != nil {
		panic("event: " + err.Error())
	}
	return d
}

// NewDecimal returns unscaled / 10^scale with exactly scale digits after the
// point: NewDecimal(1250, 2) is 12.50. A scale outside 0 to 100 panics.
func NewDecimal(unscaled int64, scale int) Decimal {
	if scale < 0 || scale > 100 {
		panic(fmt.Sprintf("event: decimal scale %d is not between 0 and 100", scale))
	}
	digits, sign := strconv.FormatInt(unscaled, 10), ""
	if unscaled < 0 {
		digits, sign = digits[1:], "-"
	}
	if missing := scale + 1 - len(digits); missing > 0 {
		digits = strings.Repeat("0", missing) + digits
	}
	whole, fraction := digits[:len(digits)-scale], digits[len(digits)-scale:]
	if scale > 0 {
		whole += "."
	}
	return MustDecimal(sign + whole + fraction)
}

// isNumber reports whether s is a JSON number with a bounded exponent.
func isNumber(s string) bool {
	s = strings.TrimPrefix(s, "-")
	whole, rest := digits(s)
	if whole == "" || len(whole) > 1 && whole[0] == '0' {
		return false
	}
	if strings.HasPrefix(rest, ".") {
		var fraction string
		if fraction, rest = digits(rest[1:]); fraction == "" {
			return false
		}
	}
	if rest == "" {
		return true
	}
	if rest[0] != 'e' && rest[0] != 'E' {
		return false
	}
	exponent := rest[1:]
	if exponent != "" && (exponent[0] == '+' || exponent[0] == '-') {
		exponent = exponent[1:]
	}
	number, rest := digits(exponent)
	n, err := strconv.Atoi(number)
	return rest == "" && err == nil && n <= maxDecimalExponent
}

// digits splits s behind its leading ASCII digits.
func digits(s string) (number, rest string) {
	i := 0
	for i < len(s) && s[i] >= '0' && s[i] <= '9' {
		i++
	}
	return s[:i], s[i:]
}

// String returns the literal digits.
func (d Decimal) String() string { return cmp.Or(d.text, "0") }

// Rat returns the exact number.
func (d Decimal) Rat() *big.Rat {
	r, _ := new(big.Rat).SetString(d.String()) // the syntax was checked
	return r
}

// Cmp compares the numbers: it returns -1 when d < x, 0 when they are equal
// ("1.0" and "1" are) and +1 when d > x.
func (d Decimal) Cmp(x Decimal) int { return d.Rat().Cmp(x.Rat()) }

// MarshalText implements encoding.TextMarshaler.
func (d Decimal) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Decimal) UnmarshalText(text []byte) error {
	v, err := ParseDecimal(string(text))
	if err != nil {
		return err
	}
	*d = v
	return nil
}

// UnmarshalJSON implements json.Unmarshaler: it takes a string or a number.
func (d *Decimal) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		return nil
	}
	if len(data) > 0 && data[0] == '"' {
		var s string
		if err := json.Unmarshal(data, &s); err != nil {
			return err
		}
		data = []byte(s)
	}
	return d.UnmarshalText(data)
}

// A Date is a day of the Gregorian calendar without a time and without a zone.
// Its text is "2006-01-02". The zero Date is no date.
type Date struct {
	Year  int // 1 to 9999
	Month time.Month
	Day   int
}

// DateOf returns the day on which t falls in t's own zone.
func DateOf(t time.Time) Date {
	y, m, d := t.Date()
	return Date{y, m, d}
}

// ParseDate reads "2006-01-02".
func ParseDate(s string) (Date, error) {
	t, err := time.Parse(time.DateOnly, s)
	if err != nil || t.Year() < 1 {
		return Date{}, fmt.Errorf("%q is not a date (YYYY-MM-DD)", s)
	}
	return DateOf(t), nil
}

// IsZero reports whether d is the zero Date.
func (d Date) IsZero() bool { return d == Date{} }

// Validate returns an error unless d is a day that exists.
func (d Date) Validate() error {
	if d.Year < 1 || d.Year > 9999 || d != DateOf(d.Time(time.UTC)) {
		return fmt.Errorf("%s is not a date", d)
	}
	return nil
}

// Time returns the first instant of the day in loc.
func (d Date) Time(loc *time.Location) time.Time {
	return time.Date(d.Year, d.Month, d.Day, 0, 0, 0, 0, loc)
}

// Compare returns -1, 0 or +1 when d is before, the same as or after x.
func (d Date) Compare(x Date) int {
	return cmp.Or(cmp.Compare(d.Year, x.Year), cmp.Compare(d.Month, x.Month), cmp.Compare(d.Day, x.Day))
}

// String returns the text of the date, also of one that does not exist.
func (d Date) String() string { return fmt.Sprintf("%04d-%02d-%02d", d.Year, int(d.Month), d.Day) }

// MarshalText implements encoding.TextMarshaler. A Date that does not exist, the
// zero Date among them, is an error.
func (d Date) MarshalText() ([]byte, error) {
	if err := d.Validate(); err != nil {
		return nil, err
	}
	return []byte(d.String()), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Date) UnmarshalText(text []byte) error {
	v, err := ParseDate(string(text))
	if err != nil {
		return err
	}
	*d = v
	return nil
}

// A Duration is a time.Duration whose text, also in JSON, is that of ISO 8601:
// "PT1H30M", "PT0.25S", "-PT5S". It is exact to the nanosecond.
type Duration time.Duration

// Units of the ISO text; days and weeks have a fixed length, months and years
// have none and are refused.
const (
	day  = 24 * time.Hour
	week = 7 * day
)

// ParseDuration reads an ISO 8601 duration of weeks, days, hours, minutes and
// seconds, each at most once and in this order; only seconds may have a fraction
// (of at most nine digits). A day has 24 hours.
func ParseDuration(s string) (Duration, error) {
	refuse := func(why string) (Duration, error) {
		return 0, fmt.Errorf("%q is not an ISO 8601 duration such as PT1H30M: %s", s, why)
	}
	rest, negative := strings.CutPrefix(s, "-")
	rest, ok := strings.CutPrefix(rest, "P")
	if !ok {
		return refuse("it does not start with P")
	}
	date, clock, timed := strings.Cut(rest, "T")
	sum, found := new(big.Int), false
	for _, part := range []struct {
		text  *string
		units string
	}{{&date, "WD"}, {&clock, "HMS"}} {
		for i := range len(part.units) {
			n, ok, err := component(part.text, part.units[i])
			if err != nil {
				return refuse(err.Error())
			}
			sum.Add(sum, n)
			found = found || ok
		}
		if *part.text != "" {
			return refuse("unexpected " + strconv.Quote(*part.text))
		}
	}
	if !found || timed && strings.HasSuffix(s, "T") {
		return refuse("a number is missing")
	}
	if negative {
		sum.Neg(sum)
	}
	if !sum.IsInt64() {
		return refuse("it is longer than 292 years")
	}
	return Duration(sum.Int64()), nil
}

// component cuts "12H" from the front of text when unit is 'H', and returns it
// in nanoseconds.
func component(text *string, unit byte) (*big.Int, bool, error) {
	whole, rest := digits(*text)
	fraction, point := "", false
	if unit == 'S' && strings.HasPrefix(rest, ".") {
		point = true
		fraction, rest = digits(rest[1:])
	}
	if rest == "" || rest[0] != unit {
		return new(big.Int), false, nil
	}
	if whole == "" || point && (fraction == "" || len(fraction) > 9) || len(whole) > 20 {
		return nil, false, fmt.Errorf("bad number before %c", unit)
	}
	*text = rest[1:]
	n, _ := new(big.Int).SetString(whole, 10)
	lengths := map[byte]time.Duration{'W': week, 'D': day, 'H': time.Hour, 'M': time.Minute, 'S': time.Second}
	n.Mul(n, big.NewInt(int64(lengths[unit])))
	nanos, _ := strconv.ParseInt((fraction + "000000000")[:9], 10, 64)
	return n.Add(n, big.NewInt(nanos)), true, nil
}

// Std returns d as the standard library's type.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// String returns the ISO 8601 text with hours, minutes and seconds; parts that
// are zero are left out, and zero is "PT0S".
func (d Duration) String() string {
	if d == 0 {
		return "PT0S"
	}
	var b strings.Builder
	n := uint64(d)
	if d < 0 {
		b.WriteByte('-')
		n = -n // right for the smallest duration, too
	}
	b.WriteString("PT")
	for _, u := range []struct {
		length uint64
		name   byte
	}{{uint64(time.Hour), 'H'}, {uint64(time.Minute), 'M'}} {
		if n >= u.length {
			b.WriteString(strconv.FormatUint(n/u.length, 10))
			b.WriteByte(u.name)
			n %= u.length
		}
	}
	if n > 0 {
		b.WriteString(strconv.FormatUint(n/1e9, 10))
		if n %= 1e9; n > 0 {
			b.WriteString("." + strings.TrimRight(fmt.Sprintf("%09d", n), "0"))
		}
		b.WriteByte('S')
	}
	return b.String()
}

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := ParseDuration(string(text))
	if err != nil {
		return err
	}
	*d = v
	return nil
}

// finite reports whether f can be written as JSON.
func finite(f float64) bool { return !math.IsNaN(f) && !math.IsInf(f, 0) }
