package sqlqueue

import (
	"context"
	"errors"
	"testing"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/lane"
)

// runOf returns a run of messages with these sequences.
func runOf(sequences ...int64) lane.Run {
	var run lane.Run
	for _, s := range sequences {
		run.Rows = append(run.Rows, lane.Row{Message: event.Message{Sequence: s}})
	}
	return run
}

// refusing moves all runs, unless one has a message with the sequence bad.
func refusing(bad int64) MoveFunc {
	return func(_ context.Context, runs []lane.Run) ([]lane.Verdict, error) {
		verdicts := make([]lane.Verdict, len(runs))
		for i, run := range runs {
			for _, row := range run.Rows {
				if row.Message.Sequence == bad {
					return nil, &event.ConfigurationError{Reason: "no route"}
				}
			}
			verdicts[i] = lane.Verdict{Accepted: len(run.Rows), Completed: true}
		}
		return verdicts, nil
	}
}

func TestARefusedMessageStaysBehindAlone(t *testing.T) {
	verdicts, err := refusing(4).Move(t.Context(), []lane.Run{runOf(1, 2), runOf(3, 4, 5), runOf(6)})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{2, 1, 1} {
		if verdicts[i].Accepted != want {
			t.Errorf("run %d: %d messages were moved, want %d", i, verdicts[i].Accepted, want)
		}
	}
	class, _ := event.Classify(verdicts[1].Err)
	if verdicts[0].Err != nil || verdicts[2].Err != nil || class != event.Permanent {
		t.Errorf("got %+v, want a permanent error of the second run alone", verdicts)
	}
}

func TestMoveTriesAgainWithLess(t *testing.T) {
	tries := 0
	move := MoveFunc(func(_ context.Context, runs []lane.Run) ([]lane.Verdict, error) {
		if tries++; tries < 3 {
			return nil, ErrAgain
		}
		return make([]lane.Verdict, len(runs)), ErrUndone
	})
	if verdicts, err := move.Move(t.Context(), []lane.Run{runOf(1)}); err != nil || len(verdicts) != 1 || tries != 3 {
		t.Errorf("%d verdicts after %d tries, %v", len(verdicts), tries, err)
	}
}

func TestMoveReportsWhatConcernsNoMessage(t *testing.T) {
	down := errors.New("no server")
	move := MoveFunc(func(context.Context, []lane.Run) ([]lane.Verdict, error) { return nil, down })
	if _, err := move.Move(t.Context(), []lane.Run{runOf(1), runOf(2)}); !errors.Is(err, down) {
		t.Errorf("got %v", err)
	}
}
