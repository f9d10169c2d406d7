package engine

import (
	"context"
	"sync"
	"time"
)

// Subscriber gets events. Its functions run code of the application: they may block, and Emit may call runtime.Goexit.
type Subscriber struct {
	Name  string                        // the subscriber's name in the log; "": the subscriber is the log
	Hears func(EventKind) bool          // reports whether the subscriber wants events of a kind; many goroutines call Hears
	Emit  func(context.Context, *Event) // must not keep the event
}

// reporter passes events on to the subscribers. Each subscriber has a line (a queue of events) of its own, with its own
// goroutine. If a subscriber blocks, it loses events, and delays no job and no other subscriber.
type reporter struct {
	Lines []*line
	full  chan string // names of hooks that have missed events
}

func newReporter(subscribers []Subscriber) reporter {
	r := reporter{full: make(chan string, 1)}
	for _, sub := range subscribers {
		r.Lines = append(r.Lines, &line{Subscriber: sub, ready: newSignal(), over: make(chan struct{})})
	}
	return r
}

// Hears reports whether a subscriber wants events of a kind. Call it before you make an event.
func (r *reporter) Hears(kind EventKind) bool {
	for _, l := range r.Lines {
		if l.Hears(kind) {
			return true
		}
	}
	return false
}

func (r *reporter) add(e *Event) {
	for _, l := range r.Lines {
		if !l.Hears(e.Kind) {
			continue
		}
		if l.add(e) || l.Name == "" {
			continue
		}
		select {
		case r.full <- l.Name:
		default:
		}
	}
}

// Close makes each line end once it has passed on all its events.
func (r *reporter) Close() {
	for _, l := range r.Lines {
		l.mu.Lock()
		l.closed = true
		l.mu.Unlock()
		l.ready.poke()
	}
}

// Dropped returns how many events were dropped because a subscriber was slow or hung. An event counts once for each
// such subscriber.
func (r *reporter) Dropped() (n int64) {
	for _, l := range r.Lines {
		l.mu.Lock()
		n += l.dropped
		l.mu.Unlock()
	}
	return n
}

// lastReport is how long a stop waits for subscribers at least, even if the database has used up the time of the stop.
const lastReport = 250 * time.Millisecond

// wait waits until all events are passed on, or until end, but at least for lastReport. It returns the lines that have
// not passed on all events by then, and drops their events.
func (r *reporter) wait(end time.Time) (hanging []*line) {
	timer := time.NewTimer(max(time.Until(end), lastReport))
	defer timer.Stop()
	for _, l := range r.Lines {
		select {
		case <-l.over:
		case <-timer.C:
			timer.Reset(0) // the time is up for the other lines, too
			if l.abandon() {
				hanging = append(hanging, l)
			}
		}
	}
	return hanging
}

// mostWaiting bounds the events that wait for one subscriber, in bytes, because a subscriber may hang for ever. The
// bound is about 25,000 events of usual size.
const mostWaiting = 16 << 20

// line has the events that wait for one subscriber, the oldest first.
type line struct {
	Subscriber
	ready signal
	over  chan struct{} // closed by finish: the line is closed, and no event waits any more

	mu          sync.Mutex
	first, last *chunk // nil: no event has come yet
	at          int    // the index of the next event in first
	waiting     int    // how many events wait
	bytes       int    // about how many bytes these events take
	spare       []*chunk
	dropped     int64
	closed      bool
}

// chunk holds events of a line. Lines reuse chunks, because a slice that grows and is drained would be allocated anew
// for each batch of jobs.
type chunk struct {
	events [64]Event
	n      int
	next   *chunk
}

// mostSpare is how many empty chunks a line keeps, of some 22 KB each. They have room for 1,000 events.
const mostSpare = 16

// add appends an event. If the line is full, add drops this event and no older one, and returns false. So the
// subscriber gets all events before a gap.
func (l *line) add(e *Event) bool {
	defer l.ready.poke()
	size := e.size()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.bytes+size > mostWaiting {
		l.dropped++
		return false
	}
	l.push(e)
	l.bytes += size
	return true
}

// Run passes events on until the line is closed and empty. If Emit calls runtime.Goexit, this goroutine ends, and
// another Run goes on with the next event.
func (l *line) Run(ctx context.Context) {
	l.ready.poke() // an earlier Run may have left events
	for range l.ready {
		for e := l.next(); e != nil; e = l.next() {
			l.Emit(ctx, e)
		}
		if l.finish() {
			return
		}
	}
}

// push puts an event at the end. l.mu must be held.
func (l *line) push(e *Event) {
	if l.last == nil || l.last.n == len(l.last.events) {
		var c *chunk
		if n := len(l.spare); n > 0 {
			c, l.spare = l.spare[n-1], l.spare[:n-1]
		} else {
			c = &chunk{}
		}
		if l.last == nil {
			l.first = c
		} else {
			l.last.next = c
		}
		l.last = c
	}
	l.last.events[l.last.n] = *e
	l.last.n++
	l.waiting++
}

// next forgets the event that it returned before, and returns the next event; nil: no event waits. The event belongs to
// the calling goroutine until its next call.
func (l *line) next() *Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at > 0 {
		l.first.events[l.at-1] = Event{} // the event may hold a job's metadata
	}
	if l.first != nil && l.at == l.first.n {
		done := l.first
		if l.first = done.next; l.first == nil {
			l.first = done // the line keeps its only chunk
		} else if len(l.spare) < mostSpare {
			l.spare = append(l.spare, done)
		}
		done.n, done.next, l.at = 0, nil, 0
	}
	if l.waiting == 0 {
		return nil
	}
	e := &l.first.events[l.at]
	l.at, l.waiting, l.bytes = l.at+1, l.waiting-1, l.bytes-e.size()
	if l.waiting == 0 {
		l.bytes = 0 // the sizes may not add up, because a hook of another subscriber may have changed an event
	}
	return e
}

// finish ends the line if it is closed and empty, and reports whether it has done so.
func (l *line) finish() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed && l.waiting == 0 {
		close(l.over)
		return true
	}
	return false
}

// ended reports whether the line has passed on all events and is closed.
func (l *line) ended() bool {
	select {
	case <-l.over:
		return true
	default:
		return false
	}
}

// abandon drops the events that wait, and counts them as dropped. It returns false if the line has just ended.
func (l *line) abandon() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended() {
		return false
	}
	l.dropped += int64(l.waiting)
	l.waiting, l.bytes, l.spare = 0, 0, nil
	if l.first != nil {
		clear(l.first.events[l.at:]) // the subscriber may still use the event at l.at-1
		l.first.n, l.first.next, l.last = l.at, nil, l.first
	}
	return true
}

// size returns about how many bytes a waiting event takes.
func (e *Event) size() int {
	const fixed = 640 // the size of the fields, with room for short texts
	n := fixed + len(e.End.Text)
	if e.Labels != nil {
		n += len(e.Labels.Metadata)
		for _, tag := range e.Labels.Tags {
			n += len(tag)
		}
	}
	return n
}
