package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/internal/rowtext"
)

// List writes numbers as the JSON array that the generated queries read.
func List[N ~int16 | ~int64](numbers []N) string {
	b := make([]byte, 0, 2+12*len(numbers))
	b = append(b, '[')
	for i, n := range numbers {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(n), 10)
	}
	return string(append(b, ']'))
}

// IDs writes message ids as the JSON array that the generated queries read.
func IDs(ids []event.UUID) string {
	var b strings.Builder
	b.WriteByte('[')
	for i, id := range ids {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`"` + id.String() + `"`)
	}
	b.WriteByte(']')
	return b.String()
}

// Milliseconds returns a duration in the unit that the database stores. A part
// of a millisecond counts as a whole one, so that nothing is due too early.
func Milliseconds(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

// Time returns the time that the database stored.
func Time(milliseconds int64) time.Time { return time.UnixMilli(milliseconds).UTC() }

// EncodeHeaders writes headers as a JSON object; none become the empty text.
func EncodeHeaders(h event.Headers) (string, error) {
	if len(h) == 0 {
		return "", nil
	}
	b, err := json.Marshal(h)
	return string(b), err
}

// DecodeHeaders reads headers. A writer of plain SQL may have stored anything:
// what is no JSON object of strings is left out, so that it stops no delivery.
func DecodeHeaders(text string) event.Headers {
	var h event.Headers
	if text == "" || json.Unmarshal([]byte(text), &h) != nil || len(h) == 0 {
		return nil
	}
	return h
}

// Text makes a text from elsewhere, such as an error, safe to store: valid
// UTF-8 without U+0000.
func Text(s string) string { return rowtext.Storable(s) }

// Prepared sends statements through tx and prepares each text only once. It
// implements the DBTX interface of sqlc's code. Close frees the statements.
type Prepared struct {
	tx         *sql.Tx
	statements map[string]*sql.Stmt
}

// Prepare returns a Prepared for tx. It belongs to one goroutine.
func Prepare(tx *sql.Tx) *Prepared {
	return &Prepared{tx: tx, statements: map[string]*sql.Stmt{}}
}

// Close frees the statements.
func (p *Prepared) Close() {
	for _, s := range p.statements {
		_ = s.Close() // nothing is lost: the results were read
	}
}

// PrepareContext returns the statement of a text; p closes it.
func (p *Prepared) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	if s := p.statements[query]; s != nil {
		return s, nil
	}
	s, err := p.tx.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	p.statements[query] = s
	return s, nil
}

// ExecContext executes a text.
func (p *Prepared) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	s, err := p.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	return s.ExecContext(ctx, args...)
}

// QueryContext runs a query.
func (p *Prepared) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	s, err := p.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	return s.QueryContext(ctx, args...)
}

// QueryRowContext runs a query of one row. A text that cannot be prepared is
// sent unprepared, so that the error comes with the row.
func (p *Prepared) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	s, err := p.PrepareContext(ctx, query)
	if err != nil {
		return p.tx.QueryRowContext(ctx, query, args...)
	}
	return s.QueryRowContext(ctx, args...)
}
