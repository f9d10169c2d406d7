package engine

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Subscriber gets events. Its functions run code of the application: they may block, and Emit may call runtime.Goexit.
type Subscriber struct {
	Name  string                        // for the log; "": it is the log
	Hears func(EventKind) bool          // reports whether it wants events of a kind; many goroutines call it
	Emit  func(context.Context, *Event) // must not keep the event
}

// reporter passes events on. Each subscriber has a line of its own, with its own goroutine. A subscriber that blocks costs
// its own events, and neither a job nor another subscriber's events.
type reporter struct {
	Lines   []*line
	dropped func(l *line, total int64) // logs it
}

func newReporter(s *Shared) (r reporter) {
	for _, sub := range s.Cfg.Subscribers {
		r.Lines = append(r.Lines, &line{Subscriber: sub, ready: make(chan struct{}, 1), over: make(chan struct{})})
	}
	r.dropped = func(l *line, total int64) {
		if l.Name != "" && s.seldom.Allow("events "+l.Name, time.Now()) { // a log that blocks must not block its reporter, too
			s.log.Error("events are dropped, because hooks are slow or hang", slog.String("hooks", l.Name), slog.Int64("dropped", total))
		}
	}
	return r
}

// Hears reports whether anybody wants events of a kind. Nobody needs to make an event before it.
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
		if total := l.add(e); total > 0 {
			r.dropped(l, total)
		}
	}
}

// Close lets each line end once it has passed on all events.
func (r *reporter) Close() {
	for _, l := range r.Lines {
		l.mu.Lock()
		l.closed = true
		l.mu.Unlock()
		l.poke()
	}
}

// Dropped returns how many events no subscriber got because it was slow, or hung.
func (r *reporter) Dropped() (n int64) {
	for _, l := range r.Lines {
		l.mu.Lock()
		n += l.dropped
		l.mu.Unlock()
	}
	return n
}

// Waiting returns the events that wait for a subscriber.
func (r *reporter) Waiting() (events []Event) {
	for _, l := range r.Lines {
		l.mu.Lock()
		events = append(events, l.events...)
		l.mu.Unlock()
	}
	return events
}

// lastReport is how long a stop waits for subscribers at least: the database may have used up the time of the stop.
const lastReport = 250 * time.Millisecond

// wait waits until all events are passed on, or until end. It returns the lines that are not through by then.
func (r *reporter) wait(end time.Time) (hanging []*line) {
	timer := time.NewTimer(max(time.Until(end), lastReport))
	defer timer.Stop()
	for _, l := range r.Lines {
		select {
		case <-l.over:
		case <-timer.C:
			timer.Reset(0) // for the lines after it
			if l.abandon() {
				hanging = append(hanging, l)
			}
		}
	}
	return hanging
}

// mostWaiting bounds the events that wait for one subscriber, in bytes, because it may hang for ever. It is about 25,000
// events of usual size.
const mostWaiting = 16 << 20

// line is the events that wait for one subscriber, the oldest first.
type line struct {
	Subscriber
	ready chan struct{}
	over  chan struct{} // closed once all is passed on, or the line was abandoned

	mu      sync.Mutex
	events  []Event
	bytes   int // about, of events
	dropped int64
	closed  bool

	current Event // the goroutine's own
}

// add appends an event. If the line is full it drops the event, not an older one: the subscriber gets the events before a
// gap in full. It returns how many events were dropped so far if it drops this one, else 0.
func (l *line) add(e *Event) (dropped int64) {
	size := e.size()
	l.mu.Lock()
	if l.bytes+size > mostWaiting {
		l.dropped++
		dropped = l.dropped
	} else {
		l.events, l.bytes = append(l.events, *e), l.bytes+size
	}
	l.mu.Unlock()
	l.poke()
	return dropped
}

func (l *line) poke() {
	select {
	case l.ready <- struct{}{}:
	default:
	}
}

// Run passes events on until the line is closed and empty. Emit may call runtime.Goexit, which ends the goroutine: another
// Run goes on with the next event.
func (l *line) Run(ctx context.Context) {
	l.poke() // an earlier Run may have left events
	for range l.ready {
		for l.next() {
			l.Emit(ctx, &l.current)
		}
		if l.finish() {
			return
		}
	}
}

// next takes the first event into current, if there is one.
func (l *line) next() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.events) == 0 {
		l.events, l.current = nil, Event{} // the array still holds what was passed on
		return false
	}
	l.current, l.events[0] = l.events[0], Event{}
	l.events, l.bytes = l.events[1:], l.bytes-l.current.size()
	return true
}

// finish ends a line that is closed and empty.
func (l *line) finish() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed && len(l.events) == 0 {
		close(l.over)
		return true
	}
	return false
}

// ended reports whether all is passed on.
func (l *line) ended() bool {
	select {
	case <-l.over:
		return true
	default:
		return false
	}
}

// abandon drops the events that wait. It returns false if the line has just ended.
func (l *line) abandon() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended() {
		return false
	}
	l.dropped += int64(len(l.events))
	l.events, l.bytes = nil, 0
	return true
}

// size returns about how many bytes an event that waits takes.
func (e *Event) size() int {
	const fixed = 640 // of its fields, and of short texts
	n := fixed + len(e.End.Text)
	if e.Labels != nil {
		n += len(e.Labels.Metadata)
		for _, tag := range e.Labels.Tags {
			n += len(tag)
		}
	}
	return n
}
