package sqlcode

import (
	"fmt"
	"go/format"
	"text/template"

	"github.com/lanebox/lanebox/generator/model"
)

// postgresGo is what the template of the store reads.
type postgresGo struct {
	Import         string // of the event package
	Schema, Prefix string
	Binary         bool
	PushScope      int32
	Destinations   []model.Destination
	Sources        []model.Source
	Pulls          []model.Source
	Outbox, Inbox  postgresGoQueue
}

// postgresGoQueue names what differs between outbox and inbox in Go.
type postgresGoQueue struct {
	Type, Name, Table string
	Key, Topic        string // fields of sqlc's rows
	Inbox             bool
}

// postgresStore returns store.gen.go of the PostgreSQL dialect: typed adapters
// around sqlc's code. What they do stands in runtime/sqlstore/postgres.
func postgresStore(m *model.Model) ([]byte, error) {
	data := postgresGo{
		Import: m.Go.Import, Schema: m.Database.SchemaIn("postgres"), Prefix: m.Database.Prefix, Binary: m.Binary, PushScope: model.PushScope,
		Destinations: m.Destinations, Sources: m.Sources,
		Outbox: postgresGoQueue{Type: "outboxQueries", Name: "Outbox", Table: "outbox", Key: "Key", Topic: "Topic"},
		Inbox:  postgresGoQueue{Type: "inboxQueries", Name: "Inbox", Table: "inbox", Key: "AggregateID", Topic: "EventType", Inbox: true},
	}
	for _, s := range m.Sources {
		if s.Pull {
			data.Pulls = append(data.Pulls, s)
		}
	}
	text, err := render("go/postgres/store.go.tmpl", template.FuncMap{"comment": comment}, data)
	if err != nil {
		return nil, err
	}
	code, err := format.Source(text)
	if err != nil {
		return nil, fmt.Errorf("format the store: %w\n%s", err, text)
	}
	return code, nil
}
