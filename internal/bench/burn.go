package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/drive"
	"github.com/drover-queue/drover/internal/plural"
)

// noop is a job that does nothing.
type noop struct {
	N    int
	Fill string `json:",omitempty"`
}

func (noop) Kind() string { return "noop" }

var errInjected = errors.New("drover: injected failure")

// burn inserts the jobs, lets one supervisor run them all, and fills in the report.
func (s *scratch) burn(ctx context.Context, r *Report) error {
	if err := s.meter.extend(ctx, r); err != nil {
		return err
	}
	if !s.Keep {
		// The migration recommends this fill factor if completed jobs are deleted immediately.
		if _, err := s.pool.Exec(ctx, `alter table jobs set (fillfactor = 45)`); err != nil {
			return fmt.Errorf("set the fill factor: %w", err)
		}
	}
	inserted, err := s.insert(ctx, r)
	if err != nil {
		return err
	}
	if err := s.settleDown(ctx, r); err != nil {
		return err
	}
	ran, calls, err := s.burnDown(ctx, r)
	if err != nil {
		return err
	}
	if err := s.reportHOT(ctx, r); err != nil {
		return err
	}
	r.reportWAL(inserted, ran)
	r.CommitsPerJob = per(ran.commits, float64(s.Jobs), 4)
	if s.meter.statements != "" {
		r.StatementsPerJob = per(ran.statements, float64(s.Jobs), 4)
	}
	if want := int64(s.Jobs) + s.failures(s.Jobs); calls != want {
		return fmt.Errorf("%w: %d calls, %d jobs and %d injected failures", ErrCount, calls, s.Jobs, want-int64(s.Jobs))
	}
	return nil
}

// phase has the work that one phase of the burn-down has caused in the server.
type phase struct {
	counters
	imageBytes int64
	apart      bool // imageBytes is known
}

// The method measured runs one phase between two readings of the server's counters.
func (s *scratch) measured(ctx context.Context, do func() error) (p phase, err error) {
	if err := s.meter.flush(ctx, s.pool); err != nil {
		return p, err
	}
	before, err := s.meter.read(ctx)
	if err != nil {
		return p, err
	}
	if err := do(); err != nil {
		return p, err
	}
	if err := s.meter.flush(ctx, s.pool); err != nil {
		return p, err
	}
	after, err := s.meter.read(ctx)
	if err != nil {
		return p, err
	}
	p.counters = after.since(before)
	p.imageBytes, p.apart, err = s.meter.imageBytes(ctx, before.wal, after.wal)
	return p, err
}

// chunk is how many jobs are enqueued in one transaction.
const chunk = 10_000

func (s *scratch) insert(ctx context.Context, r *Report) (phase, error) {
	s.progress("burn: enqueueing %s", plural.Of(s.Jobs, "job"))
	fill := filler(s.Payload)
	var took time.Duration
	p, err := s.measured(ctx, func() error {
		began := time.Now()
		for n := 0; n < s.Jobs; n += chunk {
			batch := make([]drover.EnqueueItem, 0, chunk)
			for i := n; i < min(n+chunk, s.Jobs); i++ {
				batch = append(batch, drover.EnqueueItem{
					Args: noop{N: i, Fill: fill()}, Opts: &drover.EnqueueOpts{Queue: s.queue(i % s.Queues)},
				})
			}
			if _, err := s.client.EnqueueMany(ctx, batch); err != nil {
				return err
			}
		}
		took = time.Since(began)
		return nil
	})
	r.InsertPerSecond = new(round(float64(s.Jobs)/took.Seconds(), 0))
	return p, err
}

// filler makes random strings of n characters, which compress like text and not like a run of one letter.
func filler(n int) func() string {
	const letters = "0123456789abcdef"
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same jobs every time
	return func() string {
		b := make([]byte, n)
		for i := range b {
			b[i] = letters[random.IntN(len(letters))]
		}
		return string(b)
	}
}

func (s *scratch) queue(i int) string {
	if s.Queues == 1 {
		return "default"
	}
	return fmt.Sprintf("bench_%d", i+1)
}

// settleDown vacuums and analyzes the table, so that it resembles a table that has existed for a while. It ends with a
// checkpoint, so that probably no checkpoint comes in the middle of the run.
func (s *scratch) settleDown(ctx context.Context, r *Report) error {
	s.progress("burn: vacuum, analyze, checkpoint")
	if _, err := s.pool.Exec(ctx, `vacuum (analyze) jobs`, pgx.QueryExecModeSimpleProtocol); err != nil {
		return fmt.Errorf("vacuum: %w", err)
	}
	if _, err := s.pool.Exec(ctx, `checkpoint`); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		r.note("no checkpoint before the run: " + err.Error())
	}
	return nil
}

