package drover

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"sync"
	"time"
)

// Event is what Hooks receive. Fields that do not apply to an event are zero.
type Event struct {
	JobID       string
	Queue       string
	Kind        string
	Supervisor  string        // that owns the run, or that emits the event; of Rescued the dead one
	Attempt     int           // number of the run, from 1
	MaxAttempts int           // the effective number; at the end of a run that of its ErrorCase, if it has one
	Duration    time.Duration // how long the handler ran
	Wait        time.Duration // from the due time to the start of the run, by the server's clock up to the claim
	Class       Class         // of a failed run
	Error       string        // text of the failure, as stored
	Reason      Reason        // of a discard
	Backoff     time.Duration // until the next run, of Failed and Snoozed
	Next        time.Time     // time of the next run, by this process' clock
	Count       int           // jobs claimed in one claim, made due in one tick of a redrive, or ended or edited in one transaction of CancelMany, DiscardMany or EditMany
	Fingerprint string        // of the failure group, of FailureReopened
	By          string        // who cancelled, discarded, redrove, edited, reran or paused it, as given to the verb
	Why         string        // and why, in the same way
	Periodic    string        // the schedule that made the job, or that made none

	// InTx is whether Enqueued comes from the caller's transaction, which may still roll back.
	InTx bool

	// Tags and Metadata are the job's, in Enqueued and in the events of a run. They are missing
	// after a rescue, for jobs of schedules, and in the events of verbs. Do not change them.
	Tags     []string
	Metadata json.RawMessage
}

// Hooks are functions that drover calls on events; nil ones are left out. Later versions may add
// fields.
//
// Hooks run outside all locks. Started, and the events of a Client's methods (Enqueued, Redriven,
// Edited, and Cancelled and Discarded of jobs that did not run), run in the goroutine that caused
// them. For all other events, such as those of schedules and paced redrives, each entry of
// Config.Hooks has a goroutine of its own. It calls the hooks one after another, after the row has
// changed, and only if it has. So a run's Started may come before the end event of the run before.
// Inside a transaction of the caller's, Enqueued comes before the commit, with InTx set. drover
// recovers and logs a panic in a hook.
//
// A hook that hangs in such a goroutine costs its own events, and no job. Up to 16 MiB of them
// wait. drover drops further ones, counts them in Stats.DroppedEvents, and logs that once a minute.
// A stop waits for hooks until at most 5 s after the jobs have ended, or 0.5 s more if the database
// has used these up.
//
// Every run that Started ends in exactly one of Completed, Failed, Discarded, Parked, Snoozed,
// Cancelled, Released and StaleSettle. If its process dies, another supervisor reports Rescued (or
// Discarded, Parked) instead. Jobs that end without a run (because they expired, or by an
// operator's verb, with By and Why) have only the end event. CancelMany, DiscardMany and EditMany
// emit one event per transaction, with Count set and JobID empty, for the jobs that were not
// running.
//
//	Enqueued     a job was stored             JobID Queue Kind; of a schedule Supervisor Periodic; of Rerun By Why
//	Claimed      jobs were claimed            Supervisor Queue Count
//	Started      a handler is called          … Wait
//	Completed    the run succeeded            … Duration
//	Failed       it failed, will be retried   … Duration Class Error Backoff Next
//	Discarded    the job ended for good       … Duration Class Error Reason
//	Quarantined  after Discarded: the job kills processes, or ignores its timeout; see docs/crashes.md
//	                                          … Duration Class Error Reason
//	Parked       it failed and waits for a newer build, or for its place in a redrive … Duration Class Error
//	Snoozed      it waits, attempt given back … Duration Backoff Next
//	Cancelled    nobody wants it any more     … Duration Error
//	Released     handed back by a stop        … Duration
//	StaleSettle  the outcome was refused: the job belonged to another supervisor by then
//	Rescued      freed from a dead supervisor … Class Error Backoff (Supervisor is the dead one)
//	Redriven     an ended job is due again    JobID By Why; of a paced redrive Supervisor Count instead
//	Edited       an operator changed it while it waited   JobID By Why; of EditMany Count, no JobID
//
// One event is about a failure group. The supervisor that adds up the failures emits it some
// seconds later:
//
//	FailureReopened  a resolved failure came back: a regression   Fingerprint Kind Class Error, JobID: the last job
//
// One is about a schedule that made no job. Its supervisor emits it after the row of the schedule has
// changed:
//
//	PeriodicSkipped  ticks were missed, the last job had not ended, or the database refused the job
//	                                          Periodic Kind Queue Count Error (which of these) Supervisor
//
// Two are about a queue, a kind, or everything (with neither Queue nor Kind). Each supervisor emits
// Paused once it starts no more such jobs, and Resumed once it starts them again:
//
//	Paused       Client.Pause, or somebody in psql   Queue or Kind, By Why Supervisor
//	Resumed      or the time of the pause is over    Queue or Kind, By Why Supervisor
type Hooks struct {
	Enqueued, Claimed, Started, Completed, Failed, Discarded, Quarantined, Parked, Snoozed, Cancelled,
	Released, StaleSettle, Rescued, Redriven, Edited, FailureReopened, PeriodicSkipped, Paused, Resumed func(context.Context, Event)
}

