package rabbitmq

import (
	"testing"
)

func TestParseMisfit(t *testing.T) {
	for reason, want := range map[string]misfit{
		"PRECONDITION_FAILED - inequivalent arg 'x-single-active-consumer' for queue 'q' in vhost '/': received the value 'true' of type 'bool' but current is none":                     {argSingleActive, nil},
		"PRECONDITION_FAILED - inequivalent arg 'x-single-active-consumer' for queue 'q' in vhost '/': received none but current is the value 'true' of type 'bool'":                     {argSingleActive, true},
		"PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue 'q: received x' in vhost '/': received none but current is the value '10' of type 'signedint'":                  {"x-max-length", int64(10)},
		"PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue 'q' in vhost '/': received 'quorum' but current is 'classic'":                                                   {argType, "classic"},
		"PRECONDITION_FAILED - inequivalent arg 'x-dead-letter-exchange' for queue 'q' in vhost '/': received none but current is the value 'it's 'x' but current is' of type 'longstr'": {argDeadLetter, "it's 'x' but current is"},
		"PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q' in vhost '/': received 'true' but current is 'false'":                                                            {"durable", false},
		"PRECONDITION_FAILED - inequivalent arg 'x-single-active-consumer' for queue 'q' in vhost '/': received 'true' but current is 'false'":                                           {argSingleActive, false},
		"PRECONDITION_FAILED - inequivalent arg 'x-max-priority' for queue 'q' in vhost '/': received '1' but current is '7'":                                                            {argPriority, int64(7)},
		"PRECONDITION_FAILED - inequivalent arg 'x-dead-letter-exchange' for queue 'q' in vhost '/': received 'a' but current is '1'":                                                    {argDeadLetter, "1"},
	} {
		if got, ok := parseMisfit(reason); !ok || got != want {
			t.Errorf("%s\ngives %v, %v", reason, got, ok)
		}
	}
	for _, reason := range []string{"", "PRECONDITION_FAILED - something else", "inequivalent arg 'x' for queue 'q': received none but current is the value 'x' of type 'long'"} {
		if got, ok := parseMisfit(reason); ok {
			t.Errorf("%q gives %v", reason, got)
		}
	}
}

func TestWithTakesWhatExists(t *testing.T) {
	q := workQueue("q", true, false, 0, "")
	changed := q.with(misfit{argType, "classic"}).with(misfit{argSingleActive, nil}).with(misfit{"durable", false}).with(misfit{"auto_delete", true})
	if changed.durable || !changed.autoDelete || changed.text(argType) != "classic" || changed.args[argSingleActive] != nil {
		t.Errorf("got %+v", changed)
	}
	if q.args[argSingleActive] != true || !q.durable || q.args[argType] != "quorum" {
		t.Errorf("the original has changed: %+v", q)
	}
}

// TestNoLimitIsSaid: a broker of version 4 has a limit of its own, and older ones do
// not know how to be told that there is none.
func TestNoLimitIsSaid(t *testing.T) {
	for version, want := range map[any]any{"3.10.8": nil, "3.13.0": nil, "4.0.2": int64(-1), "10.1": int64(-1), "odd": nil, nil: nil, 4: nil} {
		if got := workQueue("q", true, false, 0, "").unlimited(version).args[argLimit]; got != want {
			t.Errorf("version %v: the limit is %v", version, got)
		}
	}
	if got := workQueue("q", true, false, 7, "dead").unlimited("4.1.0").args[argLimit]; got != int64(7) {
		t.Errorf("the schema's limit became %v", got)
	}
	if got := workQueue("q", false, true, 0, "").unlimited("4.1.0").args[argLimit]; got != nil {
		t.Errorf("a stream has the limit %v", got)
	}
}
