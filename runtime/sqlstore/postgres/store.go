package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/internal/rowtext"
	"github.com/lanebox/lanebox/runtime/internal/sqlqueue"
	"github.com/lanebox/lanebox/runtime/lane"
)

// callTimeout bounds every statement that a store sends on its own.
const callTimeout = 10 * time.Second

// A Config describes a store; generated code fills it in.
type Config struct {
	Pool *pgxpool.Pool
	// Bind returns the queries of the generated package on db.
	Bind func(db DBTX) Queries
	// Schema and Prefix name the tables; they give the notification channel.
	Schema, Prefix string
	// Binary says that the outbox stores bytes instead of text.
	Binary bool
	// Destinations holds the scopes that belong to the outbox; all others belong
	// to the inbox.
	Destinations map[lane.Scope]bool
	// Sources holds the names of the sources by their numbers.
	Sources map[int32]string
}

// A Store is one database with lanebox's tables. It is safe for concurrent use.
// It implements lane.Keeper and inbox.LogStore, and hands out the stores of
// single scopes.
type Store struct {
	c Config
	// direct sends statements as they are; claims adds planner settings.
	direct, claims Queries
	reserve        reserve // for Keep and Leave
}

// New returns a store. It sends nothing yet.
func New(c Config) *Store {
	return &Store{c: c, direct: c.Bind(c.Pool), claims: c.Bind(Claims(c.Pool)), reserve: reserve{of: c.Pool}}
}

// Check reports whether the pool's sessions can be used; see CheckIsolation.
func (s *Store) Check(ctx context.Context) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	return CheckIsolation(ctx, s.c.Pool)
}

// Waker returns the store's notifications; see Waker.
func (s *Store) Waker() *Waker { return NewWaker(s.c.Pool, s.c.Schema, s.c.Prefix) }

// bounded returns ctx with a deadline that no statement of a store outlives.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, callTimeout)
}

