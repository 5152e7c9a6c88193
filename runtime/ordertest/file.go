package ordertest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"sync"

	"github.com/lanebox/lanebox/runtime/event"
)

// A line is one entry of a file ledger.
type line struct {
	What string `json:"what"` // published, begin, end, died, killed
	// Process and Flight name a delivery; Flight is unique within the process.
	Process  string  `json:"process,omitempty"`
	Flight   int     `json:"flight,omitempty"`
	Key      string  `json:"key,omitempty"`
	ID       string  `json:"id,omitempty"`
	Run      []entry `json:"run,omitempty"`
	Accepted int     `json:"accepted,omitempty"`
}

type entry struct {
	ID       string `json:"id"`
	Sequence int64  `json:"sequence"`
	Attempt  int    `json:"attempt"`
}

// A Writer is a Recorder that writes one line per event. Several processes may
// write to one file when each opened it with os.O_APPEND: every line is one
// write, so that the order of lines is the order of events. An error of the
// underlying writer panics: a ledger with holes judges nothing.
type Writer struct {
	mu     sync.Mutex
	w      io.Writer
	flight int
}

// NewWriter returns a Writer to w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

func (w *Writer) write(l line) {
	data, err := json.Marshal(l)
	if err == nil {
		_, err = w.w.Write(append(data, '\n'))
	}
	if err != nil {
		panic(fmt.Errorf("ordertest: writing the ledger: %w", err))
	}
}

func (w *Writer) locked(l line) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.write(l)
}

// Published implements Recorder.
func (w *Writer) Published(key string, id event.UUID) {
	w.locked(line{What: "published", Key: key, ID: id.String()})
}

// Died implements Recorder.
func (w *Writer) Died(id event.UUID) { w.locked(line{What: "died", ID: id.String()}) }

// Killed implements Recorder.
func (w *Writer) Killed(process string) { w.locked(line{What: "killed", Process: process}) }

// Begin implements Recorder.
func (w *Writer) Begin(process string, run ...event.Message) (end func(accepted int)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.flight++
	l := line{What: "begin", Process: process, Flight: w.flight, Key: run[0].Key}
	for _, m := range run {
		l.Run = append(l.Run, entry{m.ID.String(), m.Sequence, m.Attempt})
	}
	w.write(l)
	number := w.flight
	return func(accepted int) {
		w.locked(line{What: "end", Process: process, Flight: number, Accepted: accepted})
	}
}

// Read judges a ledger file. A last line without its end is left out: its writer
// was killed. Any other line that cannot be read is an error.
func Read(r io.Reader) (*Checker, error) {
	c := New()
	flights := map[string]int{}
	in := bufio.NewReader(r)
	for n := 1; ; n++ {
		text, err := in.ReadBytes('\n')
		if err == io.EOF {
			return c, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read the ledger: %w", err)
		}
		var l line
		if err := json.Unmarshal(bytes.TrimSpace(text), &l); err != nil {
			return nil, fmt.Errorf("ledger line %d: %w", n, err)
		}
		if err := c.replay(l, flights); err != nil {
			return nil, fmt.Errorf("ledger line %d: %w", n, err)
		}
	}
}

// replay applies one line. flights maps a process's flight to the checker's.
func (c *Checker) replay(l line, flights map[string]int) error {
	var id event.UUID
	if l.ID != "" {
		var err error
		if id, err = event.ParseUUID(l.ID); err != nil {
			return err
		}
	}
	flight := fmt.Sprintf("%s/%d", l.Process, l.Flight)
	switch l.What {
	case "published":
		c.Published(l.Key, id)
	case "died":
		c.Died(id)
	case "killed":
		c.Killed(l.Process)
	case "begin":
		run := make([]event.Message, len(l.Run))
		for i, e := range l.Run {
			id, err := event.ParseUUID(e.ID)
			if err != nil {
				return err
			}
			run[i] = event.Message{ID: id, Key: l.Key, Sequence: e.Sequence, Attempt: e.Attempt}
		}
		if len(run) == 0 {
			return fmt.Errorf("a delivery of nothing")
		}
		c.Begin(l.Process, run...)
		flights[flight] = c.last
	case "end":
		c.mu.Lock()
		defer c.mu.Unlock()
		c.end(flights[flight], l.Accepted)
	default:
		return fmt.Errorf("unknown entry %q", l.What)
	}
	return nil
}
