package box

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/lanebox/lanebox/runtime/outbox"
)

// Required returns an error that names the field when value is nil, or a nil
// pointer, function, map or interface inside one.
func Required(field string, value any) error {
	if value != nil {
		switch v := reflect.ValueOf(value); v.Kind() {
		case reflect.Pointer, reflect.Func, reflect.Map, reflect.Slice, reflect.Chan:
			if !v.IsNil() {
				return nil
			}
		default:
			return nil
		}
	}
	return fmt.Errorf("%s is nil", "Config."+field)
}

// An Endpoint is a destination of the schema and what the service configured
// for it.
type Endpoint struct {
	Name        string
	Destination outbox.Destination
	// Keyed says that ordered messages are sent there.
	Keyed bool
}

// Distinct returns an error when two destinations with ordered messages have
// one address (see outbox.Addressed): a key would then have two lanes there,
// which overtake each other.
func Distinct(endpoints ...Endpoint) error {
	first := map[string]string{}
	var errs []error
	for _, e := range endpoints {
		a, ok := e.Destination.(outbox.Addressed)
		if !ok || !e.Keyed || Required(e.Name, a) != nil || a.Address() == "" {
			continue
		}
		if other, taken := first[a.Address()]; taken {
			errs = append(errs, fmt.Errorf("destinations %s and %s both send to %s: "+
				"the order of a key would be lost there; use one destination", other, e.Name, a.Address()))
			continue
		}
		first[a.Address()] = e.Name
	}
	return errors.Join(errs...)
}