// Keep implements lane.Keeper. It uses a connection beside the pool, so that a
// pool that is used up costs no leases.
func (s *Store) Keep(ctx context.Context, p lane.KeepParams) ([]lane.Kept, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	q := KeepParams{Owner: p.Owner, TTL: p.TTL, Scopes: []int32{}, LeaseScopes: []int32{}, LeaseBuckets: []int16{}, LeaseTokens: []int64{}}
	for _, sc := range p.Scopes {
		q.Scopes = append(q.Scopes, int32(sc.Scope))
		for _, l := range sc.Leases {
			q.LeaseScopes = append(q.LeaseScopes, int32(sc.Scope))
			q.LeaseBuckets = append(q.LeaseBuckets, int16(l.Bucket))
			q.LeaseTokens = append(q.LeaseTokens, l.Token)
		}
	}
	db, err := s.reserve.open(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := s.c.Bind(Claims(db)).Keep(ctx, q)
	if err != nil {
		return nil, Classify("renew leases", err)
	}
	kept := make([]lane.Kept, len(rows))
	for i, r := range rows {
		kept[i] = lane.Kept{Scope: lane.Scope(r.Scope), Renewed: buckets(r.Renewed), Parked: r.Parked, Owners: int(r.Owners),
			Buckets: int(r.Buckets), Free: int(r.Free), Expired: int(r.Expired), Waiting: r.Waiting}
	}
	return kept, nil
}

// Leave implements lane.Keeper, and closes the connection that Keep used.
func (s *Store) Leave(ctx context.Context, owner string) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	defer s.reserve.close()
	db, err := s.reserve.open(ctx)
	if err != nil {
		return err
	}
	return Classify("leave", s.c.Bind(db).Leave(ctx, owner))
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
// implements lane.Store, inbox.PullStore[pgx.Tx] and inbox.PushStore[pgx.Tx].
type InboxScope struct{ scopeStore }

// scopeStore is what the scopes of both queues have in common.
type scopeStore struct {
	store *Store
	scope lane.Scope
	queue func(Queries) QueueQueries
}

// Acquire implements lane.Store.
func (s *scopeStore) Acquire(ctx context.Context, p lane.AcquireParams) ([]lane.Lease, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	rows, err := s.store.claims.Acquire(ctx, AcquireParams{Owner: p.Owner, TTL: p.TTL, Scope: int32(s.scope), MaxFree: int64(p.MaxFree)})
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
	ctx, cancel := bounded(ctx)
	defer cancel()
	p := ReleaseParams{Scope: int32(s.scope), Owner: owner, Crashed: make([]bool, len(leases))}
	p.Buckets, p.Tokens = leaseArrays(leases)
	for i, l := range leases {
		p.Crashed[i] = l.Crashed
	}
	return Classify("release buckets", retry(ctx, func() error { return Classify("release buckets", s.store.claims.Release(ctx, p)) }))
}

// Fetch implements lane.Store.
func (s *scopeStore) Fetch(ctx context.Context, p lane.FetchParams) (lane.Page, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	n := len(p.Cursors)
	q := FetchParams{
		MaxBytes: sqlqueue.MaxPage, ScanLanes: int64(p.ScanLanes), MaxLanes: int64(p.MaxLanes), MaxRows: int64(p.MaxRows), MaxRun: int64(p.MaxRun),
		Busy: append([]int64{}, p.Busy...), Scope: int32(s.scope), Owner: p.Owner,
		Buckets: make([]int16, n), Tokens: make([]int64, n), Lanes: make([]int64, n), Afters: make([]int64, n),
	}
	for i, c := range p.Cursors {
		q.Buckets[i], q.Tokens[i], q.Lanes[i], q.Afters[i] = int16(c.Lease.Bucket), c.Lease.Token, c.Lane, c.After
	}
	rows, err := s.queue(s.store.claims).Fetch(ctx, q)
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
				ID: event.UUID(f.ID.Bytes), Sequence: f.Sequence, Topic: f.Topic, Key: f.Key, Payload: f.Payload,
				Headers: rowtext.DecodeHeaders(f.Headers), Version: f.Version, CreatedAt: f.CreatedAt,
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
	ctx, cancel := bounded(ctx)
	defer cancel()
	used := sqlqueue.UsedLeases(leases, settlements)
	row, err := s.settle(ctx, owner, used, settlements)
	if err != nil {
		return lane.SettleResult{}, Classify("settle messages", err)
	}
	return settled(row, settlements), nil
}

// settle sends the cheap statement when every message is done and none is held.
func (s *scopeStore) settle(ctx context.Context, owner string, leases []lane.Lease, settlements []lane.Settlement) (SettleRow, error) {
	p := SettleParams{Scope: int32(s.scope), Owner: owner}
	p.Buckets, p.Tokens = leaseArrays(leases)
	simple := true
	for i := range settlements {
		st := &settlements[i]
		simple = simple && st.Outcome == lane.Done && !st.Held
		p.Lanes = append(p.Lanes, st.Lane)
		p.Sequences = append(p.Sequences, st.Sequence)
		p.Outcomes = append(p.Outcomes, int16(sqlqueue.OutcomeCode(st.Outcome)))
		p.Attempts = append(p.Attempts, int32(st.Attempts))
		p.Delays = append(p.Delays, max(0, st.Delay))
		p.Reasons = append(p.Reasons, rowtext.Clean(st.Reason))
		p.Errors = append(p.Errors, rowtext.Clean(st.Error))
	}
	q := s.queue(s.store.claims)
	if simple {
		return q.SettleDone(ctx, SettleDoneParams{Scope: p.Scope, Buckets: p.Buckets, Tokens: p.Tokens, Owner: p.Owner, Lanes: p.Lanes, Sequences: p.Sequences})
	}
	return q.Settle(ctx, p)
}

// settled says what a settlement did not change, and why.
func settled(row SettleRow, settlements []lane.Settlement) lane.SettleResult {
	leased := map[lane.Bucket]bool{}
	for _, b := range row.Leased {
		leased[lane.Bucket(b)] = true
	}
	changed := make(map[int64]bool, len(row.Changed))
	for _, sequence := range row.Changed {
		changed[sequence] = true
	}
	result := sqlqueue.Settled(settlements, leased, changed)
	result.Parked = row.Parked
	return result
}

// leaseArrays returns the buckets and tokens of leases; never nil, since NULL
// arrays have no rows to join.
func leaseArrays(leases []lane.Lease) (buckets []int16, tokens []int64) {
	buckets, tokens = make([]int16, len(leases)), make([]int64, len(leases))
	for i, l := range leases {
		buckets[i], tokens[i] = int16(l.Bucket), l.Token
	}
	return buckets, tokens
}

func buckets(numbers []int16) []lane.Bucket {
	bs := make([]lane.Bucket, len(numbers))
	for i, n := range numbers {
		bs[i] = lane.Bucket(n)
	}
	return bs
}

// uuid returns id as a parameter.
func uuid(id event.UUID) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: true} }
