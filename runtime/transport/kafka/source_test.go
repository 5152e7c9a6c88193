package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/topology"
	"github.com/lanebox/lanebox/runtime/transporttest"
)

var errStore = errors.New("the store is down")

// lively are settings of a member with which a rebalance is quick.
func lively(addresses ...string) Config {
	return Config{
		Brokers: addresses, MaxRecords: 20, RetryBackoff: 50 * time.Millisecond,
		Options: []kgo.Opt{kgo.HeartbeatInterval(100 * time.Millisecond), kgo.SessionTimeout(6 * time.Second), kgo.FetchMaxWait(100 * time.Millisecond)},
	}
}

func client(t testing.TB, addresses []string, options ...kgo.Opt) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(append(options, kgo.SeedBrokers(addresses...))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func committed(t testing.TB, c *kgo.Client, group, topic string, partition int32) int64 {
	t.Helper()
	offsets, err := kadm.NewClient(c).FetchOffsets(t.Context(), group)
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
		t.Fatal(err)
	}
	o, ok := offsets.Lookup(topic, partition)
	if !ok {
		return -1
	}
	return o.At
}

// checkStored checks that everything that was sent is stored, each key in order.
func checkStored(t *testing.T, ledger *transporttest.Ledger, sent map[string][]event.Message) {
	t.Helper()
	next := map[string]int{}
	for _, m := range ledger.Stored() {
		all, n := sent[m.AggregateID], next[m.AggregateID]
		if n >= len(all) || m.IdempotencyKey != all[n].ID.String() {
			t.Fatalf("key %s: %q is stored out of order, as number %d", m.AggregateID, m.Payload, n)
		}
		next[m.AggregateID]++
	}
	for key, all := range sent {
		if next[key] != len(all) {
			t.Errorf("key %s: %d of %d messages are stored", key, next[key], len(all))
		}
	}
}

// TestRebalances lets members of a group come and go while records arrive and the
// store fails now and then.
func TestRebalances(t *testing.T) {
	const keys, changes = 24, 15
	b := startBroker(t)
	addresses := []string{b.address}
	topic := newTopic(t, addresses, 6, nil)
	ledger := &transporttest.Ledger{}
	ledger.Before(func(_ context.Context, try int, _ inbox.Incoming) error {
		if try%11 == 0 {
			return errStore
		}
		return nil
	})
	from := topology.KafkaSource{Name: "s", Topics: []string{topic}, Group: "g"}
	receiver := transporttest.NewReceiver(ledger, 0)
	d := newDestination(t, Config{Brokers: addresses}, topic)
	sent := map[string][]event.Message{}
	sendAll := func() {
		var all sync.WaitGroup
		for k := range keys {
			key := fmt.Sprintf("key-%d", k)
			messages := run(key, int64(len(sent[key])), int64(len(sent[key])+20))
			sent[key] = append(sent[key], messages...)
			all.Go(func() { (&lane{d: d, key: key}).deliver(t, messages, 20) })
		}
		all.Wait()
	}
	var members []func()
	var sources []*Source
	join := func() {
		s, stop := runSource(t, lively(b.address), from, receiver)
		members, sources = append(members, stop), append(sources, s)
	}
	stored := func() (n int64) {
		for _, s := range sources {
			n += s.Stats().Stored
		}
		return n
	}
	join()
	join()
	for change := range changes {
		sendAll()
		// Each change happens while records of the round are still being stored.
		before, all := stored(), int64(keys*20*(change+1))
		transporttest.Eventually(t, "storing goes on", func() bool { return stored() > before || before == all })
		if len(members) < 2 || change%3 == 0 {
			join()
			continue
		}
		members[0]()
		members = members[1:]
	}
	transporttest.Eventually(t, "everything is stored", func() bool { return stored() == keys*20*changes })
	checkStored(t, ledger, sent)
	for _, stop := range members {
		stop()
	}
	admin, total := client(t, addresses), int64(0)
	for p := range int32(6) {
		total += max(0, committed(t, admin, "g", topic, p))
	}
	if total != keys*20*changes {
		t.Errorf("%d records are committed after all members ended, want %d", total, keys*20*changes)
	}
}

