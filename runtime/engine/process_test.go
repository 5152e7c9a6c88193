package engine_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/lanebox/lanebox/runtime/schedule"
)

// TestDeliversInOrder is the plain case: everything is delivered once and in
// order, and a shutdown is clean and gives the buckets back.
func TestDeliversInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.publish(keys(50, 10)...)
		w.publish("", "", "")
		r := w.replica("a", schedule.Policy{}, nil)
		w.drained(2 * time.Second)
		if err := r.shutdown(); err != nil {
			t.Error(err)
		}
		if report := w.judge(); report.Delivered != 503 || report.Repeats != 0 {
			t.Errorf("%+v", report)
		}
		if h := w.held(); len(h) != 0 {
			t.Errorf("buckets are still leased: %v", h)
		}
		if n := w.db.Leases(shop)[0].Owner; n != "" {
			t.Errorf("bucket was not given back: %q", n)
		}
	})
}
