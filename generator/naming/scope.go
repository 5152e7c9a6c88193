package naming

import (
	"fmt"

	"github.com/lanebox/lanebox/generator/model"
)

// A Use is one claim to an identifier.
type Use struct {
	// What is the thing that needs the identifier, as a message names it: `event
	// "order.placed.v1"`.
	What string
	// Pos is where the schema names it; zero for names that generated code uses
	// itself.
	Pos model.Pos
}

// A Scope is a set of identifiers that must differ, such as the fields of one
// struct. The zero Scope is empty and ready to use.
type Scope struct {
	used map[string]Use
}

// NewScope returns a scope that holds the names that generated code uses itself.
func NewScope(reserved ...string) *Scope {
	s := &Scope{used: make(map[string]Use, len(reserved))}
	for _, id := range reserved {
		s.used[id] = Use{What: "generated code"}
	}
	return s
}

// Claim takes an identifier. If it is taken, Claim changes nothing and returns a
// *CollisionError that names both users.
func (s *Scope) Claim(id string, use Use) error {
	if first, ok := s.used[id]; ok {
		return &CollisionError{ID: id, First: first, Second: use}
	}
	if s.used == nil {
		s.used = map[string]Use{}
	}
	s.used[id] = use
	return nil
}

// Free reports whether nobody has claimed id.
func (s *Scope) Free(id string) bool {
	_, ok := s.used[id]
	return !ok
}

// A CollisionError says that two things of a schema get one identifier.
type CollisionError struct {
	ID            string
	First, Second Use
}

// Error names both things, and the line of the first.
func (e *CollisionError) Error() string {
	if e.First.Pos.Line == 0 {
		return fmt.Sprintf("%s becomes %s, which generated code uses itself", e.Second.What, e.ID)
	}
	return fmt.Sprintf("%s and %s (line %d) both become %s", e.Second.What, e.First.What, e.First.Pos.Line, e.ID)
}