// TestSlowStoreStaysInTheGroup lets storing fail for longer than a session lasts:
// the member must keep its place, take part in a rebalance, and go on.
func TestSlowStoreStaysInTheGroup(t *testing.T) {
	b := startBroker(t, kfake.GroupMinSessionTimeout(100*time.Millisecond))
	addresses := []string{b.address}
	topic := newTopic(t, addresses, 2, nil)
	ledger := &transporttest.Ledger{}
	var down atomic.Bool
	down.Store(true)
	ledger.Before(func(context.Context, int, inbox.Incoming) error {
		if down.Load() {
			return errStore
		}
		return nil
	})
	c := lively(b.address)
	c.Options = append(c.Options, kgo.SessionTimeout(time.Second))
	from := topology.KafkaSource{Name: "s", Topics: []string{topic}, Group: "g"}
	d := newDestination(t, Config{Brokers: addresses}, topic)
	sent := map[string][]event.Message{}
	for k := range 8 {
		key := fmt.Sprintf("key-%d", k)
		sent[key] = run(key, 0, 200)
		(&lane{d: d, key: key}).deliver(t, sent[key], 200)
	}
	first, _ := runSource(t, c, from, transporttest.NewReceiver(ledger, 0))
	transporttest.Eventually(t, "storing fails", func() bool { return first.Stats().Failures > 0 })
	info := b.stable(t, "g", 1)
	generation, started := info.Epoch, time.Now()
	transporttest.Eventually(t, "the session would have ended twice", func() bool { return time.Since(started) > 2500*time.Millisecond })
	if info := b.GroupInfo("g"); info.Epoch != generation || len(info.Members) != 1 {
		t.Errorf("generation %d with %d members; want %d with the same one", info.Epoch, len(info.Members), generation)
	}
	runSource(t, c, from, transporttest.NewReceiver(ledger, 0))
	b.stable(t, "g", 2) // it joins while storing fails
	if n := committed(t, client(t, addresses), "g", topic, 0); n > 0 {
		t.Errorf("%d records are committed though nothing is stored", n)
	}
	down.Store(false)
	transporttest.Eventually(t, "everything is stored", func() bool { return len(ledger.Stored()) == 1600 })
	checkStored(t, ledger, sent)
	if n := first.Stats().Reconnects; n != 0 {
		t.Errorf("the first member had to join again %d times", n)
	}
}

// TestCommitsTheUnbrokenRun ends a member while storing fails in the middle of a
// partition: what is stored is committed, and nothing behind it.
func TestCommitsTheUnbrokenRun(t *testing.T) {
	b := startBroker(t)
	addresses := []string{b.address}
	topic := newTopic(t, addresses, 1, nil)
	all := run("k", 0, 100)
	ledger := &transporttest.Ledger{}
	ledger.Before(func(_ context.Context, _ int, m inbox.Incoming) error {
		if m.IdempotencyKey == all[57].ID.String() {
			return errStore
		}
		return nil
	})
	d := newDestination(t, Config{Brokers: addresses}, topic)
	(&lane{d: d, key: "k"}).deliver(t, all, 100)
	from := topology.KafkaSource{Name: "s", Topics: []string{topic}, Group: "g"}
	s, stop := runSource(t, lively(b.address), from, transporttest.NewReceiver(ledger, 0))
	transporttest.Eventually(t, "storing fails", func() bool { return s.Stats().Failures > 1 })
	stop()
	if stored, at := len(ledger.Stored()), committed(t, client(t, addresses), "g", topic, 0); stored != 40 || at != 40 {
		t.Errorf("stored %d, committed %d; want the 40 records of the two whole transactions", stored, at)
	}
	ledger.Before(nil)
	runSource(t, lively(b.address), from, transporttest.NewReceiver(ledger, 0))
	transporttest.Eventually(t, "the rest is stored", func() bool { return len(ledger.Stored()) == 100 })
	checkStored(t, ledger, map[string][]event.Message{"k": all})
}

