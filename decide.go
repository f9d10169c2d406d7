package drover

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"github.com/drover-queue/drover/internal/blame"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/fingerprint"
	"github.com/drover-queue/drover/internal/pgtext"
	"github.com/drover-queue/drover/internal/store"
)

// maxUncounted is how many runs of one job may end with DontCount before further such runs count as attempts.
const maxUncounted = 100

// draft is an outcome that is not fully decided yet.
type draft struct {
	engine.Outcome
	task      *task
	err       error
	errorCase *ErrorCase // the ErrorCase that matches err; nil if none does
	death     *blame.Death
}

// decide turns the handler's return into an outcome: see "How a run can end" in docs/outcomes.md.
func (t *task) decide(err error) engine.Outcome {
	if err == nil {
		return engine.Outcome{State: store.Completed, Event: engine.EventCompleted, Duration: t.Ran()}
	}
	v := read(err)
	switch {
	case v.Kind == VerdictSnooze:
		return engine.Outcome{State: store.Scheduled, Delay: v.Delay, GiveBack: true, Snoozed: true, Event: engine.EventSnoozed, Duration: t.Ran()}
	case v.Kind == VerdictCancel:
		e := t.draft(err)
		e.State, e.Event, e.Class = store.Cancelled, engine.EventCancelled, string(ClassError)
		return e.done()
	case t.interrupted() && (v.said == nil || v.said.how != VerdictDiscard || errors.Is(err, context.Canceled)):
		// The job is not at fault. If somebody has cancelled the job, its row shows that already. But perhaps somebody
		// has redriven the job since the cancel. So the outcome here must not end the job.
		return t.cutShort(err, v)
	}
	return t.failed(err, v)
}

// draft begins the outcome of a run that ended with err.
func (t *task) draft(err error) *draft {
	return &draft{Outcome: engine.Outcome{Duration: t.Ran()}, task: t, err: err}
}

// done adds the entry for the column errors, and returns the outcome.
func (e *draft) done() engine.Outcome {
	e.Entry = e.entry()
	return e.Outcome
}

// failed returns the outcome of a run that failed.
func (t *task) failed(err error, v reading) engine.Outcome {
	e := t.draft(err)
	e.fail(v)
	return e.done()
}

// interrupted reports whether something other than the job cut the run short: a stop, a lost lease, or a cancel.
func (t *task) interrupted() bool {
	cause := t.Cause()
	return errors.Is(cause, ErrShutdown) || errors.Is(cause, ErrLeaseLost) || errors.Is(cause, ErrCancelled)
}

// cutShort returns the outcome of a run that was interrupted after its handler had begun. The job is due again, and the
// run does not count. If the job may have only one attempt, the run counts as failed.
func (t *task) cutShort(err error, v reading) engine.Outcome {
	if t.MaxAttempts > 1 {
		return engine.Released(t.Ran())
	}
	if v.said == nil {
		v = worthRetry(err) // the interruption caused the error, so RetryIf and the cases are not asked
	}
	return t.failed(fmt.Errorf("the only attempt was cut short (%w): %w", t.Cause(), err), v)
}

// deaf returns the outcome of a run whose handler ignores its timeout. The run counts as a crash, because its handler
// might never return. No other job can be the cause of this crash, so the job is discarded as soon as it has
// quarantineAfter crashes.
func (t *task) deaf() engine.Outcome {
	e := t.draft(engine.ErrTimeout)
	e.Crashed = true
	e.fail(worthRetry(e.err))
	if t.Crashes+1 >= t.handler.quarantineAfter {
		e.discard(ReasonCrashed)
		e.Quarantined = true
	}
	return e.done()
}

