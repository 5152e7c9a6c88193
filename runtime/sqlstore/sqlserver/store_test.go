package sqlserver

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/internal/sqlqueue"
	"github.com/lanebox/lanebox/runtime/lane"
)

// canned are queries that answer what they are told and note what they are asked.
type canned struct {
	Queries
	QueueQueries
	asked map[string]any

	keep      []KeepRow
	fetch     []FetchRow
	settle    []SettleRow
	positions []int64
	digests   []DigestsRow
	dead      []string // ids of dead letters, in order
	hang      bool     // until the context ends
}

func (c *canned) bind(DBTX) Queries    { return c }
func (c *canned) Outbox() QueueQueries { return c }
func (c *canned) Inbox() QueueQueries  { return c }

// ask notes parameters, and hangs if it is told to.
func (c *canned) ask(ctx context.Context, name string, p any) error {
	c.asked[name] = p
	if c.hang {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func (c *canned) Keep(ctx context.Context, p KeepParams) ([]KeepRow, error) {
	return c.keep, c.ask(ctx, "keep", p)
}

func (c *canned) Fetch(ctx context.Context, p FetchParams) ([]FetchRow, error) {
	return c.fetch, c.ask(ctx, "fetch", p)
}

func (c *canned) SettleDone(ctx context.Context, p SettleDoneParams) ([]SettleRow, error) {
	return c.settle, c.ask(ctx, "done", p)
}

func (c *canned) Settle(ctx context.Context, p SettleParams) ([]SettleRow, error) {
	return c.settle, c.ask(ctx, "settle", p)
}

func (c *canned) Receive(ctx context.Context, p ReceiveParams) ([]int64, error) {
	return c.positions, c.ask(ctx, "receive", p)
}

func (c *canned) Digests(ctx context.Context, p DigestsParams) ([]DigestsRow, error) {
	return c.digests, c.ask(ctx, "digests", p)
}

func (c *canned) Replay(ctx context.Context, p ReplayParams) (back []string, err error) {
	var asked []string
	if err := json.Unmarshal([]byte(p.Ids), &asked); err != nil {
		return nil, err
	}
	c.dead = slices.DeleteFunc(c.dead, func(id string) bool {
		found := len(back) < int(p.MaxRows) && slices.Contains(asked, strings.ToLower(id))
		if found {
			back = append(back, id)
		}
		return found
	})
	return back, c.ask(ctx, "replay", p)
}

// newCanned returns a store on queries that need no server.
func newCanned(t *testing.T) (*canned, *Store) {
	t.Helper()
	db := sql.OpenDB(&fakeServer{})
	t.Cleanup(func() { db.Close() })
	c := &canned{asked: map[string]any{}}
	return c, New(Config{DB: db, Bind: c.bind, Sources: map[int32]string{7: "orders"}})
}

// The loops' deadlines are for databases that answer in time; a call is only given
// up after 30 s, or when it is canceled.
func TestCallsOutliveTheDeadlinesOfLoops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, store := newCanned(t)
		store.reserve.db.SetMaxOpenConns(1) // so that Keep uses the pool
		c.hang = true
		scope := store.Outbox(1)
		for name, call := range map[string]func(ctx context.Context) error{
			"keep":  func(ctx context.Context) error { _, err := store.Keep(ctx, lane.KeepParams{}); return err },
			"fetch": func(ctx context.Context) error { _, err := scope.Fetch(ctx, lane.FetchParams{}); return err },
			"settle": func(ctx context.Context) error {
				_, err := scope.Settle(ctx, "me", nil, []lane.Settlement{{}})
				return err
			},
		} {
			start := time.Now()
			short, cancel := context.WithTimeout(t.Context(), time.Second)
			if err := call(short); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 30*time.Second {
				t.Errorf("%s: %v after %v, want 30 s", name, err, time.Since(start))
			}
			cancel()
			start = time.Now()
			canceled, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			if err := call(canceled); !errors.Is(err, context.Canceled) || time.Since(start) != time.Second {
				t.Errorf("%s: %v after %v, want the cancellation", name, err, time.Since(start))
			}
		}
	})
}

