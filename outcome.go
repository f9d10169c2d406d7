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
// discarded, reason unrecoverable. Discard of a nil error is nil, and the job is completed.
func Discard(err error) error { return failure(verdictDiscard, 0, err) }

// Retry says that err is worth a retry by the strategy even where the worker's RetryIf would say no. Retry of a nil error
// is nil, and the job is completed.
func Retry(err error) error { return failure(verdictRetry, 0, err) }

// RetryAfter fails the run and puts the next one d to 1.2 d off, over the strategy: for a server that said when to come
// back. The attempt counts. A negative d is 0. RetryAfter of a nil error is nil, and the job is completed. To run it
// again without an error, return Snooze. See ParseRetryAfter.
func RetryAfter(d time.Duration, err error) error { return failure(verdictRetryAfter, d, err) }

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

// The classes of failed runs, as in an errors entry.
const (
	classError     = "error"
	classThrottled = "throttled"
	classPanic     = "panic"
	classTimeout   = "timeout"
	classDecode    = "decode"
	classCrash     = "crash"
	classRefused   = "refused" // by the database: not a run
)

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

// outcome is how one run ended and what its row becomes.
type outcome struct {
	run         *run
	state       State
	reason      string        // of a discard
	class       string        // of a failed run
	err         error         // nil unless the run failed or was cancelled
	errorCase   *ErrorCase    // the worker's that knows err
	text        string        // err's text: made valid, redacted, bounded
	delay       time.Duration // until the next run
	now         bool          // due again at once
	slot        *slot         // of the retry budget that delay comes from; nil: none
	giveBack    bool          // the attempt does not count
	snoozed     bool
	uncounted   bool
	crashed     bool            // the death of the process counts against the job
	quarantined bool            // and proves it to be the cause
	death       *blame.Death    // of the process; nil: it lives
	entry       json.RawMessage // for errors; nil adds none
	fingerprint string          // as in entry
	held        int             // how often its row was found as the run left it, and was not changed
	replaced    bool            // it was made simpler, because the database refused it
	refusals    int             // how often the database has refused it since then
	refusedAt   time.Time       // when it was refused first
	event       eventKind
	notBefore   time.Time // the settler's: its row was held, or refused it
	duration    time.Duration
}

// survived reports that the process outlived a suspect's run. A completed one needs no acquittal.
func (o *outcome) survived() bool {
	return o.run.job.Crashes > 0 && !o.crashed && !o.run.startedAt.IsZero() && o.event != eventReleased && !o.completes()
}

// completes reports whether the plain complete statement says all there is to say.
func (o *outcome) completes() bool { return o.state == Completed }

// decide turns what a handler returned into an outcome: "How a run can end" in docs/outcomes.md.
func (r *run) decide(err error) *outcome {
	o := &outcome{run: r, duration: r.ran()}
	if err == nil {
		o.state, o.event = Completed, eventCompleted
		return o
	}
	var v *verdict
	hasVerdict := errors.As(err, &v)
	switch {
	case hasVerdict && v.how == verdictSnooze:
		o.state, o.delay, o.giveBack, o.snoozed, o.event = Scheduled, v.delay, true, true, eventSnoozed
		return o
	case hasVerdict && v.how == verdictCancel:
		o.cancel(err)
		return o
	case r.interrupted() && (!hasVerdict || v.how != verdictDiscard || errors.Is(err, context.Canceled)):
		// Not the job's fault. Of a cancelled job the row says so already; should the cancel have been meant for an
		// earlier run, before a redrive, the job must not be lost.
		return r.cutShort(err, v)
	}
	o.fail(err, v)
	o.entry = r.errorEntry(o)
	return o
}

// cutShort is the outcome of a run that was interrupted after its handler had begun. The job is due again as if nothing
// had been, unless this was its only attempt: that one has failed. v is what the handler said, nil if it said nothing.
func (r *run) cutShort(err error, v *verdict) *outcome {
	if !r.once() {
		return r.handedBack()
	}
	if v == nil {
		v = worthRetry() // the error is no answer of the handler's that RetryIf or a case could judge
	}
	o := &outcome{run: r, duration: r.ran()}
	o.fail(fmt.Errorf("the only attempt was cut short (%w): %w", r.cause(), err), v)
	o.entry = r.errorEntry(o)
	return o
}

func (o *outcome) cancel(err error) {
	o.state, o.event, o.err, o.class = Cancelled, eventCancelled, err, classError
	o.entry = o.run.errorEntry(o)
}

