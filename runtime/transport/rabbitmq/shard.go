package rabbitmq

import "hash/fnv"

// Shard returns which of n shards the messages of a key go to: the 64-bit FNV-1a
// hash of the key's bytes, with its bits mixed as MurmurHash3 does in the end,
// modulo n. It never changes: another result would put the messages of one key
// into two queues.
func Shard(key string, n int) int {
	h := fnv.New64a()
	h.Write([]byte(key))
	x := h.Sum64()
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
	return int((x ^ x>>33) % uint64(n))
}
