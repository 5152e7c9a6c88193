package sqlserver

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/internal/rowtext"
	"github.com/lanebox/lanebox/runtime/internal/sqlqueue"
	"github.com/lanebox/lanebox/runtime/lane"
)

// A Config describes a store; generated code fills it in.
type Config struct {
	DB *sql.DB
	// Bind returns the queries of the generated package on db.
	Bind func(db DBTX) Queries
	// Binary says that the outbox stores bytes instead of text.
	Binary bool
	// Destinations holds the scopes that belong to the outbox; all others belong
	// to the inbox.
	Destinations map[lane.Scope]bool
	// Sources holds the names of the sources by their numbers.
	Sources map[int32]string
	// CallTimeout bounds every call of the store; 0 means 30 s. See CheckCallTimeout.
	// Calls of a service may have an earlier deadline, those of the loops have not.
	CallTimeout time.Duration
}

// A Store is one database with lanebox's tables. It is safe for concurrent use.
// It implements lane.Keeper and inbox.LogStore, and hands out the stores of
// single scopes.
type Store struct {
	c       Config
	direct  Queries
	reserve reserve // for Keep and Leave
}

var (
	_ lane.Keeper              = (*Store)(nil)
	_ inbox.LogStore           = (*Store)(nil)
	_ lane.Store               = (*OutboxScope)(nil)
	_ lane.Store               = (*InboxScope)(nil)
	_ inbox.PullStore[*sql.Tx] = (*InboxScope)(nil)
	_ inbox.PushStore[*sql.Tx] = (*InboxScope)(nil)
)

// New returns a store. It sends nothing yet. It panics when CheckCallTimeout
// refuses the CallTimeout: generated code asks it before.
func New(c Config) *Store {
	if err := CheckCallTimeout(c.CallTimeout); err != nil {
		panic("sqlserver: " + err.Error())
	}
	if c.CallTimeout == 0 {
		c.CallTimeout = minCallTimeout
	}
	return &Store{c: c, direct: c.Bind(c.DB), reserve: newReserve(c.DB)}
}

// Check reports whether the database can be used; see CheckDatabase.
func (s *Store) Check(ctx context.Context) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	return CheckDatabase(ctx, s.c.DB)
}

// Start is Check that also tells logger, which may be nil, what was found.
func (s *Store) Start(ctx context.Context, logger *slog.Logger) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	return Start(ctx, s.c.DB, logger)
}

// bounded returns ctx with a deadline that no call of the store outlives.
func (s *Store) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, s.c.CallTimeout)
}

// unhurried returns ctx with the deadline of the store instead of its own; it
// still ends when ctx is canceled. The loops give a call a few seconds, a third of
// a short lease even, and ask again. Here that would do harm: a call that runs
// into its deadline costs the driver its connection, so that a server that is slow
// for a moment would be busy with new connections and abandoned work. What comes
// too late for a lease is found out by the loops' own clock.
func (s *Store) unhurried(ctx context.Context) (context.Context, context.CancelFunc) {
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.c.CallTimeout)
	stop := context.AfterFunc(ctx, func() {
		if errors.Is(ctx.Err(), context.Canceled) {
			cancel()
		}
	})
	return call, func() {
		stop()
		cancel()
	}
}

// Keep implements lane.Keeper. It uses a connection that it keeps to itself, so
// that a pool that is used up costs no leases.
func (s *Store) Keep(ctx context.Context, p lane.KeepParams) ([]lane.Kept, error) {
	ctx, cancel := s.unhurried(ctx)
	defer cancel()
	scopes := make([]lane.Scope, len(p.Scopes))
	var leases []keptJSON
	for i, sc := range p.Scopes {
		scopes[i] = sc.Scope
		for _, l := range sc.Leases {
			leases = append(leases, keptJSON{sc.Scope, l.Bucket, l.Token})
		}
	}
	var rows []KeepRow
	err := s.reserve.use(ctx, func(db DBTX) (err error) {
		rows, err = s.c.Bind(db).Keep(ctx, KeepParams{Owner: p.Owner, TtlMs: ms(p.TTL), Scopes: list(scopes), Leases: list(leases)})
		return err
	})
	if err != nil {
		return nil, Classify("renew leases", err)
	}
	return kept(scopes, rows), nil
}

