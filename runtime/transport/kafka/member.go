package kafka

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/internal/pause"
	"github.com/lanebox/lanebox/runtime/internal/rescue"
)

// A place is a partition of a topic.
type place struct {
	topic     string
	partition int32
}

// A member is one run of a source: a client in the group, and a worker for each
// partition that it owns and that has records.
type member struct {
	source   *Source
	receiver *inbox.Receiver
	client   *kgo.Client
	fail     context.CancelCauseFunc // ends the run
	// life is the context of the client; end ends it.
	life context.Context
	end  context.CancelFunc

	mu      sync.Mutex
	workers map[place]*worker
	ending  bool                 // no worker begins any more
	told    map[string]time.Time // errors that were logged
}

// maxPoll is how many records one poll returns at most.
const maxPoll = 4096

// poll hands fetched records to the workers until ctx ends. It never waits for
// one: a worker that has enough pauses its partition, so that the group keeps
// working while the database is slow. It returns an error after a panic.
func (m *member) poll(ctx context.Context) (err error) {
	defer rescue.Panic(&err)
	for ctx.Err() == nil {
		fetches := m.client.PollRecords(ctx, maxPoll)
		if ctx.Err() != nil || fetches.IsClientClosed() {
			m.client.AllowRebalance()
			return nil
		}
		fetches.EachError(func(topic string, partition int32, err error) { m.tell(ctx, topic, partition, err) })
		fetches.EachPartition(func(p kgo.FetchTopicPartition) {
			if len(p.Records) > 0 {
				if w := m.worker(place{p.Topic, p.Partition}); w != nil {
					w.add(p.Records)
				}
			}
		})
		m.client.AllowRebalance()
	}
	return nil
}

// tellEvery is how often the same error is logged.
const tellEvery = 30 * time.Second

// tell logs why a partition cannot be fetched. The client tries again by itself.
func (m *member) tell(ctx context.Context, topic string, partition int32, err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	text := fmt.Sprintf("%s/%d: %v", topic, partition, err)
	if m.told == nil || len(m.told) > 1000 {
		m.told = map[string]time.Time{}
	}
	if time.Since(m.told[text]) > tellEvery {
		m.told[text] = time.Now()
		m.source.log.WarnContext(ctx, "cannot fetch", "topic", topic, "partition", partition, "error", err)
	}
	if topic == "" { // it concerns the whole member, and comes back at once
		pause.For(ctx, retryBackoff(1))
	}
}

// OnGroupManageError implements kgo.HookGroupManageError: the member joins anew.
func (m *member) OnGroupManageError(err error) {
	m.source.counts.Reconnects.Add(1)
	m.source.log.Warn("left the group and joins it again", "group", m.source.from.Group, "error", err)
}

// worker returns the worker of a partition; nil when the member ends.
func (m *member) worker(at place) *worker {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := m.workers[at]
	if w == nil && !m.ending {
		w = newWorker(m, at)
		m.workers[at] = w
	}
	return w
}

// revoked is called when partitions go to another member, and when this one leaves
// the group. What is in hand is stored and committed before, the rest is dropped:
// it was not committed.
func (m *member) revoked(ctx context.Context, client *kgo.Client, partitions map[string][]int32) {
	m.stop(partitions)
	ctx, cancel := context.WithTimeout(ctx, m.source.config.Timeout)
	defer cancel()
	if err := client.CommitMarkedOffsets(ctx); err != nil {
		m.source.log.WarnContext(ctx, "cannot commit; the next member stores some records again", "error", err)
	}
}

// lost is called when partitions went to another member already. What is stored
// nevertheless was stored in order, and the other member finds it as duplicates.
func (m *member) lost(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
	m.stop(partitions)
}

// stop stops the workers of partitions and waits until they have stored what is in
// hand.
func (m *member) stop(partitions map[string][]int32) {
	var ended []*worker
	m.mu.Lock()
	for topic, numbers := range partitions {
		for _, n := range numbers {
			at := place{topic, n}
			if w := m.workers[at]; w != nil {
				w.cancel()
				ended = append(ended, w)
			}
		}
	}
	m.mu.Unlock()
	for _, w := range ended {
		<-w.done
		w.resume() // a pause would outlive the assignment
		m.mu.Lock()
		if m.workers[w.at] == w { // whoever else stops it waits too
			delete(m.workers, w.at)
		}
		m.mu.Unlock()
	}
}

// leaveTimeout is how long a member that ends waits for the group at most. It is
// shorter than what a box gives its feeds, so that a service ends well although
// the cluster does not answer.
const leaveTimeout = 5 * time.Second

// close stores what is in hand, then leaves the group, before which the client
// calls revoked, and closes the client. The client would not leave while it joins,
// and a join waits for members that are dead as long as their session lasts. After
// half of leaveTimeout the member leaves without what it could not commit: the next
// member stores some records again, and the inbox drops them.
func (m *member) close() {
	all := map[string][]int32{}
	m.mu.Lock()
	m.ending = true
	for at := range m.workers {
		all[at.topic] = append(all[at.topic], at.partition)
	}
	m.mu.Unlock()
	m.stop(all)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		m.client.CloseAllowingRebalance()
	}()
	half := m.source.leaveTimeout / 2
	timer := time.NewTimer(half)
	defer timer.Stop()
	select {
	case <-closed:
		return
	case <-timer.C:
	}
	ctx, cancel := context.WithTimeout(m.life, half)
	defer cancel()
	log := m.source.log.With("group", m.source.from.Group)
	if err := m.leave(ctx); err != nil {
		log.Warn("cannot leave the group; its other members wait until the session ends", "error", err)
	} else {
		log.Info("did not wait for the group, which takes its time; the next member may store some records again")
	}
	m.end()
	<-closed
}

