package drover

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/drover-queue/drover/internal/engine"
)

// Event is what Hooks are told. Fields that an event has no use for are zero.
type Event struct {
	JobID       string
	Queue       string
	Kind        string
	Supervisor  string        // whose run it is
	Attempt     int           // which run, from 1
	MaxAttempts int           // effective; of an end event that of its ErrorCase, if it has one
	Duration    time.Duration // how long the handler ran
	Wait        time.Duration // how late the run started after it was due, by the server's clock up to the claim
	Class       Class         // of a failed run
	Error       string        // text of the failure, as stored; of PeriodicSkipped why there was no job
	Reason      Reason        // of a discard
	Backoff     time.Duration // until the next run: failed, snoozed
	Next        time.Time     // when that is, by this process' clock
	Count       int           // claimed in one claim, made due in one tick of a redrive, or ended in one transaction by CancelMany or DiscardMany; ticks of PeriodicSkipped
	Fingerprint string        // of a failure group: failure_reopened
	Scope       Scope         // of a pause: paused, resumed
	By, Why     string        // who changed it last, and why: paused, resumed
	Periodic    string        // the schedule that made the job, or that made none
	InTx        bool          // of Enqueued: the job is stored in a transaction of the caller's, which may still roll back

	// Tags and Metadata are the job's. They belong to the event: do not change them. A rescue, a schedule and an
	// operator's verb do not read them, and leave them nil.
	Tags     []string
	Metadata json.RawMessage
}

// Hooks are functions called on events; nil ones are left out. Adding a field breaks nobody.
//
// They run outside all locks. Enqueued, Started and Redriven run in the goroutine that caused them, except the events of
// schedules and of paced redrives. All other events run one after another in a goroutine of the supervisor's, after the
// row has changed, and never when it has not: a hook that blocks delays later hooks and Run's return, not jobs. So a
// run's Started may come before the end of the run before. A panic is contained and logged.
//
// Every run that Started ends in exactly one of Completed, Failed, Discarded, Parked, Snoozed, Cancelled, Released and
// StaleSettle, unless its process dies: then another supervisor's Rescued (or Discarded, Parked) tells of it. Jobs that
// end without a run (expired, or an operator's verb) have the end event alone. Of CancelMany and DiscardMany one event
// with Count, and no JobID, tells of all that did not run in one of their transactions.
//
//	Enqueued     a job was stored             JobID Queue Kind InTx; by a schedule Supervisor Periodic
//	Claimed      jobs were claimed            Supervisor Queue Count
//	Started      a handler is called          … Wait
//	Completed    the run went well            … Duration
//	Failed       it failed, will be retried   … Duration Class Error Backoff Next
//	Discarded    the job ended for good       … Duration Class Error Reason
//	Quarantined  after that: it is convicted of killing processes, or deaf; docs/crashes.md says what to do
//	                                          … Duration Class Error Reason
//	Parked       it failed and waits for a newer build … Duration Class Error
//	Snoozed      it waits, attempt given back … Duration Backoff Next
//	Cancelled    nobody wants it any more     … Duration Error
//	Released     handed back by a stop, or by a pause before it started   … Duration
//	StaleSettle  the outcome was refused: the job was someone else's by then
//	Rescued      freed from a dead supervisor … Class Error Backoff (Supervisor is the dead one)
//	Redriven     an operator made it due      JobID; of a paced redrive Supervisor Count
//
// One is about a failure group, told by the supervisor that adds up the failures, some seconds after:
//
//	FailureReopened  a resolved failure came back: a regression   Fingerprint Kind Class Error, JobID: the last
//
// Two are about pauses. Each supervisor calls them when it follows the change:
//
//	Paused   no job of the scope starts here any more   Scope By Why Supervisor
//	Resumed  they start again                           Scope By Why Supervisor
//
// One is about a schedule that made no job. Its supervisor emits it after the row of the schedule has changed:
//
//	PeriodicSkipped  ticks were missed, the last job had not ended, or the database refused the job
//	                                          Periodic Kind Queue Count Error (which of these) Supervisor
type Hooks struct {
	Enqueued, Claimed, Started, Completed, Failed, Discarded, Quarantined, Parked, Snoozed, Cancelled,
	Released, StaleSettle, Rescued, Redriven, FailureReopened, Paused, Resumed, PeriodicSkipped func(context.Context, Event)
}

