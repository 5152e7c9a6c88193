package naming

import (
	"hash/fnv"

	"github.com/lanebox/lanebox/generator/model"
)

// Number returns the stable scope number of a source or destination: 31 bits,
// neither 0 nor model.PushScope. It depends on kind and name alone and never
// changes, since rows in the database carry it. Two names may get one number;
// the caller refuses such a schema.
func Number(kind, name string) int32 {
	h := fnv.New64a()
	h.Write([]byte(kind))
	h.Write([]byte{0})
	h.Write([]byte(name))
	for {
		// The high half of the 64-bit hash is mixed better than a 32-bit hash of
		// short names would be.
		n := int32(h.Sum64() >> 33)
		if n != 0 && n != model.PushScope {
			return n
		}
		h.Write([]byte{0})
	}
}
