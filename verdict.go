package drover

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// VerdictKind is what a handler's return means for its job.
type VerdictKind string

// The kinds of verdicts.
const (
	VerdictDone       VerdictKind = "done"        // nil: the job is completed
	VerdictError      VerdictKind = "error"       // a plain error: Cases, RetryIf and the strategy decide between a retry and a discard
	VerdictPanic      VerdictKind = "panic"       // the handler panicked: a retry, or with DiscardOnPanic a discard
	VerdictRetry      VerdictKind = "retry"       // made by Retry
	VerdictRetryAfter VerdictKind = "retry_after" // made by RetryAfter
	VerdictDontCount  VerdictKind = "dont_count"  // made by DontCount
	VerdictDiscard    VerdictKind = "discard"     // made by Discard, by a Permanent error, or by args that do not decode
	VerdictCancel     VerdictKind = "cancel"      // made by Cancel
	VerdictSnooze     VerdictKind = "snooze"      // made by Snooze
)

// Verdict is what drover reads from a handler's return. See VerdictOf.
type Verdict struct {
	Kind  VerdictKind
	Delay time.Duration // the wait that Snooze or RetryAfter asks for; 0 for all others
	Cause error         // the error given to Discard, Retry, RetryAfter, DontCount or Cancel, else the error itself; nil after Done, Snooze and Cancel(nil)
	Trace string        // stack of a panic, not redacted, at most 16 KiB; "" for all others
}

// Failed reports whether a run with this verdict counts as a failure of the job. Every verdict does, except Done,
// Snooze and Cancel.
func (v Verdict) Failed() bool {
	return v.Kind != VerdictDone && v.Kind != VerdictSnooze && v.Kind != VerdictCancel
}

// VerdictOf returns what drover reads from an error that a handler returned. Other errors may wrap a verdict. If
// verdicts are nested in one error, the outermost counts; if an error joins several errors, the first verdict among
// them counts. Use it in middleware and in tests, for example to distinguish a snooze from a failure.
//
// VerdictOf knows only the error, not the job or its worker. The worker's Cases may still retry a Permanent error. A
// retry may become a discard, because of the worker's Cases and RetryIf, or because attempts or time have run out.
// Hooks report what became of the job.
func VerdictOf(err error) Verdict {
	if err == nil {
		return Verdict{Kind: VerdictDone}
	}
	return read(err).Verdict
}

// Class is what kind of failure a run had. It is stored with each entry of the job's errors, in the column class, and
// with each failure group.
type Class string

// The classes of the entries of a job's errors.
const (
	ClassError     Class = "error"     // the handler returned an error
	ClassThrottled Class = "throttled" // the handler returned RetryAfter
	ClassPanic     Class = "panic"     // the handler panicked or called runtime.Goexit
	ClassTimeout   Class = "timeout"   // the run's timeout was over
	ClassDecode    Class = "decode"    // the args do not decode into the worker's type
	ClassCrash     Class = "crash"     // the process died while the job ran
	ClassRefused   Class = "refused"   // the database refused the row; there was no run
	ClassOperator  Class = "operator"  // an operator cancelled, discarded or redrove the job; there was no run
)

// reading is what drover reads from the error of a run. VerdictOf and task.decide use it.
type reading struct {
	Verdict
	said   *verdict // the verdict in the error, made by Discard, Retry or a function like them; nil if there is none
	class  Class    // "" if the error does not decide the class
	broken string   // the text of a Permanent method's panic
}

// read reads an error that is not nil.
func read(err error) reading {
	v := reading{Verdict: Verdict{Kind: VerdictError, Cause: err}}
	var said *verdict
	if errors.As(err, &said) {
		v.said, v.Kind, v.Delay, v.Cause = said, said.how, said.delay, said.err
		if said.how == VerdictSnooze || said.how == VerdictCancel {
			return v
		}
	}
	var panicked *panicError
	var undecoded *decodeError
	switch {
	case errors.As(err, &panicked):
		v.class, v.Trace = ClassPanic, panicked.trace
		if said == nil {
			v.Kind = VerdictPanic
		}
	case errors.As(err, &undecoded):
		v.class, v.Kind = ClassDecode, VerdictDiscard
	case said == nil:
		v.askPermanent()
	case said.how == VerdictRetryAfter:
		v.class = ClassThrottled
	}
	return v
}

