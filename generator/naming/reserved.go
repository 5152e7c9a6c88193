package naming

// PackageNames are the exported identifiers of the generated events package that
// do not come from the schema. Tx is the type parameter of its handlers.
var PackageNames = []string{"Event", "Publisher", "NewPublisher", "WithKey", "Keyed", "PushSources", "Routed", "Tx"}

// PublisherNames are the methods of a generated publisher that do not come from
// the schema, and those that go vet wants with another signature; no event and no
// catalog can have these names.
var PublisherNames = []string{
	"All", "AllWithKey",
	"GobDecode", "GobEncode", "MarshalJSON", "MarshalXML", "ReadByte", "ReadRune", "UnmarshalJSON", "UnmarshalXML",
	"UnreadByte", "UnreadRune", "WriteByte",
}

// StructNames are the methods of a generated payload type, which its fields
// cannot be called.
var StructNames = []string{"Validate", "MarshalJSON", "UnmarshalJSON"}

// ConfigNames are the fields of a generated configuration that do not come from
// the schema; no source and no destination can have these names.
var ConfigNames = []string{"Logger", "Observer", "PollInterval", "Grace", "CallTimeout"}
