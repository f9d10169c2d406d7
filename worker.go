package drover

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"slices"
	"time"

	"github.com/drover-queue/drover/internal/store"
	"github.com/oklog/ulid/v2"
)

// NoTimeout lets a job run as long as it takes.
const NoTimeout time.Duration = math.MaxInt64

// WorkerOpts are a worker's settings. A supervisor stores MaxAttempts, Retry, Timeout and FollowUp in the table
// drover_kinds, where other processes, psql and the command read them. It stores RetryBudget in drover_budgets.
type WorkerOpts struct {
	// MaxAttempts is how many runs a job of this kind may have in all. Zero means the queue's MaxAttempts, or 20 if
	// that is zero, too. The MaxAttempts of a matching ErrorCase takes precedence over the job's own
	// (EnqueueOpts.MaxAttempts), and the job's own over this one. With 1, drover does not run a job again if its
	// handler may have begun. If a stop, an outage or a crash cuts the run short, the job is discarded.
	MaxAttempts int

	// Retry decides how long a failed job waits for its next run. Nil means the queue's strategy, or Exponential{} if
	// the queue has none. The strategy of a matching ErrorCase takes precedence over the job's own, and the job's own
	// over this one.
	Retry RetryStrategy

	// RetryFor is how long a job of this kind is retried, from its enqueue or its last redrive, by the server's clock. If
	// the next run would be due later, the job is discarded, reason time_budget. MaxAttempts applies as well; with
	// Unlimited, the time alone decides. RetryFor does not cut a run short. The time from the enqueue to the first run
	// counts too, but a job gets its first run however late that is. The job's own EnqueueOpts.RetryUntil takes
	// precedence. Zero means no bound, under 1 ms is an error.
	RetryFor time.Duration

	// RetryBudget bounds the retries of this kind's jobs, in all queues together. Zero leaves this kind's budget as it is
	// stored in drover_budgets. If none is stored, the queue's budget applies, or the supervisor's if the queue has none.
	RetryBudget RetryBudget

	// Timeout bounds one run. When it is over, the run's context ends (it has a deadline), and the run fails and is
	// retried. Zero means SupervisorConfig.Timeout, NoTimeout means none. A timeout under 1 ms is an error.
	Timeout time.Duration

	// DiscardOnPanic discards a job whose handler panics, reason panic. By default the job is retried as after any
	// failure.
	DiscardOnPanic bool

	// RetryIf reports whether an error is worth a retry. If it returns false, the job is discarded as unrecoverable.
	// Nil retries all errors. drover calls RetryIf for the errors that handlers return, except for these: verdicts,
	// which Discard, Retry, RetryAfter, DontCount, Snooze and Cancel make; errors whose method Permanent() bool returns
	// true, which discard the job; errors that match one of the Cases; errors of runs that a stop, a lost lease or a
	// cancel cut short. It is not called either if the handler panics or ignores its timeout. The function must be safe
	// for concurrent use. If it panics, the job is retried.
	RetryIf func(error) bool

	// Cases give some errors their own treatment. The first case whose If returns true decides, and RetryIf is not called.
	// Cases see the same errors as RetryIf, and also errors with a method Permanent. The settings of a case take
	// precedence over the job's, the worker's and the queue's.
	//
	// If the handler itself recognises an error that no retry can help, return Discard. Use RetryIf to decide for all
	// errors of a kind whether they are retried. Use Cases if an error needs its own delays, its own number of attempts,
	// or a name in the job's history.
	Cases []ErrorCase

	// FollowUp is a job to enqueue when a job of this kind is discarded, whether drover, a handler or an operator discards
	// it. Nil means none.
	FollowUp *FollowUp
}

// Unlimited is a MaxAttempts that sets no limit: the job is retried until its RetryUntil or its worker's RetryFor, or
// until it is cancelled.
const Unlimited = math.MaxInt32

