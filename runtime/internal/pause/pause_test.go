package pause_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lanebox/lanebox/runtime/internal/pause"
)

func TestFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		start := time.Now()
		if !pause.For(ctx, 2*time.Second) || time.Since(start) != 2*time.Second {
			t.Errorf("a pause of 2 s ended after %v, or said that the context ended", time.Since(start))
		}
		if pause.For(ctx, time.Hour) || time.Since(start) != 3*time.Second {
			t.Errorf("a pause that the context cuts short ended after %v, or said that it did not", time.Since(start))
		}
	})
}
