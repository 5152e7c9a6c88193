// Package transporttest is the contract of transports as an executable suite.
// A transport passes it by connecting a destination to a source of its own; the
// suite owns what lies behind the source and injects faults on the way.
package transporttest

import (
	"testing"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/outbox"
)

// A Harness connects a new destination with a new source that receives with r.
// Everything it starts ends with the test.
type Harness func(t *testing.T, r *inbox.Receiver) Link

// A Link is a connected destination.
type Link struct {
	// Destination sends to the source.
	Destination outbox.Destination
	// Close closes the destination.
	Close func() error
	// Proxy lies between destination and source, or between destination and
	// broker; nil when there is no network on the way.
	Proxy *Proxy
	// SourceProxy lies between broker and source; nil when there is no broker.
	SourceProxy *Proxy
	// StopSource ends the source and fails the test when its Run returns an error; only
	// RunEndings needs it.
	StopSource func()
	// Restart restarts the broker; nil when there is none.
	Restart func()
}

// Features declare what a transport can do. The suite tests what is declared
// and never probes.
type Features struct {
	// Answers says that Send returns what the receiver answered: refusals,
	// failures and back-pressure. A broker in between makes that impossible; the
	// source then delivers again what it could not store.
	Answers bool
	// OrderedPerKey says that messages of one key arrive in the order in which
	// they were sent, one after the other.
	OrderedPerKey bool
	// Network says that Link.Proxy is set.
	Network bool
	// Broker says that a broker lies between destination and source, and that
	// Link.SourceProxy is set.
	Broker bool
	// Runs says that the destination is an outbox.RunDestination that takes runs
	// of at least 5 messages.
	Runs bool
	// MaxBytes is the largest payload that the link takes. It must be at most
	// 1 MiB, which is what the receiver takes.
	MaxBytes int
}

// A testLink is one link under test.
type testLink struct {
	Link
	ledger *Ledger
	f      Features
}

// connect returns a new link with a ledger behind its source.
func connect(t *testing.T, h Harness) *testLink {
	ledger := &Ledger{}
	return &testLink{Link: h(t, NewReceiver(ledger, 0)), ledger: ledger}
}

// Run runs the suite.
func Run(t *testing.T, h Harness, f Features) {
	if f.MaxBytes <= 0 || f.MaxBytes > 1<<20 {
		t.Fatal("Features.MaxBytes must be between 1 and 1 MiB")
	}
	for _, c := range cases {
		if c.needs != nil && !c.needs(f) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := connect(t, h)
			l.f = f
			if f.Network != (l.Proxy != nil) {
				t.Fatal("Features.Network and Link.Proxy disagree")
			}
			if f.Broker != (l.SourceProxy != nil) {
				t.Fatal("Features.Broker and Link.SourceProxy disagree")
			}
			if _, ok := l.Destination.(outbox.RunDestination); ok != f.Runs {
				t.Fatal("Features.Runs and Link.Destination disagree")
			}
			c.run(t, l)
		})
	}
}

var cases = []struct {
	name  string
	needs func(Features) bool // nil: every transport
	run   func(t *testing.T, l *testLink)
}{
	{"RoundTripsEnvelope", nil, roundTripsEnvelope},
	{"KeepsOrderPerKey", func(f Features) bool { return f.OrderedPerKey }, keepsOrderPerKey},
	{"ConcurrentSendsAreSafe", nil, concurrentSendsAreSafe},
	{"LeavesTheMessageAlone", nil, leavesTheMessageAlone},
	{"NilMeansSafe", nil, nilMeansSafe},
	{"LostAnswerMayDuplicate", answers, lostAnswerMayDuplicate},
	{"RedeliversWhatIsNotAcked", nil, redeliversWhatIsNotAcked},
	{"RefusalIsAnError", answers, refusalIsAnError},
	{"BackPressureIsPassedOn", answers, backPressureIsPassedOn},
	{"OversizeIsPermanent", nil, oversizeIsPermanent},
	{"CancelReturnsPromptly", answers, cancelReturnsPromptly},
	{"EndedContextSendsNothing", nil, endedContextSendsNothing},
	{"ClosedSaysClosed", nil, closedSaysClosed},
	{"PartialRunLeavesNothingBehind", runs, partialRunLeavesNothingBehind},
	{"RefusedConnectionIsUnavailable", network, refusedConnectionIsUnavailable},
	{"ReconnectsAndContinues", network, reconnectsAndContinues},
	{"CutRequestIsNoLoss", network, cutRequestIsNoLoss},
	{"CutAnswerIsNotUnavailable", networkAnswers, cutAnswerIsNotUnavailable},
	{"StalledAnswerEndsWithTheContext", networkAnswers, stalledAnswerEndsWithTheContext},
	{"BlackHoleEndsWithTheContext", network, blackHoleEndsWithTheContext},
	{"CutConfirmIsNotUnavailable", brokerNetwork, cutConfirmIsNotUnavailable},
	{"StalledConfirmEndsWithTheContext", brokerNetwork, stalledConfirmEndsWithTheContext},
	{"SourceReconnectsAndContinues", broker, sourceReconnectsAndContinues},
	{"AcknowledgesNothingInHand", broker, acknowledgesNothingInHand},
}

func answers(f Features) bool        { return f.Answers }
func runs(f Features) bool           { return f.Answers && f.Runs }
func network(f Features) bool        { return f.Network }
func networkAnswers(f Features) bool { return f.Network && f.Answers }

// class returns the class of an error.
func class(err error) event.Class {
	c, _ := event.Classify(err)
	return c
}