// TestTransactionInHandIsFinished ends a member while it stores.
func TestTransactionInHandIsFinished(t *testing.T) {
	b := startBroker(t)
	addresses := []string{b.address}
	topic := newTopic(t, addresses, 1, nil)
	d := newDestination(t, Config{Brokers: addresses}, topic)
	(&lane{d: d, key: "k"}).deliver(t, run("k", 0, 10), 10)
	ledger := &transporttest.Ledger{}
	storing, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	ledger.Before(func(ctx context.Context, _ int, _ inbox.Incoming) error {
		once.Do(func() { close(storing) })
		select {
		case <-goOn:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	s, err := NewSource(lively(b.address), topology.KafkaSource{Name: "s", Topics: []string{topic}, Group: "g"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, transporttest.NewReceiver(ledger, 0)) }()
	<-storing
	cancel()
	close(goOn)
	if err := <-done; err != nil {
		t.Errorf("Run = %v", err)
	}
	if stored, at := len(ledger.Stored()), committed(t, client(t, addresses), "g", topic, 0); stored == 0 || int64(stored) != at {
		t.Errorf("stored %d, committed %d", stored, at)
	}
}

// TestEndsDuringRebalance ends a member that waits for the answer to its join, as
// while the group waits for another member that is dead. It is gone at once, and
// the next one takes over.
func TestEndsDuringRebalance(t *testing.T) {
	b := startBroker(t)
	addresses := []string{b.address}
	topic := newTopic(t, addresses, 1, nil)
	c := lively(b.address)
	from := topology.KafkaSource{Name: "s", Topics: []string{topic}, Group: "g"}
	ledger := &transporttest.Ledger{}
	s, stop := runSource(t, c, from, transporttest.NewReceiver(ledger, 0))
	s.leaveTimeout = 2 * time.Second
	id := b.stable(t, "g", 1).Members[0].MemberID
	joining := b.holdJoin(t, id)
	runSource(t, c, from, transporttest.NewReceiver(ledger, 0))
	<-joining
	d := newDestination(t, Config{Brokers: addresses}, topic)
	all := run("k", 0, 20)
	(&lane{d: d, key: "k"}).deliver(t, all[:10], 10)
	transporttest.Eventually(t, "the records are stored", func() bool { return len(ledger.Stored()) == 10 })
	stop()
	if b.stable(t, "g", 1).Members[0].MemberID == id {
		t.Error("the member that ended is in the group")
	}
	(&lane{d: d, key: "k"}).deliver(t, all[10:], 10)
	transporttest.Eventually(t, "the rest is stored", func() bool { return len(ledger.Stored()) == 20 })
	checkStored(t, ledger, map[string][]event.Message{"k": all})
}

// TestEndsWhileItHandsOver ends a member whose cluster does not answer the commit
// before a partition goes to another member.
func TestEndsWhileItHandsOver(t *testing.T) {
	b := startBroker(t)
	addresses := []string{b.address}
	topic := newTopic(t, addresses, 2, nil)
	c := lively(b.address)
	c.Timeout = time.Hour
	from := topology.KafkaSource{Name: "s", Topics: []string{topic}, Group: "g"}
	ledger := &transporttest.Ledger{}
	s, stop := runSource(t, c, from, transporttest.NewReceiver(ledger, 0))
	s.leaveTimeout = 50 * time.Millisecond
	b.stable(t, "g", 1)
	// Nothing can be committed until the first member has synced again, and from then
	// on commits are not answered: it is handing over when one comes.
	var synced atomic.Bool
	b.ControlKey(int16(kmsg.SyncGroup), func(kmsg.Request) (kmsg.Response, error, bool) {
		b.KeepControl()
		synced.Store(true)
		return nil, nil, false
	})
	asked := make(chan struct{}, 100)
	b.ControlKey(int16(kmsg.OffsetCommit), func(request kmsg.Request) (kmsg.Response, error, bool) {
		b.KeepControl()
		if synced.Load() {
			asked <- struct{}{}
			b.SleepControl(func() { <-t.Context().Done() })
		}
		return refuseCommit(request.(*kmsg.OffsetCommitRequest)), nil, true
	})
	d := newDestination(t, Config{Brokers: addresses}, topic)
	for k := range 8 {
		key := fmt.Sprint("key-", k)
		(&lane{d: d, key: key}).deliver(t, run(key, 0, 10), 10)
	}
	transporttest.Eventually(t, "the records are stored", func() bool { return len(ledger.Stored()) == 80 })
	other, _ := runSource(t, c, from, transporttest.NewReceiver(&transporttest.Ledger{}, 0))
	other.leaveTimeout = 50 * time.Millisecond
	<-asked
	stop()
}

// refuseCommit answers that the group's offsets may not be written.
func refuseCommit(request *kmsg.OffsetCommitRequest) kmsg.Response {
	response := request.ResponseKind().(*kmsg.OffsetCommitResponse)
	for _, topic := range request.Topics {
		refused := kmsg.NewOffsetCommitResponseTopic()
		refused.Topic, refused.TopicID = topic.Topic, topic.TopicID
		for _, p := range topic.Partitions {
			partition := kmsg.NewOffsetCommitResponseTopicPartition()
			partition.Partition, partition.ErrorCode = p.Partition, kerr.GroupAuthorizationFailed.Code
			refused.Partitions = append(refused.Partitions, partition)
		}
		response.Topics = append(response.Topics, refused)
	}
	return response
}

// TestStaticMemberKeepsItsPlace ends a static member in the middle of a rebalance:
// its next life has the same place.
func TestStaticMemberKeepsItsPlace(t *testing.T) {
	b := startBroker(t)
	addresses := []string{b.address}
	topic := newTopic(t, addresses, 1, nil)
	c := lively(b.address)
	options := c.Options
	c.Options = append(slices.Clip(options), kgo.InstanceID("pod-0"))
	from := topology.KafkaSource{Name: "s", Topics: []string{topic}, Group: "g"}
	s, stop := runSource(t, c, from, transporttest.NewReceiver(&transporttest.Ledger{}, 0))
	s.leaveTimeout = 50 * time.Millisecond
	id := b.stable(t, "g", 1).Members[0].MemberID
	joining := b.holdJoin(t, id)
	var left atomic.Int64
	b.ControlKey(int16(kmsg.LeaveGroup), func(kmsg.Request) (kmsg.Response, error, bool) {
		b.KeepControl()
		left.Add(1)
		return nil, nil, false
	})
	c.Options = append(slices.Clip(options), kgo.InstanceID("pod-1"))
	runSource(t, c, from, transporttest.NewReceiver(&transporttest.Ledger{}, 0))
	<-joining
	stop()
	if n := left.Load(); n > 0 {
		t.Errorf("a static member left the group (%d requests)", n)
	}
}

// TestEveryStopWaits: who stops a worker that is being stopped already waits for its
// end as well; a partition would be given away while it is stored.
func TestEveryStopWaits(t *testing.T) {
	m := &member{workers: map[place]*worker{}}
	at := place{"topic", 1}
	w := &worker{member: m, at: at, done: make(chan struct{})}
	w.ctx, w.cancel = context.WithCancel(t.Context())
	m.workers[at] = w
	var stops sync.WaitGroup
	stops.Go(func() { m.stop(map[string][]int32{"topic": {1}}) })
	<-w.ctx.Done()
	m.mu.Lock()
	if m.workers[at] != w {
		t.Error("a worker that has not ended is forgotten")
	}
	m.mu.Unlock()
	stops.Go(func() { m.stop(map[string][]int32{"topic": {1}}) })
	close(w.done)
	stops.Wait()
	if len(m.workers) > 0 {
		t.Error("a worker that has ended is not forgotten")
	}
}

// TestEndsWithoutTheCluster ends members that never reached their cluster.
func TestEndsWithoutTheCluster(t *testing.T) {
	b := startBroker(t)
	for _, mode := range []transporttest.Mode{transporttest.Stall, transporttest.Refuse} {
		proxy := transporttest.NewProxy(t, b.address)
		proxy.Set(t, mode)
		c := Config{Brokers: []string{b.address}, Options: []kgo.Opt{through(proxy)}, Timeout: time.Hour}
		s, stop := runSource(t, c, topology.KafkaSource{Name: "s", Topics: []string{"t"}, Group: "g"}, transporttest.NewReceiver(&transporttest.Ledger{}, 0))
		s.leaveTimeout = 50 * time.Millisecond
		stop()
	}
}

// TestForeignRecords are records that no lanebox wrote.
func TestForeignRecords(t *testing.T) {
	b := startBroker(t)
	addresses := []string{b.address}
	topic := newTopic(t, addresses, 1, nil)
	typed := []kgo.RecordHeader{{Key: "x-event-type", Value: []byte("thing.v1")}}
	with := func(pairs ...string) (out []kgo.RecordHeader) {
		for i := 0; i < len(pairs); i += 2 {
			out = append(out, kgo.RecordHeader{Key: pairs[i], Value: []byte(pairs[i+1])})
		}
		return out
	}
	producer := client(t, addresses)
	for _, r := range []*kgo.Record{
		{Key: []byte("k"), Value: []byte(`{}`), Headers: typed},
		{Value: []byte("no type at all")},
		{Key: []byte("k"), Value: nil},
		{Key: []byte("k"), Value: nil, Headers: typed},
		{Key: []byte("k"), Value: []byte(`{}`), Headers: typed}, // the same once more is another message
		{Key: []byte{0xff, 0}, Value: []byte("binary key"), Headers: typed},
		{Key: []byte("k"), Value: []byte("1"), Headers: with("x-event-type", "thing.v1", "x-idempotency-key", "mine", "X-Aggregate-ID", "agg", "tenant", "acme", "bad", "\xff")},
		{Key: []byte("k"), Value: []byte("2"), Headers: with("x-event-type", "thing.v1", "x-idempotency-key", "mine")},
		{Key: []byte("k"), Value: []byte("3"), Headers: with("CE_type", "thing.v1", "ce_id", "i3", "ce_aggregateversion", "x")},
		{Key: []byte("k"), Value: []byte("4"), Headers: with("ce_type", "thing.v1", "ce_type", "other.v1")},
		{Key: []byte("k"), Value: []byte("last"), Headers: typed},
	} {
		r.Topic, r.Timestamp = topic, time.UnixMilli(1700000000000)
		if err := producer.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	ledger := &transporttest.Ledger{}
	s, _ := runSource(t, lively(b.address), topology.KafkaSource{Name: "s", Topics: []string{topic}, Group: "g"}, transporttest.NewReceiver(ledger, 0))
	transporttest.Eventually(t, "everything is stored", func() bool { return len(ledger.Stored())+len(ledger.Dead()) == 11 })
	var got []string
	for _, m := range ledger.Stored() {
		got = append(got, fmt.Sprintf("%s %s %q", m.IdempotencyKey, m.AggregateID, m.Payload))
	}
	id := func(n int) string { return fmt.Sprintf("kafka:%s/0/%d@1700000000000", topic, n) }
	want := []string{
		id(0) + ` k "{}"`, id(3) + ` k ""`, id(4) + ` k "{}"`, id(5) + ` base64:/wA "binary key"`, `mine agg "1"`, id(10) + ` k "last"`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("stored:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, reason := range []string{"no usable event type", "tombstone", "another body", "no usable aggregate version", "more than once"} {
		found := false
		for _, m := range ledger.Dead() {
			found = found || strings.Contains(m.Dead, reason)
		}
		if !found {
			t.Errorf("no dead letter says %q", reason)
		}
	}
	if h := ledger.Stored()[4].Headers; h["tenant"] != "acme" || h["bad"] != "" {
		t.Errorf("headers %v", h)
	}
	transporttest.Eventually(t, "everything is counted", func() bool {
		stats := s.Stats()
		return stats.Stored == 6 && stats.Buried == 5
	})
}

// TestAbortedTransactionsAreNotStored reads only what a transaction committed.
func TestAbortedTransactionsAreNotStored(t *testing.T) {
	b := startBroker(t)
	addresses := []string{b.address}
	topic := newTopic(t, addresses, 1, nil)
	producer := client(t, addresses, kgo.TransactionalID("tx"), kgo.DefaultProduceTopic(topic))
	for _, commit := range []bool{false, true} {
		if err := producer.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		r := kgo.StringRecord(fmt.Sprint(commit))
		r.Headers = []kgo.RecordHeader{{Key: "x-event-type", Value: []byte("thing.v1")}}
		if err := producer.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if err := producer.EndTransaction(t.Context(), kgo.TransactionEndTry(commit)); err != nil {
			t.Fatal(err)
		}
	}
	ledger := &transporttest.Ledger{}
	runSource(t, lively(b.address), topology.KafkaSource{Name: "s", Topics: []string{topic}, Group: "g"}, transporttest.NewReceiver(ledger, 0))
	transporttest.Eventually(t, "the committed record is stored", func() bool { return len(ledger.Stored()) > 0 })
	if got := ledger.Stored(); len(got) != 1 || string(got[0].Payload) != "true" {
		t.Errorf("stored %q", got[0].Payload)
	}
}

// TestLastMeansNowOnce starts a new group at the end; later it must not pass over
// anything, not in a partition that was added while it was away either.
func TestLastMeansNowOnce(t *testing.T) {
	b := startBroker(t)
	addresses := []string{b.address}
	topic := newTopic(t, addresses, 1, nil)
	d := newDestination(t, Config{Brokers: addresses, Options: []kgo.Opt{kgo.MetadataMaxAge(300 * time.Millisecond)}}, topic)
	send := func(payload string) {
		m := newMessage("", 1)
		m.Payload = []byte(payload)
		if err := d.Send(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	ledger := &transporttest.Ledger{}
	has := func(payload string) func() bool {
		return func() bool {
			for _, m := range ledger.Stored() {
				if string(m.Payload) == payload {
					return true
				}
			}
			return false
		}
	}
	from := topology.KafkaSource{Name: "s", Topics: []string{topic}, Group: "g", Start: "last"}
	send("before")
	_, stop := runSource(t, lively(b.address), from, transporttest.NewReceiver(ledger, 0))
	admin := client(t, addresses)
	transporttest.Eventually(t, "the group has a place", func() bool { return committed(t, admin, "g", topic, 0) == 1 })
	send("while it runs")
	transporttest.Eventually(t, "it is stored", has("while it runs"))
	stop()
	if answers, err := kadm.NewClient(admin).CreatePartitions(t.Context(), 3, topic); err != nil || answers.Error() != nil {
		t.Fatal(err, answers.Error())
	}
	r := &kgo.Record{Topic: topic, Partition: 3, Value: []byte("in the new partition"), Headers: []kgo.RecordHeader{{Key: "x-event-type", Value: []byte("thing.v1")}}}
	if err := client(t, addresses, kgo.RecordPartitioner(kgo.ManualPartitioner())).ProduceSync(t.Context(), r).FirstErr(); err != nil {
		t.Fatal(err)
	}
	send("while it is away")
	runSource(t, lively(b.address), from, transporttest.NewReceiver(ledger, 0))
	transporttest.Eventually(t, "it is stored", has("while it is away"))
	transporttest.Eventually(t, "the new partition is read from its start", has("in the new partition"))
	if has("before")() {
		t.Error("a record from before the group began is stored")
	}
}

// TestWanderingAggregates come from two partitions.
func TestWanderingAggregates(t *testing.T) {
	b := startBroker(t)
	addresses := []string{b.address}
	topic := newTopic(t, addresses, 2, nil)
	producer := client(t, addresses, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	for p := range int32(2) {
		r := &kgo.Record{Topic: topic, Partition: p, Key: []byte("k"), Value: []byte{byte(p)}, Headers: []kgo.RecordHeader{{Key: "x-event-type", Value: []byte("thing.v1")}}}
		if err := producer.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	ledger := &transporttest.Ledger{}
	s, _ := runSource(t, lively(b.address), topology.KafkaSource{Name: "s", Topics: []string{topic}, Group: "g"}, transporttest.NewReceiver(ledger, 0))
	transporttest.Eventually(t, "it is counted", func() bool { return s.Stats().Wandered == 1 })
}

// TestMissingTopicIsWaitedFor starts a source before its topic exists.
func TestMissingTopicIsWaitedFor(t *testing.T) {
	b := startBroker(t)
	c := lively(b.address)
	c.Options = append(c.Options, kgo.MetadataMaxAge(300*time.Millisecond))
	ledger := &transporttest.Ledger{}
	asked := b.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Topic: "later", Observe: true, Count: -1})
	runSource(t, c, topology.KafkaSource{Name: "s", Topics: []string{"later"}, Group: "g"}, transporttest.NewReceiver(ledger, 0))
	transporttest.Eventually(t, "the source asks for its topic", func() bool { return asked.Hits() > 1 })
	if err := b.CreateTopic("later", 1, nil); err != nil {
		t.Fatal(err)
	}
	d := newDestination(t, Config{Brokers: []string{b.address}}, "later")
	m := newMessage("k", 1)
	transporttest.Eventually(t, "the message is sent", func() bool { return d.Send(t.Context(), m) == nil })
	transporttest.Eventually(t, "the message is stored", func() bool { return ledger.Has(m.ID) })
}

func TestWrongSources(t *testing.T) {
	c := Config{Brokers: []string{"localhost:9092"}}
	for want, from := range map[string]topology.KafkaSource{
		"no topic":            {Group: "g"},
		"no consumer group":   {Topics: []string{"t"}},
		"not the name":        {Topics: []string{"*"}, Group: "g"},
		"the start is":        {Topics: []string{"t"}, Group: "g", Start: "middle"},
		"lead to several":     {Topics: []string{"t"}, Group: "g", Extract: topology.Extract{EventType: []string{"$..x"}}},
		"is not a header nam": {Topics: []string{"t"}, Group: "g", Extract: topology.Extract{EventType: []string{"header:a b"}}},
	} {
		if _, err := NewSource(c, from); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error about %q, got %v", want, err)
		}
	}
	c.Options = []kgo.Opt{kgo.ConsumeRegex()}
	if _, err := NewSource(c, topology.KafkaSource{Topics: []string{"t"}, Group: "g"}); err == nil {
		t.Error("ConsumeRegex was accepted")
	}
}

// TestPanicEndsTheRun: a panic ends the source with an error, not the process, and
// nothing is committed.
func TestPanicEndsTheRun(t *testing.T) {
	b := startBroker(t)
	addresses := []string{b.address}
	topic := newTopic(t, addresses, 2, nil)
	d := newDestination(t, Config{Brokers: addresses}, topic)
	if _, err := d.SendRun(t.Context(), run("k", 0, 3)); err != nil {
		t.Fatal(err)
	}
	source, err := NewSource(lively(b.address), topology.KafkaSource{Name: "s", Topics: []string{topic}, Group: "g"})
	if err != nil {
		t.Fatal(err)
	}
	ledger := &transporttest.Ledger{}
	ledger.Before(func(context.Context, int, inbox.Incoming) error { panic("of the store") })
	err = source.Run(t.Context(), transporttest.NewReceiver(ledger, 0))
	if err == nil || !strings.Contains(err.Error(), "panic: of the store") || !strings.Contains(err.Error(), topic) {
		t.Errorf("Run = %v", err)
	}
	c := client(t, addresses)
	for partition := range int32(2) {
		if at := committed(t, c, "g", topic, partition); at > 0 {
			t.Errorf("partition %d is committed up to %d", partition, at)
		}
	}
}
