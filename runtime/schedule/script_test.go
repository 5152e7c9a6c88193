package schedule

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/lane"
)

var update = flag.Bool("update", false, "rewrite testdata")

// TestScripts plays the conversations in testdata. Every block is one command,
// a line of dashes, and the effects the machine answered with. In a script
// bucket b has the lanes 100·b to 100·b+99, the first of which is unordered.
func TestScripts(t *testing.T) {
	files, _ := filepath.Glob("testdata/*.txt")
	if len(files) == 0 {
		t.Fatal("no scripts")
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, string(text))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(text) {
				t.Errorf("%s differs; got:\n%s", file, firstDifference(got, string(text)))
			}
		})
	}
}

func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range g {
		if i >= len(w) || g[i] != w[i] {
			return fmt.Sprintf("line %d: %s", i+1, strings.Join(g[i:min(len(g), i+6)], "\n"))
		}
	}
	return "the script is longer"
}

// play returns the script with the effects the machine gives now.
func play(t *testing.T, text string) string {
	s := &script{t: t, start: time.Unix(1000, 0), tokens: map[int]int64{}}
	s.now = s.start
	var out strings.Builder
	for block := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		for line := range strings.SplitSeq(block, "\n") {
			if line == "----" {
				break
			}
			out.WriteString(line + "\n")
			if !strings.HasPrefix(line, "#") {
				out.WriteString("----\n" + s.do(strings.Fields(line)) + "\n")
			}
		}
	}
	return strings.TrimRight(out.String(), "\n") + "\n"
}

// A script is a machine and what it asked for last.
type script struct {
	t      *testing.T
	start  time.Time
	now    time.Time
	m      *Machine
	tokens map[int]int64
	fetch  lane.FetchParams
}

func (s *script) do(words []string) string {
	for strings.HasPrefix(words[0], "+") { // time passes first
		d, err := time.ParseDuration(words[0][1:])
		if err != nil {
			s.t.Fatal(err)
		}
		s.now = s.now.Add(d)
		words = words[1:]
	}
	if words[0] == "machine" {
		return s.machine(words[1:])
	}
	in := s.input(words[0], words[1:])
	for name, c := range map[string]*call{"acquired": &s.m.acquireCall, "released": &s.m.releaseCall, "fetched": &s.m.fetchCall, "settled": &s.m.settleCall} {
		if words[0] == name && !c.busy {
			s.t.Errorf("%v answers nothing", words)
		}
	}
	var out strings.Builder
	for _, e := range s.m.Step(s.now, in) {
		out.WriteString(s.render(e) + "\n")
	}
	if next := s.m.Next(); !next.IsZero() {
		if !next.After(s.now) {
			s.t.Errorf("Next is %v after %v: the loop would spin", next.Sub(s.now), words)
		}
		fmt.Fprintf(&out, "next %v\n", next.Sub(s.start).Round(time.Millisecond))
	}
	return out.String()
}

// options splits words of the form name=value.
func options(words []string) map[string]string {
	o := map[string]string{}
	for _, w := range words {
		name, value, _ := strings.Cut(w, "=")
		o[name] = value
	}
	return o
}

