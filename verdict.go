package drover

import (
	"errors"
	"fmt"
	"time"
)

// VerdictKind is what a handler's return means for its job.
type VerdictKind string

// The kinds of verdicts.
const (
	VerdictDone       VerdictKind = "done"        // nil: the job is completed
	VerdictError      VerdictKind = "error"       // a plain error: RetryIf, Cases and the strategy decide between a retry and a discard
	VerdictPanic      VerdictKind = "panic"       // it panicked: a retry, or with DiscardOnPanic a discard
	VerdictRetry      VerdictKind = "retry"       // Retry
	VerdictRetryAfter VerdictKind = "retry_after" // RetryAfter
	VerdictDontCount  VerdictKind = "dont_count"  // DontCount
	VerdictDiscard    VerdictKind = "discard"     // Discard, an error that is Permanent, or args that do not decode
	VerdictCancel     VerdictKind = "cancel"      // Cancel
	VerdictSnooze     VerdictKind = "snooze"      // Snooze
)

// Verdict is what drover reads from a handler's return. See VerdictOf.
type Verdict struct {
	Kind  VerdictKind
	Delay time.Duration // the wait that Snooze or RetryAfter asks for; 0 for all others
	Cause error         // what was given to Discard, Retry, RetryAfter, DontCount or Cancel, else the error itself; nil after Done and Snooze
	Trace string        // stack of a panic, not redacted, at most 16 KiB; "" for all others
}

// Failed reports whether such a run counts as a failure of the job: all kinds do except Done, Snooze
// and Cancel.
func (v Verdict) Failed() bool {
	return v.Kind != VerdictDone && v.Kind != VerdictSnooze && v.Kind != VerdictCancel
}

// VerdictOf returns what drover reads from an error that a handler returned, however it is wrapped.
// If verdicts are nested in one error, the outermost counts; if errors are joined, the first. Use
// it in middleware and in tests, for example to tell a snooze from a failure.
//
// It sees the error alone. A retry may still become a discard: because of the worker's RetryIf and
// Cases, or because attempts or time have run out. The hooks report what became of the job.
func VerdictOf(err error) Verdict {
	if err == nil {
		return Verdict{Kind: VerdictDone}
	}
	var found Verdict
	var p *panicError
	if errors.As(err, &p) {
		found.Trace = p.trace
	}
	switch v := verdictOf(err); {
	case v != nil:
		found.Kind, found.Delay, found.Cause = v.how, v.delay, v.err
	case p != nil:
		found.Kind, found.Cause = VerdictPanic, err
	default:
		found.Kind, found.Cause = VerdictError, err
	}
	return found
}

// verdictOf finds the verdict in an error; nil: it has none.
func verdictOf(err error) *verdict {
	var v *verdict
	if errors.As(err, &v) {
		return v
	}
	if permanent(err) {
		return &verdict{how: VerdictDiscard, err: err}
	}
	return nil
}

// permanent asks the first error of the tree that has an opinion.
func permanent(err error) bool {
	var own interface{ Permanent() bool }
	return errors.As(err, &own) && own.Permanent()
}

// verdict is how handlers speak: an error that says what becomes of the job.
type verdict struct {
	how   VerdictKind
	delay time.Duration
	err   error
}

func (v *verdict) Error() string {
	var what string
	switch v.how {
	case VerdictDiscard:
		what = "discard"
	case VerdictRetry:
		what = "retry"
	case VerdictRetryAfter:
		what = fmt.Sprintf("retry after %v", v.delay)
	case VerdictSnooze:
		return fmt.Sprintf("snooze for %v", v.delay)
	case VerdictCancel:
		what = "cancel"
	case VerdictDontCount:
		what = "retry, not counted"
	case VerdictDone, VerdictError, VerdictPanic: // no function makes one
	}
	if v.err == nil {
		return what
	}
	return v.err.Error()
}

func (v *verdict) Unwrap() error { return v.err }

// Discard ends the job for good, whatever attempts are left. Return it for errors that no retry can
// fix. The job is kept as discarded, reason unrecoverable.
//
// An error type can say the same of itself, without importing drover: by a method Permanent() bool
// that returns true. drover finds it with errors.As. If the handler returns Retry, RetryAfter,
// DontCount or another of these functions, that counts instead.
func Discard(err error) error { return &verdict{how: VerdictDiscard, err: err} }

// Retry fails the run and retries it by the strategy, without asking the worker's RetryIf and
// Cases.
func Retry(err error) error { return &verdict{how: VerdictRetry, err: err} }

// RetryAfter fails the run and makes the next one due after d to 1.2 × d, instead of the strategy's
// wait. Return it if a server has said when to come back. The attempt counts. A negative d is 0.
// See ParseRetryAfter.
func RetryAfter(d time.Duration, err error) error {
	return &verdict{how: VerdictRetryAfter, delay: max(d, 0), err: err}
}

// Snooze makes the job due again after d, without a failure. The attempt is given back, and
// Job.Snoozes goes up by one. A negative d is 0.
func Snooze(d time.Duration) error { return &verdict{how: VerdictSnooze, delay: max(d, 0)} }

// Cancel ends the job as cancelled, because nobody wants it any more. err is the reason, and may be
// nil.
func Cancel(err error) error { return &verdict{how: VerdictCancel, err: err} }

// DontCount fails the run without using up an attempt. Return it for trouble that is not the job's
// fault. After 100 such runs of one job, further ones count.
func DontCount(err error) error { return &verdict{how: VerdictDontCount, err: err} }

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

// Permanent makes it a verdict: other args will not come.
func (d *decodeError) Permanent() bool { return true }