// fail decides between a retry and the end of a job whose run failed.
func (o *outcome) fail(err error, v *verdict) {
	r := o.run
	o.err, o.class = err, r.classOf(err, v)
	w := r.worker
	asked := v == nil && o.class != classPanic && o.class != classDecode // else the error is not the handler's, or says so itself
	if asked {
		o.errorCase = r.errorCase(err)
	}
	switch {
	case o.class == classDecode:
		o.discard(ReasonUndecodable)
	case o.class == classPanic && w.opts.DiscardOnPanic:
		o.discard(ReasonPanic)
	case v != nil && v.how == verdictDiscard:
		o.discard(ReasonUnrecoverable)
	case o.errorCase != nil && o.errorCase.Discard:
		o.discard(ReasonUnrecoverable)
	case asked && o.errorCase == nil && w.opts.RetryIf != nil && !r.retryIf(err):
		o.discard(ReasonUnrecoverable)
	default:
		o.retry(v)
	}
}

func (o *outcome) discard(reason string) {
	o.state, o.reason, o.event = Discarded, reason, eventDiscarded
}

// became follows what the row became where its failure group has a policy in the place of a retry.
func (o *outcome) became(state State) {
	switch {
	case o.state != Retryable:
	case state == Discarded:
		o.discard(ReasonOperator)
	case state == Parked:
		o.state, o.event = Parked, eventParked
	}
}

// worthRetry goes with errors that are not the handler's, which RetryIf would not know.
func worthRetry() *verdict { return &verdict{how: verdictRetry} }

// retry puts the job off, or discards it where attempts, time or the strategy have run out.
func (o *outcome) retry(v *verdict) {
	r := o.run
	o.uncounted = v != nil && v.how == verdictDontCount && r.uncounted < maxUncounted
	o.giveBack = o.uncounted
	strategy := r.strategy
	if c := o.errorCase; c != nil && c.Retry != nil {
		strategy = c.Retry
	}
	if !o.uncounted && r.job.Attempt >= o.maxAttempts() {
		o.discard(ReasonAttemptsExhausted)
		return
	}
	goOn := true
	if v != nil && v.how == verdictRetryAfter {
		o.delay = throttledDelay(r.job.ID, r.job.Attempt, v.delay)
	} else {
		o.delay, goOn = r.backoff(strategy, o.err)
	}
	switch {
	case !goOn:
		o.discard(ReasonUnrecoverable)
	case r.outOfTime(o.delay):
		o.discard(ReasonTimeBudget)
	default:
		o.state, o.event = Retryable, eventFailed
	}
}

// maxAttempts is how many runs the job may have, as things stand at the end of this one.
func (o *outcome) maxAttempts() int {
	if o.errorCase != nil {
		return cmp.Or(o.errorCase.MaxAttempts, o.run.job.MaxAttempts)
	}
	return o.run.job.MaxAttempts
}

// throttledDelay spreads jobs that one server sent away over a fifth of the wait it asked for.
func throttledDelay(id string, attempt int, d time.Duration) time.Duration {
	return JitterUp(0.2).apply(d, id, attempt)
}

func (r *run) classOf(err error, v *verdict) string {
	var p *panicError
	var d *decodeError
	switch {
	case errors.As(err, &p):
		return classPanic
	case errors.As(err, &d):
		return classDecode
	case v != nil && v.how == verdictRetryAfter:
		return classThrottled
	case errors.Is(r.cause(), errTimeout) || errors.Is(err, errTimeout):
		return classTimeout
	}
	return classError
}

// retryIf asks the worker's RetryIf; one that panics is taken to say yes.
func (r *run) retryIf(err error) (yes bool) {
	defer func() {
		if p := recover(); p != nil {
			text := r.sup.client.clean(recoveredText(p), maxErrorText)
			r.sup.log.Error("RetryIf panicked", slog.Any("job", r.job), slog.String("panic", text))
			yes = true
		}
	}()
	return r.worker.opts.RetryIf(err)
}

// errorCase is the first of the worker's cases that knows the error, nil if none does.
func (r *run) errorCase(err error) *ErrorCase {
	for i := range r.worker.opts.Cases {
		if c := &r.worker.opts.Cases[i]; r.isCase(c, err) {
			return c
		}
	}
	return nil
}

