package sqlcode

import (
	"fmt"
	"go/format"
	"text/template"

	"github.com/lanebox/lanebox/generator/model"
)

// storeView is what the templates of the stores of PostgreSQL and SQL Server
// read.
type storeView struct {
	Import         string // of the event package
	Schema, Prefix string
	Binary         bool
	PushScope      int32
	Destinations   []model.Destination
	Sources        []model.Source
	Pulls          []model.Source
	Outbox, Inbox  storeQueue
}

// storeQueue names what differs between outbox and inbox in Go.
type storeQueue struct {
	Type, Name, Table string
	Key, Topic        string // fields of a row
	Inbox             bool
}

// storeCode returns store.gen.go of a dialect: typed adapters around the code of
// its queries. What they do stands in the runtime's store of the dialect.
func storeCode(m *model.Model, dialect string) ([]byte, error) {
	data := storeView{
		Import: m.Go.Import, Schema: m.Database.SchemaIn(dialect), Prefix: m.Database.Prefix, Binary: m.Binary, PushScope: model.PushScope,
		Destinations: m.Destinations, Sources: m.Sources,
		Outbox: storeQueue{Type: "outboxQueries", Name: "Outbox", Table: "outbox", Key: "Key", Topic: "Topic"},
		Inbox:  storeQueue{Type: "inboxQueries", Name: "Inbox", Table: "inbox", Key: "AggregateID", Topic: "EventType", Inbox: true},
	}
	for _, s := range m.Sources {
		if s.Pull {
			data.Pulls = append(data.Pulls, s)
		}
	}
	text, err := render("go/"+dialect+"/store.go.tmpl", template.FuncMap{"comment": comment}, data)
	if err != nil {
		return nil, err
	}
	code, err := format.Source(text)
	if err != nil {
		return nil, fmt.Errorf("format the store: %w\n%s", err, text)
	}
	return code, nil
}
