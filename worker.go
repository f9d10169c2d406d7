package drover

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"time"
)

// NoTimeout lets a job run as long as it takes.
const NoTimeout time.Duration = math.MaxInt64

// WorkerOpts are a worker's settings. Other processes, psql and the command read them from the
// table drover_kinds.
type WorkerOpts struct {
	// MaxAttempts is how many runs a job of this kind may have in all. Zero means the queue's, else 20.
	// A job's own EnqueueOpts.MaxAttempts overrides it, and that of a matching ErrorCase overrides
	// both. With 1 a job does not run again once its handler may have begun: if a stop, an outage or a
	// crash cuts it short, it is discarded.
	MaxAttempts int

	// Retry decides how long a failed job waits. Nil means the queue's, else Exponential{}. A job's own
	// strategy overrides it, and that of a matching ErrorCase overrides both.
	Retry RetryStrategy

	// RetryFor is how long a job of this kind is retried, counted from its enqueue by the server's clock
	// and anew from each redrive: if the next run would be due later, the job is discarded, reason
	// time_budget. It does not cut a run short, and MaxAttempts applies besides; with Unlimited only
	// the time counts. A job that was enqueued for later has used some of it at its first run, which it
	// gets in any case. A job's own EnqueueOpts.RetryUntil overrides it. Zero means no bound; under
	// 1 ms is an error.
	RetryFor time.Duration

	// RetryBudget limits the retries of this kind, in all queues together. Zero means the queue's
	// budget, else the supervisor's.
	RetryBudget RetryBudget

	// Timeout bounds one run: at the deadline its context is cancelled, and the run fails and is retried.
	// Zero means SupervisorConfig.Timeout, NoTimeout no limit; under 1 ms is an error.
	Timeout time.Duration

	// DiscardOnPanic discards a job that panics, reason panic. By default it is retried like any failure.
	DiscardOnPanic bool

	// RetryIf reports whether an error is worth a retry. If it returns false, the job is discarded as
	// unrecoverable. Nil means that every error is. drover calls it for errors that handlers return,
	// except Retry, RetryAfter and DontCount, which decide it themselves. It does not call it for
	// panics, or for handlers that ignore their timeout. RetryIf may be called concurrently.
	RetryIf func(error) bool

	// Cases treat some errors differently. The first case whose If returns true decides, and RetryIf is
	// not called. Cases apply to the same errors as RetryIf. The settings of a case override those of the
	// job, the worker and the queue.
	//
	// Use Discard for an error that the handler itself recognises, RetryIf for a yes or no about every
	// error, and Cases for errors that need their own pace, number of attempts or name in the history.
	Cases []ErrorCase

	// FollowUp is enqueued when a job of this kind is discarded, whatever discards it. Nil means none.
	FollowUp *FollowUp
}

// Unlimited is a MaxAttempts without a limit: the job is retried until its RetryUntil or its worker's
// RetryFor, or until somebody cancels it.
const Unlimited = math.MaxInt32

// ErrorCase decides what happens to a run that fails with an error that it matches. Fields that are
// zero leave the decision to the job, its worker, its queue and the default, in this order.
type ErrorCase struct {
	// Name is stored in the run's entry in errors (RunError.Case). Required, at most 64 bytes, and
	// different from the names of the worker's other cases.
	Name string

	// If reports whether the case matches an error. Required. It may be called concurrently. A panic
	// counts as false.
	If func(error) bool

	// Discard makes drover discard the job at once, as unrecoverable. It cannot be combined with Retry or MaxAttempts.
	Discard bool

	// Retry decides how long the job waits. It overrides the strategies of the job, the worker and the
	// queue. Nil leaves it to them.
	Retry RetryStrategy

	// MaxAttempts is how many runs in all a job may have that fails in this way. It overrides the
	// numbers of the job, the worker and the queue. Zero leaves it to them. See Unlimited.
	MaxAttempts int
}

