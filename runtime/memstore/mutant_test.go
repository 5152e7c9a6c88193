package memstore

import (
	"context"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/outbox"
	"github.com/lanebox/lanebox/runtime/storetest"
)

// mutants are stores with one fault each, and the test of the suite that must
// find it. A suite that accepts one of them is worth nothing.
var mutants = map[string]struct {
	caught string // a test that must fail
	breaks func(db *DB, h *storetest.DB[*Tx])
}{
	"the fence ignores the token": {"TokenSetBackByOneLetsNoStaleOwnerSettle", func(db *DB, h *storetest.DB[*Tx]) {
		db.wrap(h, func(s *faulty) {
			s.settle = func(owner string, leases []lane.Lease, x []lane.Settlement) (string, []lane.Lease, []lane.Settlement) {
				return owner, s.current(leases), x
			}
		})
	}},
	"the fence ignores the owner": {"TokenSetBackByOneLetsNoStaleOwnerSettle", func(db *DB, h *storetest.DB[*Tx]) {
		db.wrap(h, func(s *faulty) {
			s.settle = func(owner string, leases []lane.Lease, x []lane.Settlement) (string, []lane.Lease, []lane.Settlement) {
				return s.ownerOf(leases, owner), leases, x
			}
		})
	}},
	"settling is not fenced": {"StaleOwnerChangesNothing", func(db *DB, h *storetest.DB[*Tx]) {
		db.wrap(h, func(s *faulty) {
			s.settle = func(owner string, leases []lane.Lease, x []lane.Settlement) (string, []lane.Lease, []lane.Settlement) {
				return s.ownerOf(leases, owner), s.current(leases), x
			}
		})
	}},
	"the completion is not fenced": {"CompletionIsFenced", func(db *DB, h *storetest.DB[*Tx]) {
		h.Pull = func(n lane.Scope) inbox.PullStore[*Tx] { return unfenced{db.Pull(n), db, n} }
	}},
	"fetching ignores expiry": {"ExpiredLeaseNobodyTookMaySettle", func(db *DB, h *storetest.DB[*Tx]) {
		db.wrap(h, func(s *faulty) {
			s.fetch = func(sc *scope) (undo func()) {
				before := make([]time.Time, len(sc.buckets))
				for i, b := range sc.buckets {
					before[i], b.until = b.until, db.now().Add(time.Hour)
				}
				return func() {
					for i, b := range sc.buckets {
						b.until = before[i]
					}
				}
			}
		})
	}},
	"fetching ignores holds": {"RetryHoldsLaterRows", func(db *DB, h *storetest.DB[*Tx]) {
		db.wrap(h, func(s *faulty) {
			s.fetch = func(sc *scope) (undo func()) {
				before := sc.holds
				sc.holds = map[int64]map[int64]*hold{}
				return func() { sc.holds = before }
			}
		})
	}},
	"a held head is skipped": {"RetryHoldsLaterRows", func(db *DB, h *storetest.DB[*Tx]) {
		db.wrap(h, func(s *faulty) {
			s.fetch = func(sc *scope) (undo func()) {
				holds, lanes := sc.holds, maps.Clone(sc.lanes)
				for l := range holds {
					if len(sc.lanes[l]) > 0 {
						sc.lanes[l] = sc.lanes[l][1:]
					}
				}
				sc.holds = map[int64]map[int64]*hold{}
				return func() { sc.holds, sc.lanes = holds, lanes }
			}
		})
	}},
	"one held keyless row holds all": {"KeylessRowsRunInParallel", func(db *DB, h *storetest.DB[*Tx]) {
		db.wrap(h, func(s *faulty) {
			s.fetch = func(sc *scope) (undo func()) {
				before := maps.Clone(sc.lanes)
				for l := range sc.holds {
					if sc.bucketOf(l).lo == l {
						delete(sc.lanes, l)
					}
				}
				return func() { sc.lanes = before }
			}
		})
	}},
	"busy lanes are fetched": {"BusyLanesAreSteppedOver", func(db *DB, h *storetest.DB[*Tx]) {
		db.wrap(h, func(s *faulty) { s.params = func(p *lane.FetchParams) { p.Busy = nil } })
	}},
	"the first page counts as everything": {"CursorVisitsEveryLane", func(db *DB, h *storetest.DB[*Tx]) {
		db.wrap(h, func(s *faulty) {
			s.page = func(p *lane.Page) {
				p.Wrapped = nil
				for i := range p.Next {
					p.Next[i].Lane = p.Next[i].Lease.Lo
					p.Wrapped = append(p.Wrapped, p.Next[i].Lease.Bucket)
				}
			}
		})
	}},
	"a live lease is claimed": {"LiveLeaseIsNotAcquired", func(db *DB, h *storetest.DB[*Tx]) {
		db.wrap(h, func(s *faulty) { s.acquire = func(p *lane.AcquireParams) { db.ExpireLeases(s.n, "") } })
	}},
	"leases never end": {"LeaseEndsByTheDatabaseClock", func(db *DB, h *storetest.DB[*Tx]) {
		db.wrap(h, func(s *faulty) { s.acquire = func(p *lane.AcquireParams) { p.TTL = 1000 * time.Hour } })
	}},
	"expired buckets count as a share": {"ExpiredBucketsAreTakenAboveTheShare", func(db *DB, h *storetest.DB[*Tx]) {
		db.wrap(h, func(s *faulty) {
			s.leases = func(leases []lane.Lease, p lane.AcquireParams) []lane.Lease {
				return leases[:min(p.MaxFree, len(leases))]
			}
		})
	}},
	"a crash is not reported": {"CrashedIsReportedUntilReleasedClean", func(db *DB, h *storetest.DB[*Tx]) {
		db.wrap(h, func(s *faulty) {
			s.leases = func(leases []lane.Lease, _ lane.AcquireParams) []lane.Lease {
				for i := range leases {
					leases[i].Crashed = false
				}
				return leases
			}
		})
	}},
	"a release does nothing": {"ReleaseIsImmediate", func(db *DB, h *storetest.DB[*Tx]) {
		db.wrap(h, func(s *faulty) { s.keepReleased = true })
	}},
	"a failure undoes a park": {"ParkSurvivesFailure", func(db *DB, h *storetest.DB[*Tx]) {
		db.wrap(h, func(s *faulty) {
			s.settled = func(sc *scope, x lane.Settlement, r *lane.SettleResult) { sc.unhold(x.Lane, 0) }
		})
	}},
	"a dead row leaves its hold": {"DeadRowReleasesKey", func(db *DB, h *storetest.DB[*Tx]) {
		db.wrap(h, func(s *faulty) {
			s.settled = func(sc *scope, x lane.Settlement, r *lane.SettleResult) {
				if x.Outcome == lane.Dead {
					sc.hold(x.Lane, x.Sequence, &hold{parked: true})
				}
			}
		})
	}},
	"a gone row is not told": {"SettleTellsFencedFromGone", func(db *DB, h *storetest.DB[*Tx]) {
		db.wrap(h, func(s *faulty) {
			s.settled = func(_ *scope, _ lane.Settlement, r *lane.SettleResult) { r.Gone = nil }
		})
	}},
	"attempts are not recorded": {"AttemptsAreThoseRecorded", func(db *DB, h *storetest.DB[*Tx]) {
		db.wrap(h, func(s *faulty) {
			s.settle = func(owner string, leases []lane.Lease, x []lane.Settlement) (string, []lane.Lease, []lane.Settlement) {
				for i := range x {
					x[i].Attempts = min(x[i].Attempts, 1)
				}
				return owner, leases, x
			}
		})
	}},
	"a key's lock ends with the statement": {"LateCommitIsNotOvertaken", func(db *DB, h *storetest.DB[*Tx]) {
		h.Appender = func(tx *Tx) outbox.Appender { return unlocked{tx} }
	}},
	"a rollback is a commit": {"RolledBackIsNeverSeen", func(db *DB, h *storetest.DB[*Tx]) {
		h.Rollback = h.Commit
	}},
	"another body is a duplicate": {"SameKeyOtherBodyConflicts", func(db *DB, h *storetest.DB[*Tx]) {
		h.Receive = forgiving{db}
	}},
	"announcements are lost": {"AnnouncementsWakeListeners", func(db *DB, h *storetest.DB[*Tx]) {
		h.Waker = deaf{db}
	}},
	"announcements are lost, but listeners wake by themselves": {"AnnouncementsWakeListeners", func(db *DB, h *storetest.DB[*Tx]) {
		h.Waker = restless{deaf{db}}
	}},
	"a replay keeps its place": {"ReplayRunsBehindThoseThatPassed", func(db *DB, h *storetest.DB[*Tx]) {
		h.Replay = func(_ context.Context, n lane.Scope, ids ...event.UUID) error {
			db.mu.Lock()
			defer db.mu.Unlock()
			sc := db.scopes[n]
			sc.dead = slices.DeleteFunc(sc.dead, func(d *deadRow) bool {
				r := d.row
				sc.insert(&r)
				return true
			})
			return nil
		}
	}},
}

