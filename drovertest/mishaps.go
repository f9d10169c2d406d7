package drovertest

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
)

// Mishap is something that can happen to a run in production. If the effects of a handler must happen once, the handler
// has to be right in all Mishaps.
type Mishap struct {
	Name string // a short name, for t.Run
	What string // the event, in a few words

	around   func(*stage, context.Context, *drover.Job, func(context.Context) error) error // plays the mishap around the first run; nil if there is nothing to play
	together bool                                                                          // the first and the second run begin together
	stops    bool                                                                          // the first supervisor stops
	copies   int                                                                           // how many jobs are enqueued
	late     time.Duration                                                                 // how long the jobs have been due
}

// Mishaps are, in this order:
//
//   - outcome-lost: the handler returns, and the process dies before the outcome is recorded. Another process runs the
//     job again.
//   - frozen: the process is frozen before the handler begins. Another process runs the whole job. Then the first process
//     wakes up, and calls the handler with a context that has ended.
//   - twins: a process cannot reach the database for longer than its lease. Another process runs the job at the same
//     time: both handlers begin together.
//   - stopped: the supervisor stops, as in a deploy: the handler's context has ended when the handler begins. If the
//     handler returns an error, another supervisor runs the job again.
//   - late: the job runs a day after it was due, as after an outage. The handler's clock shows another day than
//     Job.ScheduledAt.
//   - enqueued-twice: two jobs with the same args run one after the other.
//
// If a run settles its job in a transaction (Job.CompleteTx), its effect and its outcome are recorded together, so the
// job does not run again after outcome-lost. drover does not run a job with a single attempt again, so only the mishaps
// "stopped", "late" and "enqueued-twice" can happen to such a job.
func Mishaps() []Mishap {
	return []Mishap{
		{Name: "outcome-lost", What: "the process dies before the outcome is recorded", around: outcomeLost, copies: 1},
		{Name: "frozen", What: "the process is frozen until another has run the job", around: frozen, copies: 1},
		{Name: "twins", What: "two processes run the job at the same time", around: twins, together: true, copies: 1},
		{Name: "stopped", What: "the supervisor stops as the handler begins", around: stopped, stops: true, copies: 1},
		{Name: "late", What: "the job runs a day after it was due", copies: 1, late: 24 * time.Hour},
		{Name: "enqueued-twice", What: "two jobs have the same args", copies: 2},
	}
}

// Run enqueues a job with args in the queue "default", lets the mishap happen to its first run, and returns when the job
// has ended, like Drain. Your test then checks what the handler has done. pool is a pool of the test's own schema. config
// is the configuration of a client, with its middleware. Without a Logger, nothing is logged. The test fails if the
// mishap could not happen. If Mishaps rules it out for such a job, the job just runs.
//
// The runs are real ones: claimed, fenced and settled. To play the death of a process, Run takes the job away from its
// run, as a rescue does, so the outcome of that run is refused.
func (m Mishap) Run(ctx context.Context, t testing.TB, pool *pgxpool.Pool, config drover.Config, worker drover.Worker, args drover.Args) {
	t.Helper()
	requireKind(t, worker, args)
	s := &stage{pool: pool, over: ctx.Done(), began: make(chan struct{}), ended: make(chan struct{}), together: make(chan struct{})}
	// The last middleware is the innermost. So the application's middleware surrounds the mishap and the run, and sees
	// them as one run.
	config.Middleware = append(slices.Clone(config.Middleware), drover.Middleware{Run: func(ctx context.Context, job *drover.Job, next func(context.Context) error) error {
		return m.play(ctx, s, job, next)
	}})
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	client, err := drover.New(pool, config)
	check(t, err)
	for range m.copies {
		receipt, err := client.Enqueue(ctx, args, nil)
		check(t, err)
		if s.id == "" {
			s.id = receipt.ID
		}
		if receipt.Existing {
			t.Fatalf("drovertest: the mishap %s did not happen: middleware makes these jobs unique, so the second one was not enqueued", m.Name)
		}
	}
	if m.late > 0 {
		if _, err := pool.Exec(ctx, sqlMakeLate, m.late); err != nil {
			t.Fatalf("drovertest: %v", err)
		}
	}
	cfg := drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: []drover.Worker{worker}}
	if m.copies > 1 {
		cfg.Queues[0].Concurrency = 1
	}
	if m.stops {
		if err := s.runUntilStopped(ctx, client, cfg); err != nil {
			t.Fatalf("drovertest: the mishap %s did not happen: %v", m.Name, err)
		}
	}
	Drain(ctx, t, pool, client, cfg)
	if s.runs == 0 {
		s.failed(errors.New("the job was not run"))
	}
	if s.failure != nil {
		t.Fatalf("drovertest: the mishap %s did not happen: %v", m.Name, s.failure)
	}
}