// sqlUnfinished searches from the newest id on, because a burn-down finishes the newest jobs last.
const sqlUnfinished = `select count(*) > 0 from (select from jobs where finalized_at is null order by id desc limit 1) j`

// burnDown runs all jobs and returns how often a handler was called.
func (s *scratch) burnDown(ctx context.Context, r *Report) (phase, int64, error) {
	s.progress("burn: running %s on %s", plural.Of(s.Jobs, "job"), plural.Of(s.Workers, "worker"))
	var calls atomic.Int64
	handler := func(_ context.Context, job *drover.Job, n noop) error {
		calls.Add(1)
		if job.Attempt == 1 && s.fails(n.N) {
			return errInjected
		}
		return nil
	}
	config := drover.SupervisorConfig{
		Workers:            []drover.Worker{drover.Handle(handler, drover.WorkerOpts{Retry: drover.Constant{Delay: time.Millisecond}})},
		CompletedRetention: s.retention(),
	}
	for i := range s.Queues {
		share := s.Workers / s.Queues
		if i < s.Workers%s.Queues {
			share++
		}
		config.Queues = append(config.Queues, drover.Queue{Name: s.queue(i), Concurrency: share})
	}
	want := int64(s.Jobs) + s.failures(s.Jobs)
	var took time.Duration
	p, err := s.measured(ctx, func() error {
		began := time.Now()
		running, end, err := drive.Supervise(ctx, s.client, config)
		if err != nil {
			return err
		}
		last, err := s.awaitLast(running, &calls, want)
		took = last.Sub(began)
		return errors.Join(err, end())
	})
	if err != nil {
		return p, 0, err
	}
	n := calls.Load()
	r.Seconds = new(round(took.Seconds(), 4))
	r.JobsPerSecond = new(round(float64(s.Jobs)/took.Seconds(), 0))
	r.RunsPerSecond = new(round(float64(n)/took.Seconds(), 0))
	r.HandlerCalls, r.InjectedFailures = &n, new(want-int64(s.Jobs))
	return p, n, nil
}

// awaitLast waits until no job is unfinished, and returns the time of that moment. It first waits for the handler
// calls, which are counted in this process, so that no query disturbs the server during the run.
func (s *scratch) awaitLast(ctx context.Context, calls *atomic.Int64, want int64) (last time.Time, err error) {
	err = drive.Poll(ctx, time.Millisecond, func() (bool, error) { return calls.Load() >= want, nil })
	if err != nil {
		return last, fmt.Errorf("%d of %d runs: %w", calls.Load(), want, err)
	}
	err = drive.Poll(ctx, 5*time.Millisecond, func() (bool, error) {
		var unfinished bool
		last = time.Now() // before the query, so that the time of the query does not count
		err := s.meter.row(ctx, sqlUnfinished).Scan(&unfinished)
		return !unfinished, err
	})
	return last, err
}

// failures returns how many of the first n jobs fail once. These jobs are spread evenly.
func (s *scratch) failures(n int) int64 { return int64(math.Floor(float64(n) * s.FailRate)) }

func (s *scratch) fails(n int) bool { return s.failures(n+1) > s.failures(n) }

// reportHOT reports which share of the claims' updates were HOT. All updates are claims or settles. A settle is never a
// HOT update, because it changes the predicate of an index.
func (s *scratch) reportHOT(ctx context.Context, r *Report) error {
	all, hot, err := s.meter.updates(ctx)
	if err != nil {
		return err
	}
	claims := all - s.failures(s.Jobs)
	if s.Keep {
		claims -= int64(s.Jobs)
	}
	if claims > 0 {
		r.HOTShare = per(hot, float64(claims), 4)
	}
	return nil
}

func (r *Report) reportWAL(inserted, ran phase) {
	n := float64(r.Jobs)
	apart := inserted.apart && ran.apart
	r.WALImagesApart = &apart
	r.WALImages = per(inserted.images+ran.images, n, 4)
	r.WALTotalBytes = per(inserted.wal+ran.wal, n, 1)
	if apart {
		r.WALImageBytes = per(inserted.imageBytes+ran.imageBytes, n, 1)
	}
	r.WALInsertBytes = per(inserted.wal-inserted.imageBytes, n, 1)
	r.WALRunBytes = per(ran.wal-ran.imageBytes, n, 1)
	r.WALBytes = per(inserted.wal+ran.wal-inserted.imageBytes-ran.imageBytes, n, 1)
	if !apart {
		r.note("wal_bytes_per_job includes full-page images: the server does not tell their size")
	}
}
