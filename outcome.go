package drover

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"time"

	"github.com/drover-queue/drover/internal/blame"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/fingerprint"
	"github.com/drover-queue/drover/internal/pgtext"
	"github.com/drover-queue/drover/internal/store"
)

// Handlers speak in errors: what a handler returns, however wrapped, says what becomes of its job. Of several
// verdicts in one error the outermost counts, of joined errors the first.
type verdict struct {
	how   verdictKind
	delay time.Duration
	err   error
}

type verdictKind int

const (
	verdictDiscard verdictKind = iota
	verdictRetry
	verdictRetryAfter
	verdictSnooze
	verdictCancel
	verdictDontCount
)

func (v *verdict) Error() string {
	switch {
	case v.err != nil:
		return v.err.Error()
	case v.how == verdictSnooze:
		return fmt.Sprintf("snooze for %v", v.delay)
	}
	return "cancel"
}

func (v *verdict) Unwrap() error { return v.err }

// failure is a verdict about a failed run. Nil stays nil: a handler that returns Discard(work()) has succeeded if work has.
func failure(how verdictKind, delay time.Duration, err error) error {
	if err == nil {
		return nil
	}
	return &verdict{how, max(delay, 0), err}
}

// Discard ends the job for good, whatever attempts are left: for errors that no retry can mend. It is kept as
// discarded, reason unrecoverable. Discard of a nil error is nil, and the job is completed. An error type can say it of
// itself: a method Permanent() bool that returns true does the same, unless another verdict or an ErrorCase decides.
func Discard(err error) error { return failure(verdictDiscard, 0, err) }

// Retry says that err is worth a retry by the strategy even where the worker's RetryIf would say no. Retry of a nil error
// is nil, and the job is completed.
func Retry(err error) error { return failure(verdictRetry, 0, err) }

// RetryAfter fails the run and puts the next one d to 1.2 d off, over the strategy: for a server that said when to come
// back. The attempt counts. A negative d is 0. RetryAfter of a nil error is nil, and the job is completed. To run it
// again without an error, return Snooze. See ParseRetryAfter.
func RetryAfter(d time.Duration, err error) error { return failure(verdictRetryAfter, d, err) }

// maxRetryAfter bounds the wait that a server may ask for. A day covers daily quotas. A longer wait is probably a
// mistake, such as milliseconds or an instant instead of seconds. If it is not, the server can ask for another wait
// when the job runs again after a day.
const maxRetryAfter = 24 * time.Hour

// ParseRetryAfter reads an HTTP Retry-After header (RFC 9110, section 10.2.3) and returns the wait. The header holds
// whole seconds, or a date in any of the three HTTP formats, which is compared with this process' clock. The result is
// 0 to 24 h: a longer wait becomes 24 h. It is 0 for a date in the past, a negative number, an empty value and anything
// else.
func ParseRetryAfter(value string) time.Duration {
	return parseRetryAfter(value, time.Now())
}

func parseRetryAfter(value string, now time.Time) time.Duration {
	value = strings.TrimSpace(value)
	if d, ok := wholeSeconds(value); ok {
		return d
	}
	// The layouts contain GMT, the only zone that HTTP allows: Go would read any other zone's letters as offset 0. A
	// two-digit year up to 68 is in this century. A later one is in the last century, so in the past.
	for _, layout := range [...]string{
		"Mon, 02 Jan 2006 15:04:05 GMT",
		"Monday, 02-Jan-06 15:04:05 GMT",
		time.ANSIC,
	} {
		if at, err := time.Parse(layout, value); err == nil {
			return min(max(at.Sub(now), 0), maxRetryAfter)
		}
	}
	return 0
}

// wholeSeconds reads a text of digits only, however many, and returns at most maxRetryAfter.
func wholeSeconds(s string) (d time.Duration, ok bool) {
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, false
		}
		d = min(d*10+time.Duration(c-'0')*time.Second, maxRetryAfter)
	}
	return d, s != ""
}

// Snooze makes the job due again in d without a failure: the attempt is given back and Job.Snoozes counts it. A
// negative d is 0.
func Snooze(d time.Duration) error { return &verdict{how: verdictSnooze, delay: max(d, 0)} }

// Cancel ends the job as cancelled: nobody wants it any more. err is the reason. It may be nil: unlike Discard and the
// others, Cancel of a nil error cancels the job.
func Cancel(err error) error { return &verdict{how: verdictCancel, err: err} }

// DontCount fails the run without spending an attempt: for trouble that is not the job's. After 100 such runs
// of one job they count like others. DontCount of a nil error is nil, and the job is completed.
func DontCount(err error) error { return failure(verdictDontCount, 0, err) }

// maxUncounted is how many runs of a job DontCount gives back.
const maxUncounted = 100

// panicError is a handler's panic, or its runtime.Goexit.
type panicError struct {
	value any
	trace string
	exit  bool
}

func (p *panicError) Error() string {
	if p.exit {
		return "handler called runtime.Goexit"
	}
	return "panic: " + recoveredText(p.value)
}

func (p *panicError) Unwrap() error {
	err, _ := p.value.(error)
	return err
}

