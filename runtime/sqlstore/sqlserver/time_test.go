package sqlserver

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
)

// A call waits ten seconds for locks, less when its deadline is near, and is not
// made when the deadline leaves no time for the answer.
func TestLockTimeoutEndsBeforeTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if wait, err := lockTimeout(t.Context(), "op"); wait != 10_000 || err != nil {
			t.Errorf("without a deadline: %d, %v", wait, err)
		}
		for left, want := range map[time.Duration]int32{
			time.Hour: 10_000, 11 * time.Second: 10_000, 10 * time.Second: 9_000, 1500 * time.Millisecond: 500, 1001 * time.Millisecond: 1,
			time.Second: 0, time.Millisecond: 0,
		} {
			ctx, cancel := context.WithTimeout(t.Context(), left)
			wait, err := lockTimeout(ctx, "op")
			cancel()
			var again *event.RetryableError
			if wait != want || (want == 0) != errors.As(err, &again) {
				t.Errorf("with %v left: %d, %v, want %d", left, wait, err, want)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := lockTimeout(ctx, "op"); !errors.Is(err, context.Canceled) {
			t.Errorf("with a context that has ended: %v", err)
		}
	})
}

func TestShortCallTimeoutIsRefused(t *testing.T) {
	for d, ok := range map[time.Duration]bool{0: true, 30 * time.Second: true, time.Hour: true, 29 * time.Second: false, time.Nanosecond: false, -time.Second: false} {
		err := CheckCallTimeout(d)
		if (err == nil) != ok {
			t.Errorf("%v: %v", d, err)
		}
		if err != nil && (!strings.Contains(err.Error(), "30s") || !strings.Contains(err.Error(), "lock")) {
			t.Errorf("%v: the error gives no reason: %v", d, err)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("New took a call timeout of 1 s")
		}
	}()
	New(Config{CallTimeout: time.Second})
}

func TestMillisecondsRoundUp(t *testing.T) {
	for d, want := range map[time.Duration]int64{0: 0, 1: 1, time.Millisecond: 1, time.Millisecond + 1: 2, time.Hour: 3_600_000} {
		if got := ms(d); got != want {
			t.Errorf("%v: %d, want %d", d, got, want)
		}
	}
}

// The database stores UTC; the driver may have been told another zone.
func TestTimesAreUTC(t *testing.T) {
	zone := time.FixedZone("Kathmandu", 5*3600+45*60)
	stored := time.Date(2026, 3, 1, 12, 30, 45, 1234500, zone)
	if got, want := utc(stored), time.Date(2026, 3, 1, 12, 30, 45, 1234500, time.UTC); !got.Equal(want) || got.Location() != time.UTC {
		t.Errorf("got %v, want %v", got, want)
	}
}