// wrap puts change into every store that h hands out.
func (db *DB) wrap(h *storetest.DB[*Tx], change func(*faulty)) {
	broken := func(n lane.Scope) lane.Store {
		s := &faulty{Store: &store{db, n}, db: db, n: n}
		change(s)
		return s
	}
	h.Outbox, h.Inbox = broken, broken
}

// faulty is a store with hooks for faults; nil hooks change nothing. Those that
// get a scope run with the DB locked.
type faulty struct {
	lane.Store
	db *DB
	n  lane.Scope

	acquire      func(*lane.AcquireParams)
	leases       func([]lane.Lease, lane.AcquireParams) []lane.Lease
	params       func(*lane.FetchParams)
	fetch        func(*scope) (undo func())
	page         func(*lane.Page)
	settle       func(string, []lane.Lease, []lane.Settlement) (string, []lane.Lease, []lane.Settlement)
	settled      func(*scope, lane.Settlement, *lane.SettleResult)
	keepReleased bool
}

func (s *faulty) Acquire(ctx context.Context, p lane.AcquireParams) ([]lane.Lease, error) {
	if s.acquire != nil {
		s.acquire(&p)
	}
	leases, err := s.Store.Acquire(ctx, p)
	if s.leases != nil {
		leases = s.leases(leases, p)
	}
	return leases, err
}

