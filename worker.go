package drover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"time"
)

// NoTimeout lets a job run as long as it takes.
const NoTimeout time.Duration = math.MaxInt64

// WorkerOpts are a worker's settings. Other processes, psql and the command read them from the table drover_kinds.
type WorkerOpts struct {
	// MaxAttempts is how many runs a job of this kind may have in all. Zero means the queue's, then 20. A job's
	// own EnqueueOpts.MaxAttempts goes before it, that of a matching ErrorCase before both. With 1 a job does not run
	// again once its handler may have begun: a stop, an outage or a crash that cuts it short discards it.
	MaxAttempts int

	// Retry decides how long a failed job waits. Nil means the queue's, then Exponential{}. A job's own goes before it,
	// that of a matching ErrorCase before both.
	Retry RetryStrategy

	// RetryBudget is for this kind's jobs, in all queues together. Zero means the queue's, then the supervisor's.
	RetryBudget RetryBudget

	// Timeout bounds one run: its context ends with a deadline, the run fails and is retried. Zero means
	// SupervisorConfig.Timeout, NoTimeout none; under 1 ms is an error.
	Timeout time.Duration

	// DiscardOnPanic discards a job that panics, reason panic. By default it is retried like any failure.
	DiscardOnPanic bool

	// RetryIf says whether an error is worth a retry; where it says no the job is discarded as unrecoverable.
	// Nil means always. It is asked about errors that handlers return, but for Retry, RetryAfter and DontCount, which
	// say so themselves; not about panics, and handlers that ignore their timeout. It runs concurrently.
	RetryIf func(error) bool

	// Cases treat some errors in a way of their own: the first whose If says yes decides, and RetryIf is not asked.
	// They are asked about the same errors as RetryIf. What a case sets goes before the job's, the worker's and the
	// queue's. Discard is for an error that the handler recognises itself, RetryIf for a yes or no about all errors of a
	// kind, Cases for errors that need a pace, a number of attempts or a name in the history of their own.
	Cases []ErrorCase

	// FollowUp is enqueued when a job of this kind is discarded, by whatever hand. Nil means nothing is.
	FollowUp *FollowUp
}

// Unlimited is a MaxAttempts that lets a job be retried without end: until its RetryUntil, or somebody cancels it.
const Unlimited = math.MaxInt32

// ErrorCase says what becomes of a run whose error it knows. What it leaves zero comes from the job, then its worker,
// its queue, and the default.
type ErrorCase struct {
	// Name stands in the run's entry in errors (RunError.Case). Needed, unlike those of the worker's other cases, at most
	// 64 bytes.
	Name string

	// If reports whether an error is of this case. Needed; it runs concurrently. One that panics says no.
	If func(error) bool

	// Discard discards the job at once, as unrecoverable. It excludes Retry and MaxAttempts.
	Discard bool

	// Retry decides how long the job waits, over the strategies of job, worker and queue. Nil leaves it to them.
	Retry RetryStrategy

	// MaxAttempts is how many runs in all a job may have had that fails so, over what job, worker and queue say. Zero
	// leaves it to them. See Unlimited.
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
		bad.add(field+".Discard", "excludes Retry and MaxAttempts")
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

// Handle makes a worker of a function and the kind of its args. The function may run many jobs at once. What it
// returns decides: nil completes the job, an error fails the run and is retried; see Discard, Retry, RetryAfter,
// Snooze, Cancel and DontCount. Its context ends when the run's timeout is over, the job is cancelled, the
// supervisor stops or loses its lease; context.Cause tells which.
//
// Args that do not decode into A discard the job as undecodable. A must not be an interface. It must not lose a field
// when decoded either: a struct that embeds a time.Time has the UnmarshalJSON of time.Time, which knows nothing of the
// other fields.
func Handle[A Args](handler func(ctx context.Context, job *Job, args A) error, opts WorkerOpts) Worker {
	w := Worker{opts: opts}
	w.kind, w.problem = kindOfType[A]()
	w.shape = argsShape(reflect.TypeFor[A]())
	if lost := lostField(reflect.TypeFor[A](), true); lost != "" && w.problem == nil {
		w.problem = errors.New(lost)
	}
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

// kindOfType asks the zero value of A, or a fresh one where A is a pointer.
func kindOfType[A Args]() (string, error) {
	t := reflect.TypeFor[A]()
	switch t.Kind() { //nolint:exhaustive // all others are plain
	case reflect.Interface:
		return "", fmt.Errorf("%v is an interface; a worker's args need a type of their own", t)
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
		bad.add(field, "is empty; make it with Handle")
		return
	}
	if w.problem != nil {
		bad.add(field, "%v", w.problem)
		return
	}
	bad.join(checkName(field+".kind", w.kind))
	bad.attempts(field+".MaxAttempts", w.opts.MaxAttempts)
	bad.strategy(field+".Retry", w.opts.Retry)
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
			bad.add(fmt.Sprintf("%s.Cases[%d].Name", field, i), "%q is there twice", c.Name)
		}
		names[c.Name] = true
	}
}