// leave tells the group that the member is gone. A static one keeps its place.
func (m *member) leave(ctx context.Context) error {
	id, _ := m.client.GroupMetadata()
	if id == "" || isText(m.client.OptValue(kgo.InstanceID)) {
		return nil
	}
	gone := kmsg.NewLeaveGroupRequestMember()
	gone.MemberID = id
	request := kmsg.NewPtrLeaveGroupRequest()
	request.Group, request.MemberID = m.source.from.Group, id // of versions before 3
	request.Members = append(request.Members, gone)
	response, err := request.RequestWith(ctx, m.client)
	if err != nil {
		return err
	}
	if err := kerr.ErrorForCode(response.ErrorCode); err != nil || len(response.Members) == 0 {
		return err
	}
	return kerr.ErrorForCode(response.Members[0].ErrorCode) // of versions from 3 on
}

// A worker stores the records of one partition, in order.
type worker struct {
	*member
	at     place
	ctx    context.Context // ends with the assignment
	cancel context.CancelFunc
	done   chan struct{}
	more   chan struct{} // says that queue has grown

	mu     sync.Mutex
	queue  []*kgo.Record
	paused bool
}

func newWorker(m *member, at place) *worker {
	w := &worker{member: m, at: at, done: make(chan struct{}), more: make(chan struct{}, 1)}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	go func() {
		defer close(w.done)
		if err := w.run(); err != nil {
			m.fail(fmt.Errorf("%s/%d: %w", at.topic, at.partition, err))
		}
	}()
	return w
}

// enough is how many transactions' worth of records wait for a worker before its
// partition is paused.
const enough = 4

func (w *worker) add(records []*kgo.Record) {
	w.mu.Lock()
	w.queue = append(w.queue, records...)
	if !w.paused && len(w.queue) >= enough*w.source.config.MaxRecords {
		w.paused = true
		w.client.PauseFetchPartitions(map[string][]int32{w.at.topic: {w.at.partition}})
	}
	w.mu.Unlock()
	select {
	case w.more <- struct{}{}:
	default:
	}
}

func (w *worker) resume() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.paused {
		w.paused = false
		w.client.ResumeFetchPartitions(map[string][]int32{w.at.topic: {w.at.partition}})
	}
}

// run stores until the assignment ends; it returns an error after a panic.
func (w *worker) run() (err error) {
	defer rescue.Panic(&err)
	for {
		batch := w.take()
		if batch == nil {
			select {
			case <-w.more:
				continue
			case <-w.ctx.Done():
				return nil
			}
		}
		if !w.store(batch) {
			return nil
		}
		w.client.MarkCommitRecords(batch[len(batch)-1])
	}
}

// maxTransaction bounds the bytes of one transaction, unless one record is larger.
const maxTransaction = 8 << 20

// take returns the records of the next transaction; nil when there are none.
func (w *worker) take() []*kgo.Record {
	w.mu.Lock()
	n, size := 0, 0
	for n < min(len(w.queue), w.source.config.MaxRecords) {
		if size += len(w.queue[n].Value); n > 0 && size > maxTransaction {
			break
		}
		n++
	}
	batch := w.queue[:n:n]
	w.queue = w.queue[n:]
	few := len(w.queue) <= w.source.config.MaxRecords
	w.mu.Unlock()
	if few {
		w.resume()
	}
	if n == 0 {
		return nil
	}
	return batch
}

// store stores records until it succeeds; it returns false when the assignment
// ended before. It does not give up a transaction in hand.
func (w *worker) store(batch []*kgo.Record) bool {
	messages := make([]inbox.Incoming, len(batch))
	for i, r := range batch {
		messages[i] = decode(w.source.decoder, r)
	}
	for try := 0; ; try++ {
		dispositions, err := w.storeOnce(messages)
		if err == nil {
			w.count(messages, dispositions)
			return true
		}
		if w.ctx.Err() != nil {
			return false
		}
		w.source.counts.Failures.Add(1)
		w.source.log.Warn("records not stored; they are tried again", "topic", w.at.topic, "partition", w.at.partition,
			"offset", batch[0].Offset, "count", len(batch), "error", err)
		if !pause.For(w.ctx, backoff(try, w.source.config.RetryBackoff)) {
			return false
		}
	}
}

// storeOnce runs one transaction, unless the assignment ends before its turn.
func (w *worker) storeOnce(messages []inbox.Incoming) ([]inbox.Disposition, error) {
	select {
	case w.source.storing <- struct{}{}:
		defer func() { <-w.source.storing }()
	case <-w.ctx.Done():
	}
	if err := w.ctx.Err(); err != nil {
		return nil, err
	}
	return w.receiver.ReceiveAll(context.WithoutCancel(w.ctx), messages...)
}

func (w *worker) count(messages []inbox.Incoming, dispositions []inbox.Disposition) {
	w.source.counts.Count(dispositions)
	for _, m := range messages {
		if id := m.AggregateID; id != "" && w.source.seen.moved(w.at.topic, id, w.at.partition) {
			w.source.counts.Wandered.Add(1)
			w.source.log.Warn("an aggregate came from another partition than before: its order is not sure",
				"topic", w.at.topic, "partition", w.at.partition)
		}
	}
}

// backoff returns the pause after a failed try, at random up to a bound that grows.
func backoff(try int, limit time.Duration) time.Duration {
	bound := min(100*time.Millisecond<<min(try, 16), limit)
	return bound/2 + rand.N(bound/2+1)
}