// kept sorts the facts of a renewal by scope.
func kept(scopes []lane.Scope, rows []KeepRow) []lane.Kept {
	all := make([]lane.Kept, len(scopes))
	byScope := make(map[int32]*lane.Kept, len(scopes))
	for i, scope := range scopes {
		all[i].Scope = scope
		byScope[int32(scope)] = &all[i]
	}
	for _, r := range rows {
		k := byScope[r.Scope]
		if k == nil {
			continue
		}
		switch r.Kind {
		case KeepRenewed:
			k.Renewed = append(k.Renewed, lane.Bucket(r.Value))
		case KeepParked:
			k.Parked = append(k.Parked, r.Value)
		case KeepOwners:
			k.Owners = int(r.Value)
		case KeepBuckets:
			k.Buckets = int(r.Value)
		case KeepFree:
			k.Free = int(r.Value)
		case KeepExpired:
			k.Expired = int(r.Value)
		case KeepWaiting:
			k.Waiting = r.Value != 0
		}
	}
	return all
}

// Leave implements lane.Keeper, and gives back the connection that Keep used.
func (s *Store) Leave(ctx context.Context, owner string) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	err := s.reserve.use(ctx, func(db DBTX) error { return s.c.Bind(db).Leave(ctx, owner) })
	s.reserve.close(ctx)
	return Classify("leave", err)
}

// Outbox returns the store of one destination.
func (s *Store) Outbox(scope lane.Scope) *OutboxScope {
	return &OutboxScope{scopeStore{store: s, scope: scope, queue: Queries.Outbox}}
}

// Inbox returns the store of one pull source, or of all push sources together.
func (s *Store) Inbox(scope lane.Scope) *InboxScope {
	return &InboxScope{scopeStore{store: s, scope: scope, queue: Queries.Inbox}}
}

// An OutboxScope is one destination. It implements lane.Store.
type OutboxScope struct{ scopeStore }

// An InboxScope is the lanes of one pull source, or of all push sources. It
// implements lane.Store, inbox.PullStore[*sql.Tx] and inbox.PushStore[*sql.Tx].
type InboxScope struct{ scopeStore }

// scopeStore is what the scopes of both queues have in common.
type scopeStore struct {
	store *Store
	scope lane.Scope
	queue func(Queries) QueueQueries
}

// Acquire implements lane.Store.
func (s *scopeStore) Acquire(ctx context.Context, p lane.AcquireParams) ([]lane.Lease, error) {
	ctx, cancel := s.store.unhurried(ctx)
	defer cancel()
	rows, err := s.store.direct.Acquire(ctx, AcquireParams{Owner: p.Owner, TtlMs: ms(p.TTL), Scope: int32(s.scope), MaxFree: int64(max(0, p.MaxFree))})
	if err != nil {
		return nil, Classify("acquire buckets", err)
	}
	leases := make([]lane.Lease, len(rows))
	for i, r := range rows {
		leases[i] = lane.Lease{Bucket: lane.Bucket(r.Bucket), Token: r.Token, Lo: r.Lo, Hi: r.Hi, Crashed: r.Crashed}
	}
	return leases, nil
}

// Release implements lane.Store.
func (s *scopeStore) Release(ctx context.Context, owner string, leases []lane.Lease) error {
	ctx, cancel := s.store.unhurried(ctx)
	defer cancel()
	elements := make([]releasedJSON, len(leases))
	for i, l := range leases {
		elements[i] = releasedJSON{Bucket: l.Bucket, Token: l.Token}
		if l.Crashed {
			elements[i].Crashed = 1
		}
	}
	p := ReleaseParams{Leases: list(elements), Scope: int32(s.scope), Owner: owner}
	return retry(ctx, func() error { return Classify("release buckets", s.store.direct.Release(ctx, p)) })
}

