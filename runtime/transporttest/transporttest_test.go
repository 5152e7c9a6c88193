package transporttest

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/transport/handler"
)

// brokenVariable names, in a child process, the fault of its transport.
const brokenVariable = "LANEBOX_TRANSPORTTEST_BROKEN"

// faults are transports that break one promise each, with the case that must
// find it.
var faults = map[string]struct {
	finds string
	send  func(good handler.Func) handler.Func
}{
	"answers before storing": {"NilMeansSafe", func(good handler.Func) handler.Func {
		return func(ctx context.Context, m event.Message) error {
			good(ctx, m)
			return nil
		}
	}},
	"delivers the former message later": {"KeepsOrderPerKey", func(good handler.Func) handler.Func {
		kept := make(chan event.Message, 1)
		return func(ctx context.Context, m event.Message) error {
			select {
			case kept <- m:
				return nil
			default:
				return errors.Join(good(ctx, m), good(ctx, <-kept))
			}
		}
	}},
	"drops headers": {"RoundTripsEnvelope", changing(func(m *event.Message) { m.Headers = nil })},
	"trims keys":    {"RoundTripsEnvelope", changing(func(m *event.Message) { m.Key = strings.TrimSpace(m.Key) })},
	"folds keys":    {"RoundTripsEnvelope", changing(func(m *event.Message) { m.Key = strings.ToLower(m.Key) })},
	"drops a byte order mark": {"RoundTripsEnvelope", changing(func(m *event.Message) {
		m.Payload = bytes.TrimPrefix(m.Payload, []byte("\ufeff"))
	})},
	"forgets the version": {"RoundTripsEnvelope", changing(func(m *event.Message) { m.Version = 0 })},
	"makes new ids":       {"LostAnswerMayDuplicate", changing(func(m *event.Message) { m.ID = event.NewUUID() })},
	"writes into headers": {"LeavesTheMessageAlone", func(good handler.Func) handler.Func {
		return func(ctx context.Context, m event.Message) error {
			if m.Headers != nil {
				m.Headers["sent"] = "yes"
			}
			return good(ctx, m)
		}
	}},
	"gives up at once":            {"RedeliversWhatIsNotAcked", failing(func(error) error { return event.AsPermanent(errInjected) })},
	"never gives up":              {"RefusalIsAnError", failing(func(error) error { return errInjected })},
	"hides the wait":              {"BackPressureIsPassedOn", failing(func(err error) error { return retyped(err, event.BackPressure) })},
	"says it was not sent":        {"LostAnswerMayDuplicate", failing(func(err error) error { return retyped(err, event.Unavailable) })},
	"tries an oversize again":     {"OversizeIsPermanent", failing(func(error) error { return errInjected })},
	"does not end when it must":   {"CancelReturnsPromptly", func(good handler.Func) handler.Func { return detached(good) }},
	"sends with an ended context": {"EndedContextSendsNothing", func(good handler.Func) handler.Func { return detached(good) }},
}

func changing(change func(*event.Message)) func(handler.Func) handler.Func {
	return func(good handler.Func) handler.Func {
		return func(ctx context.Context, m event.Message) error {
			m.Headers = maps.Clone(m.Headers)
			change(&m)
			return good(ctx, m)
		}
	}
}

func failing(change func(error) error) func(handler.Func) handler.Func {
	return func(good handler.Func) handler.Func {
		return func(ctx context.Context, m event.Message) error {
			err := good(ctx, m)
			if err != nil {
				err = change(err)
			}
			return err
		}
	}
}

// retyped changes the class of failures that are not permanent.
func retyped(err error, c event.Class) error {
	if class(err) == event.Permanent {
		return err
	}
	return &event.DeliveryError{Class: c, Err: err}
}

func detached(good handler.Func) handler.Func {
	return func(ctx context.Context, m event.Message) error { return good(context.WithoutCancel(ctx), m) }
}

// broken is a destination without the checks of the real one.
type broken struct{ handler.Func }

func (b broken) Send(ctx context.Context, m event.Message) error { return b.Func(ctx, m) }

// recklessRun goes on after a failure inside a run.
type recklessRun struct{ broken }

func (r recklessRun) MaxRun() int { return 10 }

func (r recklessRun) SendRun(ctx context.Context, run []event.Message) (accepted int, err error) {
	for _, m := range run {
		if failed := r.Send(ctx, m); failed != nil {
			err = failed
		} else if err == nil {
			accepted++
		}
	}
	return accepted, err
}

// TestBroken runs the suite on one broken transport, in a child process only.
func TestBroken(t *testing.T) {
	name := os.Getenv(brokenVariable)
	if name == "" {
		return
	}
	patience = 300 * time.Millisecond
	f := Features{Answers: true, OrderedPerKey: true, MaxBytes: 1 << 20, Runs: name == "runs"}
	Run(t, func(_ *testing.T, r *inbox.Receiver) Link {
		good := handler.Forward(handler.NewSource(r))
		if fault, ok := faults[name]; ok {
			good = fault.send(good)
		}
		link := Link{Destination: broken{good}, Close: func() error { return nil }}
		if f.Runs {
			link.Destination = recklessRun{broken{good}}
		}
		return link
	}, f)
}

func TestTheSuiteFindsBrokenTransports(t *testing.T) {
	finds := map[string]string{"runs": "PartialRunLeavesNothingBehind", "closing": "ClosedSaysClosed"}
	for name, fault := range faults {
		finds[name] = fault.finds
	}
	for name, find := range finds {
		t.Run(name, func(t *testing.T) {
			child := exec.Command(os.Args[0], "-test.run=^TestBroken$/^"+find+"$", "-test.timeout=60s")
			child.Env = append(os.Environ(), brokenVariable+"="+name)
			output, err := child.CombinedOutput()
			if err == nil || !bytes.Contains(output, []byte("--- FAIL: TestBroken/"+find)) {
				t.Errorf("%s did not find it: %v\n%s", find, err, output)
			}
		})
	}
}

func TestProxyRefusesAndComesBack(t *testing.T) {
	target, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	p := NewProxy(t, target.Addr().String())
	for _, c := range []struct {
		mode    Mode
		refuses bool
	}{{Pass, false}, {Refuse, true}, {Refuse, true}, {Stall, false}, {Refuse, true}, {BlackHole, false}, {Pass, false}} {
		p.Set(t, c.mode)
		conn, err := net.Dial("tcp", p.Address())
		if (err != nil) != c.refuses {
			t.Errorf("mode %d: dialing ends with %v", c.mode, err)
		}
		if err == nil {
			conn.Close()
		}
	}
}