func TestKeptIsSortedByScope(t *testing.T) {
	c, store := newCanned(t)
	c.keep = []KeepRow{
		{2, KeepRenewed, -64}, {1, KeepRenewed, 5}, {1, KeepParked, 11}, {1, KeepRenewed, 6}, {9, KeepRenewed, 1},
		{1, KeepOwners, 3}, {1, KeepBuckets, 128}, {1, KeepFree, 4}, {1, KeepExpired, 2}, {1, KeepWaiting, 1},
		{2, KeepOwners, 1}, {2, KeepBuckets, 128}, {2, KeepFree, 0}, {2, KeepExpired, 0}, {2, KeepWaiting, 0},
	}
	got, err := store.Keep(t.Context(), lane.KeepParams{Owner: "me", TTL: 1500*time.Millisecond + 1, Scopes: []lane.ScopeLeases{
		{Scope: 1, Leases: []lane.Lease{{Bucket: 5, Token: 50}, {Bucket: 6, Token: 60}}}, {Scope: 2},
	}})
	if err != nil {
		t.Fatal(err)
	}
	want := []lane.Kept{
		{Scope: 1, Renewed: []lane.Bucket{5, 6}, Parked: []int64{11}, Owners: 3, Buckets: 128, Free: 4, Expired: 2, Waiting: true},
		{Scope: 2, Renewed: []lane.Bucket{-64}, Owners: 1, Buckets: 128},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	asked := KeepParams{Owner: "me", TtlMs: 1501, Scopes: `[1,2]`, Leases: `[{"s":1,"b":5,"t":50},{"s":1,"b":6,"t":60}]`}
	if c.asked["keep"] != asked {
		t.Errorf("asked %+v", c.asked["keep"])
	}
}

func TestFetchedRowsAndStops(t *testing.T) {
	c, store := newCanned(t)
	id := event.NewUUID()
	c.fetch = []FetchRow{
		{Bucket: 1, Lane: 101, Sequence: 4, Attempts: 2, Held: true, ID: strings.ToUpper(id.String()), Key: "k", Topic: "t", Payload: []byte("p"), Headers: `{"a":"b"}`,
			Version: 9, Source: 7, IdempotencyKey: "x"},
		{Bucket: 1, Lane: 150, Stop: sqlqueue.StopEnd},
		{Bucket: 2, Lane: 201, Sequence: 5, Stop: sqlqueue.StopBytes},
	}
	leases := []lane.Lease{{Bucket: 1, Token: 3, Lo: 100, Hi: 199}, {Bucket: 2, Token: 4, Lo: 200, Hi: 299}}
	page, err := store.Inbox(1).Fetch(t.Context(), lane.FetchParams{
		Owner: "me", Cursors: []lane.Cursor{{Lease: leases[0], Lane: 100}, {Lease: leases[1], Lane: 200, After: 8}}, Busy: []int64{7},
		MaxLanes: 10, MaxRun: 3, MaxRows: 50, ScanLanes: 20,
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(page.Rows) != 1 || !page.Full || !reflect.DeepEqual(page.Wrapped, []lane.Bucket{1}) {
		t.Errorf("page %+v", page)
	}
	m := page.Rows[0].Message
	if m.ID != id || m.Headers["a"] != "b" || m.Source != "orders" || m.IdempotencyKey != "x" || m.Version != 9 || page.Rows[0].Attempts != 2 {
		t.Errorf("row %+v", page.Rows[0])
	}
	want := FetchParams{MaxBytes: sqlqueue.MaxPage, ScanLanes: 20, MaxLanes: 10, Busy: `[7]`, Cursors: `[{"b":1,"t":3,"l":100,"a":0},{"b":2,"t":4,"l":200,"a":8}]`,
		Scope: 1, Owner: "me", MaxRows: 50, MaxRun: 3}
	if c.asked["fetch"] != want {
		t.Errorf("asked %+v", c.asked["fetch"])
	}
}

func TestSettledTellsFencedFromGone(t *testing.T) {
	c, store := newCanned(t)
	c.settle = []SettleRow{{SettleLeased, 1}, {SettleChanged, 10}, {SettleParked, 77}}
	leases := []lane.Lease{{Bucket: 1, Token: 1}, {Bucket: 2, Token: 2}, {Bucket: 3, Token: 3}}
	settlements := []lane.Settlement{{Bucket: 1, Lane: 101, Sequence: 10}, {Bucket: 1, Lane: 101, Sequence: 11}, {Bucket: 2, Lane: 201, Sequence: 12}}
	got, err := store.Outbox(1).Settle(t.Context(), "me", leases, settlements)
	if err != nil {
		t.Fatal(err)
	}
	if want := (lane.SettleResult{Fenced: []lane.Bucket{2}, Gone: []lane.Ref{{Lane: 101, Sequence: 11}}, Parked: []int64{77}}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	done := SettleDoneParams{Scope: 1, Leases: `[{"b":1,"t":1},{"b":2,"t":2}]`, Owner: "me", Rows: `[{"l":101,"s":10},{"l":101,"s":11},{"l":201,"s":12}]`}
	if c.asked["done"] != done || c.asked["settle"] != nil {
		t.Errorf("asked %+v", c.asked)
	}
	// A hold, or any other outcome, takes the other batch.
	settlements[0].Held = true
	settlements[1].Outcome, settlements[1].Delay, settlements[1].Error = lane.Retry, time.Millisecond+1, "bad\x00"
	if _, err := store.Outbox(1).Settle(t.Context(), "me", leases, settlements[:2]); err != nil {
		t.Fatal(err)
	}
	all := SettleParams{Scope: 1, Leases: `[{"b":1,"t":1}]`, Owner: "me",
		Outcomes: `[{"l":101,"s":10,"o":0,"a":0,"d":0,"r":"","e":""},{"l":101,"s":11,"o":1,"a":0,"d":2,"r":"","e":"bad` + "\uFFFD" + `"}]`}
	if c.asked["settle"] != all {
		t.Errorf("asked %+v", c.asked["settle"])
	}
}

func TestReceiptsAreCompared(t *testing.T) {
	c, store := newCanned(t)
	messages := []inbox.Incoming{
		{IdempotencyKey: "a", EventType: "t", Payload: []byte("1")}, {IdempotencyKey: "b", EventType: "t", Payload: []byte("2")},
		{IdempotencyKey: "c", EventType: "t", Payload: []byte("3")}, {IdempotencyKey: "d", EventType: "t", Dead: "bad"},
	}
	c.positions = []int64{0, 3}
	same, other := receiptOf("b", "2"), receiptOf("c", "another body")
	c.digests = []DigestsRow{other, same}
	got, err := store.Receive(t.Context(), inbox.SourceRef{Name: "orders", Number: 7, Scope: 1}, messages)
	if err != nil {
		t.Fatal(err)
	}
	if want := []inbox.Disposition{inbox.Stored, inbox.Duplicate, inbox.Conflict, inbox.Buried}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if p := c.asked["receive"].(ReceiveParams); p.LockTimeout != 10_000 || p.Source != 7 || p.Scope != 1 {
		t.Errorf("asked %+v", p)
	}
	for _, bad := range []inbox.Incoming{{}, {IdempotencyKey: "\xff"}, {IdempotencyKey: "a", EventType: "\xff"}, {IdempotencyKey: "a", AggregateID: "\xff"}} {
		if _, err := store.Receive(t.Context(), inbox.SourceRef{}, []inbox.Incoming{bad}); err == nil {
			t.Errorf("%+v was stored", bad)
		}
	}
}

// receiptOf is the receipt of a body under an idempotency key.
func receiptOf(key, body string) DigestsRow {
	elements, _ := receiveList([]inbox.Incoming{{IdempotencyKey: key, Payload: []byte(body)}})
	return DigestsRow{KeyHash: unhex(elements[0].KeyHash), Digest: unhex(elements[0].Digest)}
}

func unhex(text string) []byte {
	b, err := hex.DecodeString(text)
	if err != nil {
		panic(err)
	}
	return b
}

// Dead letters are replayed a piece at a time, in their order, and what is none is
// passed over.
func TestReplayInPieces(t *testing.T) {
	c, store := newCanned(t)
	const n = 2*replayPiece + 1
	var ids []event.UUID
	for range n {
		id := event.NewUUID()
		ids = append(ids, id)
		c.dead = append(c.dead, strings.ToUpper(id.String()))
	}
	c.dead = append(c.dead, strings.ToUpper(event.NewUUID().String())) // nobody asks for it
	asked := append([]event.UUID{event.NewUUID()}, ids...)
	if got, err := store.Replay(t.Context(), 1, asked...); got != n || err != nil {
		t.Errorf("replayed %d, %v; want %d", got, err, n)
	}
	if len(c.dead) != 1 || len(asked) != n+1 || asked[1] != ids[0] {
		t.Errorf("%d are left, asked for %d", len(c.dead), len(asked))
	}
	if got, err := store.Replay(t.Context(), 1); got != 0 || err != nil {
		t.Errorf("nothing replayed as %d, %v", got, err)
	}
}
