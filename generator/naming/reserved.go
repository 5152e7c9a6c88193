package naming

// PackageNames are the exported identifiers of the generated events package that
// do not come from the schema.
var PackageNames = []string{"Event", "Publisher", "NewPublisher", "WithKey", "Keyed", "PushSources", "Routed"}

// PublisherNames are the methods of a generated publisher that do not come from
// the schema; no event and no catalog can have these names.
var PublisherNames = []string{"All", "AllWithKey"}

// StructNames are the methods of a generated payload type, which its fields
// cannot be called.
var StructNames = []string{"Validate", "MarshalJSON", "UnmarshalJSON"}

// ConfigNames are the fields of a generated configuration that do not come from
// the schema; no source and no destination can have these names.
var ConfigNames = []string{"Logger", "Observer", "PollInterval", "Grace"}
