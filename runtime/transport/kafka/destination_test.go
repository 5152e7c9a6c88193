package kafka

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	"github.com/lanebox/lanebox/runtime/internal/pause"
	"github.com/lanebox/lanebox/runtime/topology"
	"github.com/lanebox/lanebox/runtime/transporttest"
)

func class(err error) event.Class {
	c, _ := event.Classify(err)
	return c
}

// readable makes the broker's faults able to look into requests.
func readable(addresses ...string) Config {
	return Config{Brokers: addresses, Options: []kgo.Opt{kgo.ProducerBatchCompression(kgo.NoCompression())}, Timeout: 5 * time.Second}
}

// holds reports whether a produce request has a record with this text.
func holds(text string) func(kmsg.Request) bool {
	return func(r kmsg.Request) bool {
		for _, topic := range r.(*kmsg.ProduceRequest).Topics {
			for _, p := range topic.Partitions {
				if bytes.Contains(p.Records, []byte(text)) {
					return true
				}
			}
		}
		return false
	}
}

var produce = []kmsg.Key{kmsg.Produce}

func run(key string, from, to int64) (out []event.Message) {
	for n := from; n < to; n++ {
		out = append(out, newMessage(key, n))
	}
	return out
}

// A lane sends the messages of one key as a poller does: a run at a time, again
// from the first one that was not accepted, until it is over.
type lane struct {
	d    *Destination
	key  string
	sent atomic.Int64 // accepted
}

// deliver sends n messages in runs of at most most. Dead messages are returned.
func (l *lane) deliver(t *testing.T, all []event.Message, most int) (dead []event.Message) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for len(all) > 0 {
		r := all[:min(most, len(all))]
		n, err := l.d.SendRun(ctx, r)
		if n < len(r) == (err == nil) {
			t.Errorf("SendRun of %d = %d, %v", len(r), n, err)
			return dead
		}
		all = all[n:]
		l.sent.Add(int64(n))
		switch {
		case ctx.Err() != nil:
			t.Errorf("%s: %d messages are left: %v", l.key, len(all), err)
			return dead
		case err != nil && class(err) == event.Permanent:
			dead = append(dead, all[0])
			all = all[1:]
		case err != nil:
			pause.For(ctx, 20*time.Millisecond)
		}
	}
	return dead
}

// checkLog checks what a topic holds: of every key the first deliveries in their
// order, nothing missing but what is dead.
func checkLog(t *testing.T, addresses []string, topic string, partitions int, sent map[string][]event.Message, dead []event.Message) (repeats int) {
	t.Helper()
	gone := map[string]bool{}
	for _, m := range dead {
		gone[m.ID.String()] = true
	}
	want := map[string][]string{}
	for key, all := range sent {
		for _, m := range all {
			if !gone[m.ID.String()] {
				want[key] = append(want[key], m.ID.String())
			}
		}
	}
	seen := map[string]bool{}
	for _, partition := range records(t, addresses, topic, partitions) {
		for _, r := range partition {
			id, key := header(r, "ce_id"), string(r.Key)
			if seen[id] {
				repeats++
				continue
			}
			seen[id] = true
			if key == "" {
				continue
			}
			if len(want[key]) == 0 || want[key][0] != id {
				t.Fatalf("key %s: %s is out of order or should not be there", key, r.Value)
			}
			want[key] = want[key][1:]
		}
	}
	for key, missing := range want {
		if len(missing) > 0 && key != "" {
			t.Errorf("key %s: %d messages are lost", key, len(missing))
		}
	}
	return repeats
}

