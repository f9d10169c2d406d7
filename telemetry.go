package drover

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/store"
)

// Event is what Hooks receive. Fields that do not apply to an event are zero.
type Event struct {
	JobID       string
	Queue       string
	Kind        string
	Supervisor  string        // the owner of the run, or the supervisor that emits the event; in Rescued the dead supervisor
	Attempt     int           // number of the run, from 1
	MaxAttempts int           // how many runs the job may have; at the end of a run whose error matches an ErrorCase with a MaxAttempts, that number
	Duration    time.Duration // how long the handler ran, with its middleware
	Wait        time.Duration // from the due time to the start of the run; the server's clock measures it up to the claim, and this process' clock from there
	Class       Class         // how a failed run failed
	Error       string        // text of the failure, as stored; in PeriodicSkipped why there was no job
	Reason      Reason        // why the job was discarded
	Backoff     time.Duration // how long until the next run, in Failed, Snoozed and Rescued
	Next        time.Time     // when the next run is due, by this process' clock
	Count       int           // how many jobs, in Claimed, paced Redriven, CancelMany and DiscardMany; in PeriodicSkipped how many ticks
	Fingerprint string        // the failure group, in FailureReopened
	Scope       Scope         // which jobs a pause holds, in Paused and Resumed
	By, Why     string        // the Audit of what an operator did (Cancel, Discard, Redrive and so on), or of a pause
	Periodic    string        // the schedule that made the job; in PeriodicSkipped the schedule that made no job
	InTx        bool          // in Enqueued: the job is stored in the caller's transaction, which may still roll back

	// Tags and Metadata are the job's tags and metadata. Do not change them: other hooks get the same values. The two
	// fields are nil in events of rescues, schedules and operators, because drover does not read them there.
	Tags     []string
	Metadata json.RawMessage
}

// Hooks are functions that drover calls on events. Leave out functions that you do not need. docs/events.md has a table of
// the events, their fields and units.
//
// The methods of a Client call its hooks in your goroutine: Enqueued, Redriven, and Cancelled and Discarded of jobs
// that were not running. All other events come from a supervisor, after the row has changed. In each supervisor every
// element of Config.Hooks has a goroutine of its own. This goroutine calls the hooks of the element one after another,
// with a context that does not end. A hook that blocks delays neither a job nor the other elements. Up to 16 MiB of
// events wait for each element. Further events are dropped, counted in Stats.DroppedEvents, and logged once a minute. A
// stop waits for hooks for the rest of its own time limit, and at least 250 ms. drover recovers and logs a panic.
//
// Every run with a Started event ends with exactly one of Completed, Failed, Discarded, Parked, Snoozed, Cancelled,
// Released and StaleSettle, unless its process dies: then another supervisor emits Rescued, Discarded or Parked for
// it. Jobs that end without a run (they have expired, or an operator ends them) have only the event of their end.
// CancelMany and DiscardMany emit one event for each of their transactions, with Count set and JobID empty, for the
// jobs that were not running. In the tables, … stands for JobID, Queue, Kind, Supervisor, Attempt, MaxAttempts, Tags
// and Metadata.
//
//	Enqueued     a job was stored             JobID Queue Kind InTx; also Periodic Supervisor of a schedule, Periodic By Why of RunPeriodic, By Why of a rerun
//	Claimed      jobs were claimed            Supervisor Queue Count
//	Started      a handler is called          … Wait
//	Completed    the run succeeded            … Duration
//	Failed       failed run, a retry follows  … Duration Class Error Backoff Next
//	Discarded    the job ended for good       … Duration Class Error Reason; also By Why if an operator did it
//	Quarantined  after Discarded: the job kills processes, or ignores its timeout; see docs/crashes.md
//	                                          … Duration Class Error Reason
//	Parked       the run failed; the job waits for a newer build, or for its place in a redrive … Duration Class Error
//	Snoozed      the job asked to run later   … Duration Backoff Next
//	Cancelled    the job was cancelled        … Duration Class Error; also By Why if an operator did it
//	Released     handed back: by a stop; or before it started, by a pause or because no slot got free in a second
//	                                          … Duration (0 if it had not started)
//	StaleSettle  the outcome was not recorded: the job belonged to another supervisor by then; or the supervisor has
//	             stopped, and until then the database was away or refused the outcome
//	                                          … Duration; of an outcome that was a failure its Class Error Reason
//	Rescued      freed from a dead supervisor … Class Error Backoff Next (Supervisor is the dead one)
//	Redriven     an ended job is due again    JobID By Why; in a paced redrive Supervisor Count instead
//
// One event is about a failure group. The supervisor that adds up the failures emits it some seconds later:
//
//	FailureReopened  a resolved failure came back: a regression   Fingerprint Kind Class Error, JobID: the last job
//
// Two events are about pauses. Each supervisor emits them once it has read and applied the change:
//
//	Paused   no job of the scope starts here any more   Scope By Why Supervisor
//	Resumed  jobs of the scope start here again         Scope By Why Supervisor
//
// One event is about a schedule that made no job. The supervisor that ticked emits it after the row of the schedule has
// changed:
//
//	PeriodicSkipped  ticks were missed, the last job had not ended, another job had the unique key, or the database refused the job
//	                                          Periodic Kind Queue Count Error (which of these) Supervisor
type Hooks struct {
	Enqueued, Claimed, Started, Completed, Failed, Discarded, Quarantined, Parked, Snoozed, Cancelled,
	Released, StaleSettle, Rescued, Redriven, FailureReopened, Paused, Resumed, PeriodicSkipped func(context.Context, Event)
}

