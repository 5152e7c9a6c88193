package schedule

import "time"

// alarms is a heap of things to do later, earliest first. The zero value is
// empty.
type alarms[T any] struct{ items []alarm[T] }

type alarm[T any] struct {
	at   time.Time
	what T
}

func (h *alarms[T]) len() int { return len(h.items) }

// first returns the earliest time, or the zero time when there is none.
func (h *alarms[T]) first() time.Time {
	if len(h.items) == 0 {
		return time.Time{}
	}
	return h.items[0].at
}

func (h *alarms[T]) add(at time.Time, what T) {
	h.items = append(h.items, alarm[T]{at, what})
	for i := len(h.items) - 1; i > 0; {
		up := (i - 1) / 2
		if !h.items[i].at.Before(h.items[up].at) {
			return
		}
		h.items[i], h.items[up] = h.items[up], h.items[i]
		i = up
	}
}

// due removes and returns the earliest item whose time has come.
func (h *alarms[T]) due(now time.Time) (what T, ok bool) {
	if len(h.items) == 0 || h.items[0].at.After(now) {
		return what, false
	}
	what = h.items[0].what
	last := len(h.items) - 1
	h.items[0] = h.items[last]
	h.items[last] = alarm[T]{}
	h.items = h.items[:last]
	for i := 0; ; {
		least := i
		for _, down := range [2]int{2*i + 1, 2*i + 2} {
			if down < last && h.items[down].at.Before(h.items[least].at) {
				least = down
			}
		}
		if least == i {
			return what, true
		}
		h.items[i], h.items[least] = h.items[least], h.items[i]
		i = least
	}
}

// queue is a first-in, first-out queue. The zero value is empty.
type queue[T any] struct {
	items []T
	head  int
}

func (q *queue[T]) len() int { return len(q.items) - q.head }

func (q *queue[T]) push(v T) {
	if q.head > 0 && q.head*2 >= len(q.items) && len(q.items) == cap(q.items) {
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	q.items = append(q.items, v)
}

func (q *queue[T]) pop() (v T, ok bool) {
	if q.head == len(q.items) {
		return v, false
	}
	var zero T
	v, q.items[q.head] = q.items[q.head], zero
	if q.head++; q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
	}
	return v, true
}
