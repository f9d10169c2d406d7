package drover

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// handler implements engine.Handler: it returns a job's policies, calls the worker's handler, and decides the outcome of
// the run.
type handler struct {
	client          *Client
	workers         map[string]*Worker
	strategies      map[string]Custom
	lease           time.Duration
	quarantineAfter int
	trial           *trial // set by Worker.Try; nil if a supervisor runs the jobs
}

var _ engine.Handler = (*handler)(nil)

// task is a run together with this package's data about it. The engine's Run and the Job that the handler sees are in
// the same allocation.
type task struct {
	engine.Run
	job       Job
	handler   *handler
	worker    *Worker
	strategy  RetryStrategy
	uncounted int    // how many runs of the job did not count as attempts, because the handler returned DontCount
	host      string // the host of the process that died; "" except for a rescued job
}

// taskOf returns the task of which a run is part.
func taskOf(r *engine.Run) *task { return r.Task.(*task) } //nolint:forcetypeassert // this package made it

// queueDefaults are for jobs whose own options and worker set no value.
type queueDefaults struct {
	maxAttempts int
	retry       RetryStrategy
}

// defaultMaxAttempts is how many runs a job has if neither its options nor its worker nor its queue set a number.
const defaultMaxAttempts = 20

// NewRun implements engine.Handler. For each setting it takes the job's own value, otherwise the worker's, otherwise
// the queue's, otherwise the default.
func (h *handler) NewRun(j *store.Job, policy any, late time.Duration) *engine.Run {
	q := policy.(queueDefaults) //nolint:forcetypeassert // Queue.forEngine set it
	w := h.workers[j.Kind]
	t := &task{handler: h, worker: w, strategy: w.opts.Retry, job: Job{
		ID: j.ID, Queue: j.Queue, Kind: j.Kind, Args: j.Args, Attempt: j.Attempt, Priority: int(j.Lane % 10),
		MaxAttempts: cmp.Or(w.opts.MaxAttempts, q.maxAttempts, defaultMaxAttempts), ScheduledAt: j.ScheduledAt,
	}}
	t.Task, t.job.task = t, t
	t.Timeout = w.opts.Timeout
	if t.strategy == nil {
		t.strategy = q.retry
	}
	if w.opts.RetryFor > 0 { // without More (the columns that few jobs set), the job has no delay, retry or redrive behind it: it was due at its enqueue, so late is its age
		t.TimeBound, t.TimeLeft = true, w.opts.RetryFor-max(late, 0)
	}
	if j.More != nil {
		t.override(j.More)
	}
	if t.strategy == nil {
		t.strategy = DefaultRetry()
	}
	if t.Timeout >= maxTimeout { // NoTimeout
		t.Timeout = 0
	}
	t.share()
	return &t.Run
}

// share copies the settings of the job that the engine needs into the run.
func (t *task) share() {
	j := &t.job
	t.Queue, t.Kind, t.Attempt, t.MaxAttempts, t.Crashes, t.Redrives = j.Queue, j.Kind, j.Attempt, j.MaxAttempts, j.Crashes, j.Redrives
}

