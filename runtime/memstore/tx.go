package memstore

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/outbox"
)

// ErrTxDone says that a transaction was committed or rolled back before.
var ErrTxDone = errors.New("memstore: the transaction has ended")

// A Tx is a READ COMMITTED transaction. What it writes becomes visible when it
// commits; the locks of its keys are held until it ends. After an error it can
// only be rolled back.
type Tx struct {
	db       *DB
	done     bool
	failed   error
	held     []lockKey
	waitsFor *lock // nil while it runs

	inserts  []pending
	buried   []burial
	logs     map[logKey]int64
	versions map[versionKey]int64
	receipts map[receiptKey]receipt
	// before runs under the DB's mutex just before the transaction becomes
	// visible; its error rolls back.
	before func() error
}

type pending struct {
	scope *scope
	row   *row
}

// A burial is a message that goes to the dead letters without ever waiting.
type burial struct {
	scope *scope
	dead  *deadRow
}

// Begin starts a transaction. It must be ended with Commit or Rollback.
func (db *DB) Begin() *Tx {
	return &Tx{db: db, versions: map[versionKey]int64{}, receipts: map[receiptKey]receipt{}, logs: map[logKey]int64{}}
}

// Commit makes everything visible at once.
func (tx *Tx) Commit(ctx context.Context) error {
	if tx.done {
		return ErrTxDone
	}
	if tx.failed != nil {
		tx.Rollback(ctx)
		return fmt.Errorf("commit: the transaction failed before: %w", tx.failed)
	}
	answer, err := tx.db.enter(ctx, Call{Op: OpCommit})
	if err != nil {
		tx.Rollback(ctx)
		return err
	}
	if err := tx.commit(); err != nil {
		return err
	}
	return answer
}

// commit ends the transaction, with or without effect.
func (tx *Tx) commit() error {
	db := tx.db
	db.mu.Lock()
	defer db.mu.Unlock()
	tx.done = true
	defer db.releaseLocks(tx)
	if tx.before != nil {
		if err := tx.before(); err != nil {
			return err
		}
	}
	for _, p := range tx.inserts {
		p.scope.insert(p.row)
	}
	for _, b := range tx.buried {
		b.scope.dead = append(b.scope.dead, b.dead)
	}
	for k, offset := range tx.logs {
		if now, ok := db.logs[k]; !ok || now < offset {
			db.logs[k] = offset
		}
	}
	maps.Copy(db.versions, tx.versions)
	maps.Copy(db.receipts, tx.receipts)
	return nil
}

// Rollback undoes everything; after Commit it does nothing and returns
// ErrTxDone.
func (tx *Tx) Rollback(context.Context) error {
	if tx.done {
		return ErrTxDone
	}
	tx.done = true
	tx.db.mu.Lock()
	defer tx.db.mu.Unlock()
	tx.db.releaseLocks(tx)
	return nil
}

// fail records that the transaction can only be rolled back.
func (tx *Tx) fail(err error) error {
	if err != nil && tx.failed == nil {
		tx.failed = err
	}
	return err
}

// usable reports why the transaction cannot go on, or nil.
func (tx *Tx) usable() error {
	if tx.done {
		return ErrTxDone
	}
	if tx.failed != nil {
		return fmt.Errorf("the transaction failed before: %w", tx.failed)
	}
	return nil
}

// Append implements outbox.Appender: it takes the locks of all keys in one
// order and then stores the records in call order.
func (tx *Tx) Append(ctx context.Context, records []outbox.Record) error {
	if err := tx.usable(); err != nil {
		return err
	}
	answer, err := tx.db.enter(ctx, Call{Op: OpAppend})
	if err != nil {
		return tx.fail(err)
	}
	if err := tx.db.checkRecords(records); err != nil {
		return tx.fail(err)
	}
	if err := tx.lockAll(ctx, recordLocks(records)); err != nil {
		return tx.fail(err)
	}
	tx.db.mu.Lock()
	defer tx.db.mu.Unlock()
	for _, r := range records {
		tx.store(r)
	}
	return tx.fail(answer)
}

// Insert is a plain SQL INSERT by another program: INSERT INTO outbox (topic,
// key, payload) VALUES (…). A nil key is NULL.
func (tx *Tx) Insert(ctx context.Context, topic string, key *string, payload string) error {
	r := outbox.Record{Topic: topic, Payload: []byte(payload)}
	if key != nil {
		r.Key = *key
	}
	return tx.Append(ctx, []outbox.Record{r})
}

// recordLocks returns the locks of the records' keys in lock order.
func recordLocks(records []outbox.Record) []lockKey {
	var keys []lockKey
	for _, r := range records {
		if r.Key != "" {
			keys = append(keys, lockKey{lane: laneOf(0, r.Key)})
		}
	}
	return keys
}

// lockAll takes locks in one fixed order: lanes first, then receipts.
func (tx *Tx) lockAll(ctx context.Context, keys []lockKey) error {
	slices.SortFunc(keys, func(a, b lockKey) int {
		return cmp.Or(cmp.Compare(a.receipt.source, b.receipt.source),
			strings.Compare(a.receipt.key, b.receipt.key), cmp.Compare(a.lane, b.lane))
	})
	for _, k := range slices.Compact(keys) {
		if err := tx.db.acquire(ctx, tx, k); err != nil {
			return err
		}
	}
	return nil
}

