package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// A Screen shows the demonstration: on a terminal two lines that move, below
// everything that was said; elsewhere plain lines, one per tenth.
type Screen struct {
	out      io.Writer
	terminal bool
	shown    int // lines that move
	tenth    int
	held     string
	until    time.Time
}

// NewScreen returns a screen on f.
func NewScreen(f *os.File) *Screen {
	info, err := f.Stat()
	return &Screen{out: f, terminal: err == nil && info.Mode()&os.ModeCharDevice != 0}
}

// Line says something once.
func (s *Screen) Line(format string, args ...any) {
	s.clear()
	fmt.Fprintf(s.out, format+"\n", args...)
}

// Held notes that a lane waits for a retry.
func (s *Screen) Held(key string, attempt int, delay time.Duration, reason string) {
	s.held, s.until = fmt.Sprintf("%s refused, attempt %d: %s", key, attempt, reason), time.Now().Add(delay)
	if !s.terminal {
		s.Line("%s (retry in %.1f s; its later events wait behind it, the other orders flow)", s.held, delay.Seconds())
	}
}

// Progress shows how far the deliveries are.
func (s *Screen) Progress(c Count, total int) {
	if !s.terminal {
		if tenth := 10 * c.Delivered / total; tenth > s.tenth {
			s.tenth = tenth
			s.Line("delivered %d/%d, in flight %d", c.Delivered, total, c.InFlight)
		}
		return
	}
	s.clear()
	width := min(30, 30*c.Delivered/total)
	fmt.Fprintf(s.out, "  delivered  %s%s  %d/%d   in flight %d\n",
		strings.Repeat("█", width), strings.Repeat("░", 30-width), c.Delivered, total, c.InFlight)
	s.shown = 1
	if wait := time.Until(s.until); wait > -time.Second && s.held != "" {
		fmt.Fprintf(s.out, "  held       %s (retry in %.1f s; its later events wait, the other orders flow)\n", s.held, max(0, wait.Seconds()))
		s.shown = 2
	}
}

// Done leaves the last progress where it is.
func (s *Screen) Done() { s.shown = 0 }

// clear takes back the lines that move.
func (s *Screen) clear() {
	for ; s.shown > 0; s.shown-- {
		fmt.Fprint(s.out, "\x1b[1A\x1b[2K")
	}
}
