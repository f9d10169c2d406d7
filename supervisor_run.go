package drover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// errTimeout is the cause of a context whose run took too long.
var errTimeout = errors.New("drover: run timed out")

// run is one claimed job on its way through a worker.
type run struct {
	job             *Job
	space           Job // that job points to, where the run was claimed
	sup             *Supervisor
	worker          *Worker
	queue           *queueState
	lease           *lease
	owner           string // the supervisor id of the claim
	host            string // where the process ran that died, of a rescued job
	claimSeq        int
	attemptedAt     time.Time // of the claim, by the server's clock
	tier            int16     // of its lane
	strategy        RetryStrategy
	timeout         time.Duration
	uncounted       int
	expired         bool
	unreadable      error         // why its row is not known in full; nil: it is
	putOff          atomic.Bool   // its start was refused, and its row says so
	timeBound       bool          // RetryUntil is set
	timeLeft        time.Duration // until then, at the claim
	deleteCompleted bool
	tries           int // settles sent; the engine's

	late      time.Duration // how long it was due at the claim, by the server's clock
	claimedAt time.Time
	startedAt time.Time
	ctx       context.Context //nolint:containedctx // a run is one call of a handler
	lazy      runContext      // what ctx is, once the run has started
	phase     atomic.Int32
	unwanted  atomic.Bool             // an operator has ended its job
	txOutcome atomic.Pointer[outcome] // what SettleTx recorded in the handler's transaction
	txFailed  atomic.Pointer[error]   // why the last SettleTx failed; nil: it did not
	lateTx    *outcome                // the same, once that transaction was seen open after the run's end; the settler's
}

const (
	phaseBuffered int32 = iota
	phaseStarted
	phaseEnded
)

// runJob is the life of a run: start, call, decide, settle. It returns false where its goroutine has been replaced:
// the handler was abandoned, or called runtime.Goexit.
func (s *Supervisor) runJob(r *run) (goOn bool) {
	if !r.phase.CompareAndSwap(phaseBuffered, phaseStarted) {
		return true // handed back meanwhile
	}
	if r.expired {
		r.finish()
		s.settler.settle(r.expiredOutcome())
		return true
	}
	if r.unreadable != nil {
		r.finish()
		s.settler.settle(r.unreadableOutcome())
		return true
	}
	if r.unwanted.Load() { // its row says so, and refuses this
		r.finish()
		s.settler.settle(r.handedBack())
		return true
	}
	if r.once() && !s.settler.noteStart(r) {
		r.finish()
		if !r.putOff.Load() {
			s.settler.settle(r.handedBack())
		}
		return true
	}
	r.startedAt = s.now()
	r.lazy.parent = r.lease.ctx
	if r.timeout < maxTimeout {
		r.lazy.deadline = time.Now().Add(r.timeout)
	}
	r.ctx = &r.lazy

	var err error
	returned := false
	defer func() {
		if !returned {
			err = &panicError{exit: true, trace: stack()}
		}
		failpoint("ran")
		defer r.cancel(nil)
		if r.phase.Load() != phaseStarted { // it was given up
			return
		}
		// This calls the application's code, so it belongs to the run and its timeout.
		r.decided(func() *outcome { return r.outcomeOf(err) }, func(o *outcome, exited bool) {
			if goOn = r.end(); goOn {
				s.settler.settle(o)
				if exited || !returned {
					s.startWorker(r.queue)
				}
			}
		})
	}()
	s.inFlight.add(r)
	if r.unwanted.Load() { // since a moment: cancelRun may not have found it yet
		r.cancel(ErrCancelled)
	}
	s.tellStarted(r)
	err = r.call()
	returned = true
	return goOn
}

// runContext is a handler's context, made when it is first looked at. A context with a timeout is half of what a short
// job allocates, and registers with the lease's under a lock that all runs share; a handler that is done at once never
// asks for it.
type runContext struct {
	parent   context.Context //nolint:containedctx // of the one to make
	deadline time.Time       // zero: none

	mu    sync.Mutex
	made  context.Context         //nolint:containedctx // nil until it is needed
	stop  context.CancelCauseFunc // of made
	over  context.CancelFunc      // of made's timeout; stop does all that it does
	ended bool
	cause error // of the end, nil: the handler has returned
}

