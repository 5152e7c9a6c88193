package migrate_test

import (
	"reflect"
	"testing"
	"testing/fstest"

	"github.com/lanebox/lanebox/runtime/migrate"
)

func TestFiles(t *testing.T) {
	set, err := migrate.Files(fstest.MapFS{
		"migrations/0002_inbox.sql":  {Data: []byte("two")},
		"migrations/repeatable.sql":  {Data: []byte("again")},
		"migrations/0001_outbox.sql": {Data: []byte("one")},
		"migrations/readme.md":       {Data: []byte("no")},
		"0003_elsewhere.sql":         {Data: []byte("no")},
	})
	want := migrate.Set{Steps: []migrate.Step{{Name: "0001_outbox", SQL: "one"}, {Name: "0002_inbox", SQL: "two"}}, Repeatable: "again"}
	if err != nil || !reflect.DeepEqual(set, want) {
		t.Errorf("got %+v, %v, want %+v", set, err, want)
	}
}