func header(r *kgo.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

func TestRecordOnTheWire(t *testing.T) {
	b := startBroker(t)
	topic := newTopic(t, []string{b.address}, 1, nil)
	d := newDestination(t, Config{Brokers: []string{b.address}, Source: "shop"}, topic)
	m := newMessage("k", 7)
	m.Headers = event.Headers{"X-Tenant": "acme", "correlationid": "c"}
	empty := newMessage("", 8)
	empty.Payload = nil
	for _, m := range []event.Message{m, empty} {
		if err := d.Send(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	got := records(t, []string{b.address}, topic, 1)[0]
	if string(got[0].Key) != "k" || !bytes.Equal(got[0].Value, m.Payload) {
		t.Errorf("key %q, value %q", got[0].Key, got[0].Value)
	}
	for name, want := range map[string]string{
		"content-type": "application/json", "ce_specversion": "1.0", "ce_id": m.ID.String(), "ce_source": "shop", "ce_type": m.Topic,
		"ce_partitionkey": "k", "ce_sequence": "7", "ce_correlationid": "c", "lanebox-X-Tenant": "acme",
	} {
		if got := header(got[0], name); got != want {
			t.Errorf("header %s = %q, want %q", name, got, want)
		}
	}
	if got[1].Key != nil || got[1].Value == nil {
		t.Errorf("without a key and payload: key %v, value %v; want no key and an empty value", got[1].Key, got[1].Value)
	}
}

// TestNothingBehindABadMessage has a broker that refuses one record of a run.
func TestNothingBehindABadMessage(t *testing.T) {
	b := startBroker(t)
	addresses := []string{b.address}
	topic := newTopic(t, addresses, 1, nil)
	d := newDestination(t, readable(b.address), topic)
	all := run("k", 0, 200)
	all[150].Payload = []byte("poison")
	b.Fault(kfake.Fault{Keys: produce, Err: kerr.InvalidRecord, Count: -1, When: holds("poison")})
	accepted, err := d.SendRun(t.Context(), all)
	if accepted != 150 || class(err) != event.Permanent {
		t.Fatalf("SendRun = %d, %v (%v); want 150 and a permanent failure", accepted, err, class(err))
	}
	if got := len(records(t, addresses, topic, 1)[0]); got != 150 {
		t.Fatalf("the topic holds %d records; want 150", got)
	}
	if accepted, err := d.SendRun(t.Context(), all[151:]); accepted != 49 || err != nil {
		t.Fatalf("SendRun of the rest = %d, %v", accepted, err)
	}
	if repeats := checkLog(t, addresses, topic, 1, map[string][]event.Message{"k": all}, all[150:151]); repeats != 0 {
		t.Errorf("%d repeats", repeats)
	}
}

// TestBadMessagesHarmNobodyElse mixes bad messages with good ones of other lanes
// in one partition: the client fails all of them together.
func TestBadMessagesHarmNobodyElse(t *testing.T) {
	b := startBroker(t)
	addresses := []string{b.address}
	topic := newTopic(t, addresses, 1, nil)
	d := newDestination(t, readable(b.address), topic)
	b.Fault(kfake.Fault{Keys: produce, Err: kerr.MessageTooLarge, Count: -1, When: holds("poison")})
	sent := map[string][]event.Message{}
	var mu sync.Mutex
	var dead []event.Message
	var all sync.WaitGroup
	for k := range 20 {
		key := fmt.Sprintf("key-%d", k)
		messages := run(key, 0, 60)
		if k%4 == 0 {
			messages[20].Payload = []byte("poison")
		}
		sent[key] = messages
		all.Go(func() {
			l := lane{d: d, key: key}
			gone := l.deliver(t, messages, 10)
			mu.Lock()
			defer mu.Unlock()
			dead = append(dead, gone...)
		})
	}
	all.Wait()
	if len(dead) != 5 {
		t.Errorf("%d messages are dead, want 5", len(dead))
	}
	for _, m := range dead {
		if string(m.Payload) != "poison" {
			t.Errorf("%s is dead", m.Payload)
		}
	}
	if repeats := checkLog(t, addresses, topic, 1, sent, dead); repeats != 0 {
		t.Errorf("%d repeats", repeats)
	}
}

// TestSmallTopicBatches has a topic that takes single records but not the batches
// that many lanes fill.
func TestSmallTopicBatches(t *testing.T) {
	b := startBroker(t)
	addresses := []string{b.address}
	topic := newTopic(t, addresses, 1, map[string]string{"max.message.bytes": "10000"})
	d := newDestination(t, readable(b.address), topic)
	sent := map[string][]event.Message{}
	var all sync.WaitGroup
	for k := range 10 {
		key := fmt.Sprintf("key-%d", k)
		messages := run(key, 0, 40)
		for i := range messages {
			messages[i].Payload = bytes.Repeat([]byte{'x'}, 2000)
		}
		messages[7].Payload = bytes.Repeat([]byte{'x'}, 9000) // more than a smaller batch takes
		sent[key] = messages
		all.Go(func() {
			l := lane{d: d, key: key}
			if dead := l.deliver(t, messages, 20); len(dead) > 0 {
				t.Errorf("%d messages are dead", len(dead))
			}
		})
	}
	all.Wait()
	checkLog(t, addresses, topic, 1, sent, nil)
	large := newMessage("k", 1)
	large.Payload = bytes.Repeat([]byte{'x'}, 20_000)
	if err := d.Send(t.Context(), large); class(err) != event.Permanent || !strings.Contains(err.Error(), "MESSAGE_TOO_LARGE") {
		t.Errorf("Send of a record that is too large = %v (%v)", err, class(err))
	}
}

// TestRefusalsUnderLoad answers produce requests with errors in between: whatever
// the client does then, each key keeps its order and nothing is lost.
func TestRefusalsUnderLoad(t *testing.T) {
	for _, refusal := range []*kerr.Error{
		kerr.NotLeaderForPartition, kerr.OutOfOrderSequenceNumber, kerr.UnknownProducerID, kerr.InvalidProducerEpoch,
		kerr.NotEnoughReplicas, kerr.RequestTimedOut, kerr.NotEnoughReplicasAfterAppend, kerr.KafkaStorageError,
		kerr.UnknownTopicOrPartition, kerr.CorruptMessage, kerr.UnknownServerError, kerr.ProducerFenced,
	} {
		t.Run(refusal.Message, func(t *testing.T) {
			t.Parallel()
			b := startBroker(t)
			addresses := []string{b.address}
			topic := newTopic(t, addresses, 2, nil)
			d := newDestination(t, readable(b.address), topic)
			var requests atomic.Int64
			fault := b.Fault(kfake.Fault{Keys: produce, Err: refusal, Count: 15, When: func(kmsg.Request) bool { return requests.Add(1)%3 == 0 }})
			sent := map[string][]event.Message{}
			var all sync.WaitGroup
			for k := range 10 {
				key := fmt.Sprintf("key-%d", k)
				messages := run(key, 0, 60)
				sent[key] = messages
				all.Go(func() {
					l := lane{d: d, key: key}
					if dead := l.deliver(t, messages, 7); len(dead) > 0 {
						t.Errorf("%d messages are dead", len(dead))
					}
				})
			}
			all.Wait()
			if fault.Hits() == 0 {
				t.Error("no request was refused")
			}
			checkLog(t, addresses, topic, 2, sent, nil)
		})
	}
}

// TestFirstProduceFails is the first batch to a partition that is refused while
// more come behind it: none may overtake.
func TestFirstProduceFails(t *testing.T) {
	b := startBroker(t)
	addresses := []string{b.address}
	topic := newTopic(t, addresses, 1, nil)
	d := newDestination(t, readable(b.address), topic)
	b.Fault(kfake.Fault{Keys: produce, Err: kerr.NotLeaderForPartition})
	sent := map[string][]event.Message{}
	var all sync.WaitGroup
	for k := range 20 {
		key := fmt.Sprintf("key-%d", k)
		messages := run(key, 0, 10)
		sent[key] = messages
		all.Go(func() {
			l := lane{d: d, key: key}
			l.deliver(t, messages, 3)
		})
	}
	all.Wait()
	if repeats := checkLog(t, addresses, topic, 1, sent, nil); repeats != 0 {
		t.Errorf("%d repeats", repeats)
	}
}

func TestMissingTopic(t *testing.T) {
	b := startBroker(t)
	topic := newTopic(t, []string{b.address}, 1, nil)
	if err := b.DeleteTopic(topic); err != nil {
		t.Fatal(err)
	}
	d := newDestination(t, Config{Brokers: []string{b.address}, Timeout: 20 * time.Second}, topic)
	err := d.Send(t.Context(), newMessage("k", 1))
	if class(err) != event.Unavailable || !strings.Contains(err.Error(), "does not exist") {
		t.Fatalf("Send to a topic that does not exist = %v (%v)", err, class(err))
	}
	if err := b.CreateTopic(topic, 1, nil); err != nil {
		t.Fatal(err)
	}
	transporttest.Eventually(t, "the topic is found", func() bool { return d.Send(t.Context(), newMessage("k", 1)) == nil })
}

// TestTopicMadeAgain deletes the topic and makes it again under load.
func TestTopicMadeAgain(t *testing.T) {
	b := startBroker(t)
	topic := newTopic(t, []string{b.address}, 1, nil)
	d := newDestination(t, Config{Brokers: []string{b.address}, Timeout: 3 * time.Second}, topic)
	if err := d.Send(t.Context(), newMessage("k", 1)); err != nil {
		t.Fatal(err)
	}
	if err := b.DeleteTopic(topic); err != nil {
		t.Fatal(err)
	}
	if err := d.Send(t.Context(), newMessage("k", 2)); err == nil || class(err) == event.Permanent {
		t.Errorf("Send to a topic that was deleted = %v", err)
	}
	if err := b.CreateTopic(topic, 1, nil); err != nil {
		t.Fatal(err)
	}
	transporttest.Eventually(t, "the topic is found again", func() bool { return d.Send(t.Context(), newMessage("k", 3)) == nil })
}

func TestTooFewReplicasCostNothing(t *testing.T) {
	b := startBroker(t)
	topic := newTopic(t, []string{b.address}, 1, nil)
	d := newDestination(t, Config{Brokers: []string{b.address}, Timeout: time.Second}, topic)
	if err := d.Send(t.Context(), newMessage("", 1)); err != nil {
		t.Fatal(err)
	}
	fault := b.Fault(kfake.Fault{Keys: produce, Err: kerr.NotEnoughReplicas, Count: -1})
	if err := d.Send(t.Context(), newMessage("k", 2)); class(err) != event.Unavailable {
		t.Errorf("Send = %v (%v), want unavailable", err, class(err))
	}
	fault.Remove()
	transporttest.Eventually(t, "the topic takes messages again", func() bool { return d.Send(t.Context(), newMessage("k", 3)) == nil })
	if got := len(records(t, []string{b.address}, topic, 1)[0]); got != 2 {
		t.Errorf("the topic holds %d records; the unavailable one must not be there", got)
	}
}

// TestUnansweredHoldsItsPartition lets a broker keep an answer back.
func TestUnansweredHoldsItsPartition(t *testing.T) {
	b := startBroker(t)
	addresses := []string{b.address}
	topic := newTopic(t, addresses, 1, nil)
	d := newDestination(t, readable(b.address), topic)
	sent := run("k", 0, 3)
	if err := d.Send(t.Context(), sent[0]); err != nil {
		t.Fatal(err)
	}
	arrived, answer := make(chan struct{}), make(chan struct{})
	arrive := sync.OnceFunc(func() { close(arrived) })
	b.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		b.DropControl()
		b.SleepControl(func() {
			arrive()
			<-answer
		})
		return nil, nil, false
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- d.Send(ctx, sent[1]) }()
	<-arrived
	cancel()
	if err := <-done; err == nil || class(err) != event.Transient {
		t.Errorf("Send without an answer = %v (%v), want transient", err, class(err))
	}
	for _, m := range []event.Message{sent[1], newMessage("other", 1), newMessage("", 1)} {
		if err := d.Send(t.Context(), m); class(err) != event.Unavailable || !strings.Contains(err.Error(), "has not answered") {
			t.Errorf("Send behind it = %v (%v), want unavailable", err, class(err))
		}
	}
	close(answer)
	l := lane{d: d, key: "k"}
	l.deliver(t, sent[1:], 5)
	checkLog(t, addresses, topic, 1, map[string][]event.Message{"k": sent}, nil)
}

// TestAnswersOwedForTooLong replaces a client whose partition never answers.
func TestAnswersOwedForTooLong(t *testing.T) {
	b := startBroker(t)
	topic := newTopic(t, []string{b.address}, 1, nil)
	d := newDestination(t, Config{Brokers: []string{b.address}, Timeout: 500 * time.Millisecond}, topic)
	d.maxBlocked = 200 * time.Millisecond
	first := d.shared
	down := b.Fault(kfake.Fault{Keys: produce, Err: kerr.RequestTimedOut, Count: -1})
	if err := d.Send(t.Context(), newMessage("k", 1)); err == nil || class(err) != event.Transient {
		t.Errorf("Send = %v (%v), want transient", err, class(err))
	}
	transporttest.Eventually(t, "the client is replaced", func() bool {
		d.Send(t.Context(), newMessage("k", 2))
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.shared != first
	})
	down.Remove()
	transporttest.Eventually(t, "the new one sends", func() bool { return d.Send(t.Context(), newMessage("k", 3)) == nil })
}

// TestOldClientsAreReplaced: one that a broker may have forgotten is not used.
func TestOldClientsAreReplaced(t *testing.T) {
	b := startBroker(t)
	topic := newTopic(t, []string{b.address}, 1, nil)
	d := newDestination(t, Config{Brokers: []string{b.address}}, topic)
	first := d.shared
	for n := range int64(2) {
		if err := d.Send(t.Context(), newMessage("k", n)); err != nil {
			t.Fatal(err)
		}
		if (d.shared != first) != (n == 1) {
			t.Errorf("after message %d: replaced %v", n, d.shared != first)
		}
		transporttest.Eventually(t, "the client is idle", func() bool { return first.client.BufferedProduceRecords() == 0 })
		d.maxAge = time.Nanosecond
	}
}

// TestMissingRights: they cost no attempt, and sending goes on when they are there.
func TestMissingRights(t *testing.T) {
	for name, fault := range map[string]kfake.Fault{
		"IDEMPOTENT_WRITE": {Keys: []kmsg.Key{kmsg.InitProducerID}, Err: kerr.ClusterAuthorizationFailed, Count: -1, TopLevel: true},
		"grant WRITE":      {Keys: produce, Err: kerr.TopicAuthorizationFailed, Count: -1},
	} {
		t.Run(name, func(t *testing.T) {
			b := startBroker(t)
			topic := newTopic(t, []string{b.address}, 1, nil)
			d := newDestination(t, Config{Brokers: []string{b.address}, Timeout: 3 * time.Second}, topic)
			denied := b.Fault(fault)
			err := d.Send(t.Context(), newMessage("k", 1))
			if class(err) != event.Unavailable || !strings.Contains(err.Error(), name) {
				t.Errorf("Send = %v (%v), want unavailable with what to grant", err, class(err))
			}
			denied.Remove()
			transporttest.Eventually(t, "the message is sent", func() bool { return d.Send(t.Context(), newMessage("k", 2)) == nil })
		})
	}
}

// TestOnePartitionDown: a partition without an answer must not hold another.
func TestOnePartitionDown(t *testing.T) {
	b := startBroker(t)
	topic := newTopic(t, []string{b.address}, 8, nil)
	d := newDestination(t, Config{Brokers: []string{b.address}, Timeout: time.Second}, topic)
	first := map[int32]string{} // a key of each partition
	for k := 0; len(first) < 8; k++ {
		key := fmt.Sprintf("key-%d", k)
		r := &kgo.Record{Key: []byte(key)}
		first[int32(kgo.StickyKeyPartitioner(nil).ForTopic(topic).Partition(r, 8))] = key
	}
	down := b.Fault(kfake.Fault{Keys: produce, Err: kerr.RequestTimedOut, Partitions: []int32{3}, Count: -1})
	if err := d.Send(t.Context(), newMessage(first[3], 1)); err == nil || class(err) != event.Transient {
		t.Errorf("Send to the partition that is down = %v (%v), want transient", err, class(err))
	}
	for p, key := range first {
		if err := d.Send(t.Context(), newMessage(key, 2)); (err != nil) != (p == 3) {
			t.Errorf("Send to partition %d = %v", p, err)
		}
	}
	for range 16 {
		if err := d.Send(t.Context(), newMessage("", 3)); err != nil {
			t.Errorf("Send without a key = %v", err)
		}
	}
	down.Remove()
	transporttest.Eventually(t, "the partition is back", func() bool { return d.Send(t.Context(), newMessage(first[3], 3)) == nil })
}

func TestBrokerThatWasNeverThere(t *testing.T) {
	b := startBroker(t)
	b.Cluster.Close()
	d := newDestination(t, Config{Brokers: []string{b.address}, Timeout: time.Second}, "t")
	err := d.Send(t.Context(), newMessage("k", 1))
	if class(err) != event.Unavailable || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("Send = %v (%v), want unavailable with the reason", err, class(err))
	}
}

// A broker that has died takes nothing. Once the client knows, what is tried costs
// no attempt, whether the client gives it up in time or not.
func TestBrokerThatDiedIsUnavailable(t *testing.T) {
	b := startBroker(t)
	topic := newTopic(t, []string{b.address}, 4, nil)
	d := newDestination(t, Config{Brokers: []string{b.address}, Timeout: time.Second}, topic)
	for n := range 8 {
		if err := d.Send(t.Context(), newMessage(fmt.Sprint("key-", n), 1)); err != nil {
			t.Fatal(err)
		}
	}
	b.Cluster.Close()
	transporttest.Eventually(t, "the client knows", func() bool { return class(d.Send(t.Context(), newMessage("key-0", 2))) == event.Unavailable })
	var sends sync.WaitGroup
	for n := range 8 {
		sends.Go(func() {
			for range 3 {
				err := d.Send(t.Context(), newMessage(fmt.Sprint("key-", n), 2))
				if err == nil || class(err) != event.Unavailable {
					t.Errorf("Send = %v (%v), want unavailable", err, class(err))
				}
			}
		})
	}
	sends.Wait()
}

// TestRestartsUnderLoad restarts the broker again and again while lanes send.
func TestRestartsUnderLoad(t *testing.T) {
	const restarts, keys = 20, 12
	b := startBroker(t)
	addresses := []string{b.address}
	topic := newTopic(t, addresses, 4, nil)
	d := newDestination(t, Config{Brokers: addresses, Timeout: 3 * time.Second}, topic)
	ledger := &transporttest.Ledger{}
	source, _ := runSource(t, Config{Brokers: addresses}, topology.KafkaSource{Name: "s", Topics: []string{topic}, Group: "g"}, transporttest.NewReceiver(ledger, 0))
	over := make(chan struct{})
	sent := map[string][]event.Message{}
	var mu sync.Mutex
	var all sync.WaitGroup
	lanes := make([]*lane, keys)
	for k := range keys {
		l := &lane{d: d, key: fmt.Sprintf("key-%d", k)}
		lanes[k] = l
		all.Go(func() {
			var mine []event.Message
			for more := true; more; {
				select {
				case <-over:
					more = false
				default:
				}
				messages := run(l.key, int64(len(mine)), int64(len(mine)+5))
				mine = append(mine, messages...)
				if dead := l.deliver(t, messages, 5); len(dead) > 0 {
					t.Errorf("%d messages are dead", len(dead))
				}
			}
			mu.Lock()
			defer mu.Unlock()
			sent[l.key] = mine
		})
	}
	for range restarts {
		before := make([]int64, keys)
		for k, l := range lanes {
			before[k] = l.sent.Load()
		}
		transporttest.Eventually(t, "every lane moves", func() bool {
			for k, l := range lanes {
				if l.sent.Load() == before[k] {
					return false
				}
			}
			return true
		})
		b.restart(t)
	}
	close(over)
	all.Wait()
	repeats := checkLog(t, addresses, topic, 4, sent, nil)
	total := 0
	for _, all := range sent {
		total += len(all)
	}
	transporttest.Eventually(t, "all messages are stored", func() bool { return source.Stats().Stored == int64(total) })
	next := map[string]int{}
	for _, m := range ledger.Stored() {
		if want := sent[m.AggregateID][next[m.AggregateID]]; m.IdempotencyKey != want.ID.String() {
			t.Fatalf("key %s: stored %s instead of %s", m.AggregateID, m.Payload, want.Payload)
		}
		next[m.AggregateID]++
	}
	t.Logf("%d messages, %d repeats in the topic, source %+v", total, repeats, source.Stats())
}

func TestChangedPartitionCountIsNoticed(t *testing.T) {
	b := startBroker(t)
	topic := newTopic(t, []string{b.address}, 1, nil)
	var out safeBuffer
	d := newDestination(t, Config{Brokers: []string{b.address}, Logger: slog.New(slog.NewTextHandler(&out, nil)), Options: []kgo.Opt{kgo.MetadataMaxAge(300 * time.Millisecond)}}, topic)
	if err := d.Send(t.Context(), newMessage("k", 1)); err != nil {
		t.Fatal(err)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(b.address))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if answers, err := kadm.NewClient(client).CreatePartitions(t.Context(), 2, topic); err != nil || answers.Error() != nil {
		t.Fatal(err, answers.Error())
	}
	transporttest.Eventually(t, "the change is logged", func() bool {
		if err := d.Send(t.Context(), newMessage("k", 2)); err != nil {
			t.Errorf("Send = %v", err)
		}
		return strings.Contains(out.String(), "the number of partitions changed")
	})
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func TestTooManyWaiting(t *testing.T) {
	b := startBroker(t)
	topic := newTopic(t, []string{b.address}, 1, nil)
	c := readable(b.address)
	c.MaxBuffered = 5
	d := newDestination(t, c, topic)
	arrived, answer := make(chan struct{}), make(chan struct{})
	arrive := sync.OnceFunc(func() { close(arrived) })
	b.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		b.DropControl()
		b.SleepControl(func() {
			arrive()
			<-answer
		})
		return nil, nil, false
	})
	done := make(chan error, 1)
	go func() {
		_, err := d.SendRun(t.Context(), run("k", 0, 4))
		done <- err
	}()
	<-arrived
	if n, err := d.SendRun(t.Context(), run("l", 0, 2)); n != 0 || class(err) != event.BackPressure {
		t.Errorf("SendRun = %d, %v (%v), want back-pressure", n, err, class(err))
	}
	close(answer)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n, err := d.SendRun(t.Context(), run("l", 0, 2)); n != 2 || err != nil {
		t.Errorf("SendRun = %d, %v", n, err)
	}
}

