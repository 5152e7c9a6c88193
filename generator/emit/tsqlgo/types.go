package tsqlgo

import (
	"github.com/dave/jennifer/jen"

	"github.com/lanebox/lanebox/generator/dialect"
)

// A goType is how Go code holds a type of the query model and hands it to the
// driver.
type goType struct {
	code *jen.Statement
	// send makes a parameter of a field; nil for types that are never sent.
	send func(field *jen.Statement) *jen.Statement
}

// goTypes are the types that queries of SQL Server use. What a value is sent as
// depends on its Go type: an int16 becomes a smallint, an int32 an int, an int64
// a bigint, a bool a bit. A plain string would become an nvarchar of the value's
// own length, and the query would be compiled anew for every length, so that
// texts are sent as nvarchar(max), except names, which have few lengths and are
// compared with columns of an index. A time would become a datetimeoffset; none is
// sent, since all clocks are the server's.
var goTypes = map[dialect.Type]goType{
	dialect.Bool:      {jen.Bool(), asIs},
	dialect.Int16:     {jen.Int16(), asIs},
	dialect.Int32:     {jen.Int32(), asIs},
	dialect.Int64:     {jen.Int64(), asIs},
	dialect.UUID:      {jen.String(), asIs},
	dialect.Name:      {jen.String(), asIs},
	dialect.Text:      {jen.String(), asText},
	dialect.JSON:      {jen.String(), asText},
	dialect.Int32s:    {jen.String(), asText},
	dialect.Int64s:    {jen.String(), asText},
	dialect.Texts:     {jen.String(), asText},
	dialect.UUIDs:     {jen.String(), asText},
	dialect.TextBytes: {jen.Index().Byte(), asText},
	dialect.Bytes:     {jen.Index().Byte(), asBytes},
	dialect.Time:      {jen.Qual("time", "Time"), nil},
}

func asIs(field *jen.Statement) *jen.Statement { return field }

func asText(field *jen.Statement) *jen.Statement { return jen.Qual(mssql, "NVarCharMax").Call(field) }

// asBytes keeps a nil slice from being sent as NULL.
func asBytes(field *jen.Statement) *jen.Statement { return jen.Id("notNull").Call(field) }
