package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/drover-queue/drover"
)

// rateWindow is how far back a rate looks. Over a shorter time numbers that come in batches would jump.
const rateWindow = 15 * time.Second

// history is the looks that rates are computed from, newest last. It always has the last two.
type history []*topLook

// add appends a look, and forgets those that are too old. A clock that went back ends the history.
func (h history) add(look *topLook) history {
	if len(h) > 0 && !look.At.After(h[len(h)-1].At) {
		h = nil
	}
	h = append(h, look)
	for len(h) > 2 && look.At.Sub(h[0].At) > rateWindow {
		h = h[1:]
	}
	return h
}

// rate is how fast a number changed, from the oldest look that has it to the newest.
type rate struct {
	perSecond float64
	known     bool
}

func (h history) rate(number func(*topLook) (int64, bool)) rate {
	if len(h) < 2 {
		return rate{}
	}
	newest := h[len(h)-1]
	last, ok := number(newest)
	if !ok {
		return rate{}
	}
	for _, look := range h[:len(h)-1] {
		if first, ok := number(look); ok {
			return rate{float64(last-first) / newest.At.Sub(look.At).Seconds(), true}
		}
	}
	return rate{}
}

// growth is the rate of a number that only grows. If it fell, the server has lost its count.
func (h history) growth(number func(*topLook) (int64, bool)) rate {
	r := h.rate(number)
	if r.perSecond < 0 {
		return rate{}
	}
	return r
}

// enqueued is how many rows a second were inserted into jobs.
func (h history) enqueued() rate {
	return h.growth(func(l *topLook) (int64, bool) { return l.inserted, true })
}

// failed is how many runs a second have failed.
func (h history) failed() rate {
	return h.growth(func(l *topLook) (int64, bool) { return l.runs, true })
}

// change is how fast the unfinished jobs of a queue become more or fewer. It is unknown if one of the numbers is an estimate.
func (h history) change(queue string) rate {
	return h.rate(func(l *topLook) (sum int64, ok bool) {
		i := slices.IndexFunc(l.Queues, func(q topQueue) bool { return q.Queue == queue })
		if i < 0 {
			return 0, true
		}
		for state, n := range l.Queues[i].Jobs {
			if state.Final() {
				continue
			}
			if slices.Contains(l.Queues[i].Estimated, state) {
				return 0, false
			}
			sum += n
		}
		return sum, true
	})
}

// runsOf is how many runs a second failed in one way.
func (h history) runsOf(fingerprint string) rate {
	return h.growth(func(l *topLook) (int64, bool) {
		i := slices.IndexFunc(l.Failures, func(f topFailure) bool { return f.Fingerprint == fingerprint })
		if i < 0 {
			return 0, false
		}
		return l.Failures[i].Runs, true
	})
}

// releasedOf is how many jobs a second a redrive made due.
func (h history) releasedOf(id string) rate {
	return h.growth(func(l *topLook) (int64, bool) {
		i := slices.IndexFunc(l.Redrives, func(r topRedrive) bool { return r.ID == id })
		if i < 0 {
			return 0, false
		}
		return l.Redrives[i].Released, true
	})
}

// waiting is the number of a queue's jobs that have not begun and are not parked.
func (q *topQueue) waiting() int64 {
	return q.Jobs[drover.Available] + q.Jobs[drover.Scheduled] + q.Jobs[drover.Retryable]
}

// late is how long the oldest due job has waited.
func (q *topQueue) late(at time.Time) time.Duration {
	if q.OldestDue == nil {
		return 0
	}
	return max(0, at.Sub(*q.OldestDue))
}

// String is the rate for a table: "-" if it is unknown.
func (r rate) String() string {
	switch n := r.perSecond; {
	case !r.known:
		return "-"
	case n == 0:
		return "0"
	case n > -9.95 && n < 9.95:
		return fmt.Sprintf("%.1f", n)
	default:
		return fmt.Sprintf("%.0f", n)
	}
}

// signed is the rate of what may become more or fewer.
func (r rate) signed() string {
	if r.known && r.perSecond > 0 {
		return "+" + r.String()
	}
	return r.String()
}