// askPermanent makes the verdict a discard if the error has a method Permanent that returns true. The outermost error
// with a method Permanent() bool decides. Among joined errors, the first error with this method decides. If the method
// panics, the error is not permanent.
func (v *reading) askPermanent() {
	defer func() {
		if p := recover(); p != nil {
			v.broken = recoveredText(p)
		}
	}()
	var p interface{ Permanent() bool }
	if errors.As(v.Cause, &p) && p.Permanent() {
		v.Kind = VerdictDiscard
	}
}

// verdict is an error that a handler returns to decide what becomes of the job.
type verdict struct {
	how   VerdictKind
	delay time.Duration
	err   error
}

func (v *verdict) Error() string {
	switch {
	case v.err != nil:
		return v.err.Error()
	case v.how == VerdictSnooze:
		return fmt.Sprintf("snooze for %v", v.delay)
	}
	return "cancel"
}

func (v *verdict) Unwrap() error { return v.err }

// failure returns a verdict about a failed run. If err is nil, it returns nil. So a handler that returns
// Discard(work()) succeeds if work does.
func failure(how VerdictKind, delay time.Duration, err error) error {
	if err == nil {
		return nil
	}
	return &verdict{how, max(delay, 0), err}
}

// Discard ends the job for good, whatever attempts are left. Return it for errors that no retry can fix. The job is kept
// as discarded, reason unrecoverable. Discard of a nil error is nil, and the job is completed.
//
// An error type can have the same effect without importing drover: with a method Permanent() bool that returns true.
// Another verdict or an ErrorCase takes precedence over the method.
func Discard(err error) error { return failure(VerdictDiscard, 0, err) }

// Retry fails the run and retries it by the strategy, without asking the worker's RetryIf and Cases. Retry of a nil
// error is nil, and the job is completed.
func Retry(err error) error { return failure(VerdictRetry, 0, err) }

// RetryAfter fails the run and makes the next run due after d to 1.2 × d, instead of the strategy's wait. Return it if
// a server has said when to come back. The attempt counts. A negative d is 0. RetryAfter of a nil error is nil, and
// the job is completed. To run the job again without an error, return Snooze. See ParseRetryAfter.
func RetryAfter(d time.Duration, err error) error { return failure(VerdictRetryAfter, d, err) }

// maxRetryAfter bounds the wait that a server may ask for. A day covers daily quotas. A longer wait is probably a
// mistake, such as milliseconds or an instant instead of seconds. If it is no mistake, the server can ask for another
// wait when the job runs again after a day.
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
	// two-digit year up to 68 is in this century. A two-digit year from 69 on is in the last century, so in the past.
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

// Snooze makes the job due again after d, without a failure. The run does not count as an attempt, and Job.Snoozes goes
// up by one. A negative d is 0.
func Snooze(d time.Duration) error { return &verdict{how: VerdictSnooze, delay: max(d, 0)} }

// Cancel ends the job as cancelled, because nobody wants it any more. err is the reason. It may be nil: unlike Discard and
// the others, Cancel of a nil error cancels the job.
func Cancel(err error) error { return &verdict{how: VerdictCancel, err: err} }

// DontCount fails the run without using up an attempt. Return it for trouble that is not the job's fault. After 100 such
// runs of one job, further ones count. DontCount of a nil error is nil, and the job is completed.
func DontCount(err error) error { return failure(VerdictDontCount, 0, err) }

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

// decodeError means that a job's args do not decode into its worker's type, or that its row cannot be read.
type decodeError struct {
	what string
	err  error
}

func (d *decodeError) Error() string { return d.what + ": " + d.err.Error() }
func (d *decodeError) Unwrap() error { return d.err }
