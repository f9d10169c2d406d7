package engine

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"
)

// Event is something that happened to a run or in the engine. Hooks get it. It holds no run, because a run holds the
// args of its job, and events may wait for a slow hook.
type Event struct {
	Kind        EventKind
	JobID       string
	JobKind     string
	Queue       string
	Supervisor  string
	Attempt     int
	MaxAttempts int
	Wait        time.Duration // in EventStarted: how long the job had been due
	End         Outcome       // how the run ended, without its Entry
	Next        time.Time     // in EventFailed, EventSnoozed and EventRescued: when the next run is due, by the process' clock
	Count       int           // in EventClaimed and EventRedriven: how many jobs; in EventPeriodicSkipped: how many ticks
	Scope       string        // Scope, By and Why are set in EventPaused and EventResumed
	By, Why     string
	Periodic    string  // the schedule that made the job; in EventPeriodicSkipped the schedule that made none
	Labels      *Labels // the labels of the job; nil: it has none, or they are not known
}

// event makes an event about a run.
func (r *Run) event(kind EventKind) Event {
	e := Event{
		Kind: kind, JobID: r.ID, JobKind: r.Kind, Queue: r.Queue, Supervisor: r.Owner, Attempt: r.Attempt, MaxAttempts: r.MaxAttempts, Labels: r.Labels,
	}
	if kind == EventStarted {
		e.Wait = r.waited()
		return e
	}
	if e.End = r.End; e.End.MaxAttempts > 0 {
		e.MaxAttempts = e.End.MaxAttempts
	}
	e.End.Entry, e.End.Slot = nil, nil
	return e
}

// waited returns how long the job had been due when its run started.
func (r *Run) waited() time.Duration { return r.Lateness + r.StartedAt.Sub(r.Received) }

// EventKind is the kind of an event.
type EventKind int

// The kinds of events. The type Hooks explains them.
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
	EventPaused
	EventResumed
	EventPeriodicSkipped
)

// report counts an event about a run, and passes it on if a subscriber wants it.
func (s *Shared) report(kind EventKind, r *Run) {
	s.count(kind, r)
	if s.Reporter.Hears(kind) {
		e := r.event(kind)
		switch kind { //nolint:exhaustive // after other events, the job does not wait for a next run
		case EventFailed, EventSnoozed, EventRescued:
			e.Next = r.End.due(s.Now())
		}
		s.Reporter.add(&e)
	}
}

// mostWaited is the most that one job adds to the field waited of a tally, so that the sum of many jobs does not
// overflow.
const mostWaited = 365 * 24 * time.Hour

// count adds an event about a run to the tally of the queue. If the field From is nil, the run counts in the served
// queue with the name of the job's queue, if there is such a queue.
func (s *Shared) count(kind EventKind, r *Run) {
	q := r.From
	if q == nil {
		for _, served := range s.QueueStates() {
			if served.Name == r.Queue {
				q = served
			}
		}
		if q == nil {
			return
		}
	}
	switch kind {
	case EventStarted:
		q.tally.started.Add(1)
		q.tally.waited.Add(min(max(r.waited(), 0), mostWaited).Microseconds())
	case EventCompleted:
		q.tally.completed.Add(1)
	case EventFailed, EventParked:
		q.tally.failed.Add(1)
	case EventDiscarded:
		q.tally.discarded.Add(1)
	}
}

// reportEnd passes on the event with which the run ended, and the events that follow from it.
func (s *Shared) reportEnd(r *Run) {
	s.report(r.End.Event, r)
	if r.End.Quarantined {
		s.report(EventQuarantined, r)
	}
}

// logLimiter lets messages with the same key through at most once a minute.
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
