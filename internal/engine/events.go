package engine

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"
)

// Event is something that happened to a run or in the engine, for the hooks.
type Event struct {
	Kind       EventKind
	Run        *Run      // of an event about a run; Run.End is how it ended
	At         time.Time // when a run ended, by the process' clock
	Queue      string    // of EventClaimed
	Supervisor string    // of an event without a run
	Count      int       // of EventClaimed and EventRedriven: jobs
}

// Next is when the next run of the job is due, by the process' clock.
func (e *Event) Next() time.Time { return e.Run.End.due(e.At) }

// EventKind is what an event is about.
type EventKind int

// The kinds of events. Hooks has their meaning.
const (
	EventEnqueued EventKind = iota
	EventClaimed
	EventStarted
	EventCompleted
	EventFailed
	EventDiscarded
	EventQuarantined
	EventSnoozed
	EventCancelled
	EventReleased
	EventStaleSettle
	EventRescued
	EventRedriven
	EventParked
	EventFailureReopened
)

// report passes on an event about a run.
func (s *Shared) report(kind EventKind, r *Run) {
	s.Reporter.add(Event{Kind: kind, Run: r, At: s.Now()})
}

// reportEnd passes on the event that ended the run, and what follows from it.
func (s *Shared) reportEnd(r *Run) {
	s.report(r.End.Event, r)
	if r.End.Quarantined {
		s.report(EventQuarantined, r)
	}
}

// reporter hands events to the hooks in order, in a goroutine of its own: a hook that blocks must not block jobs.
type reporter struct {
	mu     sync.Mutex
	events []Event
	closed bool
	ready  chan struct{}
	once   sync.Once
}

func (r *reporter) signal() chan struct{} {
	r.once.Do(func() { r.ready = make(chan struct{}, 1) })
	return r.ready
}

func (r *reporter) add(events ...Event) {
	r.mu.Lock()
	r.events = append(r.events, events...)
	r.mu.Unlock()
	r.poke()
}

func (r *reporter) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.poke()
}

func (r *reporter) poke() {
	select {
	case r.signal() <- struct{}{}:
	default:
	}
}

func (r *reporter) Run(ctx context.Context, h Handler) {
	for range r.signal() {
		r.mu.Lock()
		events, closed := r.events, r.closed
		r.events = nil
		r.mu.Unlock()
		for i := range events {
			h.Emit(ctx, &events[i])
		}
		if closed {
			return
		}
	}
}

// logLimiter lets a message of the same key through once a minute.
type logLimiter struct {
	mu   sync.Mutex
	said map[string]time.Time
}

func (s *logLimiter) Allow(key string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, said := s.said[key]; said && now.Sub(at) < time.Minute {
		return false
	}
	maps.DeleteFunc(s.said, func(_ string, at time.Time) bool { return now.Sub(at) >= time.Minute })
	if s.said == nil {
		s.said = map[string]time.Time{}
	}
	s.said[key] = now
	return true
}

func (s *logLimiter) log(ctx context.Context, log *slog.Logger, level slog.Level, key, message string, attrs ...slog.Attr) {
	if s.Allow(key, time.Now()) {
		log.LogAttrs(ctx, level, message, attrs...)
	}
}
