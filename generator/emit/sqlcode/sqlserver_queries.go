package sqlcode

import d "github.com/lanebox/lanebox/generator/dialect"

// sqlServerQueries returns the query model of SQL Server, in the order of
// queries.sql. binary says that the outbox stores bytes instead of text. Lists
// are JSON arrays, whose members the comments of the queries name. A statement
// that counts rows does so in a column: its batch reports none.
func sqlServerQueries(binary bool) []Query {
	payload, payloads := d.TextBytes, fields()
	if binary {
		payload, payloads = d.Bytes, fields("payloads", d.Bytes)
	}
	publish := append(fields("messages", d.JSON), payloads...)
	publish = append(publish, fields("lock_timeout", d.Int32)...)
	queries := []Query{
		{Name: "OutboxPublish", Kind: Exec, Params: publish},
		{Name: "OutboxPublishOne", Kind: Exec, Params: fields("id", d.UUID, "key", d.Text, "topic", d.Text, "payload", payload,
			"headers", d.Text, "version", d.Int64, "lock_timeout", d.Int32)},
		{Name: "OutboxTryLocks", Kind: Many, Params: fields("keys", d.Texts),
			Columns: fields("position", d.Int64, "locked", d.Bool)},
		{Name: "OutboxWaitLocks", Kind: Exec, Params: fields("keys", d.Texts, "lock_timeout", d.Int32)},
		{Name: "LaneAcquire", Kind: Many,
			Params:  fields("owner", d.Name, "ttl_ms", d.Int64, "scope", d.Int32, "max_free", d.Int64),
			Columns: fields("bucket", d.Int16, "lo", d.Int64, "hi", d.Int64, "token", d.Int64, "crashed", d.Bool)},
		{Name: "LaneRelease", Kind: Exec, Params: fields("leases", d.JSON, "scope", d.Int32, "owner", d.Name)},
		{Name: "LaneKeep", Kind: Many, Params: fields("owner", d.Name, "ttl_ms", d.Int64, "scopes", d.Int32s, "leases", d.JSON),
			Columns: fields("scope", d.Int32, "kind", d.Int16, "value", d.Int64)},
		{Name: "LaneLeave", Kind: Exec, Params: fields("owner", d.Name)},
		{Name: "LaneFence", Kind: Many, Params: fields("leases", d.JSON, "scope", d.Int32, "owner", d.Name),
			Columns: fields("bucket", d.Int16)},
		{Name: "InboxTake", Kind: Many, Params: fields("rows", d.JSON, "scope", d.Int32),
			Columns: fields("lane", d.Int64, "sequence", d.Int64)},
		{Name: "InboxComplete", Kind: One,
			Params: fields("scope", d.Int32, "bucket", d.Int16, "token", d.Int64, "owner", d.Name, "lane", d.Int64,
				"sequence", d.Int64),
			Columns: fields("leased", d.Bool, "removed", d.Bool)},
		{Name: "InboxReceive", Kind: Many,
			Params:  fields("messages", d.JSON, "payloads", d.Bytes, "scope", d.Int32, "source", d.Int32, "lock_timeout", d.Int32),
			Columns: fields("position", d.Int64)},
		{Name: "InboxDigests", Kind: Many, Params: fields("source", d.Int32, "hashes", d.Texts),
			Columns: fields("key_hash", d.Bytes, "digest", d.Bytes)},
		{Name: "InboxPurgeReceipts", Kind: One, Params: fields("source", d.Int32, "age_ms", d.Int64, "max_rows", d.Int64),
			Columns: fields("receipts", d.Int64)},
		{Name: "InboxPosition", Kind: Many, Params: fields("source", d.Int32, "log", d.Text),
			Columns: fields("position", d.Int64)},
		{Name: "InboxAdvance", Kind: Exec, Params: fields("source", d.Int32, "log", d.Text, "position", d.Int64)},
		{Name: "ScopeCounts", Kind: Many, Columns: fields("scope", d.Int32, "kind", d.Text, "name", d.Text, "waiting", d.Int64,
			"oldest_ms", d.Int64, "retrying", d.Int64, "parked", d.Int64, "dead", d.Int64)},
	}
	queries = append(queries, sqlServerQueueQueries("Outbox", "key", "topic", payload)...)
	return append(queries, sqlServerQueueQueries("Inbox", "aggregate_id", "event_type", d.Bytes)...)
}

// sqlServerQueueQueries returns the queries that outbox and inbox share under
// their own names.
func sqlServerQueueQueries(name, key, topic string, payload d.Type) []Query {
	message := fields("id", d.UUID, key, d.Text, topic, d.Text, "payload", payload, "headers", d.Text, "version", d.Int64)
	row := append(fields("bucket", d.Int16, "lane", d.Int64, "sequence", d.Int64, "stop", d.Int64, "attempts", d.Int32,
		"held", d.Bool, "due_ms", d.Int64), message...)
	row = append(row, fields("created_at", d.Time)...)
	dead := append(fields("lane", d.Int64, "sequence", d.Int64), message...)
	dead = append(dead, fields("attempts", d.Int32, "reason", d.Text, "last_error", d.Text, "created_at", d.Time, "died_at", d.Time)...)
	if name == "Inbox" {
		row = append(row, fields("source", d.Int32, "idempotency_key", d.Text)...)
		dead = append(dead, fields("source", d.Int32, "idempotency_key", d.Text)...)
	}
	settled := fields("kind", d.Int16, "value", d.Int64)
	return []Query{
		{Name: name + "Fetch", Kind: Many,
			Params: fields("max_bytes", d.Int64, "scan_lanes", d.Int64, "max_lanes", d.Int64, "busy", d.Int64s, "cursors", d.JSON,
				"scope", d.Int32, "owner", d.Name, "max_rows", d.Int64, "max_run", d.Int64),
			Columns: row},
		{Name: name + "SettleDone", Kind: Many,
			Params: fields("scope", d.Int32, "leases", d.JSON, "owner", d.Name, "rows", d.JSON), Columns: settled},
		{Name: name + "Settle", Kind: Many,
			Params: fields("scope", d.Int32, "leases", d.JSON, "owner", d.Name, "outcomes", d.JSON), Columns: settled},
		{Name: name + "DeadLetters", Kind: Many, Params: fields("scope", d.Int32, "after", d.Int64, "max_rows", d.Int64),
			Columns: dead},
		{Name: name + "Replay", Kind: Many, Params: fields("max_rows", d.Int64, "ids", d.UUIDs, "scope", d.Int32, "lock_timeout", d.Int32),
			Columns: fields("id", d.UUID)},
		{Name: name + "Park", Kind: Exec, Params: fields("scope", d.Int32, "key", d.Text, "reason", d.Text)},
		{Name: name + "Unpark", Kind: One, Params: fields("scope", d.Int32, "key", d.Text), Columns: fields("unparked", d.Int64)},
	}
}
