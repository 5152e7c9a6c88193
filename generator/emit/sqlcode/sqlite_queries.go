package sqlcode

import d "github.com/lanebox/lanebox/generator/dialect"

// sqliteQueries returns the query model of SQLite, in the order of queries.sql.
// binary says that the outbox stores bytes. All integers are 64 bits wide, lists
// are JSON arrays, durations are milliseconds.
func sqliteQueries(binary bool) []Query {
	payload := d.Text
	if binary {
		payload = d.Bytes
	}
	lease := fields("scope", d.Int64, "bucket", d.Int64, "owner", d.Text, "token", d.Int64)
	queries := []Query{
		{Name: "LaneExpired", Kind: Many, Params: fields("scope", d.Int64, "max_free", d.Int64),
			Columns: fields("bucket", d.Int64, "crashed", d.Int64)},
		{Name: "LaneAcquire", Kind: Many,
			Params:  fields("owner", d.Text, "lease_ms", d.Int64, "scope", d.Int64, "buckets", d.Int64s),
			Columns: fields("bucket", d.Int64, "token", d.Int64, "lo", d.Int64, "hi", d.Int64)},
		{Name: "LaneFence", Kind: Many, Params: lease, Columns: fields("lo", d.Int64, "hi", d.Int64, "live", d.Int64)},
		{Name: "LaneRenew", Kind: ExecRows, Params: append(fields("lease_ms", d.Int64), lease...)},
		{Name: "LaneRelease", Kind: ExecRows, Params: append(fields("crashed", d.Int64), lease...)},
		{Name: "LaneHeartbeat", Kind: Exec, Params: fields("scope", d.Int64, "owner", d.Text)},
		{Name: "LaneForget", Kind: Exec, Params: fields("scope", d.Int64, "lease_ms", d.Int64)},
		{Name: "LaneLeave", Kind: Exec, Params: fields("owner", d.Text)},
		{Name: "LaneShare", Kind: One, Params: fields("scope", d.Int64),
			Columns: fields("owners", d.Int64, "buckets", d.Int64, "free", d.Int64, "expired", d.Int64, "waiting", d.Int64)},
		{Name: "LaneParked", Kind: Many, Params: fields("scope", d.Int64, "lo", d.Int64, "hi", d.Int64),
			Columns: fields("lane", d.Int64)},
		{Name: "LaneUnhold", Kind: Exec, Params: fields("scope", d.Int64, "lane", d.Int64, "sequence", d.Int64)},
		{Name: "LaneOf", Kind: One, Params: fields("key", d.Text), Columns: fields("lane", d.Int64)},
		{Name: "LanePark", Kind: Exec, Params: fields("scope", d.Int64, "lane", d.Int64, "reason", d.Text)},
		{Name: "LaneUnpark", Kind: ExecRows, Params: fields("scope", d.Int64, "lane", d.Int64)},
		{Name: "ScopeCounts", Kind: Many, Columns: fields("scope", d.Int64, "kind", d.Text, "name", d.Text, "waiting", d.Int64,
			"oldest_ms", d.Int64, "retrying", d.Int64, "parked", d.Int64, "dead", d.Int64)},
		{Name: "OutboxPublish", Kind: Exec, Params: fields("id", d.Text, "topic", d.Text, "key", d.Text, "payload", payload,
			"headers", d.Text, "version", d.Int64)},
		{Name: "InboxReceive", Kind: Exec, Params: fields("source", d.Int64, "id", d.Text, "aggregate_id", d.Text,
			"event_type", d.Text, "idempotency_key", d.Text, "payload", d.Bytes, "headers", d.Text, "version", d.Int64)},
		{Name: "InboxRefuse", Kind: Exec, Params: fields("reason", d.Text, "last_error", d.Text, "source", d.Int64, "idempotency_key", d.Text)},
		{Name: "InboxDrop", Kind: Exec, Params: fields("source", d.Int64, "idempotency_key", d.Text)},
		{Name: "InboxPosition", Kind: Many, Params: fields("source", d.Int64, "log", d.Text), Columns: fields("position", d.Int64)},
		{Name: "InboxAdvance", Kind: Exec, Params: fields("source", d.Int64, "log", d.Text, "position", d.Int64)},
		{Name: "InboxAddReceipt", Kind: ExecRows,
			Params: fields("source", d.Int64, "idempotency_key", d.Text, "digest", d.Bytes)},
		{Name: "InboxDigests", Kind: One, Params: fields("source", d.Int64, "idempotency_key", d.Text),
			Columns: fields("digest", d.Bytes)},
		{Name: "InboxPurgeReceipts", Kind: ExecRows,
			Params: fields("source", d.Int64, "retention_ms", d.Int64, "max_rows", d.Int64)},
		{Name: "InboxMarkGone", Kind: ExecRows,
			Params: fields("source", d.Int64, "retention_ms", d.Int64, "max_rows", d.Int64)},
	}
	queries = append(queries, sqliteQueueQueries("Outbox", "topic", false)...)
	return append(queries, sqliteQueueQueries("Inbox", "event_type", true)...)
}

