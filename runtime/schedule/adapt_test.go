package schedule

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestAlarmsAndQueueAgainstSlices compares both with slices that are searched.
func TestAlarmsAndQueueAgainstSlices(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 3))
	var h alarms[int]
	var q queue[int]
	var times []int
	var line []int
	at := func(n int) time.Time { return time.Unix(int64(n), 0) }
	for i := range 20000 {
		switch n := random.IntN(200); {
		case random.IntN(2) == 0:
			h.add(at(n), n)
			times = append(times, n)
			q.push(i)
			line = append(line, i)
		default:
			slices.Sort(times)
			got, ok := h.due(at(n))
			if want := len(times) > 0 && times[0] <= n; ok != want || ok && got != times[0] {
				t.Fatalf("step %d: due(%d) = %d, %v; the times are %v", i, n, got, ok, times)
			} else if ok {
				times = times[1:]
			}
			v, ok := q.pop()
			if ok != (len(line) > 0) || ok && v != line[0] {
				t.Fatalf("step %d: popped %d, %v", i, v, ok)
			} else if ok {
				line = line[1:]
			}
		}
		if h.len() != len(times) || q.len() != len(line) {
			t.Fatalf("step %d: %d alarms and %d in line, want %d and %d", i, h.len(), q.len(), len(times), len(line))
		}
	}
}

// TestBackoff: attempt n waits a random time up to base·2ⁿ⁻¹ and the cap, and
// makes use of the whole range.
func TestBackoff(t *testing.T) {
	m := New(Config{Policy: Policy{RetryBase: 100 * time.Millisecond, RetryCap: time.Second}, Rand: rand.New(rand.NewPCG(1, 1))})
	for n, limit := range map[int]time.Duration{1: 100 * time.Millisecond, 2: 200 * time.Millisecond, 4: 800 * time.Millisecond, 5: time.Second, 5000: time.Second} {
		var least, most time.Duration = time.Hour, 0
		for range 2000 {
			d := m.backoff(n)
			least, most = min(least, d), max(most, d)
		}
		if least <= 0 || least > limit/50 || most > limit+1 || most < limit*49/50 {
			t.Errorf("attempt %d waits from %v to %v, want up to %v", n, least, most, limit)
		}
	}
}

// TestPageSize: big pages shrink the next one, small full ones grow it.
func TestPageSize(t *testing.T) {
	s := &script{t: t, start: time.Unix(0, 0), now: time.Unix(0, 0), tokens: map[int]int64{}}
	for _, line := range []string{"machine", "kept buckets=1 free=1", "acquired 0"} {
		s.do(strings.Fields(line))
	}
	in := s.fetched(strings.Fields("full 1:1 2:2 3:3 4:4")).(Fetched)
	for i := range in.Page.Rows {
		in.Page.Rows[i].Message.Payload = make([]byte, 16<<20)
	}
	s.m.Step(s.now, in)
	if s.m.pageRows != 1 {
		t.Errorf("after 64 MiB in 4 rows the next page has %d rows, want 1", s.m.pageRows)
	}
	s.m.fetchCall.busy = true
	s.m.Step(s.now, s.fetched(strings.Fields("full 5:5")))
	if s.m.pageRows != 2 {
		t.Errorf("after a small full page the next one has %d rows, want 2", s.m.pageRows)
	}
}

// TestRunLengthAdapts: it grows when the run's length is what held rows back,
// and shrinks when the page was full.
func TestRunLengthAdapts(t *testing.T) {
	s := &script{t: t, start: time.Unix(0, 0), now: time.Unix(0, 0), tokens: map[int]int64{}}
	for _, line := range []string{"machine", "kept buckets=1 free=1", "acquired 0"} {
		s.do(strings.Fields(line))
	}
	run := func(words string) int {
		s.m.wakeAll()
		s.m.fetchCall.busy = true
		s.m.fetched(s.fetched(strings.Fields(words)).(Fetched))
		return s.m.runRows
	}
	long := "1:1 1:2 1:3 1:4 1:5 1:6 1:7 1:8 1:9 1:10 1:11 1:12 1:13 1:14 1:15 1:16"
	if got := run(long); got != 32 {
		t.Errorf("after a run that was cut: %d, want 32", got)
	}
	if got := run("2:20"); got != 32 {
		t.Errorf("after a short run: %d, want 32", got)
	}
	if got := run("full 3:30"); got != 16 {
		t.Errorf("after a full page: %d, want 16", got)
	}
	if got := run("full 4:40"); got != 16 {
		t.Errorf("never below 16, got %d", got)
	}
}

// TestLongRunsMakeRoom: lanes that are slow must not fill the memory for good
// and keep the others out.
func TestLongRunsMakeRoom(t *testing.T) {
	s := &script{t: t, start: time.Unix(0, 0), now: time.Unix(0, 0), tokens: map[int]int64{}}
	for _, line := range []string{"machine concurrency=2", "kept buckets=1 free=1", "acquired 0"} {
		s.do(strings.Fields(line))
	}
	var long []string
	for l := 1; l <= 2; l++ {
		for n := range 600 {
			long = append(long, fmt.Sprintf("%d:%d", l, 1000*l+n))
		}
	}
	s.do(append([]string{"fetched"}, long...)) // both are in flight now
	if got := s.m.Stats().Buffered; got != 1198 {
		t.Fatalf("%d messages are kept", got)
	}
	if got := s.do([]string{"wake"}); !strings.Contains(got, "fetch") {
		t.Errorf("other lanes are not looked for: %s", got)
	}
	if got := s.m.Stats().Buffered; got != 2*minRunRows {
		t.Errorf("%d messages are kept, want %d", got, 2*minRunRows)
	}
}
