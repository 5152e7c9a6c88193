package naming

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/lanebox/lanebox/generator/model"
)

// Number returns the stable scope number of a source or destination: 31 bits,
// neither 0 nor model.PushScope. It depends on kind and name alone and never
// changes, since rows in the database carry it. Two names may get one number;
// the caller refuses such a schema.
func Number(kind, name string) int32 {
	text := kind + "\x00" + name
	for {
		sum := sha256.Sum256([]byte(text))
		n := int32(binary.BigEndian.Uint32(sum[:]) >> 1)
		if n != 0 && n != model.PushScope {
			return n
		}
		text += "\x00"
	}
}