func (s *script) number(text string) int {
	if text == "" {
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

func (s *script) machine(words []string) string {
	o := options(words)
	p := Policy{Concurrency: s.number(o["concurrency"]), MaxUnsettled: s.number(o["unsettled"]), MaxRun: s.number(o["run"]), MaxAttempts: s.number(o["attempts"])}
	_, p.SettleEach = o["settleeach"]
	_, p.ParkDead = o["parkdead"]
	s.m = New(Config{Owner: "me", Policy: p, Rand: rand.New(rand.NewPCG(1, 2))})
	return ""
}

var errScript = errors.New("broken")

func (s *script) err(o map[string]string) error {
	if _, failed := o["err"]; failed {
		return errScript
	}
	return nil
}

func (s *script) lease(n int) lane.Lease {
	lo := int64(100 * n)
	return lane.Lease{Bucket: lane.Bucket(n), Token: s.tokens[n], Lo: lo, Hi: lo + 99}
}

func (s *script) input(name string, words []string) Input {
	o := options(words)
	switch name {
	case "tick":
		return Tick{}
	case "wake":
		return Wake{}
	case "gate":
		return GateOpened{}
	case "drain":
		return Drain{}
	case "giveup":
		return GiveUp{}
	case "released":
		return Released{Err: s.err(o)}
	case "kept":
		return s.kept(o)
	case "acquired":
		in := Acquired{Asked: s.now, Err: s.err(o)}
		for _, w := range words {
			if w == "err" {
				continue
			}
			// One ! says that the former owner let the lease expire, two that there
			// was another owner since this machine had the bucket.
			n, crashes := s.number(strings.TrimRight(w, "!")), strings.Count(w, "!")
			s.tokens[n] += int64(max(1, crashes))
			l := s.lease(n)
			l.Crashed = crashes > 0
			in.Leases = append(in.Leases, l)
		}
		return in
	case "fetched":
		return s.fetched(words)
	case "settled":
		return s.settle(words)
	case "answered":
		return Answered{s.answer(words)}
	}
	s.t.Fatalf("unknown command %q", name)
	return nil
}

func (s *script) kept(o map[string]string) Input {
	in := Kept{Asked: s.now, TTL: s.m.policy.Lease, Answer: lane.Kept{
		Owners: max(1, s.number(o["owners"])), Buckets: s.number(o["buckets"]), Free: s.number(o["free"]), Expired: s.number(o["expired"]),
	}}
	_, in.Answer.Waiting = o["waiting"]
	if _, sent := o["renew"]; sent {
		in.Sent = s.m.Leases()
		for _, l := range in.Sent {
			if o["lost"] != fmt.Sprint(l.Bucket) {
				in.Answer.Renewed = append(in.Answer.Renewed, l.Bucket)
			}
		}
	}
	if o["parked"] != "" {
		in.Answer.Parked = []int64{int64(s.number(o["parked"]))}
	}
	return in
}

// fetched understands rows such as 101:7 (lane and sequence), 101:7*2 (two
// attempts on record) and 100:7~ (held), and the words full, err and missing=n.
func (s *script) fetched(words []string) Input {
	o := options(words)
	if err := s.err(o); err != nil {
		return Fetched{Err: err}
	}
	var page lane.Page
	_, page.Full = o["full"]
	last := map[lane.Bucket]int64{}
	for _, w := range words {
		l, rest, ok := strings.Cut(w, ":")
		if !ok {
			continue
		}
		r := lane.Row{Lane: int64(s.number(l))}
		if rest, ok = strings.CutSuffix(rest, "~"); ok {
			r.Held, r.DueIn = true, time.Second
		}
		seq, attempts, _ := strings.Cut(rest, "*")
		r.Attempts = s.number(attempts)
		r.Held = r.Held || r.Attempts > 0
		r.Bucket = lane.Bucket(r.Lane / 100)
		r.Message = event.Message{Sequence: int64(s.number(seq)), Topic: "t"}
		page.Rows = append(page.Rows, r)
		last[r.Bucket] = r.Lane
	}
	for _, c := range s.fetch.Cursors {
		switch next := (lane.Cursor{Lease: c.Lease, Lane: c.Lease.Lo}); {
		case o["missing"] == fmt.Sprint(c.Lease.Bucket):
		case page.Full && last[c.Lease.Bucket] == 0: // cut off
		case page.Full:
			next.Lane = last[c.Lease.Bucket] + 1
			page.Next = append(page.Next, next)
		default:
			page.Next = append(page.Next, next)
			page.Wrapped = append(page.Wrapped, c.Lease.Bucket)
		}
	}
	return Fetched{Page: page}
}

func (s *script) settle(words []string) Input {
	o := options(words)
	in := Settled{Asked: s.now, Err: s.err(o)}
	if o["fenced"] != "" {
		in.Result.Fenced = []lane.Bucket{lane.Bucket(s.number(o["fenced"]))}
	}
	if o["parked"] != "" {
		in.Result.Parked = []int64{int64(s.number(o["parked"]))}
	}
	if l, seq, ok := strings.Cut(o["gone"], ":"); ok {
		in.Result.Gone = []lane.Ref{{Lane: int64(s.number(l)), Sequence: int64(s.number(seq))}}
	}
	return in
}

func (s *script) answer(words []string) Answer {
	f := s.m.flights[uint64(s.number(words[0]))]
	if f == nil {
		s.t.Fatalf("there is no flight %s", words[0])
	}
	a := Answer{Flight: uint64(s.number(words[0])), Verdict: lane.Verdict{Accepted: len(f.rows)}}
	o := options(words[2:])
	a.Took, _ = time.ParseDuration(o["took"])
	_, a.Verdict.Completed = o["completed"]
	after, _ := time.ParseDuration(o["after"])
	switch words[1] {
	case "ok":
		return a
	case "transient":
		a.Verdict.Err = errScript
	case "permanent":
		a.Verdict.Err = event.AsPermanent(errScript)
	case "later":
		a.Verdict.Err = event.AsBackPressure(errScript, after)
	case "unavailable":
		a.Verdict.Err = event.AsUnavailable(errScript)
	case "busy":
		a.Verdict.Err = lane.ErrBusy
	case "leaselost":
		a.Verdict.Err = lane.ErrLeaseLost
	default:
		s.t.Fatalf("unknown verdict %q", words[1])
	}
	a.Verdict.Accepted = s.number(o["accepted"])
	return a
}

var outcomes = [...]string{"done", "retry", "dead", "park", "start"}

func (s *script) render(e Effect) string {
	switch e := e.(type) {
	case Acquire:
		return fmt.Sprintf("acquire free=%d ttl=%v", e.Params.MaxFree, e.Params.TTL)
	case Release:
		return "release" + leaseList(e.Leases)
	case Fetch:
		s.fetch = e.Params
		text := "fetch"
		for _, c := range e.Params.Cursors {
			text += fmt.Sprintf(" %d@%d", c.Lease.Bucket, c.Lane)
		}
		return fmt.Sprintf("%s rows=%d run=%d busy=%v", text, e.Params.MaxRows, e.Params.MaxRun, e.Params.Busy)
	case Settle:
		text := "settle" + leaseList(e.Leases) + ":"
		for _, x := range e.Settlements {
			text += fmt.Sprintf(" %s %d:%d n=%d", outcomes[x.Outcome], x.Lane, x.Sequence, x.Attempts)
			if x.Delay > 0 {
				text += fmt.Sprintf(" in %v", x.Delay.Round(time.Millisecond))
			}
		}
		return text
	case Deliver:
		text := fmt.Sprintf("deliver #%d %d:", e.Flight, e.Run.Lane)
		for _, r := range e.Run.Rows {
			text += fmt.Sprintf(" %d (attempt %d)", r.Message.Sequence, r.Message.Attempt)
		}
		if e.Alone {
			text += " alone"
		}
		return text
	case Cancel:
		return fmt.Sprintf("cancel %v", e.Flights)
	case AskGate:
		return "ask gate"
	case FreeGate:
		return "free gate"
	case Drained:
		return fmt.Sprintf("drained, %d abandoned", len(e.Abandoned))
	case Report:
		return "report " + renderEvent(e.Event)
	}
	return fmt.Sprintf("%T", e)
}

func leaseList(leases []lane.Lease) string {
	text := ""
	for _, l := range leases {
		text += fmt.Sprintf(" %d/%d", l.Bucket, l.Token)
		if l.Crashed {
			text += "!"
		}
	}
	return text
}

func renderEvent(e Event) string {
	name := strings.TrimPrefix(fmt.Sprintf("%T", e), "schedule.")
	switch e := e.(type) {
	case Retried:
		return fmt.Sprintf("%s %d %s spent=%v", name, e.Message.Sequence, e.Class, e.Spent)
	case Died:
		return fmt.Sprintf("%s %d %s after %d", name, e.Message.Sequence, e.Reason, e.Attempts)
	case Parked:
		return fmt.Sprintf("%s %d %s after %d", name, e.Message.Sequence, e.Reason, e.Attempts)
	case LeaseLost:
		return fmt.Sprintf("%s %d %s, canceled %d, dropped %d", name, e.Lease.Bucket, e.Reason, e.Canceled, e.Dropped)
	case Fenced:
		return fmt.Sprintf("%s %d, %d outcomes", name, e.Lease.Bucket, e.Outcomes)
	case DatabaseFailed:
		return fmt.Sprintf("%s %s, %d in a row", name, e.Op, e.InARow)
	case Abandoned:
		return fmt.Sprintf("%s %d", name, e.Message.Sequence)
	}
	return name
}
