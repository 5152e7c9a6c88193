package sqlqueue

import (
	"context"
	"errors"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/lane"
)

// ErrUndone says that a transaction was given up because of single runs, which
// have their verdicts.
var ErrUndone = errors.New("some runs cannot be moved")

// ErrAgain says that a transaction is to be tried again without the messages that
// have become known as gone or broken.
var ErrAgain = errors.New("some messages are left out of the next try")

// A MoveFunc moves runs, of which there is at least one, from the inbox to the
// outbox in one transaction. With nil or ErrUndone it returns a verdict for each;
// it returns ErrAgain only when it knows of one message more to leave out.
type MoveFunc func(ctx context.Context, runs []lane.Run) ([]lane.Verdict, error)

// Move moves runs in one transaction, or apart when the outbox refuses one of
// their messages.
func (move MoveFunc) Move(ctx context.Context, runs []lane.Run) ([]lane.Verdict, error) {
	verdicts, err := move(ctx, runs)
	for errors.Is(err, ErrAgain) { // every time one message less
		verdicts, err = move(ctx, runs)
	}
	switch {
	case err == nil, errors.Is(err, ErrUndone):
		return verdicts, nil
	case !refused(err):
		return nil, err
	case len(runs) > 1:
		return move.apart(ctx, runs), nil
	case len(runs[0].Rows) > 1:
		return []lane.Verdict{move.oneByOne(ctx, runs[0])}, nil
	}
	return []lane.Verdict{{Err: event.AsPermanent(err)}}, nil
}

// refused reports whether the outbox will never take a message.
func refused(err error) bool {
	var configuration *event.ConfigurationError
	var validation *event.ValidationError
	return errors.As(err, &configuration) || errors.As(err, &validation)
}

// apart moves each run in a transaction of its own.
func (move MoveFunc) apart(ctx context.Context, runs []lane.Run) []lane.Verdict {
	verdicts := make([]lane.Verdict, len(runs))
	for i := range runs {
		v, err := move.Move(ctx, runs[i:i+1])
		if err != nil {
			verdicts[i] = lane.Verdict{Err: err}
			continue
		}
		verdicts[i] = v[0]
	}
	return verdicts
}

// oneByOne moves the messages of a run up to the first that cannot be moved.
func (move MoveFunc) oneByOne(ctx context.Context, run lane.Run) lane.Verdict {
	moved := lane.Verdict{Completed: true}
	for i := range run.Rows {
		one := run
		one.Rows = run.Rows[i : i+1]
		v := move.apart(ctx, []lane.Run{one})[0]
		moved.Accepted += v.Accepted
		if v.Err != nil {
			moved.Err = v.Err
			break
		}
	}
	return moved
}
