package drovertest

import (
	"context"
	"log/slog"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
)

// Mishap is something that can happen to a run in production, after which drover runs the job
// again. A handler whose effects must happen once has to get through all Mishaps.
type Mishap struct {
	Name string // for t.Run
	What string // what happens

	around    func(*stage, context.Context, *drover.Job, func(context.Context) error) error
	duplicate bool
}

// Mishaps are, in this order:
//
//   - outcome-lost: the handler returns, and the process dies before the outcome is recorded.
//     Another process runs the job again.
//   - frozen: the process is frozen before the handler begins. Another process runs the whole job.
//     Then the first one wakes up, and calls the handler with a context that has ended.
//   - twins: a process cannot reach the database for longer than its lease. Another process runs
//     the job at the same time.
//   - stopped: the handler's context ends as it begins, as in a deploy. The job runs again.
//   - enqueued-twice: two jobs with the same args run one after the other.
//
// If a run settles its job in a transaction (Job.CompleteTx), its effect and its outcome are
// recorded together, so the job does not run again after outcome-lost. To a job with a single
// attempt only enqueued-twice happens, because drover does not run it again.
func Mishaps() []Mishap {
	return []Mishap{
		{Name: "outcome-lost", What: "the process dies before the outcome is recorded", around: outcomeLost},
		{Name: "frozen", What: "the process is frozen until another has run the job", around: frozen},
		{Name: "twins", What: "two processes run the job at the same time", around: twins},
		{Name: "stopped", What: "the context ends as the handler begins", around: stopped},
		{Name: "enqueued-twice", What: "two jobs have the same args", duplicate: true},
	}
}

// Run enqueues a job with args in the queue "default", lets the mishap happen to its first run, and
// returns when the job has ended, like Drain. Your test then checks what the handler has done. db
// is a pool of the test's own schema. config is the configuration of a client, with its middleware.
// Without a Logger, nothing is logged.
//
// The runs are real ones: claimed, fenced and settled. To play the death of a process, Run takes
// the job away from its run, as a rescue does, so the outcome of that run is refused.
func (m Mishap) Run(ctx context.Context, t testing.TB, db *pgxpool.Pool, config drover.Config, worker drover.Worker, args drover.Args) {
	t.Helper()
	s := &stage{db: db, began: make(chan struct{}), ended: make(chan struct{})}
	if m.around != nil {
		// Innermost, so that the application's middleware is around what it takes for one run.
		config.Middleware = append(config.Middleware[:len(config.Middleware):len(config.Middleware)], drover.Middleware{Run: s.play(m.around)})
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	client, err := drover.New(db, config)
	if err != nil {
		t.Fatalf("drovertest: %v", err)
	}
	copies := 1
	if m.duplicate {
		copies = 2
	}
	for range copies {
		receipt, err := client.Enqueue(ctx, args, nil)
		if err != nil {
			t.Fatalf("drovertest: %v", err)
		}
		if receipt.Existing {
			t.Fatalf("drovertest: the mishap %s did not happen: middleware makes these jobs unique, so the second one was not enqueued", m.Name)
		}
	}
	cfg := drover.SupervisorConfig{Workers: []drover.Worker{worker}}
	if m.duplicate {
		cfg.Queues = []drover.Queue{{Concurrency: 1}}
	}
	Drain(ctx, t, db, client, cfg)
	if err := s.err(); err != nil {
		t.Fatalf("drovertest: the mishap %s did not happen: %v", m.Name, err)
	}
}

// stage is where a mishap is played: the first run of a job, and the second.
type stage struct {
	db           drover.Tx
	began, ended chan struct{} // of the second run

	mu      sync.Mutex
	runs    int
	failure error
}

func (s *stage) err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failure
}

// play has the mishap around the first run, and marks the begin and the end of the second.
func (s *stage) play(first func(*stage, context.Context, *drover.Job, func(context.Context) error) error) func(context.Context, *drover.Job, func(context.Context) error) error {
	return func(ctx context.Context, job *drover.Job, next func(context.Context) error) error {
		s.mu.Lock()
		s.runs++
		run := s.runs
		s.mu.Unlock()
		switch {
		case run == 1 && job.MaxAttempts > 1:
			return first(s, ctx, job, next)
		case run == 2:
			close(s.began)
			defer close(s.ended)
		}
		return next(ctx)
	}
}

// sqlTakeAway is what a rescue does, without a death that counts against the job.
const sqlTakeAway = `
with taken as (
	update jobs set state = 'available', claimed_by = null, scheduled_at = clock_timestamp() where id = $1 and state = 'running' returning id
)
select count(*) from taken`

// takeAway gives the job to the next run. It reports whether it did: the run may have settled it already.
func (s *stage) takeAway(ctx context.Context, job *drover.Job) bool {
	var n int
	if err := s.db.QueryRow(context.WithoutCancel(ctx), sqlTakeAway, job.ID).Scan(&n); err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.failure = err
	}
	return n == 1
}

func outcomeLost(s *stage, ctx context.Context, job *drover.Job, next func(context.Context) error) error {
	err := next(ctx)
	s.takeAway(ctx, job)
	return err
}

func frozen(s *stage, ctx context.Context, job *drover.Job, next func(context.Context) error) error {
	if s.takeAway(ctx, job) {
		await(ctx, s.ended)
	}
	return next(ended(ctx, drover.ErrLeaseLost))
}

func twins(s *stage, ctx context.Context, job *drover.Job, next func(context.Context) error) error {
	if s.takeAway(ctx, job) {
		await(ctx, s.began)
	}
	return next(ctx)
}

func stopped(_ *stage, ctx context.Context, _ *drover.Job, next func(context.Context) error) error {
	return next(ended(ctx, drover.ErrShutdown))
}

func await(ctx context.Context, done <-chan struct{}) {
	select {
	case <-done:
	case <-ctx.Done():
	}
}

func ended(ctx context.Context, cause error) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	cancel(cause)
	return ctx
}