// decodeError says that a job's args do not fit its worker's type, or that its row cannot be read.
type decodeError struct {
	what string
	err  error
}

func (d *decodeError) Error() string { return d.what + ": " + d.err.Error() }
func (d *decodeError) Unwrap() error { return d.err }

// draft is the outcome of a run in the making.
type draft struct {
	engine.Outcome
	task      *task
	err       error
	errorCase *ErrorCase // that knows err; nil: none
	death     *blame.Death
}

// decide turns what a handler returned into an outcome: "How a run can end" in docs/outcomes.md.
func (t *task) decide(err error) engine.Outcome {
	if err == nil {
		return engine.Outcome{State: store.Completed, Event: engine.EventCompleted, Duration: t.Ran()}
	}
	var v *verdict
	hasVerdict := errors.As(err, &v)
	switch {
	case hasVerdict && v.how == verdictSnooze:
		return engine.Outcome{State: store.Scheduled, Delay: v.delay, GiveBack: true, Snoozed: true, Event: engine.EventSnoozed, Duration: t.Ran()}
	case hasVerdict && v.how == verdictCancel:
		e := t.draft(err)
		e.State, e.Event, e.Class = store.Cancelled, engine.EventCancelled, string(ClassError)
		return e.done()
	case t.interrupted() && (!hasVerdict || v.how != verdictDiscard || errors.Is(err, context.Canceled)):
		// Not the job's fault. Of a cancelled job the row says so already; should the cancel have been meant for an
		// earlier run, before a redrive, the job must not be lost.
		return t.cutShort(err, v)
	}
	return t.failed(err, v)
}

// draft begins the outcome of a run that ended with err.
func (t *task) draft(err error) *draft {
	return &draft{Outcome: engine.Outcome{Duration: t.Ran()}, task: t, err: err}
}

// done adds the entry for the column errors.
func (e *draft) done() engine.Outcome {
	e.Entry = e.entry()
	return e.Outcome
}

// failed is the outcome of a run that failed.
func (t *task) failed(err error, v *verdict) engine.Outcome {
	e := t.draft(err)
	e.fail(v)
	return e.done()
}

// interrupted reports whether the run was cut short for reasons that are not the job's.
func (t *task) interrupted() bool {
	cause := t.Cause()
	return errors.Is(cause, ErrShutdown) || errors.Is(cause, ErrLeaseLost) || errors.Is(cause, ErrCancelled)
}

// cutShort is the outcome of a run that was interrupted after its handler had begun. The job is due again as if nothing
// had been, unless this was its only attempt: that one has failed. v is what the handler said, nil if it said nothing.
func (t *task) cutShort(err error, v *verdict) engine.Outcome {
	if t.job.MaxAttempts > 1 {
		return engine.Released(t.Ran())
	}
	if v == nil {
		v = worthRetry() // the error is no answer of the handler's that RetryIf or a case could judge
	}
	return t.failed(fmt.Errorf("the only attempt was cut short (%w): %w", t.Cause(), err), v)
}

// deaf is the outcome of a handler that ignores its timeout. It counts as a crash, and nobody else can have been
// the cause: such a job may never end.
func (t *task) deaf() engine.Outcome {
	e := t.draft(engine.ErrTimeout)
	e.Crashed = true
	e.fail(worthRetry())
	if t.job.Crashes+1 >= t.handler.quarantineAfter {
		e.discard(ReasonCrashed)
		e.Quarantined = true
	}
	return e.done()
}

