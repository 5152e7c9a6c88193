package handler_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/transport/handler"
	"github.com/lanebox/lanebox/runtime/transporttest"
)

var features = transporttest.Features{Answers: true, OrderedPerKey: true, MaxBytes: 1 << 20}

func TestContract(t *testing.T) {
	transporttest.Run(t, func(t *testing.T, r *inbox.Receiver) transporttest.Link {
		d := handler.NewDestination(handler.Forward(handler.NewSource(r)))
		return transporttest.Link{Destination: d, Close: d.Close}
	}, features)
}

func TestContractOfRuns(t *testing.T) {
	withRuns := features
	withRuns.Runs = true
	transporttest.Run(t, func(t *testing.T, r *inbox.Receiver) transporttest.Link {
		send := handler.Forward(handler.NewSource(r))
		d := handler.NewRunDestination(16, func(ctx context.Context, run []event.Message) (int, error) {
			for i, m := range run {
				if err := send(ctx, m); err != nil {
					return i, err
				}
			}
			return len(run), nil
		})
		return transporttest.Link{Destination: d, Close: d.Close}
	}, withRuns)
}

func TestTopicsNamesATopicWithoutHandler(t *testing.T) {
	d := handler.NewDestination(handler.Topics(map[string]handler.Func{
		"a": func(context.Context, event.Message) error { return nil },
	}))
	if err := d.Send(t.Context(), event.Message{Topic: "a"}); err != nil {
		t.Error(err)
	}
	err := d.Send(t.Context(), event.Message{Topic: "b"})
	if class, _ := event.Classify(err); class != event.Permanent || err.Error() != "topic b has no handler" {
		t.Errorf("Send = %v (%v)", err, class)
	}
}

func TestOnRefusesWhatCannotBeDecoded(t *testing.T) {
	decode := func(b []byte) (n int, err error) { return n, json.Unmarshal(b, &n) }
	f := handler.On(decode, func(_ context.Context, n int, m event.Message) error {
		if n != 7 || m.Key != "k" {
			return errors.New("wrong message")
		}
		return nil
	})
	if err := f(t.Context(), event.Message{Key: "k", Payload: []byte("7")}); err != nil {
		t.Error(err)
	}
	if class, _ := event.Classify(f(t.Context(), event.Message{Payload: []byte("x")})); class != event.Permanent {
		t.Errorf("class = %v", class)
	}
}

func TestRunAnswersThatContradictThemselves(t *testing.T) {
	run := make([]event.Message, 3)
	for _, c := range []struct {
		accepted int
		err      error
		want     int
		fails    bool
	}{
		{3, nil, 3, false}, {3, errors.New("x"), 3, false}, {2, errors.New("x"), 2, true},
		{2, nil, 2, true}, {4, nil, 0, true}, {-1, errors.New("x"), 0, true},
	} {
		d := handler.NewRunDestination(3, func(context.Context, []event.Message) (int, error) { return c.accepted, c.err })
		if got, err := d.SendRun(t.Context(), run); got != c.want || (err != nil) != c.fails {
			t.Errorf("%d, %v: SendRun = %d, %v", c.accepted, c.err, got, err)
		}
	}
}

func TestPushTellsStoredDuplicateAndConflictApart(t *testing.T) {
	s := handler.NewSource(transporttest.NewReceiver(&transporttest.Ledger{}, 0))
	m := inbox.Incoming{IdempotencyKey: "1", EventType: "t", Payload: []byte("a")}
	if d, err := s.Push(t.Context(), m); d != inbox.Stored || err != nil {
		t.Errorf("first = %v, %v", d, err)
	}
	if d, err := s.Push(t.Context(), m); d != inbox.Duplicate || err != nil {
		t.Errorf("second = %v, %v", d, err)
	}
	m.Payload = []byte("b")
	if d, err := s.Push(t.Context(), m); d != inbox.Conflict || !errors.Is(err, handler.ErrConflict) {
		t.Errorf("other body = %v, %v", d, err)
	}
	s.Close()
	if _, err := s.Push(t.Context(), m); !errors.Is(err, handler.ErrClosed) {
		t.Errorf("closed = %v", err)
	}
}

type orderPlaced struct{ OrderID string }

func decodeOrderPlaced(b []byte) (e orderPlaced, err error) { return e, json.Unmarshal(b, &e) }

func ExampleTopics() {
	warehouse := handler.NewDestination(handler.Topics(map[string]handler.Func{
		"order.placed.v1": handler.On(decodeOrderPlaced, func(_ context.Context, e orderPlaced, m event.Message) error {
			fmt.Println("reserve stock for", e.OrderID, "in lane", m.Key)
			return nil
		}),
	}))
	err := warehouse.Send(context.Background(), event.Message{
		Topic: "order.placed.v1", Key: "order-17", Payload: []byte(`{"OrderID":"order-17"}`),
	})
	fmt.Println(err)
	// Output:
	// reserve stock for order-17 in lane order-17
	// <nil>
}