type eventKind int

const (
	eventEnqueued eventKind = iota
	eventClaimed
	eventStarted
	eventCompleted
	eventFailed
	eventDiscarded
	eventQuarantined
	eventSnoozed
	eventCancelled
	eventReleased
	eventStaleSettle
	eventRescued
	eventRedriven
	eventEdited
	eventParked
	eventFailureReopened
	eventPeriodicSkipped
	eventPaused
	eventResumed
)

// of picks the event's function and says how it is logged.
func (h *Hooks) of(kind eventKind) (hook func(context.Context, Event), level slog.Level, message string) {
	switch kind {
	case eventEnqueued:
		return h.Enqueued, slog.LevelDebug, "job enqueued"
	case eventClaimed:
		return h.Claimed, slog.LevelDebug, "jobs claimed"
	case eventStarted:
		return h.Started, slog.LevelDebug, "job started"
	case eventCompleted:
		return h.Completed, slog.LevelDebug, "job completed"
	case eventFailed:
		return h.Failed, slog.LevelDebug, "job failed and will be retried"
	case eventDiscarded:
		return h.Discarded, slog.LevelWarn, "job discarded"
	case eventQuarantined:
		return h.Quarantined, slog.LevelError, "job quarantined, because it kills or stalls processes"
	case eventSnoozed:
		return h.Snoozed, slog.LevelDebug, "job snoozed"
	case eventCancelled:
		return h.Cancelled, slog.LevelInfo, "job cancelled"
	case eventReleased:
		return h.Released, slog.LevelDebug, "job handed back"
	case eventStaleSettle:
		return h.StaleSettle, slog.LevelWarn, "outcome not recorded, because the run has lost its job"
	case eventRescued:
		return h.Rescued, slog.LevelWarn, "job rescued"
	case eventRedriven:
		return h.Redriven, slog.LevelInfo, "job redriven"
	case eventEdited:
		return h.Edited, slog.LevelInfo, "job edited"
	case eventParked:
		return h.Parked, slog.LevelInfo, "job parked"
	case eventFailureReopened:
		return h.FailureReopened, slog.LevelWarn, "resolved failure came back"
	case eventPeriodicSkipped:
		return h.PeriodicSkipped, slog.LevelWarn, "schedule ticked without a job"
	case eventPaused:
		return h.Paused, slog.LevelInfo, "paused"
	case eventResumed:
		return h.Resumed, slog.LevelInfo, "resumed"
	}
	return nil, slog.LevelDebug, ""
}

// told is an event on its way to the hooks.
type told struct {
	kind  eventKind
	event Event
}

// listens reports whether anyone would notice the event.
func (c *Client) listens(ctx context.Context, kind eventKind) bool {
	var none Hooks
	if _, level, _ := none.of(kind); c.log.Enabled(ctx, level) {
		return true
	}
	for i := range c.cfg.Hooks {
		if hook, _, _ := c.cfg.Hooks[i].of(kind); hook != nil {
			return true
		}
	}
	return false
}

