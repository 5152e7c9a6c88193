package gocode_test

import (
	"fmt"
	"testing"

	"github.com/lanebox/lanebox/generator/emit/gocode"
	"github.com/lanebox/lanebox/generator/model"
)

// BenchmarkEmit renders 500 events of 12 fields.
func BenchmarkEmit(b *testing.B) {
	m := rich()
	for i := range 500 {
		s := &model.Struct{GoName: fmt.Sprintf("Many%d", i)}
		for j := range 12 {
			s.Fields = append(s.Fields, field(fmt.Sprintf("field_%d", j), fmt.Sprintf("Field%d", j), of(model.String)))
		}
		m.Events = append(m.Events, model.Event{
			Topic: fmt.Sprintf("many.event%d", i), GoName: s.GoName, Struct: s, Destinations: m.Events[0].Destinations,
		})
	}
	for b.Loop() {
		if _, err := gocode.Emit(m); err != nil {
			b.Fatal(err)
		}
	}
}
