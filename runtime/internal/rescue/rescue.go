// Package rescue turns panics into errors.
package rescue

import (
	"fmt"
	"runtime/debug"
)

// Panic is deferred by a function that returns *err: when the function panics it
// returns an error with the panic's value and stack instead.
func Panic(err *error) {
	if v := recover(); v != nil {
		*err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
	}
}
