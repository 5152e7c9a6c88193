package natsjs

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"
)

func delivery(consumer, stream, times uint64) *jetstream.MsgMetadata {
	return &jetstream.MsgMetadata{Sequence: jetstream.SequencePair{Consumer: consumer, Stream: stream}, NumDelivered: times}
}

// TestGate tells deliveries to a gate and says what it must think of each.
func TestGate(t *testing.T) {
	g := gate{position: 10}
	for i, c := range []struct {
		m                      *jetstream.MsgMetadata
		doubt                  bool // before it
		jumped, known, follows bool
	}{
		{m: delivery(7, 12, 1)}, // the first one says nothing about those before it
		{m: delivery(8, 14, 1), follows: true},
		{m: delivery(9, 12, 2), known: true}, // a repeat breaks no chain
		{m: delivery(10, 16, 1), follows: true},
		{m: delivery(12, 18, 1), jumped: true}, // somebody else had one
		{m: delivery(13, 20, 1), follows: true},
		{m: delivery(14, 30, 3)}, // behind the position though it came before: others are missing
		{m: delivery(15, 32, 1)},
		{m: delivery(16, 34, 1), doubt: true, jumped: true}, // after the connection was lost
		{m: delivery(20, 40, 2), jumped: true},
		{m: delivery(21, 42, 1)}, // what is delivered first after a jump to a repeat may be far behind
		{m: delivery(22, 44, 1), follows: true},
		{m: delivery(23, 45, 3), follows: true}, // nothing is between 44 and 45
		{m: delivery(24, 47, 1)},
		{m: delivery(26, 48, 2), jumped: true, follows: true},
		{m: delivery(1, 1, 1), jumped: true, known: true}, // a new consumer, perhaps a new stream
	} {
		if c.doubt {
			g.doubt()
		}
		if jumped, known, follows := g.jumped(c.m), g.known(c.m), g.follows(c.m); jumped != c.jumped || known != c.known || follows && !known != c.follows {
			t.Errorf("delivery %d: jumped %v, known %v, follows %v", i, jumped, known, follows)
		}
		g.pass(c.m)
	}
}

func TestGateAsksMoreWhereMessagesAreClose(t *testing.T) {
	g := gate{reads: 1}
	for range 10 {
		g.adapt(g.reads, g.reads)
	}
	if g.reads != maxReads {
		t.Errorf("asks %d at a time", g.reads)
	}
	for range 10 {
		g.adapt(g.reads, 0)
	}
	if g.reads != 1 {
		t.Errorf("asks %d at a time", g.reads)
	}
}

func TestStreamAnswersThatAreNone(t *testing.T) {
	for _, data := range []string{"", "{}", `{"error":{"code":500,"err_code":10008}}`, `{"message":{"seq":1,"hdrs":"bm9uZQ=="}}`} {
		if m, err := parseLogged([]byte(data)); err == nil {
			t.Errorf("%q gives %+v", data, m)
		}
	}
	if m, err := parseLogged([]byte(`{"error":{"code":404,"err_code":10037}}`)); m != nil || err != nil {
		t.Errorf("no message gives %+v, %v", m, err)
	}
}
