package rabbitmq

import (
	"fmt"
	"testing"
)

// TestShardNeverChanges pins where keys go. A change of these numbers would split
// the messages of a key over two queues.
func TestShardNeverChanges(t *testing.T) {
	for key, want := range map[string][4]int{ // shards: 2, 4, 8, 64
		"żółć 漢字 😀":                            {1, 1, 1, 1},
		"6f9619ff-8b86-d011-b42d-00c04fc964ff": {1, 3, 7, 55},
		"order-1":                              {1, 1, 5, 37},
		"order-2":                              {1, 3, 3, 43},
		"":                                     {0, 2, 6, 38},
		"a":                                    {1, 3, 3, 27},
	} {
		var got [4]int
		for i, n := range []int{2, 4, 8, 64} {
			got[i] = Shard(key, n)
		}
		if got != want {
			t.Errorf("%q: got %v, want %v", key, got, want)
		}
	}
}

func TestShardSpreadsKeys(t *testing.T) {
	const shards, keys = 8, 8000
	var count [shards]int
	for i := range keys {
		count[Shard(fmt.Sprintf("order-%d", i), shards)]++
	}
	for i, n := range count {
		if n < keys/shards*8/10 || n > keys/shards*12/10 {
			t.Errorf("shard %d has %d of %d keys", i, n, keys)
		}
	}
}