// isCase asks a case's If; one that panics is taken to say no.
func (r *run) isCase(c *ErrorCase, err error) (yes bool) {
	defer func() {
		if p := recover(); p != nil {
			text := r.sup.client.clean(recoveredText(p), maxErrorText)
			r.sup.log.Error("If of an ErrorCase panicked", slog.Any("job", r.job), slog.String("case", c.Name), slog.String("panic", text))
			yes = false
		}
	}()
	return c.If(err)
}

// backoff asks a strategy, which contains a Custom's panic itself.
func (r *run) backoff(strategy RetryStrategy, err error) (time.Duration, bool) {
	return r.sup.wait(strategy, FailedRun{
		Attempt: r.job.Attempt, RetryIndex: r.job.Attempt - 1, Err: err, Job: r.job, LastDelay: r.job.LastDelay,
	})
}

// entry is one element of the errors array.
type entry struct {
	Attempt     int    `json:"attempt"`
	ClaimSeq    int    `json:"claim_seq"`
	At          string `json:"at,omitempty"` // set by the database
	Class       string `json:"class"`
	Case        string `json:"case,omitempty"`
	Error       string `json:"error"`
	Type        string `json:"type,omitempty"`
	Fingerprint string `json:"fingerprint,omitempty"`
	DurationMS  int64  `json:"duration_ms"`
	DelayMS     int64  `json:"delay_ms,omitempty"`
	Supervisor  string `json:"supervisor"`
	Host        string `json:"host,omitempty"`   // and process id, of a process that died
	Beside      *int   `json:"beside,omitempty"` // how many jobs had started there besides, of a process that died
	Spared      string `json:"spared,omitempty"` // why the death does not count against the job
	Trace       string `json:"trace,omitempty"`
}

const (
	maxErrorText  = 640      // with a type of up to 60 bytes it leaves room in an entry of 1 KiB
	maxErrorTrace = 8 << 10  // only the newest entry has one
	traceBuffer   = 16 << 10 // of which sanitizing keeps half at most
	maxErrorRead  = 64 << 10 // of a text of any size
)