func (c *runContext) get() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made == nil {
		c.made, c.stop = context.WithCancelCause(c.parent)
		if !c.deadline.IsZero() {
			c.made, c.over = context.WithDeadlineCause(c.made, c.deadline, errTimeout)
		}
		if c.ended {
			c.stop(c.cause)
		}
	}
	return c.made
}

// Deadline implements context.Context.
func (c *runContext) Deadline() (time.Time, bool) { return c.get().Deadline() }

// Done implements context.Context.
func (c *runContext) Done() <-chan struct{} { return c.get().Done() }

// Err implements context.Context.
func (c *runContext) Err() error { return c.get().Err() }

// Value implements context.Context.
func (c *runContext) Value(key any) any { return c.get().Value(key) }

// why is the cause of the context's end, nil before. It makes no context.
func (c *runContext) why() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made != nil {
		return context.Cause(c.made)
	}
	if cause := context.Cause(c.parent); cause != nil {
		return cause
	}
	if !c.deadline.IsZero() && !time.Now().Before(c.deadline) {
		return errTimeout
	}
	return c.cause
}

// cancel ends the handler's context.
func (r *run) cancel(cause error) {
	c := &r.lazy
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	c.ended, c.cause = true, cause
	if c.made != nil {
		c.stop(cause)
	}
}

var errExpired = errors.New("drover: expired before a run")

func (s *Supervisor) tellStarted(r *run) {
	if !s.client.listens(r.ctx, eventStarted) {
		return
	}
	s.client.emit(r.ctx, told{eventStarted, Event{
		JobID: r.job.ID, Queue: r.job.Queue, Kind: r.job.Kind, Supervisor: r.owner, Attempt: r.job.Attempt,
		MaxAttempts: r.job.MaxAttempts, Wait: r.late + r.startedAt.Sub(r.claimedAt),
	}})
}

// call runs the handler; a panic becomes an error.
func (r *run) call() (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &panicError{value: p, trace: stack()}
		}
	}()
	return r.worker.handle(r.ctx, r.job)
}

// end takes the run out of the running ones; only one of worker, watcher and drain can.
func (r *run) end() bool {
	if !r.phase.CompareAndSwap(phaseStarted, phaseEnded) {
		return false
	}
	r.sup.inFlight.remove(r)
	r.queue.ran(r.ran())
	r.leave()
	return true
}

// finish ends a run that needed no handler.
func (r *run) finish() {
	r.phase.Store(phaseEnded)
	r.leave()
}

// leave makes room for the next claim.
func (r *run) leave() {
	if r.queue.leave(r.tier) {
		r.sup.claimer.wake() // other queues may have had room and nothing to do: its next poll may be far
	}
}

func (r *run) ran() time.Duration {
	if r.startedAt.IsZero() {
		return 0
	}
	return r.sup.now().Sub(r.startedAt)
}

// cause is why the handler's context is over, nil while it is not.
func (r *run) cause() error {
	if r.ctx == &r.lazy {
		return r.lazy.why()
	}
	return context.Cause(r.ctx)
}

// interrupted reports whether the run was cut short for reasons that are not the job's.
func (r *run) interrupted() bool {
	cause := r.cause()
	return errors.Is(cause, ErrShutdown) || errors.Is(cause, ErrLeaseLost) || errors.Is(cause, ErrCancelled)
}

// outOfTime reports whether a retry in d would come after the job's RetryUntil.
func (r *run) outOfTime(d time.Duration) bool {
	return r.timeBound && r.sup.now().Sub(r.claimedAt)+d > r.timeLeft
}