// ErrorCase has the settings for runs that fail with an error for which If returns true. If a setting is zero, the
// job's own setting holds, otherwise its worker's, otherwise its queue's, otherwise the default.
type ErrorCase struct {
	// Name is recorded in the run's entry of the column errors (RunError.Case). It is required, has at most 64 bytes,
	// and must differ from the names of the worker's other cases.
	Name string

	// If reports whether the case matches an error. It is required, and must be safe for concurrent use. If it panics,
	// the case does not match.
	If func(error) bool

	// Discard discards the job without a retry, as unrecoverable. Do not set it together with Retry or MaxAttempts.
	Discard bool

	// Retry decides how long the job waits, instead of the strategies of job, worker and queue. Nil means that job,
	// worker and queue decide.
	Retry RetryStrategy

	// MaxAttempts replaces the MaxAttempts of job, worker and queue for a job that fails with such an error. All of the
	// job's runs so far count, whatever their errors. Zero means that job, worker and queue decide. See Unlimited.
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

// maxCaseName bounds ErrorCase.Name, so that an entry of the column errors, which has at most 1 KiB without its trace,
// has room for the rest.
const maxCaseName = 64

// Worker handles the jobs of one kind. Handle makes one.
type Worker struct {
	kind    string
	opts    WorkerOpts
	handle  func(context.Context, *Job) error
	problem error
}

// Handle makes a worker for the kind of A. The worker calls handler for each job, concurrently. The result of handler
// decides how the run ends: nil completes the job, an error fails the run, and the job is retried. See Discard, Retry,
// RetryAfter, Snooze, Cancel and DontCount for other ends. The handler's context ends when the run's timeout is over,
// the job is cancelled, or the supervisor stops or loses its lease. context.Cause returns the reason.
//
// A job whose args do not decode into the type A is discarded as undecodable. The type A must not be an interface, and
// decoding must not lose any of its fields. For example, a struct that embeds a time.Time has the UnmarshalJSON of
// time.Time, which ignores the other fields. Client.NewSupervisor returns an *InvalidError for such a type, and for a
// nil handler.
func Handle[A Args](handler func(ctx context.Context, job *Job, args A) error, opts WorkerOpts) Worker {
	w := Worker{opts: opts}
	w.kind, w.problem = kindOfType[A]()
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

// Kind returns the kind of the jobs that the worker handles. It is "" for a Worker that Handle has not made.
func (w Worker) Kind() string { return w.kind }

// kindOfType returns the kind of a zero value of the type A. For a pointer type, the value is a pointer to a zero
// value.
func kindOfType[A Args]() (string, error) {
	t := reflect.TypeFor[A]()
	switch t.Kind() { //nolint:exhaustive // for all other types the zero value will do
	case reflect.Interface:
		return "", fmt.Errorf("%v is an interface; a worker's args need a type of their own", t)
	case reflect.Pointer:
		args, _ := reflect.New(t.Elem()).Interface().(A)
		return kindOf(args)
	}
	var zero A
	return kindOf(zero)
}

// validate checks the worker's settings and fills in the defaults.
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
	bad.atLeast(field+".RetryFor", w.opts.RetryFor, leastTimeout)
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

// FollowUp is a job that is enqueued when another job is discarded, for example to refund a customer, to notify a
// person or to open a ticket. The args of the follow-up are a DiscardedJob.
//
// The database itself enqueues the follow-up in the transaction that discards the job. It does so for every reason of a
// discard, whether a run, a rescue, an operator or SQL in psql discards the job. A job that is redriven and discarded
// again gets another follow-up. A follow-up may have a follow-up of its own: a chain ends after three follow-ups.
//
// If the database refuses the follow-up, because of a trigger or an index of yours, the job is discarded all the same.
// A supervisor then tries about once a minute to enqueue the follow-up, until that succeeds, the row of the discarded
// job is deleted, or the job is no longer discarded.
//
// A supervisor must have a worker for the follow-up's kind and serve its queue, otherwise the follow-up waits for ever.
// If a supervisor has a worker with a FollowUp, and does not handle the follow-up's kind or does not serve its queue,
// it logs this when it starts. A FollowUp is stored in the table drover_kinds.
type FollowUp struct {
	// Kind is the kind of the follow-up. It is required, and must differ from the worker's own kind.
	Kind string

	// Queue is the queue of the follow-up. Zero means "default".
	Queue string
}

// DiscardedJob describes the discarded job in a follow-up's args. Embed it in the Args type of the follow-up:
//
//	type ChargeFailed struct{ drover.DiscardedJob }
//
//	func (ChargeFailed) Kind() string { return "charge_failed" }
//
// JobID and JobKind are the id and the kind of the discarded job. The follow-up has an id and a kind of its own.
type DiscardedJob struct {
	JobID       string          `json:"job_id"`
	JobKind     string          `json:"job_kind"`
	Queue       string          `json:"queue"`
	Args        json.RawMessage `json:"args"` // the args as jsonb keeps them (see Job); null if they cannot be read, or are longer than 3 MiB (Client.Job returns long args)
	Reason      Reason          `json:"reason"`
	Error       string          `json:"error"` // Error, Class and Fingerprint are of the last failed run; "" if no run failed
	Class       Class           `json:"class"`
	Fingerprint string          `json:"fingerprint"`
	Attempts    int             `json:"attempts"`
	DiscardedAt time.Time       `json:"discarded_at"`
}

// checkFollowUp checks the worker's FollowUp, and fills in its defaults.
func (c *Client) checkFollowUp(bad *problems, field string, w *Worker) {
	if w.opts.FollowUp == nil {
		return
	}
	f := *w.opts.FollowUp
	if f.Queue == "" {
		f.Queue = "default"
	}
	w.opts.FollowUp = &f
	bad.join(checkName(field+".FollowUp.Kind", f.Kind))
	bad.join(checkName(field+".FollowUp.Queue", f.Queue))
	switch {
	case f.Kind == "":
	case f.Kind == w.kind:
		bad.add(field+".FollowUp.Kind", "%q is the worker's own: it would follow itself", f.Kind)
	case len(c.kinds) > 0 && !c.kinds[f.Kind]:
		bad.add(field+".FollowUp.Kind", "%q is not among Config.Kinds", f.Kind)
	}
}

// Try calls the worker's handler once, without a database, and returns the verdict that a supervisor would reach. It
// is for tests. The package drovertest has more for them.
//
// The verdict is the result of VerdictOf, changed by the worker's own rules. It is VerdictDiscard for an error that
// Cases, RetryIf or the strategy would not retry, and for a panic with DiscardOnPanic. It is VerdictError for a
// Permanent error that one of the Cases would retry. Try ignores RetryFor. A job without attempts left gets the verdict
// of a retry, and its strategy is not asked. The worker's timeout and middleware do not apply. To see how the handler
// reacts to the end of its context, end ctx.
//
// The handler gets a copy of job. In the copy, Kind is the worker's kind. ID, Queue, Priority, Attempt, MaxAttempts and
// ScheduledAt have the values of a first run where they are zero in job. If job has no Args, the handler gets zero
// args. A nil job means a first run without Args.
//
// In the handler, Job.CompleteTx and Job.SettleTx check their transaction and write nothing. If the handler then
// returns nil, the settle decides the verdict. Otherwise the returned error decides, because Try does not know whether
// the transaction commits. Further settles return ErrState. Job.EnqueueTx enqueues in the transaction that it gets, in
// the schema that search_path picks.
//
// Try panics with an error that wraps an *InvalidError if the job has another kind, or if Client.NewSupervisor would
// refuse the worker. But Try does not check FollowUp, nor the Name of a Custom without a Func. If the handler calls
// runtime.Goexit, for example by t.FailNow of the test, the caller's goroutine ends.
func (w Worker) Try(ctx context.Context, job *Job) Verdict {
	var bad problems
	w.validate(&bad, "worker", 0)
	if job == nil {
		job = &Job{}
	}
	if w.handle != nil && job.Kind != "" && job.Kind != w.kind {
		bad.add("job.Kind", "%q is not the worker's, %q", job.Kind, w.kind)
	}
	if err := bad.err(); err != nil {
		panic(err)
	}
	trial := &trial{}
	client := &Client{desk: newDesk(nil, ""), cfg: Config{MaxArgsBytes: defaultMaxArgs}, running: newRegistry(), log: slog.Default()}
	h := &handler{client: client, trial: trial}
	t := &task{handler: h, worker: &w, strategy: orDefault(w.opts.Retry), job: *job}
	j := &t.job
	j.ID, j.Queue, j.Kind, j.Priority = cmp.Or(j.ID, ulid.Make().String()), cmp.Or(j.Queue, "default"), w.kind, cmp.Or(j.Priority, 5)
	j.Attempt, j.MaxAttempts = cmp.Or(j.Attempt, 1), cmp.Or(j.MaxAttempts, w.opts.MaxAttempts, defaultMaxAttempts)
	if j.ScheduledAt.IsZero() {
		j.ScheduledAt = time.Now()
	}
	if len(j.Args) == 0 {
		j.Args = json.RawMessage("null")
	}
	t.Task, j.task, t.Ctx = t, t, ctx
	t.share()
	err := h.Handle(ctx, &t.Run)
	switch failed := t.Uncommitted(); {
	case err == nil && trial.settled:
		err = trial.as
	case err == nil && failed != nil:
		err = Retry(failed)
	}
	v := VerdictOf(err)
	switch o := t.decide(err); {
	case o.State == store.Discarded && o.Reason != string(ReasonAttemptsExhausted):
		v.Kind = VerdictDiscard
	case v.Kind == VerdictDiscard && (o.State == store.Retryable || o.State == store.Discarded): // a Permanent error that a case retries
		v.Kind = VerdictError
	}
	return v
}
