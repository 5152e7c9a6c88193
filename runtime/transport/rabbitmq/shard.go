package rabbitmq

import "hash/fnv"

// Shard returns which of n shards the messages of a key go to. It is the 64-bit
// FNV-1a hash of the key's bytes modulo n, and never changes: another result would
// put the messages of one key into two queues.
func Shard(key string, n int) int {
	h := fnv.New64a()
	h.Write([]byte(key))
	return int(h.Sum64() % uint64(n))
}