// sqliteQueueQueries returns the queries that outbox and inbox share under their
// own names.
func sqliteQueueQueries(name, topic string, inbox bool) []Query {
	message := fields("id", d.Text, "msg_key", d.Text, topic, d.Text, "payload", d.Bytes, "headers", d.Text,
		"version", d.Int64, "created_at", d.Int64)
	if inbox {
		message = append(message, fields("source", d.Int64, "idempotency_key", d.Text)...)
	}
	recorded := fields("sequence", d.Int64, "lane", d.Int64, "attempts", d.Int64)
	join := func(lists ...[]Field) []Field {
		var all []Field
		for _, l := range lists {
			all = append(all, l...)
		}
		return all
	}
	one := fields("sequence", d.Int64, "scope", d.Int64, "lane", d.Int64)
	failure := fields("reason", d.Text, "last_error", d.Text)
	return []Query{
		{Name: name + "Unordered", Kind: Many,
			Params:  fields("scope", d.Int64, "lane", d.Int64, "after", d.Int64, "max_rows", d.Int64),
			Columns: join(recorded, fields("held", d.Int64, "due_in_ms", d.Int64), message)},
		{Name: name + "Fetch", Kind: Many,
			Params: fields("scope", d.Int64, "max_run", d.Int64, "max_rows", d.Int64, "from_lane", d.Int64, "hi", d.Int64,
				"scan_lanes", d.Int64, "busy", d.Int64s, "max_lanes", d.Int64),
			Columns: join(recorded, fields("held", d.Int64), message)},
		{Name: name + "Walk", Kind: One,
			Params:  fields("scan_lanes", d.Int64, "scope", d.Int64, "from_lane", d.Int64, "hi", d.Int64),
			Columns: fields("lane", d.Int64, "more", d.Int64)},
		{Name: name + "Remove", Kind: Many,
			Params:  fields("sequences", d.Int64s, "scope", d.Int64, "lo", d.Int64, "hi", d.Int64),
			Columns: fields("sequence", d.Int64)},
		{Name: name + "Hold", Kind: ExecRows,
			Params: join(fields("attempts", d.Int64, "delay_ms", d.Int64, "parked", d.Int64), failure, one)},
		{Name: name + "Bury", Kind: ExecRows, Params: join(fields("attempts", d.Int64), failure, one)},
		{Name: name + "DeadLetters", Kind: Many,
			Params:  fields("scope", d.Int64, "after", d.Int64, "max_rows", d.Int64),
			Columns: join(recorded, fields("died_at", d.Int64), failure, message)},
		{Name: name + "Replay", Kind: ExecRows, Params: fields("scope", d.Int64, "ids", d.Texts)},
		{Name: name + "DropDead", Kind: ExecRows, Params: fields("scope", d.Int64, "ids", d.Texts)},
	}
}
