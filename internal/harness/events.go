package harness

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"

	"github.com/drover-queue/drover"
)

// EventLog is a subscriber that remembers its events. The zero value is ready.
type EventLog struct {
	mu     sync.Mutex
	events []LoggedEvent
	byID   map[string][]LoggedEvent
}

// LoggedEvent is an event with its name.
type LoggedEvent struct {
	Name string
	drover.Event
}

// EndEvents are the events of which every run that started has exactly one.
func EndEvents() []string {
	return []string{"completed", "failed", "discarded", "snoozed", "cancelled", "released", "stale_settle", "parked"}
}

// Hooks returns hooks that add to the log.
func (l *EventLog) Hooks() drover.Hooks {
	on := func(name string) func(context.Context, drover.Event) {
		return func(_ context.Context, e drover.Event) {
			l.mu.Lock()
			defer l.mu.Unlock()
			name := name
			if name == "released" && e.Duration == 0 { // no run ended: the job waited too long for a slot, or was paused
				name = "not_started"
			}
			if l.byID == nil {
				l.byID = map[string][]LoggedEvent{}
			}
			l.events = append(l.events, LoggedEvent{name, e})
			l.byID[e.JobID] = append(l.byID[e.JobID], LoggedEvent{name, e})
		}
	}
	return drover.Hooks{
		Enqueued: on("enqueued"), Claimed: on("claimed"), Started: on("started"), Completed: on("completed"),
		Failed: on("failed"), Discarded: on("discarded"), Snoozed: on("snoozed"), Cancelled: on("cancelled"),
		Released: on("released"), StaleSettle: on("stale_settle"), Rescued: on("rescued"), Redriven: on("redriven"), Parked: on("parked"), FailureReopened: on("failure_reopened"),
		Paused: on("paused"), Resumed: on("resumed"),
	}
}

// All returns all events.
func (l *EventLog) All() []LoggedEvent {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.events)
}

// Of returns the events of one job. For "" it returns the events that are about no job.
func (l *EventLog) Of(id string) []LoggedEvent {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.byID[id])
}

// Count counts the events of a job that have a name.
func (l *EventLog) Count(id, name string) (n int) {
	for _, e := range l.Of(id) {
		if e.Name == name {
			n++
		}
	}
	return n
}

// Ends counts a job's end events.
func (l *EventLog) Ends(id string) (n int) {
	for _, e := range l.Of(id) {
		if slices.Contains(EndEvents(), e.Name) {
			n++
		}
	}
	return n
}

// End waits for the first end event of a job.
func (l *EventLog) End(t testing.TB, id string) LoggedEvent {
	t.Helper()
	return l.Wait(t, id, EndEvents()...)
}

// Wait waits for the first event of a job with one of the names.
func (l *EventLog) Wait(t testing.TB, id string, names ...string) (found LoggedEvent) {
	t.Helper()
	Eventually(t, func() bool {
		for _, e := range l.Of(id) {
			if slices.Contains(names, e.Name) {
				found = e
				return true
			}
		}
		return false
	})
	return found
}

// Logbook is a log handler that keeps all records.
type Logbook struct {
	mu      sync.Mutex
	records []slog.Record
}

// Enabled implements slog.Handler.
func (b *Logbook) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }

// WithAttrs implements slog.Handler.
func (b *Logbook) WithAttrs([]slog.Attr) slog.Handler { return b }

// WithGroup implements slog.Handler.
func (b *Logbook) WithGroup(string) slog.Handler { return b }

// Handle implements slog.Handler.
func (b *Logbook) Handle(_ context.Context, r slog.Record) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.records = append(b.records, r)
	return nil
}

// Clear forgets all records.
func (b *Logbook) Clear() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.records = nil
}

// From returns the messages of a level or above.
func (b *Logbook) From(level slog.Level) (messages []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.records {
		if r.Level >= level {
			text := r.Message
			r.Attrs(func(a slog.Attr) bool { text += " " + a.String(); return true })
			messages = append(messages, text)
		}
	}
	return messages
}