// stage has what the first and the second run of a mishap's job share.
type stage struct {
	pool         *pgxpool.Pool
	over         <-chan struct{} // closed when the test gives up
	began, ended chan struct{}   // the second run closes began when it begins, and ended when it ends
	together     chan struct{}   // the second run waits here for the first run, if they begin together; closed if the first run will not begin
	stop         func()          // stops the first supervisor
	id           string          // the id of the first job; the handler may enqueue other jobs like it

	mu      sync.Mutex
	runs    int
	failure error
}

// play plays the mishap around the first run. It also marks when the second run begins and ends.
func (m Mishap) play(ctx context.Context, s *stage, job *drover.Job, next func(context.Context) error) error {
	if job.ID != s.id {
		return next(ctx)
	}
	s.mu.Lock()
	s.runs++
	run := s.runs
	s.mu.Unlock()
	switch {
	case run == 1 && m.around != nil && (job.MaxAttempts > 1 || m.stops):
		return m.around(s, ctx, job, next)
	case run == 2:
		close(s.began)
		defer close(s.ended)
		if m.together {
			<-s.together
		}
	}
	return next(ctx)
}

func (s *stage) failed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failure = errors.Join(s.failure, err)
}

// sqlTakeAway does what a rescue does, without a death that counts against the job. It locks the row before it reads
// the clock: see sqlAdvance.
const sqlTakeAway = `
with held as materialized (select id from jobs where id = $1 and state = 'running' for no key update),
taken as (
	update jobs j set state = 'available', claimed_by = null, scheduled_at = clock_timestamp() from held where j.id = held.id returning j.id
)
select count(*) from taken`

// takeAway gives the job to the next run. It reports false if the run has settled its job already.
func (s *stage) takeAway(ctx context.Context, job *drover.Job) bool {
	var n int
	if err := s.pool.QueryRow(context.WithoutCancel(ctx), sqlTakeAway, job.ID).Scan(&n); err != nil {
		s.failed(err)
	}
	return n == 1
}

func outcomeLost(s *stage, ctx context.Context, job *drover.Job, next func(context.Context) error) error {
	err := next(ctx)
	s.takeAway(ctx, job)
	return err
}

func frozen(s *stage, ctx context.Context, job *drover.Job, next func(context.Context) error) error {
	if !s.secondBegins(ctx, job) {
		return nil
	}
	s.await(ctx, s.ended, nil)
	select {
	case <-s.over: // the second handler does not return
		return nil
	default:
	}
	woken, cancel := context.WithCancelCause(ctx)
	cancel(drover.ErrLeaseLost)
	return next(woken)
}

func twins(s *stage, ctx context.Context, job *drover.Job, next func(context.Context) error) error {
	defer close(s.together)
	if !s.secondBegins(ctx, job) {
		return nil
	}
	s.together <- struct{}{}
	return next(ctx)
}

// secondBegins takes the job away, and waits for the second run. It reports whether that run has begun.
func (s *stage) secondBegins(ctx context.Context, job *drover.Job) bool {
	if !s.takeAway(ctx, job) {
		s.failed(errors.New("the job of the run was no longer running"))
		return false
	}
	if s.await(ctx, s.began, time.After(startsWithin)) {
		return true
	}
	s.failed(errors.New("no second run began"))
	return false
}

// await waits for the event. It reports false if the time-out comes first, the test gives up, or the run's context
// ends for another reason than a lost lease. A lost lease does not end the wait, because a frozen or cut-off process
// would not notice it.
func (s *stage) await(ctx context.Context, event <-chan struct{}, timeout <-chan time.Time) bool {
	for _, end := range []<-chan struct{}{ctx.Done(), s.over} {
		select {
		case <-event:
			return true
		case <-timeout:
			return false
		case <-end:
		}
		if !errors.Is(context.Cause(ctx), drover.ErrLeaseLost) {
			return false
		}
	}
	return false
}

func stopped(s *stage, ctx context.Context, _ *drover.Job, next func(context.Context) error) error {
	s.stop()
	<-ctx.Done()
	return next(ctx)
}

// runUntilStopped runs a supervisor until a handler has begun.
func (s *stage) runUntilStopped(ctx context.Context, client *drover.Client, cfg drover.SupervisorConfig) error {
	cfg.DrainTimeout = time.Millisecond
	sup, err := client.NewSupervisor(cfg)
	if err != nil {
		return err
	}
	ctx, s.stop = context.WithTimeout(ctx, startsWithin)
	defer s.stop()
	if err := sup.Run(ctx); err != nil {
		return err
	}
	if s.runs == 0 {
		return errors.New("the job was not run")
	}
	return nil
}

// sqlMakeLate moves the times of unfinished jobs into the past, also the due times of jobs that are due already. It
// must run before any supervisor has looked at these jobs. Otherwise only a sweep would find them, because a claim
// begins where earlier claims have ended (the floor).
const sqlMakeLate = `
update jobs set scheduled_at = scheduled_at - $1::interval, created_at = created_at - $1::interval,
	expires_at = expires_at - $1::interval, retry_until = retry_until - $1::interval, unique_until = unique_until - $1::interval
where finalized_at is null`
