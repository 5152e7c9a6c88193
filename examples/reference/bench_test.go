package reference

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lanebox/lanebox/examples/reference/internal/events"
	"github.com/lanebox/lanebox/examples/reference/internal/events/postgres"
	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/storetest/testpg"
	"github.com/lanebox/lanebox/runtime/transport/handler"
)

const (
	drainMessages = 200_000
	drainPollers  = 4
)

// BenchmarkDrain empties an outbox of 200,000 messages into a destination that
// does nothing, with four pollers, and compares that with the most that deleting
// with SKIP LOCKED can do on the same machine in the same minute: four workers
// that claim and delete 500 rows at a time and keep no order at all.
func BenchmarkDrain(b *testing.B) {
	for name, keys := range map[string]int{"10000 keys": 10_000, "hot key": 0} {
		b.Run(name, func(b *testing.B) {
			for range b.N {
				pool := testpg.Pool(b, testpg.URL(b), func(c *pgxpool.Config) { c.MaxConns = 40 })
				if _, err := postgres.Migrate(b.Context(), pool); err != nil {
					b.Fatal(err)
				}
				preload(b, pool, keys)
				reference := rate(func() { deleteAll(b, pool) })
				release := startPollers(b, pool)
				preload(b, pool, keys)
				drain := rate(release)
				b.ReportMetric(drain, "msg/s")
				b.ReportMetric(reference, "reference/s")
				b.ReportMetric(drain/reference, "ratio")
			}
		})
	}
}

// rate returns messages per second of f, which moves all of them.
func rate(f func()) float64 {
	start := time.Now()
	f()
	return drainMessages / time.Since(start).Seconds()
}

// preload fills the outbox of the search index; without keys half of the
// messages are of one key and the rest of 10,000.
func preload(b *testing.B, pool *pgxpool.Pool, keys int) {
	b.Helper()
	key := `'key-' || (i % $3::bigint)`
	if keys == 0 {
		key, keys = `CASE WHEN i % 2 = 0 THEN 'hot' ELSE 'key-' || (i % $3::bigint) END`, 10_000
	}
	_, err := pool.Exec(b.Context(), `INSERT INTO outbox (destination, lane, sequence, created_at, key, topic, payload)
		SELECT $1, outbox_lane(k), nextval('outbox_sequence'), clock_timestamp(), k, 'invoice.revised.v1', repeat('x', 200)
		  FROM (SELECT `+key+` AS k FROM generate_series(1, $2::bigint) AS g(i)) AS s`, events.SearchDestination, drainMessages, keys)
	if err != nil {
		b.Fatal(err)
	}
	for _, text := range []string{"VACUUM ANALYZE outbox", "CHECKPOINT"} {
		if _, err := pool.Exec(b.Context(), text); err != nil {
			b.Fatal(err)
		}
	}
}

func deleteAll(b *testing.B, pool *pgxpool.Pool) {
	var workers sync.WaitGroup
	for range drainPollers {
		workers.Go(func() {
			for {
				rows, err := pool.Query(b.Context(), `DELETE FROM outbox AS o
					USING (SELECT destination, lane, sequence FROM outbox WHERE destination = $1 LIMIT 500 FOR UPDATE SKIP LOCKED) AS c
					WHERE o.destination = c.destination AND o.lane = c.lane AND o.sequence = c.sequence
					RETURNING o.sequence, o.payload`, events.SearchDestination)
				if err != nil {
					b.Error(err)
					return
				}
				n := 0
				for rows.Next() {
					n++
				}
				if rows.Err() != nil || n == 0 {
					return
				}
			}
		})
	}
	workers.Wait()
}

// startPollers runs the pollers and returns when they have shared the buckets
// out. They deliver nothing until release is called, which returns when the
// outbox is empty and they have ended.
func startPollers(b *testing.B, pool *pgxpool.Pool) (release func()) {
	ctx, cancel := context.WithCancel(b.Context())
	start := make(chan struct{})
	var left atomic.Int64
	left.Store(drainMessages)
	config := postgres.Config{Search: handler.NewDestination(func(context.Context, event.Message) error {
		<-start
		if left.Add(-1) == 0 {
			cancel()
		}
		return nil
	})}
	fillIn(&config)
	var pollers sync.WaitGroup
	for range drainPollers {
		box, err := postgres.New(pool, config)
		if err != nil {
			b.Fatal(err)
		}
		pollers.Go(func() {
			if err := box.Run(ctx); err != nil {
				b.Error(err)
			}
		})
	}
	for shared := false; !shared; time.Sleep(10 * time.Millisecond) {
		err := pool.QueryRow(b.Context(), `SELECT count(*) = $2 AND max(n) = min(n) FROM
			(SELECT count(*) AS n FROM lane_bucket WHERE scope = $1 AND owner IS NOT NULL GROUP BY owner) AS s`,
			events.SearchDestination, drainPollers).Scan(&shared)
		if err != nil {
			b.Fatal(err)
		}
	}
	return func() {
		close(start)
		pollers.Wait()
		if n := waitingRows(b, pool); n != 0 {
			b.Fatalf("%d messages left", n)
		}
	}
}

func waitingRows(b *testing.B, pool *pgxpool.Pool) (n int) {
	if err := pool.QueryRow(context.Background(), `SELECT count(*) FROM outbox`).Scan(&n); err != nil {
		b.Fatal(err)
	}
	return n
}
