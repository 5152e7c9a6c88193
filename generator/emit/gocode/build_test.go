package gocode_test

import (
	"os"
	"strings"
	"testing"
)

// TestRichModelWorks builds and vets the output for the rich model inside a
// service, and runs the service's tests of it.
func TestRichModelWorks(t *testing.T) {
	m := newModule(t)
	files := emit(t, rich())
	for i := 0; i < len(files); i++ {
		if strings.Contains(files[i].Path, "/postgres/") || strings.Contains(files[i].Path, "/sqlite/") {
			files = append(files[:i], files[i+1:]...)
			i--
		}
	}
	m.writeFiles(files)
	m.copyDir("testdata/service/orders", "orders")
	m.copyDir("testdata/service/carriers", "go-carriers/v2")
	m.copyDir("testdata/service/rich", "rich")
	m.must("vet", "./...")
	m.must("test", "./rich")
	_ = os.Stdout
}