// fail decides between a retry and the end of a job whose run failed.
func (e *draft) fail(v reading) {
	t := e.task
	class := t.classOf(e.err, v)
	e.Class = string(class)
	w := t.worker
	asked := v.said == nil && class != ClassPanic && class != ClassDecode // the error is the handler's own, and no verdict
	if asked {
		e.errorCase = t.errorCase(e.err)
	}
	switch {
	case class == ClassDecode:
		e.discard(ReasonUndecodable)
	case class == ClassPanic && w.opts.DiscardOnPanic:
		e.discard(ReasonPanic)
	case v.said != nil && v.Kind == VerdictDiscard:
		e.discard(ReasonUnrecoverable)
	case e.errorCase != nil && e.errorCase.Discard:
		e.discard(ReasonUnrecoverable)
	case asked && e.errorCase == nil && t.permanent(v):
		e.discard(ReasonUnrecoverable)
	case asked && e.errorCase == nil && w.opts.RetryIf != nil && !t.retryIf(e.err):
		e.discard(ReasonUnrecoverable)
	default:
		e.retry(v)
	}
	if c := e.errorCase; c != nil {
		e.MaxAttempts = c.MaxAttempts
	}
}

func (e *draft) discard(reason Reason) {
	e.State, e.Reason, e.Event, e.Delay = store.Discarded, string(reason), engine.EventDiscarded, 0 // no run follows
}

// worthRetry returns the verdict on an error that did not come from the handler. RetryIf and Cases are written for
// errors of the handler, so they are not called.
func worthRetry(err error) reading { return read(Retry(err)) }

// retry makes the job due later. It discards the job if it has no attempt or no time left, or if the strategy stops.
func (e *draft) retry(v reading) {
	t := e.task
	e.Uncounted = v.Kind == VerdictDontCount && t.uncounted < maxUncounted
	e.GiveBack = e.Uncounted
	strategy, attempts := t.strategy, t.MaxAttempts
	if c := e.errorCase; c != nil {
		attempts = cmp.Or(c.MaxAttempts, attempts)
		if c.Retry != nil {
			strategy = c.Retry
		}
	}
	if !e.Uncounted && t.Attempt >= attempts {
		e.discard(ReasonAttemptsExhausted)
		return
	}
	goOn := true
	if v.Kind == VerdictRetryAfter {
		e.Delay = throttledDelay(t.ID, t.Attempt, v.Delay)
	} else {
		e.Delay, goOn = t.backoff(strategy, e.err)
	}
	switch {
	case !goOn:
		e.discard(ReasonUnrecoverable)
	case t.OutOfTime(e.Delay):
		e.discard(ReasonTimeBudget)
	default:
		e.State, e.Event = store.Retryable, engine.EventFailed
	}
}

// throttledDelay lengthens the wait of a RetryAfter by up to a fifth, so that jobs that call the same server do not run
// again together.
func throttledDelay(id string, attempt int, d time.Duration) time.Duration {
	return JitterUp(0.2).apply(d, id, attempt)
}

func (t *task) classOf(err error, v reading) Class {
	switch {
	case v.class != "":
		return v.class
	case errors.Is(t.Cause(), engine.ErrTimeout) || errors.Is(err, engine.ErrTimeout):
		return ClassTimeout
	}
	return ClassError
}

// retryIf calls the worker's RetryIf. If RetryIf panics, retryIf returns true.
func (t *task) retryIf(err error) (yes bool) {
	defer func() {
		if p := recover(); p != nil {
			text := t.handler.client.clean(recoveredText(p), maxErrorText)
			t.handler.client.log.Error("RetryIf panicked", t.job.inLog(), slog.String("panic", text))
			yes = true
		}
	}()
	return t.worker.opts.RetryIf(err)
}

// permanent reports whether the error is permanent. It logs a panic of the error's method Permanent.
func (t *task) permanent(v reading) bool {
	if v.broken != "" {
		text := t.handler.client.clean(v.broken, maxErrorText)
		t.handler.client.log.Error("Permanent of an error panicked", t.job.inLog(), slog.String("panic", text))
	}
	return v.Kind == VerdictDiscard
}

// errorCase returns the first of the worker's cases that matches the error, or nil if no case does.
func (t *task) errorCase(err error) *ErrorCase {
	for i := range t.worker.opts.Cases {
		if c := &t.worker.opts.Cases[i]; t.isCase(c, err) {
			return c
		}
	}
	return nil
}

