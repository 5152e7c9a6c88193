package event

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// The Check functions are what the Validate methods of generated events are
// made of. Each returns nil or why the value is not as the schema says.

// A FieldError says which member of an event is wrong.
type FieldError struct {
	// Path names the member as in the payload: "lines[2].sku".
	Path string
	Err  error
}

func (e *FieldError) Error() string { return e.Path + ": " + e.Err.Error() }
func (e *FieldError) Unwrap() error { return e.Err }

// CheckField adds the member's name in front of err's path; nil stays nil.
func CheckField(name string, err error) error {
	if err == nil {
		return nil
	}
	var inner *FieldError
	if !errors.As(err, &inner) {
		return &FieldError{Path: name, Err: err}
	}
	if !strings.HasPrefix(inner.Path, "[") {
		name += "."
	}
	return &FieldError{Path: name + inner.Path, Err: inner.Err}
}

// CheckOptional checks the value that v points to; nil is a missing value and
// fine.
func CheckOptional[T any](v *T, check func(T) error) error {
	if v == nil {
		return nil
	}
	return check(*v)
}

// CheckEach checks the elements of a list in order.
func CheckEach[T any](list []T, check func(T) error) error {
	for i, v := range list {
		if err := check(v); err != nil {
			return CheckField(fmt.Sprintf("[%d]", i), err)
		}
	}
	return nil
}

// CheckValues checks the keys (valid UTF-8) and the values of a map, in the
// order of its keys.
func CheckValues[T any](m map[string]T, check func(T) error) error {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if err := cmpOr(CheckText(k), check(m[k])); err != nil {
			return CheckField(fmt.Sprintf("[%q]", k), err)
		}
	}
	return nil
}

func cmpOr(first, second error) error {
	if first != nil {
		return first
	}
	return second
}

// CheckText refuses a string that is not valid UTF-8.
func CheckText(s string) error {
	if !utf8.ValidString(s) {
		return errors.New("is not valid UTF-8")
	}
	return nil
}

// CheckNumber refuses NaN and the infinities, which JSON cannot hold.
func CheckNumber(f float64) error {
	if !finite(f) {
		return fmt.Errorf("is %v, which JSON cannot hold", f)
	}
	return nil
}

// CheckTime refuses the zero time and years that RFC 3339 cannot hold.
func CheckTime(t time.Time) error {
	if t.IsZero() {
		return errors.New("is required")
	}
	if y := t.Year(); y < 0 || y > 9999 {
		return fmt.Errorf("year %d is not between 0 and 9999", y)
	}
	return nil
}

// CheckDate refuses the zero date and days that do not exist.
func CheckDate(d Date) error {
	if d.IsZero() {
		return errors.New("is required")
	}
	return d.Validate()
}

// CheckUUID refuses the zero UUID.
func CheckUUID(u UUID) error {
	if u.IsZero() {
		return errors.New("is required")
	}
	return nil
}

// CheckRawJSON refuses anything but one JSON value in valid UTF-8.
func CheckRawJSON(v json.RawMessage) error {
	if len(v) == 0 {
		return errors.New("is required")
	}
	if !json.Valid(v) || !utf8.Valid(v) {
		return errors.New("is not valid JSON")
	}
	return nil
}

// CheckOptionalRawJSON is CheckRawJSON for a value that may be missing.
func CheckOptionalRawJSON(v json.RawMessage) error {
	if len(v) == 0 {
		return nil
	}
	return CheckRawJSON(v)
}

// CheckEnum refuses a string that is none of the enum's values.
func CheckEnum[E interface {
	~string
	Valid() bool
}](e E) error {
	if !e.Valid() {
		return fmt.Errorf("%q is not one of the values of its enum", string(e))
	}
	return nil
}

// CheckTypedKey refuses an empty key and keys that cannot order messages.
func CheckTypedKey[K Key](k K) error { return CheckKey(k.OrderingKey()) }

// ValidateOwn calls Validate() error of a type of the service's own, where it
// has that method.
func ValidateOwn[E any](e *E) error {
	if v, ok := any(e).(interface{ Validate() error }); ok {
		return v.Validate()
	}
	return nil
}

// CheckOwn is ValidateOwn for a member of an event.
func CheckOwn[E any](e E) error { return ValidateOwn(&e) }

// CheckAny accepts every value.
func CheckAny[T any](T) error { return nil }