// override applies the job's own settings. They take precedence over its worker's and its queue's.
func (t *task) override(more *store.More) {
	job := &t.job
	job.MaxAttempts = cmp.Or(more.MaxAttempts, job.MaxAttempts)
	job.LastError, job.LastDelay = more.LastError, pg.Millis(more.LastDelayMS)
	job.Failures, job.Crashes, job.Redrives, job.Snoozes = more.Failures, more.Crashes, more.Redrives, more.Snoozes
	job.Tags, job.Metadata, job.Key = more.Tags, more.Metadata, more.Concurrency
	if more.Tags != nil || more.Metadata != nil {
		t.Labels = &engine.Labels{Tags: slices.Clone(more.Tags), Metadata: bytes.Clone(more.Metadata)} // events show these copies, even if middleware changes the Job
	}
	t.uncounted, t.Expired, t.Unreadable = more.Uncounted, more.Expired, more.Unreadable
	if more.TimeoutMS > 0 {
		t.Timeout = min(pg.Millis(more.TimeoutMS), maxTimeout)
	}
	if t.TimeBound {
		t.TimeLeft = t.worker.opts.RetryFor - max(pg.Millis(more.AgeMS), 0)
	}
	if more.RetryLeftMS != nil {
		t.TimeBound, t.TimeLeft = true, pg.Span(*more.RetryLeftMS, time.Millisecond)
	}
	if string(more.Retry) != "" && string(more.Retry) != "null" {
		strategy, err := decodeStrategy(more.Retry, t.handler.strategies)
		if err != nil {
			t.handler.client.log.Warn("job's own retry strategy not known here, its worker's used", job.inLog(), slog.String("error", err.Error()))
			return
		}
		t.strategy = strategy
	}
}

// Handle implements engine.Handler: it calls the worker's handler, through the middleware. A panic becomes an error.
func (h *handler) Handle(ctx context.Context, r *engine.Run) error {
	t := taskOf(r)
	return wrapped(ctx, &t.job, h.client.layers.around, t.worker.handle)
}

// Decide implements engine.Handler.
func (h *handler) Decide(r *engine.Run, err error) engine.Outcome {
	if err == nil {
		if why := r.Uncommitted(); why != nil {
			err = Retry(why) // after a failed CompleteTx, nil does not complete the job
		}
	}
	return taskOf(r).decide(err)
}

// CutShort implements engine.Handler. It always returns: code of the application, such as a strategy or the method of
// an error, runs in a goroutine of its own and may panic or call runtime.Goexit.
func (h *handler) CutShort(r *engine.Run, why error) (o engine.Outcome) {
	t := taskOf(r)
	exit := &panicError{exit: true}
	if why == engine.ErrExit { //nolint:errorlint // the engine's own
		exit.trace = stack()
	}
	if failed := guarded(func() { o = t.endedBy(why, exit) }); failed != "" {
		undecided := errors.New("outcome could not be decided: " + failed)
		o = t.failed(undecided, worthRetry(undecided)) // this calls only the application's strategy and Redact, and both calls are guarded
	}
	return o
}

// endedBy returns the outcome of a run that ended for another reason than the return of its handler.
func (t *task) endedBy(why error, exit *panicError) engine.Outcome {
	var undecided *engine.UndecidedError
	switch {
	case errors.Is(why, ErrNotCommitted): // checked first: the error in why comes from the caller's transaction, and may match any other case, too
	case errors.Is(why, engine.ErrExit):
		return t.decide(exit)
	case errors.Is(why, engine.ErrTimeout):
		return t.deaf()
	case errors.Is(why, engine.ErrExpired):
		return engine.Outcome{State: store.Discarded, Reason: string(ReasonExpired), Event: engine.EventDiscarded, Text: why.Error(), GiveBack: true}
	case errors.Is(why, engine.ErrUnreadable):
		unreadable := &decodeError{why.Error(), t.Unreadable}
		return t.failed(unreadable, read(unreadable))
	case errors.Is(why, engine.ErrIgnoredStop):
		return t.cutShort(why, read(why))
	case errors.As(why, &undecided):
		text := "runtime.Goexit"
		if undecided.Panicked {
			text = "panic: " + recoveredText(undecided.Value)
		}
		why = fmt.Errorf("%s: %s", undecided.Error(), text)
	}
	e := t.draft(why)
	if errors.Is(why, ErrNotCommitted) {
		e.Duration = t.End.Duration // without the time since the handler's return, in which the engine read the row
	}
	e.fail(worthRetry(why))
	return e.done()
}

var (
	errCrashed   = errors.New("drover: the process died while it held the job")
	errForgotten = errors.New("drover: it is not known how the only run of the job ended")
)