// of picks the event's function and says how it is logged.
func (h *Hooks) of(kind engine.EventKind) (hook func(context.Context, Event), level slog.Level, message string) {
	switch kind {
	case engine.EventEnqueued:
		return h.Enqueued, slog.LevelDebug, "job enqueued"
	case engine.EventClaimed:
		return h.Claimed, slog.LevelDebug, "jobs claimed"
	case engine.EventStarted:
		return h.Started, slog.LevelDebug, "job started"
	case engine.EventCompleted:
		return h.Completed, slog.LevelDebug, "job completed"
	case engine.EventFailed:
		return h.Failed, slog.LevelDebug, "job failed, will be retried"
	case engine.EventDiscarded:
		return h.Discarded, slog.LevelWarn, "job discarded"
	case engine.EventQuarantined:
		return h.Quarantined, slog.LevelError, "job quarantined, it kills or stalls processes"
	case engine.EventSnoozed:
		return h.Snoozed, slog.LevelDebug, "job snoozed"
	case engine.EventCancelled:
		return h.Cancelled, slog.LevelInfo, "job cancelled"
	case engine.EventReleased:
		return h.Released, slog.LevelDebug, "job handed back"
	case engine.EventStaleSettle:
		return h.StaleSettle, slog.LevelWarn, "stale outcome refused"
	case engine.EventRescued:
		return h.Rescued, slog.LevelWarn, "job rescued"
	case engine.EventRedriven:
		return h.Redriven, slog.LevelInfo, "job redriven"
	case engine.EventParked:
		return h.Parked, slog.LevelInfo, "job parked"
	case engine.EventFailureReopened:
		return h.FailureReopened, slog.LevelWarn, "failure came back after it had been resolved"
	case engine.EventPaused:
		return h.Paused, slog.LevelInfo, "jobs paused"
	case engine.EventResumed:
		return h.Resumed, slog.LevelInfo, "jobs resumed"
	case engine.EventPeriodicSkipped:
		return h.PeriodicSkipped, slog.LevelWarn, "schedule ticked without a job"
	}
	return nil, slog.LevelDebug, ""
}

// told is an event on its way to the hooks.
type told struct {
	kind  engine.EventKind
	event Event
}

// listens reports whether anyone would notice the event.
func (c *Client) listens(ctx context.Context, kind engine.EventKind) bool {
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
	var none Hooks
	_, level, message := none.of(t.kind)
	if c.log.Enabled(ctx, level) {
		c.log.LogAttrs(ctx, level, message, t.event.attrs()...)
	}
	for i := range c.cfg.Hooks {
		if hook, _, _ := c.cfg.Hooks[i].of(t.kind); hook != nil {
			c.callHook(ctx, hook, t.event)
		}
	}
}

func (c *Client) callHook(ctx context.Context, hook func(context.Context, Event), e Event) {
	defer func() {
		if p := recover(); p != nil {
			c.log.ErrorContext(ctx, "hook panicked", slog.String("panic", c.clean(recoveredText(p), maxErrorText)))
		}
	}()
	hook(ctx, e)
}

// contained is the application's log handler. Its panic would end the process. If it panics, spare writes the line:
// somebody may have to act on a lost line.
type contained struct {
	handler, spare slog.Handler
	client         *Client
}

func (h contained) Enabled(ctx context.Context, level slog.Level) (enabled bool) {
	defer func() {
		if recover() != nil {
			enabled = h.spare.Enabled(ctx, level)
		}
	}()
	return h.handler.Enabled(ctx, level)
}

func (h contained) Handle(ctx context.Context, r slog.Record) (err error) {
	defer func() {
		if p := recover(); p != nil {
			r.AddAttrs(slog.String("log_handler_panicked", h.client.clean(recoveredText(p), maxErrorText)))
			err = h.spare.Handle(ctx, r)
		}
	}()
	return h.handler.Handle(ctx, r.Clone())
}

// WithAttrs implements slog.Handler. drover itself logs whole lines.
func (h contained) WithAttrs(attrs []slog.Attr) slog.Handler {
	return contained{h.handler.WithAttrs(attrs), h.spare.WithAttrs(attrs), h.client}
}

// WithGroup implements slog.Handler.
func (h contained) WithGroup(name string) slog.Handler {
	return contained{h.handler.WithGroup(name), h.spare.WithGroup(name), h.client}
}

func (e *Event) attrs() []slog.Attr {
	attrs := make([]slog.Attr, 0, 15)
	for _, a := range []struct{ key, value string }{
		{"job_id", e.JobID},
		{"queue", e.Queue},
		{"kind", e.Kind},
		{"supervisor", e.Supervisor},
		{"class", string(e.Class)},
		{"error", e.Error},
		{"reason", string(e.Reason)},
		{"fingerprint", e.Fingerprint},
		{"scope", string(e.Scope)},
		{"by", e.By},
		{"why", e.Why},
		{"periodic", e.Periodic},
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
	if e.InTx {
		attrs = append(attrs, slog.Bool("in_tx", true))
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
	return told{engine.EventEnqueued, Event{
		JobID: job.ID, Queue: job.Queue, Kind: job.Kind, InTx: inTx, Tags: job.Tags, Metadata: job.Metadata,
	}}
}
