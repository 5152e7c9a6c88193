package ordertest

import (
	"bytes"
	"strings"
	"sync"
	"testing"

	"github.com/lanebox/lanebox/runtime/event"
)

func id(n byte) event.UUID { return event.UUID{0: n} }

func msg(key string, n byte) event.Message {
	return event.Message{ID: id(n), Key: key, Sequence: int64(n), Attempt: 1}
}

// TestJudgement plays small histories, directly and through a file, and expects
// exactly the breaches that they contain.
func TestJudgement(t *testing.T) {
	deliver := func(r Recorder, process string, accepted int, run ...event.Message) {
		r.Begin(process, run...)(accepted)
	}
	publish := func(r Recorder, key string, ns ...byte) {
		for _, n := range ns {
			r.Published(key, id(n))
		}
	}
	cases := []struct {
		name string
		play func(Recorder)
		want string // kinds of breaches, and repeats
	}{
		{"in order", func(r Recorder) {
			publish(r, "a", 1, 2)
			deliver(r, "p", 1, msg("a", 1))
			deliver(r, "p", 1, msg("a", 2))
		}, ""},
		{"out of order", func(r Recorder) {
			publish(r, "a", 1, 2)
			deliver(r, "p", 1, msg("a", 2))
			deliver(r, "p", 1, msg("a", 1))
		}, "inversion"},
		{"commit order against sequence", func(r Recorder) {
			publish(r, "a", 2, 1)
			deliver(r, "p", 1, msg("a", 1))
			deliver(r, "p", 1, msg("a", 2))
		}, "inversion"},
		{"unordered in any order", func(r Recorder) {
			publish(r, "", 1, 2)
			end := r.Begin("p", msg("", 2))
			deliver(r, "q", 1, msg("", 1))
			end(1)
		}, ""},
		{"one unordered message twice at a time", func(r Recorder) {
			publish(r, "", 1)
			end := r.Begin("p", msg("", 1))
			deliver(r, "q", 1, msg("", 1))
			end(1)
		}, "overlap"},
		{"overlap", func(r Recorder) {
			publish(r, "a", 1, 2)
			end := r.Begin("p", msg("a", 1))
			end2 := r.Begin("q", msg("a", 1))
			end(1)
			end2(1)
			deliver(r, "p", 1, msg("a", 2))
		}, "overlap"},
		{"another lane is no overlap", func(r Recorder) {
			publish(r, "a", 1)
			publish(r, "b", 2)
			end := r.Begin("p", msg("a", 1))
			deliver(r, "q", 1, msg("b", 2))
			end(1)
		}, ""},
		{"a killed process overlaps nobody", func(r Recorder) {
			publish(r, "a", 1)
			r.Begin("p", msg("a", 1))
			r.Killed("p")
			deliver(r, "q", 1, msg("a", 1))
		}, ""},
		{"overtaken while it waits for a retry", func(r Recorder) {
			publish(r, "a", 1, 2)
			deliver(r, "p", 0, msg("a", 1))
			deliver(r, "p", 1, msg("a", 2))
			deliver(r, "p", 1, msg("a", 1))
		}, "overtaking"},
		{"behind a dead message", func(r Recorder) {
			publish(r, "a", 1, 2)
			deliver(r, "p", 0, msg("a", 1))
			r.Died(id(1))
			deliver(r, "p", 1, msg("a", 2))
		}, ""},
		{"lost", func(r Recorder) {
			publish(r, "a", 1, 2)
			deliver(r, "p", 1, msg("a", 1))
		}, "lost"},
		{"unknown", func(r Recorder) {
			publish(r, "a", 1)
			deliver(r, "p", 1, msg("a", 1))
			deliver(r, "p", 1, msg("a", 2))
		}, "unknown"},
		{"repeat", func(r Recorder) {
			publish(r, "a", 1)
			deliver(r, "p", 1, msg("a", 1))
			deliver(r, "q", 1, msg("a", 1))
		}, "repeat"},
		{"run accepted in part", func(r Recorder) {
			publish(r, "a", 1, 2, 3)
			deliver(r, "p", 1, msg("a", 1), msg("a", 2), msg("a", 3))
			deliver(r, "p", 2, msg("a", 2), msg("a", 3))
		}, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			direct := New()
			c.play(direct)
			var file bytes.Buffer
			c.play(NewWriter(&file))
			file.WriteString(`{"what":"beg`) // a writer was killed here
			read, err := Read(&file)
			if err != nil {
				t.Fatal(err)
			}
			for how, checker := range map[string]*Checker{"direct": direct, "file": read} {
				if got := kinds(checker.Report()); got != c.want {
					t.Errorf("%s: got %q, want %q\n%v", how, got, c.want, checker.Report().Err())
				}
			}
		})
	}
}

func kinds(r Report) string {
	var got []string
	for _, k := range []struct {
		name string
		n    int
	}{{"inversion", len(r.Inversions)}, {"overlap", len(r.Overlaps)}, {"overtaking", len(r.Overtakings)}, {"lost", len(r.Lost)}, {"unknown", len(r.Unknown)}, {"repeat", r.Repeats}} {
		if k.n > 0 {
			got = append(got, k.name)
		}
	}
	broken := len(got) > 0 && got[0] != "repeat"
	if (r.Err() != nil) != broken {
		return "Err disagrees with the lists"
	}
	return strings.Join(got, " ")
}

func TestABrokenLedgerIsRefused(t *testing.T) {
	for _, text := range []string{"{\n{}\n", `{"what":"guessed"}` + "\n", `{"what":"begin"}` + "\n", `{"what":"died","id":"x"}` + "\n"} {
		if _, err := Read(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), "ledger line 1") {
			t.Errorf("%q: got %v", text, err)
		}
	}
}

func TestConcurrentUse(t *testing.T) {
	c := New()
	d := Destination(c, "p", nil)
	var all sync.WaitGroup
	for g := range byte(8) {
		all.Go(func() {
			for n := range byte(100) {
				m := event.Message{ID: event.UUID{g, n}, Key: string(rune('a' + g)), Sequence: int64(n) + 1}
				c.Published(m.Key, m.ID)
				if err := d.Send(t.Context(), m); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	r := c.Report()
	if err := r.Err(); err != nil || r.Delivered != 800 || c.Delivered() != 800 {
		t.Errorf("%+v: %v", r, err)
	}
}