// lookUp returns the event's function, and the level and the message of its log line.
func (h *Hooks) lookUp(kind engine.EventKind) (hook func(context.Context, Event), level slog.Level, message string) {
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

// emission is an event on its way to the log and the hooks.
type emission struct {
	kind  engine.EventKind
	event Event
}

// subscribers returns the log and the hooks of the client, in the form that an engine takes.
func (c *Client) subscribers() []engine.Subscriber {
	subscribers := []engine.Subscriber{{
		Hears: c.logs,
		Emit:  func(ctx context.Context, e *engine.Event) { c.logEvent(ctx, emission{e.Kind, publicEvent(e)}) },
	}}
	for i := range c.cfg.Hooks {
		h := &c.cfg.Hooks[i]
		subscribers = append(subscribers, engine.Subscriber{
			Name: fmt.Sprintf("Config.Hooks[%d]", i),
			Hears: func(kind engine.EventKind) bool {
				hook, _, _ := h.lookUp(kind)
				return hook != nil
			},
			Emit: func(ctx context.Context, e *engine.Event) { c.callHook(ctx, h, emission{e.Kind, publicEvent(e)}) },
		})
	}
	return subscribers
}

// logs reports whether the log shows events of a kind.
func (c *Client) logs(kind engine.EventKind) bool {
	_, level, _ := (&Hooks{}).lookUp(kind)
	return c.log.Enabled(context.Background(), level)
}

// emit logs the event and calls its hooks in the caller's goroutine.
func (c *Client) emit(ctx context.Context, t emission) {
	c.logEvent(ctx, t)
	for i := range c.cfg.Hooks {
		c.callHook(ctx, &c.cfg.Hooks[i], t)
	}
}

func (c *Client) logEvent(ctx context.Context, t emission) {
	_, level, message := (&Hooks{}).lookUp(t.kind)
	if t.kind == engine.EventPeriodicSkipped && !strings.HasPrefix(t.event.Error, "missed: ") && !strings.HasPrefix(t.event.Error, "refused: ") {
		level = slog.LevelInfo // OverlapSkip, or Unique: the schedule asks for this
	}
	if t.kind == engine.EventRedriven && t.event.JobID == "" {
		level = slog.LevelDebug // a paced redrive: up to four lines a second, for hours
	}
	if c.log.Enabled(ctx, level) {
		c.log.LogAttrs(ctx, level, message, t.event.attrs()...)
	}
}

// callHook calls a subscriber's hook for the event, if it has one.
func (c *Client) callHook(ctx context.Context, h *Hooks, t emission) {
	hook, _, _ := h.lookUp(t.kind)
	if hook != nil {
		c.observing(ctx, "hook panicked", func() { hook(ctx, t.event) })
	}
}

// contained calls the application's log handler and recovers from its panics, which would otherwise end the process.
// After a panic the field spare writes the line, because somebody may have to act on it.
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

// WithAttrs implements slog.Handler. drover itself never calls it.
func (h contained) WithAttrs(attrs []slog.Attr) slog.Handler {
	return contained{h.handler.WithAttrs(attrs), h.spare.WithAttrs(attrs), h.client}
}

// WithGroup implements slog.Handler. drover itself never calls it.
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
		attrs = append(attrs, slog.Float64("duration_ms", store.InMillis(e.Duration)))
	}
	if e.Backoff != 0 {
		attrs = append(attrs, slog.Float64("backoff_ms", store.InMillis(e.Backoff)))
	}
	return attrs
}

func enqueuedEvent(job *newJob, inTx bool) emission {
	return emission{engine.EventEnqueued, Event{
		JobID: job.ID, Queue: job.Queue, Kind: job.Kind, InTx: inTx, Tags: job.Tags, Metadata: job.Metadata,
	}}
}

// publicEvent converts an event of the engine into the Event that hooks get.
func publicEvent(e *engine.Event) Event {
	o := &e.End
	public := Event{
		JobID: e.JobID, Queue: e.Queue, Kind: e.JobKind, Supervisor: e.Supervisor, Periodic: e.Periodic, Attempt: e.Attempt, MaxAttempts: e.MaxAttempts, Count: e.Count,
		Wait: e.Wait, Duration: o.Duration, Class: Class(o.Class), Error: o.Text, Reason: Reason(o.Reason),
	}
	if e.Labels != nil {
		public.Tags, public.Metadata = e.Labels.Tags, e.Labels.Metadata
	}
	switch e.Kind { //nolint:exhaustive // other events have none of these fields
	case engine.EventFailed, engine.EventSnoozed, engine.EventRescued:
		public.Backoff, public.Next = o.Delay, e.Next
	case engine.EventFailureReopened:
		public.Fingerprint = o.Fingerprint
	case engine.EventPaused, engine.EventResumed:
		public.Scope, public.By, public.Why = Scope(e.Scope), e.By, e.Why
	}
	return public
}
