package drover

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"time"
)

// NoTimeout lets a job run as long as it takes.
const NoTimeout time.Duration = math.MaxInt64

// WorkerOpts are a worker's settings. Other processes, psql and the command read them from the table kinds.
type WorkerOpts struct {
	// MaxAttempts is how many runs a job of this kind may have in all. Zero means the queue's, then 20. A job's
	// own EnqueueOpts.MaxAttempts goes first.
	MaxAttempts int

	// MaxRetries says the same without the first run. Zero means unset.
	MaxRetries int

	// Retry decides how long a failed job waits. Nil means the queue's, then Exponential{}. A job's own goes first.
	Retry RetryStrategy

	// RetryBudget is for this kind's jobs, in all queues together. Zero means the queue's, then the supervisor's.
	RetryBudget RetryBudget

	// Timeout bounds one run: its context ends with a deadline, the run fails and is retried. Zero means
	// SupervisorConfig.Timeout, NoTimeout none.
	Timeout time.Duration

	// DiscardOnPanic discards a job that panics, reason panic. By default it is retried like any failure.
	DiscardOnPanic bool

	// RetryIf says whether an error is worth a retry; where it says no the job is discarded as unrecoverable.
	// Nil means always. It is asked about errors that handlers return, but for Retry, RetryAfter and DontCount, which
	// say so themselves; not about panics, and handlers that ignore their timeout. It runs concurrently.
	RetryIf func(error) bool
}

// Worker handles the jobs of one kind. Handle makes one.
type Worker struct {
	kind    string
	opts    WorkerOpts
	handle  func(context.Context, *Job) error
	problem error
}

// Handle makes a worker of a function and the kind of its args. The function may run many jobs at once. What it
// returns decides: nil completes the job, an error fails the run and is retried; see Discard, Retry, RetryAfter,
// Snooze, Cancel and DontCount. Its context ends when the run's timeout is over, the job is cancelled, the
// supervisor stops or loses its lease; context.Cause tells which.
//
// Args that do not decode into A discard the job as undecodable. A must not be an interface.
func Handle[A Args](handler func(ctx context.Context, job *Job, args A) error, opts WorkerOpts) Worker {
	w := Worker{opts: opts}
	w.kind, w.problem = kindOfType[A]()
	if handler == nil && w.problem == nil {
		w.problem = fmt.Errorf("the handler is nil")
	}
	w.handle = func(ctx context.Context, job *Job) error {
		var args A
		if err := json.Unmarshal(job.Args, &args); err != nil {
			return &decodeError{err}
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
	w.opts.MaxAttempts = bad.attempts(field+".", w.opts.MaxAttempts, w.opts.MaxRetries)
	bad.strategy(field+".Retry", w.opts.Retry)
	w.opts.RetryBudget.fillIn(bad, field+".RetryBudget")
	bad.nonNegative(field+".Timeout", w.opts.Timeout)
	if w.opts.Timeout == 0 {
		w.opts.Timeout = defaultTimeout
	}
}
