package schema

import (
	"bytes"
	"encoding/json"
)

// JSONSchema returns the JSON Schema (draft 2020-12) of lanebox.yaml for editors.
// It comes from the tables that the loader reads with.
func JSONSchema() []byte {
	root := fileTable.json()
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = "lanebox schema"
	root["$defs"] = object{
		goTable.title:          goTable.json(),
		databaseTable.title:    databaseTable.json(),
		keyTable.title:         keyTable.json(),
		eventTable.title:       eventTable.json(),
		fieldTable.title:       fieldTable.json(),
		typeTable.title:        typeTable.json(),
		enumValueTable.title:   enumValueTable.json(),
		sourceTable.title:      sourceTable.json(),
		destinationTable.title: destinationTable.json(),
		retryTable.title:       retryTable.json(),
		routeTable.title:       routeTable.json(),
		"fields":               fieldsReader().json(),
		"type": object{"description": typeDoc, "anyOf": []any{
			object{"type": "string", "minLength": 1},
			listJSON(),
			object{"$ref": "#/$defs/" + typeTable.title},
		}},
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(root); err != nil {
		panic(err) // maps, lists and strings always encode
	}
	return b.Bytes()
}

// json describes a table, with both spellings of its keys.
func (t *table[T]) json() object {
	properties := object{}
	var required []string
	for _, p := range t.properties {
		if p.reserved {
			continue
		}
		described := object{"description": p.doc}
		for k, v := range p.json() {
			described[k] = v
		}
		properties[p.name] = described
		if alias := camel(p.name); alias != p.name {
			properties[alias] = object{"description": "The same as " + p.name + ".", "allOf": []any{p.json()}}
		}
		if p.required {
			required = append(required, p.name)
		}
	}
	o := object{"description": t.doc, "type": "object", "additionalProperties": false, "properties": properties}
	if required != nil {
		o["required"] = required
	}
	return o
}