// checkRecords applies the rules of the schema.
func (db *DB) checkRecords(records []outbox.Record) error {
	for _, r := range records {
		if err := db.checkRecord(r); err != nil {
			return err
		}
	}
	return nil
}

func (db *DB) checkRecord(r outbox.Record) error {
	topic := db.topics[r.Topic]
	topic.Name = r.Topic
	if err := checkKey(topic, r.Key); err != nil {
		return err
	}
	if len(db.destinations(r.Topic)) == 0 {
		return &event.ConfigurationError{Topic: r.Topic, Reason: "no route matches the topic"}
	}
	if !db.binary && (!utf8.Valid(r.Payload) || slices.Contains(r.Payload, 0)) {
		return &event.ConfigurationError{Topic: r.Topic, Reason: "payload is not UTF-8 text"}
	}
	return nil
}

// store adds one row per destination. The caller holds the DB's mutex and the
// key's lock.
func (tx *Tx) store(r outbox.Record) {
	id := r.ID
	if id.IsZero() {
		id = event.NewUUID()
	}
	for _, to := range tx.db.destinations(r.Topic) {
		m := event.Message{
			ID: id, Topic: r.Topic, Key: r.Key, Version: r.Version,
			Payload: slices.Clone(r.Payload), Headers: maps.Clone(r.Headers),
		}
		l := laneOf(0, r.Key)
		switch {
		case r.Key == "":
			l = to.unorderedLane()
		case tx.db.topics[r.Topic].Dense:
			m.Version = tx.nextVersion(versionKey{to.number, r.Key})
		}
		tx.add(to, &row{lane: l, message: m})
	}
}

// nextVersion draws from a lane's dense counter, under the key's lock.
func (tx *Tx) nextVersion(k versionKey) int64 {
	v, ok := tx.versions[k]
	if !ok {
		v = tx.db.versions[k]
	}
	tx.versions[k] = v + 1
	return v + 1
}

// add draws the sequence number and the time of a row, under the key's lock.
func (tx *Tx) add(to *scope, r *row) {
	tx.number(r)
	tx.inserts = append(tx.inserts, pending{to, r})
}

// number gives a row its sequence number and time.
func (tx *Tx) number(r *row) {
	tx.db.sequence++
	r.message.Sequence = tx.db.sequence
	r.message.CreatedAt = tx.db.now()
}

// Receive stores incoming messages inside the transaction; see
// inbox.ReceiveStore, whose Receive does it in a transaction of its own.
func (tx *Tx) Receive(ctx context.Context, source inbox.SourceRef, messages []inbox.Incoming) ([]inbox.Disposition, error) {
	if err := tx.usable(); err != nil {
		return nil, err
	}
	to := tx.db.scopes[source.Scope]
	if to == nil {
		return nil, tx.fail(fmt.Errorf("receive: source %s belongs to scope %d, which does not exist", source.Name, source.Scope))
	}
	var locks []lockKey
	for _, m := range messages {
		if m.AggregateID != "" && m.Dead == "" {
			if err := event.CheckKey(m.AggregateID); err != nil {
				return nil, tx.fail(&event.ConfigurationError{Topic: m.EventType, Reason: err.Error()})
			}
			locks = append(locks, lockKey{lane: laneOf(int32(to.number), m.AggregateID)})
		}
		locks = append(locks, lockKey{receipt: receiptKey{source.Number, m.IdempotencyKey}})
	}
	if err := tx.lockAll(ctx, locks); err != nil {
		return nil, tx.fail(err)
	}
	tx.db.mu.Lock()
	defer tx.db.mu.Unlock()
	dispositions := make([]inbox.Disposition, len(messages))
	for i, m := range messages {
		dispositions[i] = tx.receive(to, source, m)
	}
	return dispositions, nil
}

// receive stores one message unless its receipt exists. The caller holds the
// DB's mutex, the aggregate's lock and the receipt's.
func (tx *Tx) receive(to *scope, source inbox.SourceRef, in inbox.Incoming) inbox.Disposition {
	k, digest := receiptKey{source.Number, in.IdempotencyKey}, sha256.Sum256(in.Payload)
	old, ok := tx.receipts[k]
	if !ok {
		old, ok = tx.db.receipts[k]
	}
	switch {
	case ok && old.digest == digest:
		return inbox.Duplicate
	case ok:
		return inbox.Conflict
	}
	tx.receipts[k] = receipt{digest: digest, received: tx.db.now()}
	l := laneOf(int32(to.number), in.AggregateID)
	if in.AggregateID == "" {
		l = to.unorderedLane()
	}
	r := &row{lane: l, sourceNumber: source.Number, message: event.Message{
		ID: event.NewUUID(), Topic: in.EventType, Key: in.AggregateID, Version: in.Version,
		Payload: slices.Clone(in.Payload), Headers: maps.Clone(in.Headers),
		Source: source.Name, IdempotencyKey: in.IdempotencyKey,
	}}
	tx.number(r)
	if in.Dead != "" {
		tx.buried = append(tx.buried, burial{to, &deadRow{row: *r, reason: inbox.ReasonRefused, lastError: in.Dead, died: tx.db.now()}})
		return inbox.Buried
	}
	tx.inserts = append(tx.inserts, pending{to, r})
	return inbox.Stored
}