// How long after its timeout a handler may take to notice: as long again, within these bounds. On a busy machine an
// honest handler is late by tenths of a second, and deafness counts as a crash.
const (
	leastDeafGrace = time.Second
	deafGrace      = 5 * time.Second
)

// deaf reports whether the handler has ignored the end of its context.
func (r *run) deaf(now time.Time) bool {
	if r.timeout >= maxTimeout {
		return false
	}
	grace := max(min(r.timeout, deafGrace), leastDeafGrace)
	return now.Sub(r.startedAt) > r.timeout+grace
}

// decided calls decide, and passes its outcome on. decide runs code of the application's, such as the methods of an error.
// If that panics or calls runtime.Goexit, the run has failed. After runtime.Goexit this goroutine ends: exited.
func (r *run) decided(decide func() *outcome, pass func(o *outcome, exited bool)) {
	var o *outcome
	defer func() {
		exited := false
		if o == nil {
			why := "runtime.Goexit"
			if p := recover(); p != nil {
				why = "panic: " + recoveredText(p)
			} else {
				exited = true
			}
			o = &outcome{run: r, duration: r.ran()}
			o.fail(errors.New("outcome could not be decided: "+why), worthRetry())
			o.entry = r.errorEntry(o)
		}
		pass(o, exited)
	}()
	o = decide()
}

// outcomeOf decides what becomes of a run whose handler returned err.
func (r *run) outcomeOf(err error) *outcome {
	if err == nil && r.txFailed.Load() != nil && r.txOutcome.Load() == nil {
		err = Retry(r.errNotCommitted()) // nil is no completion
	}
	return r.decide(err)
}

// errNotCommitted is the failure of a run that was to be settled in its handler's transaction and was not.
func (r *run) errNotCommitted() error {
	if failed := r.txFailed.Load(); failed != nil {
		return fmt.Errorf("%w: %w", ErrNotCommitted, *failed)
	}
	return ErrNotCommitted
}

// expiredOutcome ends a job that came too late to be run.
func (r *run) expiredOutcome() *outcome {
	o := &outcome{run: r, err: errExpired, text: errExpired.Error(), giveBack: true}
	o.discard(ReasonExpired)
	return o
}

// unreadableOutcome ends a job whose metadata, tags or numbers cannot be read.
func (r *run) unreadableOutcome() *outcome {
	o := &outcome{run: r}
	o.fail(&decodeError{"row cannot be read", r.unreadable}, nil)
	o.entry = r.errorEntry(o)
	return o
}

// once reports whether the job must not run again once its handler may have begun, unless the handler itself asks for it.
func (r *run) once() bool { return r.job.MaxAttempts == 1 }

// handedBack is the outcome of a run that did not take place, or was cut short for reasons that are not the job's.
func (r *run) handedBack() *outcome {
	return &outcome{run: r, state: Available, now: true, giveBack: true, event: eventReleased, duration: r.ran()}
}

// abandonedOutcome is that of a handler that ignores its timeout. It counts as a crash, and nobody else can have been
// the cause: such a job may never end.
func (r *run) abandonedOutcome() *outcome {
	o := &outcome{run: r, duration: r.ran(), crashed: true}
	o.fail(errTimeout, worthRetry())
	if r.job.Crashes+1 >= r.sup.cfg.QuarantineAfter {
		o.discard(ReasonCrashed)
		o.quarantined = true
	}
	o.entry = r.errorEntry(o)
	return o
}

// runSet is a set of runs. One job may have several: a handler that was given up works on beside the next.
type runSet struct {
	mu   sync.Mutex
	runs map[*run]struct{}
}

func (s *runSet) add(runs ...*run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.runs == nil {
		s.runs = map[*run]struct{}{}
	}
	for _, r := range runs {
		s.runs[r] = struct{}{}
	}
}

func (s *runSet) remove(r *run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.runs, r)
}

func (s *runSet) has(r *run) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, found := s.runs[r]
	return found
}

func (s *runSet) all() []*run {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.runs))
}