func (c *ErrorCase) validate(bad *problems, field string) {
	if err := checkName(field+".Name", c.Name); err != nil {
		bad.join(err)
	} else {
		bad.join(checkText(field+".Name", c.Name, maxCaseName))
	}
	if c.If == nil {
		bad.add(field+".If", "is nil")
	}
	if c.Discard && (c.Retry != nil || c.MaxAttempts != 0) {
		bad.add(field+".Discard", "cannot be combined with Retry or MaxAttempts")
	}
	bad.strategy(field+".Retry", c.Retry)
	bad.attempts(field+".MaxAttempts", c.MaxAttempts)
}

// maxCaseName leaves room in an entry of 1 KiB.
const maxCaseName = 64

// Worker handles the jobs of one kind. Handle makes one.
type Worker struct {
	kind    string
	opts    WorkerOpts
	handle  func(context.Context, *Job) error
	shape   *string // see argsShape
	problem error
}

// Handle makes a worker from a function and the kind of its args. The function may run many jobs at
// once. What it returns decides what happens to the job: nil completes it, and after an error it is
// retried; see Discard, Retry, RetryAfter, Snooze, Cancel and DontCount. The function's context
// ends when the run reaches its timeout, the job is cancelled, or the supervisor stops or loses its
// lease; context.Cause returns which.
//
// If the args do not decode into A, the job is discarded as undecodable. A must not be an
// interface.
func Handle[A Args](handler func(ctx context.Context, job *Job, args A) error, opts WorkerOpts) Worker {
	w := Worker{opts: opts}
	w.kind, w.problem = kindOfType[A]()
	w.shape = argsShape(reflect.TypeFor[A]())
	if handler == nil && w.problem == nil {
		w.problem = fmt.Errorf("the handler is nil")
	}
	w.handle = func(ctx context.Context, job *Job) error {
		var args A
		if err := json.Unmarshal(job.Args, &args); err != nil {
			return &decodeError{"args do not decode", err}
		}
		return handler(ctx, job, args)
	}
	return w
}

// Kind returns the kind of the jobs that it handles, or "" if the type of its args has none, which NewSupervisor refuses.
func (w Worker) Kind() string { return w.kind }

// kindOfType asks the zero value of A, or a fresh one where A is a pointer.
func kindOfType[A Args]() (string, error) {
	t := reflect.TypeFor[A]()
	switch t.Kind() { //nolint:exhaustive // all others are plain
	case reflect.Interface:
		return "", fmt.Errorf("%v is an interface; the args of a worker need a concrete type", t)
	case reflect.Pointer:
		args, _ := reflect.New(t.Elem()).Interface().(A)
		return kindOf(args)
	}
	var zero A
	return kindOf(zero)
}

// validate checks the worker's settings and fills them in.
func (w *Worker) validate(bad *problems, field string, defaultTimeout time.Duration) {
	if w.handle == nil {
		bad.add(field, "is empty: make a worker with Handle")
		return
	}
	if w.problem != nil {
		bad.add(field, "%v", w.problem)
		return
	}
	bad.join(checkName(field+".kind", w.kind))
	bad.attempts(field+".MaxAttempts", w.opts.MaxAttempts)
	bad.strategy(field+".Retry", w.opts.Retry)
	bad.atLeast(field+".RetryFor", w.opts.RetryFor, leastTimeout)
	w.opts.RetryBudget.fillIn(bad, field+".RetryBudget")
	bad.atLeast(field+".Timeout", w.opts.Timeout, leastTimeout)
	if w.opts.Timeout == 0 {
		w.opts.Timeout = defaultTimeout
	}
	w.opts.Cases = slices.Clone(w.opts.Cases)
	names := map[string]bool{}
	for i := range w.opts.Cases {
		c := &w.opts.Cases[i]
		c.validate(bad, fmt.Sprintf("%s.Cases[%d]", field, i))
		if names[c.Name] {
			bad.add(fmt.Sprintf("%s.Cases[%d].Name", field, i), "%q is used twice", c.Name)
		}
		names[c.Name] = true
	}
}