func TestCloseUnderLoad(t *testing.T) {
	b := startBroker(t)
	topic := newTopic(t, []string{b.address}, 2, nil)
	d := newDestination(t, Config{Brokers: []string{b.address}}, topic)
	var all sync.WaitGroup
	var started sync.WaitGroup
	for k := range 8 {
		started.Add(1)
		all.Go(func() {
			for n := int64(0); ; n++ {
				err := d.Send(context.Background(), newMessage(fmt.Sprint(k), n))
				if n == 0 {
					started.Done()
				}
				if errors.Is(err, ErrClosed) {
					return
				}
				if err != nil && class(err) == event.Permanent {
					t.Errorf("Send = %v", err)
				}
			}
		})
	}
	started.Wait()
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	all.Wait()
}

func TestThrottlingIsBackPressure(t *testing.T) {
	p := &producer{}
	p.OnBrokerThrottle(kgo.BrokerMetadata{}, time.Hour, false)
	err := p.aware(classify(context.Canceled))
	if c, wait := event.Classify(err); c != event.BackPressure || wait < time.Minute {
		t.Errorf("%v: %v, wait %v", err, c, wait)
	}
	if err := p.aware(errUnanswered); class(err) != event.Transient {
		t.Errorf("an open answer became %v", class(err))
	}
}