// emit logs the event and calls its hooks.
func (c *Client) emit(ctx context.Context, t told) {
	c.logEvent(ctx, t)
	for i := range c.cfg.Hooks {
		c.callHook(ctx, &c.cfg.Hooks[i], t)
	}
}

func (c *Client) logEvent(ctx context.Context, t told) {
	var none Hooks
	_, level, message := none.of(t.kind)
	if c.log.Enabled(ctx, level) {
		c.log.LogAttrs(ctx, level, message, t.event.attrs()...)
	}
}

// callHook calls one subscriber's hook for the event, if it has one.
func (c *Client) callHook(ctx context.Context, h *Hooks, t told) {
	hook, _, _ := h.of(t.kind)
	if hook == nil {
		return
	}
	defer func() {
		if p := recover(); p != nil {
			c.log.ErrorContext(ctx, "hook panicked", slog.String("panic", c.clean(recoveredText(p), maxErrorText)))
		}
	}()
	hook(ctx, t.event)
}

// size is about how many bytes an event that waits takes.
func (e *Event) size() int64 {
	const fixed = 640 // of its fields, and of short texts
	n := fixed + len(e.Error) + len(e.Metadata)
	for _, tag := range e.Tags {
		n += len(tag)
	}
	return int64(n)
}

func (e *Event) attrs() []slog.Attr {
	attrs := make([]slog.Attr, 0, 12)
	for _, a := range []struct{ key, value string }{
		{"id", e.JobID},
		{"queue", e.Queue},
		{"kind", e.Kind},
		{"supervisor", e.Supervisor},
		{"class", string(e.Class)},
		{"error", e.Error},
		{"reason", string(e.Reason)},
		{"fingerprint", e.Fingerprint},
		{"periodic", e.Periodic},
		{"by", e.By},
		{"why", e.Why},
	} {
		if a.value != "" {
			attrs = append(attrs, slog.String(a.key, a.value))
		}
	}
	for _, a := range []struct {
		key   string
		value int
	}{{"attempt", e.Attempt}, {"max_attempts", e.MaxAttempts}, {"count", e.Count}} {
		if a.value != 0 {
			attrs = append(attrs, slog.Int(a.key, a.value))
		}
	}
	if e.Duration != 0 {
		attrs = append(attrs, slog.Float64("duration_ms", float64(e.Duration.Microseconds())/1000))
	}
	if e.Backoff != 0 {
		attrs = append(attrs, slog.Float64("backoff_ms", float64(e.Backoff.Microseconds())/1000))
	}
	return attrs
}

func enqueuedEvent(job *newJob, inTx bool) told {
	return told{eventEnqueued, Event{
		JobID: job.ID, Queue: job.Queue, Kind: job.Kind, InTx: inTx, Tags: job.Tags, Metadata: job.Metadata,
	}}
}

// tellAll is the event that ended the run, and what follows from it.
func (o *outcome) tellAll() []told {
	events := []told{o.tell(o.event)}
	if o.quarantined {
		events = append(events, o.tell(eventQuarantined))
	}
	return events
}

// tell is an event of the run.
func (o *outcome) tell(kind eventKind) told {
	r := o.run
	e := Event{
		JobID: r.job.ID, Queue: r.job.Queue, Kind: r.job.Kind, Supervisor: r.owner, Attempt: r.job.Attempt,
		MaxAttempts: o.maxAttempts(), Duration: o.duration, Class: o.class, Error: o.text, Reason: o.reason,
		Tags: r.job.Tags, Metadata: r.job.Metadata,
	}
	if kind == eventFailed || kind == eventSnoozed || kind == eventRescued {
		e.Backoff, e.Next = o.delay, o.due(r.shared.now())
	}
	return told{kind, e}
}

// sparingly lets a message of the same key through once a minute.
type sparingly struct {
	mu   sync.Mutex
	said map[string]time.Time
}

func (s *sparingly) may(key string, now time.Time) bool {
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

func (s *sparingly) log(ctx context.Context, log *slog.Logger, level slog.Level, key, message string, attrs ...slog.Attr) {
	if s.may(key, time.Now()) {
		log.LogAttrs(ctx, level, message, attrs...)
	}
}
