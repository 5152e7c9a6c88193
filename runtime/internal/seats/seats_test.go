package seats_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lanebox/lanebox/runtime/internal/seats"
	"github.com/lanebox/lanebox/runtime/lane"
)

func TestSeatsAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type pool struct{ name string }
		small, other := &pool{"small"}, &pool{"other"}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		leave, err := seats.Take(ctx, small, 0) // one at least
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if _, err := seats.Take(ctx, small, 0); !errors.Is(err, lane.ErrBusy) || time.Since(start) != 30*time.Second {
			t.Errorf("a second handler got %v after %v", err, time.Since(start))
		}
		leaveOther, err := seats.Take(ctx, other, 1)
		if err != nil {
			t.Errorf("another pool: %v", err)
		}
		leaveOther()
		got := make(chan error)
		go func() {
			leave, err := seats.Take(t.Context(), small, 0)
			if err == nil {
				defer leave()
			}
			got <- err
		}()
		synctest.Wait()
		leave()
		if err := <-got; err != nil {
			t.Errorf("after the first has left: %v", err)
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		leave, err = seats.Take(t.Context(), small, 1)
		if err != nil {
			t.Fatal(err)
		}
		defer leave()
		if _, err := seats.Take(gone, small, 1); !errors.Is(err, context.Canceled) {
			t.Errorf("a context that has ended: %v", err)
		}
	})
}