// isCase calls the If of a case. If the If panics, isCase returns false.
func (t *task) isCase(c *ErrorCase, err error) (yes bool) {
	defer func() {
		if p := recover(); p != nil {
			text := t.handler.client.clean(recoveredText(p), maxErrorText)
			t.handler.client.log.Error("If of an ErrorCase panicked", t.job.inLog(), slog.String("case", c.Name), slog.String("panic", text))
			yes = false
		}
	}()
	return c.If(err)
}

// backoff asks a strategy for the wait. A Custom recovers from a panic of its function.
func (t *task) backoff(strategy RetryStrategy, err error) (time.Duration, bool) {
	return t.handler.wait(strategy, FailedRun{
		Attempt: t.Attempt, RetryIndex: t.Attempt - 1, Err: err, Job: &t.job, LastDelay: t.job.LastDelay,
	})
}

const (
	maxErrorText  = 640      // bytes; with this limit an entry stays within 1 KiB, even with a type's name of 60 bytes
	maxErrorTrace = 8 << 10  // bytes; only the newest entry has a trace
	traceBuffer   = 16 << 10 // bytes; the stored trace has at most half of them
	maxErrorRead  = 64 << 10 // bytes; the rest of a longer text is not looked at
)

// entry returns the entry for the column errors. Config.Redact gets the text before it is cut for the entry.
func (e *draft) entry() json.RawMessage {
	t, clean := e.task, e.task.handler.client.clean
	text, trace, kind := "", "", ""
	var p *panicError
	if e.err != nil {
		text, kind = clean(errorText(e.err), maxErrorRead), errorType(e.err)
		if errors.As(e.err, &p) {
			trace = p.trace
		}
	}
	named, room := "", maxErrorText-max(0, len(kind)-60)
	if e.errorCase != nil {
		named = e.errorCase.Name
		room -= len(named) + 16
	}
	e.Text, _ = pgtext.Sanitize(text, room)
	shown := trace
	switch taken := t.Stack(); {
	case shown != "":
	case e.Class == string(ClassTimeout) && taken != "":
		shown = taken
	default:
		shown = ownStack(e.err)
	}
	// The fingerprint is made from the text before the cut to the room of the entry. Numbers in the text change its
	// length, and so the place of that cut, but a fingerprint must not depend on numbers. The trace is part of the
	// fingerprint only for a panic. The trace of a time-out, or of an error that many places return, would split the
	// failures of one cause into several groups.
	e.Fingerprint = fingerprint.Of(t.Kind, kind, text, trace)
	row := store.ErrorEntry{
		Attempt: t.Attempt, ClaimSeq: t.Seq, Class: e.Class, Case: named, Error: e.Text, Type: kind,
		Fingerprint: e.Fingerprint, DurationMS: store.InMillis(e.Duration),
		DelayMS: e.Delay.Milliseconds(), Supervisor: t.Owner, Host: t.host, Trace: clean(shown, maxErrorTrace),
	}
	if e.death != nil {
		row.Beside, row.Spared = &e.death.Beside, e.death.Spares(t.Crashes)
	}
	raw, err := json.Marshal(row)
	if err != nil { // cannot happen: the entry has only strings and numbers
		raw = json.RawMessage(`{"class":"error","error":"outcome could not be encoded"}`)
	}
	return raw
}

// clean returns the text in a form that can be stored and logged: redacted, valid, and at most bound bytes.
func (c *Client) clean(text string, bound int) string {
	// Redact comes before the cut to bound bytes, because this cut could leave half a secret, which Redact would not
	// recognise. The first cut, to maxErrorRead, keeps texts of many megabytes away from Redact.
	text, _ = pgtext.Sanitize(text, maxErrorRead)
	if text != "" {
		text = redact(c.cfg.Redact, text)
	}
	text, _ = pgtext.Sanitize(text, bound)
	return text
}

// stack returns the stack trace of the calling goroutine.
func stack() string {
	buf := make([]byte, traceBuffer)
	return string(buf[:runtime.Stack(buf, false)])
}
