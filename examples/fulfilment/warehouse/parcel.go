package warehouse

import (
	"context"
	"fmt"

	"github.com/lanebox/lanebox/examples/fulfilment/internal/database"
	"github.com/lanebox/lanebox/runtime/inbox"
)

// A parcel is what the warehouse knows of an order. The zero version says that it
// knows nothing.
type parcel struct {
	id       string
	version  int64
	status   string // open, sent, returned
	quantity int32
}

func find(ctx context.Context, db database.Tx, id string) (parcel, error) {
	p := parcel{id: id}
	_, err := db.Find(ctx, `SELECT version, status, quantity FROM parcel WHERE order_id = $1`, []any{id}, &p.version, &p.status, &p.quantity)
	return p, err
}

// expect moves the parcel to the next version, or says what a message of another
// version is.
func (p *parcel) expect(version int64) error {
	switch {
	case version < 1:
		return fmt.Errorf("%w: it has no version", inbox.ErrConflict)
	case version == p.version:
		return inbox.ErrDuplicate
	case version < p.version:
		return inbox.ErrStale
	case version > p.version+1:
		return &inbox.GapError{Expected: p.version + 1, Got: version}
	}
	p.version = version
	return nil
}

// moves changes the status, or says that the message contradicts it.
func (p *parcel) moves(from, to string) error {
	if p.status != from {
		return fmt.Errorf("%w: the parcel of %s is %q", inbox.ErrConflict, p.id, p.status)
	}
	p.status = to
	return nil
}

// save writes the parcel over the version that was seen before.
func (p *parcel) save(ctx context.Context, db database.Tx, seen int64) error {
	const insert = `INSERT INTO parcel (order_id, version, status, quantity) VALUES ($1, $2, $3, $4)`
	const update = `UPDATE parcel SET version = $2, status = $3, quantity = $4 WHERE order_id = $1 AND version = $5`
	if seen == 0 {
		_, err := db.Exec(ctx, insert, p.id, p.version, p.status, p.quantity)
		return err
	}
	n, err := db.Exec(ctx, update, p.id, p.version, p.status, p.quantity, seen)
	if err == nil && n == 0 {
		err = fmt.Errorf("the parcel of %s was changed beside this transaction", p.id)
	}
	return err
}