// Fetch implements lane.Store.
func (s *scopeStore) Fetch(ctx context.Context, p lane.FetchParams) (lane.Page, error) {
	ctx, cancel := s.store.unhurried(ctx)
	defer cancel()
	cursors := make([]cursorJSON, len(p.Cursors))
	for i, c := range p.Cursors {
		cursors[i] = cursorJSON{Bucket: c.Lease.Bucket, Token: c.Lease.Token, Lane: c.Lane, After: c.After}
	}
	rows, err := s.queue(s.store.direct).Fetch(ctx, FetchParams{
		MaxBytes: sqlqueue.MaxPage, ScanLanes: int64(p.ScanLanes), MaxLanes: int64(p.MaxLanes), Busy: list(p.Busy), Cursors: list(cursors),
		Scope: int32(s.scope), Owner: p.Owner, MaxRows: int64(p.MaxRows), MaxRun: int64(p.MaxRun),
	})
	if err != nil {
		return lane.Page{}, Classify("fetch messages", err)
	}
	return s.page(p, rows), nil
}

// page sorts messages from stops.
func (s *scopeStore) page(p lane.FetchParams, fetched []FetchRow) lane.Page {
	return sqlqueue.Page(p, len(fetched), func(i int) (lane.Row, int64) {
		f := &fetched[i]
		return lane.Row{
			Bucket: lane.Bucket(f.Bucket), Lane: f.Lane, Attempts: int(f.Attempts), Held: f.Held,
			DueIn: time.Duration(f.DueMs) * time.Millisecond,
			Message: event.Message{
				ID: idOf(f.ID), Sequence: f.Sequence, Topic: f.Topic, Key: f.Key, Payload: f.Payload,
				Headers: rowtext.DecodeHeaders(f.Headers), Version: f.Version, CreatedAt: utc(f.CreatedAt),
				Source: s.store.c.Sources[f.Source], IdempotencyKey: f.IdempotencyKey,
			},
		}, f.Stop
	})
}

// Settle implements lane.Store.
func (s *scopeStore) Settle(ctx context.Context, owner string, leases []lane.Lease, settlements []lane.Settlement) (lane.SettleResult, error) {
	if len(settlements) == 0 {
		return lane.SettleResult{}, nil
	}
	ctx, cancel := s.store.unhurried(ctx)
	defer cancel()
	rows, err := s.settle(ctx, owner, sqlqueue.UsedLeases(leases, settlements), settlements)
	if err != nil {
		return lane.SettleResult{}, Classify("settle messages", err)
	}
	return settled(rows, settlements), nil
}

// settle sends the cheap batch when every message is done and none is held.
func (s *scopeStore) settle(ctx context.Context, owner string, leases []lane.Lease, settlements []lane.Settlement) ([]SettleRow, error) {
	simple := true
	outcomes := make([]outcomeJSON, len(settlements))
	rows := make([]rowJSON, len(settlements))
	for i := range settlements {
		st := &settlements[i]
		simple = simple && st.Outcome == lane.Done && !st.Held
		rows[i] = rowJSON{st.Lane, st.Sequence}
		outcomes[i] = outcomeJSON{
			Lane: st.Lane, Sequence: st.Sequence, Outcome: sqlqueue.OutcomeCode(st.Outcome), Attempts: st.Attempts, DelayMs: ms(max(0, st.Delay)),
			Reason: rowtext.Clean(st.Reason), Error: rowtext.Clean(st.Error),
		}
	}
	q := s.queue(s.store.direct)
	if simple {
		return q.SettleDone(ctx, SettleDoneParams{Scope: int32(s.scope), Leases: leaseList(leases), Owner: owner, Rows: list(rows)})
	}
	return q.Settle(ctx, SettleParams{Scope: int32(s.scope), Leases: leaseList(leases), Owner: owner, Outcomes: list(outcomes)})
}

// settled says what a settlement did not change, and why.
func settled(rows []SettleRow, settlements []lane.Settlement) lane.SettleResult {
	var parked []int64
	leased, changed := map[lane.Bucket]bool{}, make(map[int64]bool, len(rows))
	for _, r := range rows {
		switch r.Kind {
		case SettleLeased:
			leased[lane.Bucket(r.Value)] = true
		case SettleChanged:
			changed[r.Value] = true
		case SettleParked:
			parked = append(parked, r.Value)
		}
	}
	result := sqlqueue.Settled(settlements, leased, changed)
	result.Parked = parked
	return result
}