func (s *faulty) Release(ctx context.Context, owner string, leases []lane.Lease) error {
	if s.keepReleased {
		return nil
	}
	return s.Store.Release(ctx, owner, leases)
}

func (s *faulty) Fetch(ctx context.Context, p lane.FetchParams) (lane.Page, error) {
	if s.params != nil {
		s.params(&p)
	}
	var page lane.Page
	var err error
	if s.fetch == nil {
		page, err = s.Store.Fetch(ctx, p)
	} else {
		// The fault is there for this call alone.
		s.db.mu.Lock()
		undo := s.fetch(s.db.scopes[s.n])
		page = s.db.scopes[s.n].page(p, s.db.now())
		undo()
		s.db.mu.Unlock()
	}
	if s.page != nil {
		s.page(&page)
	}
	return page, err
}

func (s *faulty) Settle(ctx context.Context, owner string, leases []lane.Lease, x []lane.Settlement) (lane.SettleResult, error) {
	if s.settle != nil {
		owner, leases, x = s.settle(owner, leases, x)
	}
	result, err := s.Store.Settle(ctx, owner, leases, x)
	if s.settled != nil {
		s.db.mu.Lock()
		defer s.db.mu.Unlock()
		for _, one := range x {
			s.settled(s.db.scopes[s.n], one, &result)
		}
	}
	return result, err
}