func TestEncodedSizeIsAnUpperBound(t *testing.T) {
	b := startBroker(t)
	const limit = 10_000
	topic := newTopic(t, []string{b.address}, 1, nil)
	c := readable(b.address)
	c.BatchBytes = limit
	d := newDestination(t, c, topic)
	for _, headers := range []int{0, 50} {
		m := newMessage(strings.Repeat("k", event.MaxKeyBytes), 1)
		m.Headers = event.Headers{}
		for n := range headers {
			m.Headers[fmt.Sprintf("h%d", n)] = strings.Repeat("v", n)
		}
		m.Payload = nil
		r, err := newEncoder(topic, "lanebox", 1).encode(m)
		if err != nil {
			t.Fatal(err)
		}
		m.Payload = bytes.Repeat([]byte{'x'}, limit-encodedSize(r))
		if err := d.Send(t.Context(), m); err != nil {
			t.Errorf("with %d headers: the largest record is refused: %v", headers, err)
		}
		m.Payload = append(m.Payload, 'x')
		if err := d.Send(t.Context(), m); class(err) != event.Permanent {
			t.Errorf("with %d headers: one byte more gives %v", headers, err)
		}
	}
}

func TestWrongConfiguration(t *testing.T) {
	ok := func() Config { return Config{Brokers: []string{"localhost:9092"}} }
	with := func(o kgo.Opt) Config {
		c := ok()
		c.Options = []kgo.Opt{o}
		return c
	}
	small, negative := ok(), ok()
	small.BatchBytes, negative.MaxRun = 100, -1
	for name, c := range map[string]struct {
		config Config
		topic  string
	}{
		"Brokers":                            {Config{}, "t"},
		"host:port":                          {Config{Brokers: []string{""}}, "t"},
		"BatchBytes":                         {small, "t"},
		"negative":                           {negative, "t"},
		"not the name of a topic":            {ok(), "a b"},
		`"" is not the name`:                 {ok(), ""},
		"DisableIdempotentWrite":             {with(kgo.DisableIdempotentWrite()), "t"},
		"AllowIdempotentProduceCancellation": {with(kgo.AllowIdempotentProduceCancellation()), "t"},
		"TransactionalID":                    {with(kgo.TransactionalID("x")), "t"},
		"ManualFlushing":                     {with(kgo.ManualFlushing()), "t"},
		"StreamingCompression":               {with(kgo.StreamingCompression()), "t"},
	} {
		_, err := NewDestination(c.config, topology.KafkaDestination{Name: "d", Topic: c.topic})
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("want an error about %s, got %v", name, err)
		}
	}
}

func TestAddress(t *testing.T) {
	c := Config{Brokers: []string{"B:9093", "a", "a:9092"}}
	d := newDestination(t, c, "t")
	if got := d.Address(); got != "kafka://a:9092,b:9093/t" {
		t.Errorf("Address = %s", got)
	}
}
