package drover

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// reporter hands a supervisor's events to the log and to each subscriber. Each has a line of its own, with its own
// goroutine: a hook that hangs costs its own events, and neither a job nor those of others.
type reporter struct{ lines []*line }

// line is the events that one listener has yet to be told.
type line struct {
	wants func(eventKind) bool
	hear  func(context.Context, told)
	log   *slog.Logger // nil: this is the log's own
	ready chan struct{}
	over  chan struct{} // closed once all is told

	waiting atomic.Int64 // bytes, about, of events that are not told
	dropped atomic.Int64
	quiet   sparingly

	mu     sync.Mutex
	events []told
	closed bool
}

// maxUntold bounds what waits for one listener, in bytes: a hook may hang for ever. It is about 25,000 events.
const maxUntold = 16 << 20

func newReporter(c *Client) reporter {
	add := func(log *slog.Logger, wants func(eventKind) bool, hear func(context.Context, told)) *line {
		return &line{wants: wants, hear: hear, log: log, ready: make(chan struct{}, 1), over: make(chan struct{})}
	}
	lines := []*line{add(nil, c.logs, c.logEvent)}
	for i := range c.cfg.Hooks {
		h := &c.cfg.Hooks[i]
		lines = append(lines, add(c.log, func(kind eventKind) bool {
			hook, _, _ := h.of(kind)
			return hook != nil
		}, func(ctx context.Context, t told) { c.callHook(ctx, h, t) }))
	}
	return reporter{lines}
}

// logs reports whether the log shows such events.
func (c *Client) logs(kind eventKind) bool {
	var none Hooks
	_, level, _ := none.of(kind)
	return c.log.Enabled(context.Background(), level)
}

func (r *reporter) tell(events ...told) {
	for _, l := range r.lines {
		for _, t := range events {
			if l.wants(t.kind) {
				l.add(t)
			}
		}
	}
}

// close lets the lines end once all is told.
func (r *reporter) close() {
	for _, l := range r.lines {
		l.mu.Lock()
		l.closed = true
		l.mu.Unlock()
		l.poke()
	}
}

// dropped is how many events were not told because a hook is slow, or hangs.
func (r *reporter) dropped() (n int64) {
	for _, l := range r.lines {
		n += l.dropped.Load()
	}
	return n
}

// lastReport is how long a stop waits for hooks, at least: the database may have used up the time of a stop.
const lastReport = 500 * time.Millisecond

// wait waits until all is told, or until end. A hook that has not returned by then never may.
func (r *reporter) wait(ctx context.Context, end time.Time) {
	timer := time.NewTimer(max(time.Until(end), lastReport))
	defer timer.Stop()
	for _, l := range r.lines {
		select {
		case <-l.over:
			continue
		case <-timer.C:
			timer.Reset(0) // for those after it
		}
		if hangs, lost := l.abandon(); hangs && l.log != nil {
			l.log.ErrorContext(ctx, "a hook did not return; the supervisor stops without it, and its events are lost", slog.Int("count", lost))
		}
	}
}

// abandon gives up what waits, if the line is not over yet.
func (l *line) abandon() (hangs bool, lost int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lost = len(l.events)
	l.events = nil
	l.dropped.Add(int64(lost))
	return l.waiting.Load() > 0, lost
}

func (l *line) poke() {
	select {
	case l.ready <- struct{}{}:
	default:
	}
}

func (l *line) add(t told) {
	size := t.event.size()
	if l.waiting.Load()+size > maxUntold {
		n := l.dropped.Add(1)
		if l.log != nil && l.quiet.may("", time.Now()) {
			l.log.Error("events are dropped, because a hook is slow or hangs", slog.Int64("dropped", n))
		}
		return
	}
	l.waiting.Add(size)
	l.mu.Lock()
	l.events = append(l.events, t)
	l.mu.Unlock()
	l.poke()
}

// run tells events in order, until the line is closed and empty.
func (l *line) run(ctx context.Context) {
	defer close(l.over)
	for range l.ready {
		for {
			t, some, closed := l.next()
			if !some && closed {
				return
			}
			if !some {
				break
			}
			l.hear(ctx, t)
			l.waiting.Add(-t.event.size())
		}
	}
}

// next takes the first event.
func (l *line) next() (t told, some, closed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.events) == 0 {
		l.events = nil // what was told, the array holds no longer
		return told{}, false, l.closed
	}
	t, l.events[0] = l.events[0], told{}
	l.events = l.events[1:]
	return t, true, false
}