// current returns the leases with the tokens that the buckets have now.
func (s *faulty) current(leases []lane.Lease) []lane.Lease {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	leases = slices.Clone(leases)
	for i := range leases {
		leases[i].Token = s.db.scopes[s.n].bucket(leases[i].Bucket).token
	}
	return leases
}

// ownerOf returns who owns the first bucket now.
func (s *faulty) ownerOf(leases []lane.Lease, owner string) string {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	if len(leases) > 0 {
		owner = s.db.scopes[s.n].bucket(leases[0].Bucket).owner
	}
	return owner
}

// unfenced completes for whoever owns the bucket.
type unfenced struct {
	inbox.PullStore[*Tx]
	db *DB
	n  lane.Scope
}

func (s unfenced) Handle(ctx context.Context, owner string, r lane.Row, l lane.Lease, fn func(context.Context, *Tx) error) error {
	return s.PullStore.Handle(ctx, owner, r, l, func(ctx context.Context, tx *Tx) error {
		if err := fn(ctx, tx); err != nil {
			return err
		}
		s.db.mu.Lock()
		defer s.db.mu.Unlock()
		b := s.db.scopes[s.n].bucket(l.Bucket)
		b.owner, b.token = owner, l.Token
		return nil
	})
}

// unlocked gives up the locks of the keys after every statement.
type unlocked struct{ *Tx }

func (u unlocked) Append(ctx context.Context, records []outbox.Record) error {
	err := u.Tx.Append(ctx, records)
	u.db.mu.Lock()
	defer u.db.mu.Unlock()
	u.db.releaseLocks(u.Tx)
	return err
}

// forgiving calls a conflict a duplicate.
type forgiving struct{ *DB }

func (f forgiving) Receive(ctx context.Context, s inbox.SourceRef, m []inbox.Incoming) ([]inbox.Disposition, error) {
	got, err := f.DB.Receive(ctx, s, m)
	for i := range got {
		if got[i] == inbox.Conflict {
			got[i] = inbox.Duplicate
		}
	}
	return got, err
}

// deaf announces to nobody.
type deaf struct{ *DB }

func (deaf) Announce(context.Context) error { return nil }

// restless wakes its listeners at times, announcement or not, as a heartbeat
// does.
type restless struct{ deaf }

func (r restless) Listen(ctx context.Context, wake func()) error {
	beat := time.NewTicker(time.Second)
	defer beat.Stop()
	for {
		select {
		case <-beat.C:
			wake()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// mutantVariable names the mutant that a child process runs the suite on.
const mutantVariable = "LANEBOX_MEMSTORE_MUTANT"

func TestSuiteFindsMutants(t *testing.T) {
	for name, m := range mutants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			child := exec.Command(os.Args[0], "-test.run=^TestStore$", "-test.timeout=120s")
			child.Env = append(os.Environ(), mutantVariable+"="+name)
			out, err := child.CombinedOutput()
			if err == nil {
				t.Fatalf("the suite passed; %s should have failed", m.caught)
			}
			if !regexp.MustCompile(`--- FAIL: \S+/` + m.caught + ` `).Match(out) {
				t.Errorf("%s did not fail:\n%s", m.caught, out)
			}
		})
	}
}

// runMutant is TestStore in the child processes of TestSuiteFindsMutants.
func runMutant(t *testing.T, name string) {
	m, ok := mutants[name]
	if !ok {
		t.Fatalf("%s names no mutant: %q", mutantVariable, name)
	}
	storetest.Run(t, storetest.Harness[*Tx]{
		Features: storetest.Features{Buckets: 16, ConcurrentWriters: true, Short: true, Patience: 2 * time.Second},
		Open: func(t *testing.T) *storetest.DB[*Tx] {
			db := reference(t, 16, nil)
			h := harness(db)
			m.breaks(db, h)
			return h
		},
	})
}