// fail decides between a retry and the end of a job whose run failed.
func (e *draft) fail(v *verdict) {
	t := e.task
	class := t.classOf(e.err, v)
	e.Class = string(class)
	w := t.worker
	asked := v == nil && class != ClassPanic && class != ClassDecode // else the error is not the handler's, or says so itself
	if asked {
		e.errorCase = t.errorCase(e.err)
	}
	switch {
	case class == ClassDecode:
		e.discard(ReasonUndecodable)
	case class == ClassPanic && w.opts.DiscardOnPanic:
		e.discard(ReasonPanic)
	case v != nil && v.how == verdictDiscard:
		e.discard(ReasonUnrecoverable)
	case e.errorCase != nil && e.errorCase.Discard:
		e.discard(ReasonUnrecoverable)
	case asked && e.errorCase == nil && t.permanent(e.err):
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
	e.State, e.Reason, e.Event = store.Discarded, string(reason), engine.EventDiscarded
}

// worthRetry goes with errors that are not the handler's, which RetryIf would not know.
func worthRetry() *verdict { return &verdict{how: verdictRetry} }

// retry puts the job off, or discards it where attempts, time or the strategy have run out.
func (e *draft) retry(v *verdict) {
	t := e.task
	e.Uncounted = v != nil && v.how == verdictDontCount && t.uncounted < maxUncounted
	e.GiveBack = e.Uncounted
	strategy, attempts := t.strategy, t.job.MaxAttempts
	if c := e.errorCase; c != nil {
		attempts = cmp.Or(c.MaxAttempts, attempts)
		if c.Retry != nil {
			strategy = c.Retry
		}
	}
	if !e.Uncounted && t.job.Attempt >= attempts {
		e.discard(ReasonAttemptsExhausted)
		return
	}
	goOn := true
	if v != nil && v.how == verdictRetryAfter {
		e.Delay = throttledDelay(t.job.ID, t.job.Attempt, v.delay)
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

// throttledDelay spreads jobs that one server sent away over a fifth of the wait it asked for.
func throttledDelay(id string, attempt int, d time.Duration) time.Duration {
	return JitterUp(0.2).apply(d, id, attempt)
}

func (t *task) classOf(err error, v *verdict) Class {
	var p *panicError
	var d *decodeError
	switch {
	case errors.As(err, &p):
		return ClassPanic
	case errors.As(err, &d):
		return ClassDecode
	case v != nil && v.how == verdictRetryAfter:
		return ClassThrottled
	case errors.Is(t.Cause(), engine.ErrTimeout) || errors.Is(err, engine.ErrTimeout):
		return ClassTimeout
	}
	return ClassError
}

// retryIf asks the worker's RetryIf; one that panics is taken to say yes.
func (t *task) retryIf(err error) (yes bool) {
	defer func() {
		if p := recover(); p != nil {
			text := t.handler.client.clean(recoveredText(p), maxErrorText)
			t.handler.client.log.Error("RetryIf panicked", slog.Any("job", &t.job), slog.String("panic", text))
			yes = true
		}
	}()
	return t.worker.opts.RetryIf(err)
}

// permanent asks an error whether it is permanent: a retry cannot help, whichever handler returns it. The outermost
// error with a method Permanent() bool answers, of joined errors the first. If the method panics, the answer is no.
func (t *task) permanent(err error) (yes bool) {
	defer func() {
		if p := recover(); p != nil {
			text := t.handler.client.clean(recoveredText(p), maxErrorText)
			t.handler.client.log.Error("Permanent of an error panicked", slog.Any("job", &t.job), slog.String("panic", text))
			yes = false
		}
	}()
	var p interface{ Permanent() bool }
	return errors.As(err, &p) && p.Permanent()
}

// errorCase is the first of the worker's cases that knows the error, nil if none does.
func (t *task) errorCase(err error) *ErrorCase {
	for i := range t.worker.opts.Cases {
		if c := &t.worker.opts.Cases[i]; t.isCase(c, err) {
			return c
		}
	}
	return nil
}

// isCase asks a case's If; one that panics is taken to say no.
func (t *task) isCase(c *ErrorCase, err error) (yes bool) {
	defer func() {
		if p := recover(); p != nil {
			text := t.handler.client.clean(recoveredText(p), maxErrorText)
			t.handler.client.log.Error("If of an ErrorCase panicked", slog.Any("job", &t.job), slog.String("case", c.Name), slog.String("panic", text))
			yes = false
		}
	}()
	return c.If(err)
}

// backoff asks a strategy, which contains a Custom's panic itself.
func (t *task) backoff(strategy RetryStrategy, err error) (time.Duration, bool) {
	return t.handler.wait(strategy, FailedRun{
		Attempt: t.job.Attempt, RetryIndex: t.job.Attempt - 1, Err: err, Job: &t.job, LastDelay: t.job.LastDelay,
	})
}

const (
	maxErrorText  = 640      // with a type of up to 60 bytes it leaves room in an entry of 1 KiB
	maxErrorTrace = 8 << 10  // only the newest entry has one
	traceBuffer   = 16 << 10 // of which sanitizing keeps half at most
	maxErrorRead  = 64 << 10 // of a text of any size
)

// entry is what the failed run leaves in the row. The text goes through the redaction hook first.
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
	// Of the whole text: where it is cut depends on the very numbers that a fingerprint ignores.
	e.Fingerprint = fingerprint.Of(t.job.Kind, kind, text, trace)
	row := store.ErrorEntry{
		Attempt: t.job.Attempt, ClaimSeq: t.Seq, Class: e.Class, Case: named, Error: e.Text, Type: kind,
		Fingerprint: e.Fingerprint, DurationMS: e.Duration.Milliseconds(),
		DelayMS: e.Delay.Milliseconds(), Supervisor: t.Owner, Host: t.host, Trace: clean(trace, maxErrorTrace),
	}
	if e.death != nil {
		row.Beside, row.Spared = &e.death.Beside, e.death.Spares(t.job.Crashes)
	}
	raw, err := json.Marshal(row)
	if err != nil { // strings and ints only: cannot happen
		raw = json.RawMessage(`{"class":"error","error":"outcome could not be encoded"}`)
	}
	return raw
}

// clean makes a text fit to be stored and logged: redacted, valid, bounded.
func (c *Client) clean(text string, bound int) string {
	// Redacting comes before cutting, or half a secret could stay; bounded first, for texts of many megabytes.
	text, _ = pgtext.Sanitize(text, maxErrorRead)
	if text != "" {
		text = redact(c.cfg.Redact, text)
	}
	text, _ = pgtext.Sanitize(text, bound)
	return text
}

// stack is the trace of the panicking goroutine.
func stack() string {
	buf := make([]byte, traceBuffer)
	return string(buf[:runtime.Stack(buf, false)])
}