// Crashed implements engine.Handler. A job that had not started is due immediately, and the claim does not count as an
// attempt. A crash in the job's last attempt does not count either, so the job runs again; other crashes count as
// attempts. Only two kinds of jobs are discarded: jobs with a single attempt, and jobs that package blame finds to be
// the cause of the death.
func (h *handler) Crashed(j *store.Held, c engine.Crash) *engine.Run {
	t := &task{handler: h, job: Job{
		ID: j.ID, Queue: j.Queue, Kind: j.Kind, Attempt: j.Attempt, MaxAttempts: j.MaxAttempts,
		LastDelay: j.LastDelay, Crashes: j.Crashes,
	}}
	t.Task = t
	t.Fence = store.Fence{ID: j.ID, Owner: c.Owner, Seq: j.ClaimSeq, ClaimedAt: j.AttemptedAt.Time}
	t.share()
	switch {
	case !c.Started:
		t.End = engine.Released(0)
		t.End.GiveBack = j.Attempt > 0
		if !c.Own {
			t.End.Event = engine.EventRescued
		}
	case c.Own:
		e := t.draft(errForgotten)
		e.Class = string(ClassError)
		e.discard(ReasonCrashed)
		t.End = e.done()
	default:
		t.host = j.Host
		t.End = t.crashed(j, c)
	}
	return &t.Run
}

// crashed returns the outcome for a job whose process died while it ran.
func (t *task) crashed(j *store.Held, c engine.Crash) engine.Outcome {
	h, d := t.handler, &c.Death
	e := t.draft(errCrashed)
	e.Class, e.Duration, e.death = string(ClassCrash), j.Flight, d
	e.Crashed = d.Spares(j.Crashes) == ""
	e.Quarantined = e.Crashed && d.Convicts(j.Suspect(), h.quarantineAfter, c.Background)
	switch {
	case e.Quarantined || j.Once():
		e.discard(ReasonCrashed)
	default:
		e.State, e.Event, e.GiveBack = store.Retryable, engine.EventRescued, j.Attempt >= j.MaxAttempts && j.Attempt > 0
		if e.AtOnce = j.Crashes == 0 || !e.Crashed && !d.Mass; !e.AtOnce {
			e.Delay, _ = h.wait(h.strategyOf(j), FailedRun{
				Attempt: j.Attempt, RetryIndex: j.Attempt - 1, Err: errCrashed, Job: &t.job, LastDelay: j.LastDelay,
			})
			e.Delay += FullJitter.apply(d.Spread(j.Crashes, h.lease), j.ID, j.ClaimSeq)
		}
	}
	return e.done()
}

// wait asks a strategy for the delay. If a Custom panics or has no function, Exponential replaces it, and wait logs
// that.
func (h *handler) wait(strategy RetryStrategy, f FailedRun) (time.Duration, bool) {
	d, ok, err := strategy.delay(f)
	if err != nil {
		h.client.log.Error("retry strategy panicked, default used", f.Job.inLog(), slog.String("error", h.client.clean(errorText(err), maxErrorText)))
	}
	return d, ok
}

// strategyOf returns the strategy of a job, in the usual order: its own, its worker's if this process has one, the
// strategy stored for its kind or queue, the default. If this process cannot read a stored strategy, strategyOf logs
// that and takes the next one.
func (h *handler) strategyOf(j *store.Held) RetryStrategy {
	if strategy := h.readStrategy(j.ID, j.Retry); strategy != nil {
		return strategy
	}
	if w := h.workers[j.Kind]; w != nil && w.opts.Retry != nil {
		return w.opts.Retry
	}
	return orDefault(h.readStrategy(j.ID, j.Policy))
}

func (h *handler) readStrategy(id string, stored *string) RetryStrategy {
	if stored == nil {
		return nil
	}
	strategy, err := decodeStrategy([]byte(*stored), h.strategies)
	if err != nil {
		h.client.log.Warn("stored retry strategy not known here, passed over", slog.String("job_id", id),
			slog.String("retry", *stored), slog.String("error", err.Error()))
		return nil
	}
	return strategy
}
