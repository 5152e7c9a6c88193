package sqlserver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
)

// minCallTimeout is the least and the usual limit of a call. The driver has no
// limit of its own, and a call that is given up early does harm: what a lock
// holds up for some seconds would fail, and its connection with it.
const minCallTimeout = 30 * time.Second

// CheckCallTimeout reports why d cannot be a CallTimeout, or nil.
func CheckCallTimeout(d time.Duration) error {
	if d == 0 || d >= minCallTimeout {
		return nil
	}
	return fmt.Errorf("Config.CallTimeout is %v; it must be at least %v: a call waits up to %v for the lock of a key, and one that is given up "+
		"while SQL Server still works on it costs its connection", d, minCallTimeout, lockWait)
}

const (
	// lockWait is how long a call waits for the locks of keys.
	lockWait = 10 * time.Second
	// answerTime is what a deadline leaves for the answer behind such a wait.
	answerTime = time.Second
)

// errNoTime says that a call was not made because its deadline is too near.
var errNoTime = errors.New("the deadline leaves no time to wait for the lock of a key")

// lockTimeout returns how long a call may wait for the locks of keys, in
// milliseconds: ten seconds, but never so long that the deadline of ctx would end
// it before the server's answer has come. With too little time left the error is
// a *event.RetryableError.
func lockTimeout(ctx context.Context, op string) (int32, error) {
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("%s: %w", op, err)
	}
	wait := lockWait
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(deadline)-answerTime)
	}
	if wait < time.Millisecond {
		return 0, &event.RetryableError{Op: op, Err: errNoTime}
	}
	return int32(wait.Milliseconds()), nil
}

// ms returns a duration in the unit of the queries. A part of a millisecond
// counts as a whole one, so that nothing is due too early.
func ms(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }

// utc returns the time that the database stored: columns have no time zone and
// hold UTC, whatever zone the connection string gives to the driver.
func utc(t time.Time) time.Time {
	return time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), time.UTC)
}