// errorEntry is what the failed run leaves in the row. The text goes through the redaction hook first.
func (r *run) errorEntry(o *outcome) json.RawMessage {
	text, trace, kind := "", "", ""
	var p *panicError
	if o.err != nil {
		text, kind = r.sup.client.clean(errorText(o.err), maxErrorRead), errorType(o.err)
		if errors.As(o.err, &p) {
			trace = p.trace
		}
	}
	named, room := "", maxErrorText-max(0, len(kind)-60)
	if o.errorCase != nil {
		named = o.errorCase.Name
		room -= len(named) + 16
	}
	o.text, _ = pgtext.Sanitize(text, room)
	// Of the whole text: where it is cut depends on the very numbers that a fingerprint ignores.
	o.fingerprint = fingerprint.Of(r.job.Kind, kind, text, trace)
	e := entry{
		Attempt: r.job.Attempt, ClaimSeq: r.claimSeq, Class: o.class, Case: named, Error: o.text, Type: kind,
		Fingerprint: o.fingerprint, DurationMS: o.duration.Milliseconds(),
		DelayMS: o.delay.Milliseconds(), Supervisor: r.owner, Host: r.host, Trace: r.sup.client.clean(trace, maxErrorTrace),
	}
	if o.death != nil {
		e.Beside, e.Spared = &o.death.Beside, o.death.Spares(r.job.Crashes)
	}
	raw, err := json.Marshal(e)
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

// finding is what a look at the row says about a run whose settle matched nothing.
type finding int

const (
	foundSettled      finding = iota // by an earlier try of ours, whose reply was lost
	foundInTx                        // in the handler's transaction
	foundNotCommitted                // the handler's transaction did not commit
	foundHeld                        // still ours, but someone holds the row
	foundEnded                       // by an operator
	foundStale                       // someone else's
)

// found compares the row with the run. Nobody but its owner changes a running row, except a rescuer, which takes
// the lease first, and an operator's cancel or discard.
func (o *outcome) found(row store.SeenJob, exists bool) finding {
	r := o.run
	tx := r.txOutcome.Load()
	state := State(row.State)
	ours := exists && row.LastClaimedBy(r.fence())
	held := exists && row.HeldBy(r.fence())
	switch {
	case held && tx != nil:
		return foundNotCommitted
	case held:
		return foundHeld
	case tx != nil && ours && (state == Cancelled && tx.state != Cancelled || row.Reason == ReasonOperator):
		return foundEnded
	case tx != nil && (!exists || ours && state == tx.state || !r.lease.ended.Load()):
		return foundInTx
	case tx != nil:
		return foundStale
	case o.committedLate(row, exists, ours):
		return foundInTx
	case ours && (state == Cancelled || row.Reason == ReasonOperator):
		return foundEnded
	case o.completes() && (ours && state == Completed || !exists && r.deleteCompleted && !r.lease.ended.Load()):
		return foundSettled // with others, one of which was not ours: complete tells only how many there were
	case r.tries > 1 && (!exists || ours && o.couldBe(state) || !r.lease.ended.Load()):
		return foundSettled
	}
	return foundStale
}

// couldBe reports whether the settle of o may have made a row this: its state, or what a policy puts in its place.
func (o *outcome) couldBe(state State) bool {
	return state == o.state || o.state == Retryable && (state == Discarded || state == Parked)
}

// committedLate reports whether the handler's transaction committed after it had been seen open: the handler was
// given up before it was done.
func (o *outcome) committedLate(row store.SeenJob, exists, ours bool) bool {
	r := o.run
	switch late := r.lateTx; {
	case late == nil:
		return false
	case !exists:
		return late.completes() && r.deleteCompleted
	case !ours: // claimed again since, or in its second life
		return !late.state.Final() && !r.lease.ended.Load()
	default:
		return State(row.State) == late.state
	}
}

// inTx is what the handler's transaction recorded.
func (o *outcome) inTx() *outcome {
	r := o.run
	tx := r.txOutcome.Load()
	if tx == nil {
		tx = r.lateTx
	}
	recorded := *tx
	recorded.duration = o.duration
	return &recorded
}

// notCommitted turns to what the handler returned: an error counts as usual, nil without a commit is one.
func (o *outcome) notCommitted() *outcome {
	r := o.run
	r.lateTx = r.txOutcome.Swap(nil)
	if o.state != Completed {
		return o
	}
	failed := &outcome{run: r, duration: o.duration}
	failed.fail(r.errNotCommitted(), worthRetry())
	failed.entry = r.errorEntry(failed)
	return failed
}

// ended is the outcome of a run whose job an operator cancelled or discarded meanwhile.
func (o *outcome) ended(row store.SeenJob) *outcome {
	switch {
	case State(row.State) == Discarded:
		return &outcome{run: o.run, state: Discarded, reason: row.Reason, event: eventDiscarded, duration: o.duration}
	case o.state == Cancelled:
		return o
	}
	return &outcome{run: o.run, state: Cancelled, err: ErrCancelled, text: ErrCancelled.Error(), event: eventCancelled, duration: o.duration}
}

// simplify leaves out what the database may have refused: the errors entry, or the deletion of a job that is not
// kept.
func (o *outcome) simplify() {
	o.replaced = true
	if o.completes() {
		o.run.deleteCompleted = false
		return
	}
	o.text, o.fingerprint = "outcome could not be encoded", ""
	raw, err := json.Marshal(entry{
		Attempt: o.run.job.Attempt, ClaimSeq: o.run.claimSeq, Class: o.class, Error: o.text,
		DurationMS: o.duration.Milliseconds(), Supervisor: o.run.owner,
	})
	if err == nil && o.entry != nil {
		o.entry = raw
	}
	o.delay = min(o.delay, maxBackoff)
}

// change is the outcome as store.SQLSettle takes it.
func (o *outcome) change() store.Change {
	c := store.Change{
		ID: o.run.job.ID, Seq: int32(o.run.claimSeq), State: store.State(o.state), Reason: o.reason, //nolint:gosec // an int of the table's
		AtOnce: o.now, GiveBack: o.giveBack, Snoozed: o.snoozed, Uncounted: o.uncounted, Crashed: o.crashed, Survived: o.survived(),
		Failed: o.class != "" && o.state != Cancelled,
	}
	if !o.run.attemptedAt.IsZero() {
		c.ClaimedAt = &o.run.attemptedAt
	}
	if o.entry != nil {
		c.Class, c.Fingerprint, c.Entry = o.class, o.fingerprint, o.entry
	}
	if (o.state == Retryable || o.state == Scheduled) && !o.now {
		us, ms := o.delay.Microseconds(), o.delay.Milliseconds()
		if c.DelayUS = &us; o.slot != nil {
			c.DueUS, c.DelayUS = &o.slot.dueUS, nil
		}
		if o.state == Retryable {
			c.DelayMS = &ms
		}
	}
	return c
}
