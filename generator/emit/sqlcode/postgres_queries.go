package sqlcode

import d "github.com/lanebox/lanebox/generator/dialect"

// postgresQueries returns the query model of PostgreSQL, in the order of
// queries.sql. Payloads are bytes in every query, whatever the outbox stores.
func postgresQueries() []Query {
	leases := []any{"buckets", d.Int16s, "tokens", d.Int64s}
	fence := append(leases, "scope", d.Int32, "owner", d.Text)
	queries := []Query{
		{Name: "OutboxPublish", Kind: Exec, Params: fields("keys", d.Texts, "ids", d.UUIDs, "topics", d.Texts,
			"payloads", d.Bytess, "headers", d.Texts, "versions", d.Int64s)},
		{Name: "OutboxPublishOne", Kind: Exec, Params: fields("id", d.UUID, "key", d.Text, "topic", d.Text,
			"payload", d.Bytes, "headers", d.Text, "version", d.Int64)},
		{Name: "LaneAcquire", Kind: Many,
			Params:  fields("owner", d.Text, "ttl", d.Duration, "scope", d.Int32, "max_free", d.Int64),
			Columns: fields("bucket", d.Int16, "lo", d.Int64, "hi", d.Int64, "token", d.Int64, "crashed", d.Bool)},
		{Name: "LaneRelease", Kind: Exec, Params: fields("buckets", d.Int16s, "tokens", d.Int64s, "crashed", d.Bools,
			"scope", d.Int32, "owner", d.Text)},
		{Name: "LaneKeep", Kind: Many,
			Params: fields("owner", d.Text, "ttl", d.Duration, "scopes", d.Int32s, "lease_scopes", d.Int32s,
				"lease_buckets", d.Int16s, "lease_tokens", d.Int64s),
			Columns: fields("scope", d.Int32, "renewed", d.Int16s, "parked", d.Int64s, "owners", d.Int64,
				"buckets", d.Int64, "free", d.Int64, "expired", d.Int64, "waiting", d.Bool)},
		{Name: "LaneLeave", Kind: Exec, Params: fields("owner", d.Text)},
		{Name: "LaneFence", Kind: Many, Params: fields(fence...), Columns: fields("bucket", d.Int16)},
	}
	queries = append(queries, postgresQueueQueries("Outbox", "key", "topic")...)
	queries = append(queries, postgresQueueQueries("Inbox", "aggregate_id", "event_type")...)
	return append(queries,
		Query{Name: "OutboxTryLocks", Kind: Many, Params: fields("keys", d.Texts),
			Columns: fields("key", d.Text, "locked", d.Bool)},
		Query{Name: "OutboxWaitLocks", Kind: Exec, Params: fields("keys", d.Texts)},
		Query{Name: "InboxTake", Kind: Many, Params: fields("lanes", d.Int64s, "sequences", d.Int64s, "scope", d.Int32),
			Columns: fields("lane", d.Int64, "sequence", d.Int64)},
		Query{Name: "InboxComplete", Kind: One,
			Params: fields("scope", d.Int32, "bucket", d.Int16, "token", d.Int64, "owner", d.Text, "lane", d.Int64,
				"sequence", d.Int64),
			Columns: fields("leased", d.Bool, "removed", d.Bool)},
		Query{Name: "InboxReceive", Kind: Many,
			Params: fields("idempotency_keys", d.Texts, "digests", d.Bytess, "ids", d.UUIDs, "aggregate_ids", d.Texts,
				"event_types", d.Texts, "payloads", d.Bytess, "headers", d.Texts, "versions", d.Int64s, "reasons", d.Texts,
				"scope", d.Int32, "source", d.Int32),
			Columns: fields("position", d.Int64)},
		Query{Name: "InboxDigests", Kind: Many, Params: fields("source", d.Int32, "idempotency_keys", d.Texts),
			Columns: fields("idempotency_key", d.Text, "digest", d.Bytes)},
		Query{Name: "InboxPosition", Kind: Many, Params: fields("source", d.Int32, "log", d.Text), Columns: fields("position", d.Int64)},
		Query{Name: "InboxAdvance", Kind: Exec, Params: fields("source", d.Int32, "log", d.Text, "position", d.Int64)},
		Query{Name: "InboxPurgeReceipts", Kind: One, Params: fields("source", d.Int32, "age", d.Duration, "max_rows", d.Int64),
			Columns: fields("receipts", d.Int64)},
		Query{Name: "ScopeCounts", Kind: Many, Columns: fields("scope", d.Int32, "kind", d.Text, "name", d.Text,
			"waiting", d.Int64, "oldest_ms", d.Int64, "retrying", d.Int64, "parked", d.Int64, "dead", d.Int64)},
	)
}

// postgresQueueQueries returns the queries that outbox and inbox share under
// their own names.
func postgresQueueQueries(name, key, topic string) []Query {
	inbox := name == "Inbox"
	row := []any{"bucket", d.Int16, "lane", d.Int64, "sequence", d.Int64, "stop", d.Int64, "attempts", d.Int32, "held", d.Bool,
		"due_ms", d.Int64, "id", d.UUID, key, d.Text, topic, d.Text, "payload", d.Bytes, "headers", d.Text, "version", d.Int64,
		"created_at", d.Time}
	dead := []any{"lane", d.Int64, "sequence", d.Int64, "id", d.UUID, key, d.Text, topic, d.Text, "payload", d.Bytes, "headers", d.Text,
		"version", d.Int64, "attempts", d.Int32, "reason", d.Text, "last_error", d.Text, "created_at", d.Time, "died_at", d.Time}
	if inbox {
		row = append(row, "source", d.Int32, "idempotency_key", d.Text)
		dead = append(dead, "source", d.Int32, "idempotency_key", d.Text)
	}
	return []Query{
		{Name: name + "Fetch", Kind: Many,
			Params: fields("max_bytes", d.Int64, "scan_lanes", d.Int64, "max_lanes", d.Int64, "busy", d.Int64s, "buckets", d.Int16s, "tokens", d.Int64s,
				"lanes", d.Int64s, "afters", d.Int64s, "scope", d.Int32, "owner", d.Text, "max_rows", d.Int64, "max_run", d.Int64),
			Columns: fields(row...)},
		{Name: name + "SettleDone", Kind: One,
			Params: fields("scope", d.Int32, "buckets", d.Int16s, "tokens", d.Int64s, "owner", d.Text, "lanes", d.Int64s,
				"sequences", d.Int64s),
			Columns: fields("leased", d.Int16s, "changed", d.Int64s, "parked", d.Int64s)},
		{Name: name + "Settle", Kind: One,
			Params: fields("scope", d.Int32, "buckets", d.Int16s, "tokens", d.Int64s, "owner", d.Text, "lanes", d.Int64s,
				"sequences", d.Int64s, "outcomes", d.Int16s, "attempts", d.Int32s, "delays", d.Durations, "reasons", d.Texts,
				"errors", d.Texts),
			Columns: fields("leased", d.Int16s, "changed", d.Int64s, "parked", d.Int64s)},
		{Name: name + "DeadLetters", Kind: Many, Params: fields("scope", d.Int32, "after", d.Int64, "max_rows", d.Int64),
			Columns: fields(dead...)},
		{Name: name + "Replay", Kind: Many, Params: fields("scope", d.Int32, "ids", d.UUIDs), Columns: fields("id", d.UUID)},
		{Name: name + "Park", Kind: Exec, Params: fields("scope", d.Int32, "key", d.Text, "reason", d.Text)},
		{Name: name + "Unpark", Kind: ExecRows, Params: fields("scope", d.Int32, "key", d.Text)},
	}
}