// under are the runs claimed by a supervisor of the given id.
func (s *runSet) under(owner string) (runs []*run) {
	for _, r := range s.all() {
		if r.owner == owner {
			runs = append(runs, r)
		}
	}
	return runs
}

// of are the runs of one job.
func (s *runSet) of(id string) (runs []*run) {
	for _, r := range s.all() {
		if r.job.ID == id {
			runs = append(runs, r)
		}
	}
	return runs
}

func (s *runSet) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.runs)
}

// fences are what settles of the runs compare.
func fences(runs []*run) []store.Fence {
	list := make([]store.Fence, len(runs))
	for i, r := range runs {
		list[i] = r.fence()
	}
	return list
}

func (r *run) fence() store.Fence {
	return store.Fence{ID: r.job.ID, Owner: r.owner, Seq: r.claimSeq, ClaimedAt: r.attemptedAt}
}

// newRun makes a run of a claimed job: its policies in their order, job over worker over queue over default.
func (s *Supervisor) newRun(j *store.Job, q *queueState, l *lease, at, now time.Time) *run {
	w := s.workers[j.Kind]
	r := &run{
		sup: s, worker: w, queue: q, lease: l, owner: l.id, claimSeq: j.ClaimSeq, attemptedAt: at, tier: j.Lane / 10 * 10, claimedAt: now, late: at.Sub(j.ScheduledAt),
		strategy: w.opts.Retry, timeout: w.opts.Timeout, deleteCompleted: cmp.Or(q.CompletedRetention, s.cfg.CompletedRetention) == DeleteOnCompletion,
		space: Job{
			ID: j.ID, Queue: j.Queue, Kind: j.Kind, Args: j.Args, Attempt: j.Attempt, Priority: int(j.Lane % 10),
			MaxAttempts: cmp.Or(w.opts.MaxAttempts, q.MaxAttempts, defaultMaxAttempts), ScheduledAt: j.ScheduledAt,
		},
	}
	r.job, r.space.run = &r.space, r
	if r.strategy == nil {
		r.strategy = q.Retry
	}
	if j.More != nil {
		r.override(j.More)
	}
	if r.strategy == nil {
		r.strategy = DefaultRetry()
	}
	return r
}

// defaultMaxAttempts is how many runs a job has where nobody says otherwise.
const defaultMaxAttempts = 20

// override applies what this one job says.
func (r *run) override(more *store.More) {
	job := r.job
	job.MaxAttempts = cmp.Or(more.MaxAttempts, job.MaxAttempts)
	job.LastError, job.LastDelay = more.LastError, pg.Millis(more.LastDelayMS)
	job.Failures, job.Crashes, job.Redrives, job.Snoozes = more.Failures, more.Crashes, more.Redrives, more.Snoozes
	job.Tags, job.Metadata, job.Key = more.Tags, more.Metadata, more.Concurrency
	r.uncounted, r.expired, r.unreadable = more.Uncounted, more.Expired, more.Unreadable
	if more.TimeoutMS > 0 {
		r.timeout = min(pg.Millis(more.TimeoutMS), maxTimeout)
	}
	if more.RetryLeftMS != nil {
		r.timeBound, r.timeLeft = true, pg.Span(*more.RetryLeftMS, time.Millisecond)
	}
	if string(more.Retry) != "" && string(more.Retry) != "null" {
		strategy, err := decodeStrategy(more.Retry, r.sup.strategies)
		if err != nil {
			r.sup.log.Warn("job's own retry strategy not known here, its worker's used", slog.Any("job", job), slog.String("error", err.Error()))
			return
		}
		r.strategy = strategy
	}
}

// unstarted is a run this supervisor holds without having known of it.
func (s *Supervisor) unstarted(j *store.Held, l *lease) *run {
	return &run{sup: s, lease: l, owner: l.id, claimSeq: j.ClaimSeq, attemptedAt: j.AttemptedAt.Time, job: &Job{ID: j.ID, Queue: j.Queue, Kind: j.Kind, Attempt: j.Attempt, MaxAttempts: j.MaxAttempts}}
}
