package rabbitmq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/lanebox/lanebox/runtime/transporttest"
	"github.com/lanebox/lanebox/runtime/transporttest/testrabbit"
)

// An answerTally counts what Send answered.
type answerTally struct {
	mu     sync.Mutex
	counts map[string]int
}

func (y *answerTally) add(err error) {
	var unroutable *UnroutableError
	kind := "other"
	switch {
	case err == nil:
		kind = "sent"
	case errors.As(err, &unroutable):
		kind = "returned"
	case errors.Is(err, errNacked):
		kind = "nacked"
	case errors.Is(err, errNoConfirm):
		kind = "timed out"
	}
	y.mu.Lock()
	defer y.mu.Unlock()
	y.counts[kind]++
}

func (y *answerTally) of(kind string) int {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.counts[kind]
}

// A reader reads a queue as any consumer does, and notes the first time of each
// message.
type reader struct {
	gate sync.Mutex // held: the reader pauses

	mu    sync.Mutex
	next  map[string]int64
	wrong []string
}

func (r *reader) run(deliveries <-chan amqp.Delivery) {
	for d := range deliveries {
		r.gate.Lock()
		r.note(d.Body)
		d.Ack(false)
		r.gate.Unlock()
	}
}

func (r *reader) note(body []byte) {
	var m struct {
		Key string
		N   int64
	}
	json.Unmarshal(body, &m)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case m.N == r.next[m.Key]:
		r.next[m.Key]++
	case m.N > r.next[m.Key]:
		r.wrong = append(r.wrong, fmt.Sprintf("%s: %d came, %d was expected", m.Key, m.N, r.next[m.Key]))
		r.next[m.Key] = m.N + 1
	}
}

func (r *reader) has(key string) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.next[key]
}

// TestFaultsLeaveNoMessageBehindAnother: whatever goes wrong with message N of a
// lane - its confirm is negative, late or lost, it is returned, its connection is
// cut or swallowed - N+1 is not in the queue before N.
func TestFaultsLeaveNoMessageBehindAnother(t *testing.T) {
	server := testrabbit.URL(t)
	conn := raw(t, server)
	to, _ := ordered(t, server, 1)
	queue := to.ShardQueues[0]
	on(t, conn, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(queue, true, false, false, false,
			amqp.Table{argType: "quorum", argSingleActive: true, "x-max-length": 3, argOverflow: "reject-publish"})
		return err
	})
	proxy := transporttest.NewProxy(t, hostOf(t, server))
	d := newDestination(t, Config{URL: through(t, server, proxy)}, to)
	mustSend(t, d, newMessage("", 0)) // binds the queue

	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	ch.Qos(1, 0, false)
	deliveries, err := ch.Consume(queue, "", false, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := &reader{next: map[string]int64{}}
	go r.run(deliveries)

	const lanes = 8
	answers := &answerTally{counts: map[string]int{}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	sent := make([]int64, lanes)
	var all sync.WaitGroup
	for k := range lanes {
		all.Go(func() {
			for ctx.Err() == nil {
				m := newMessage(fmt.Sprintf("key-%d", k), sent[k])
				for {
					attempt, done := context.WithTimeout(context.Background(), 150*time.Millisecond)
					err := d.Send(attempt, m)
					done()
					answers.add(err)
					if err == nil {
						break
					}
				}
				sent[k]++
			}
		})
	}
	binding := amqp.Table{"x-match": "all", shardHeader: shardName(0)}
	// Where a send finds no connection that is ready, it does not get as far as
	// waiting for a confirm; then the fault is had again.
	unconfirmed := func(mode transporttest.Mode) func() {
		return func() {
			for proxy.Set(t, mode); flow(t, answers, "timed out", "other") != "timed out"; proxy.Set(t, mode) {
				proxy.Set(t, transporttest.Pass)
				flow(t, answers, "sent")
			}
		}
	}
	faults := map[string]func(){
		"returned": func() {
			on(t, conn, func(ch *amqp.Channel) error { return ch.QueueUnbind(queue, "", to.Exchange, binding) })
		},
		"nacked":    func() { r.gate.Lock(); defer r.gate.Unlock(); flow(t, answers, "nacked") },
		"timed out": unconfirmed(transporttest.Stall),
		"swallowed": unconfirmed(transporttest.BlackHole),
		"cut":       func() { proxy.Set(t, transporttest.CutAnswers); flow(t, answers, "other") },
		"lost":      func() { proxy.Set(t, transporttest.CutRequests); flow(t, answers, "other") },
		"refused":   func() { proxy.Set(t, transporttest.Refuse); flow(t, answers, "other") },
	}
	var names []string
	for range 4 {
		for name := range faults {
			names = append(names, name)
		}
	}
	rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for _, name := range names {
		returned := answers.of("returned")
		faults[name]()
		proxy.Set(t, transporttest.Pass)
		if name == "returned" {
			transporttest.Eventually(t, "a message is returned", func() bool { return answers.of("returned") > returned })
		}
		flow(t, answers, "sent")
	}
	cancel()
	all.Wait()
	for k, n := range sent {
		key := fmt.Sprintf("key-%d", k)
		transporttest.Eventually(t, "all messages are read", func() bool { return r.has(key) >= n })
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, text := range r.wrong {
		t.Error(text)
	}
	t.Log(answers.counts)
}

// flow waits until Send has answered in one of several ways a few more times, and
// returns which.
func flow(t *testing.T, answers *answerTally, kinds ...string) (found string) {
	t.Helper()
	before := map[string]int{}
	for _, kind := range kinds {
		before[kind] = answers.of(kind)
	}
	transporttest.Eventually(t, "Send answers: "+strings.Join(kinds, " or "), func() bool {
		i := slices.IndexFunc(kinds, func(kind string) bool { return answers.of(kind) >= before[kind]+3 })
		if i >= 0 {
			found = kinds[i]
		}
		return i >= 0
	})
	return found
}
