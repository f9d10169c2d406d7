package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/drive"
	"github.com/drover-queue/drover/migrations"
)

// noop is the job of every Go contender: a number, and the time until the retry if the job has to fail once.
type noop struct {
	N         int `json:"n"`
	BackoffMS int `json:"backoff_ms,omitempty"`
}

func (noop) Kind() string { return "noop" }

var errInjected = errors.New("bench: injected failure")

// insertChunk is how many jobs the Go contenders store in one transaction.
const insertChunk = 10_000

// droverQueue is drover, with completed jobs kept for ever or deleted immediately.
type droverQueue struct {
	keep   bool
	pool   *pgxpool.Pool
	client *drover.Client // enqueues, as an application's other processes do
	runner *drover.Client // runs the supervisors; its own enqueues would wake them without the database
	first  string         // the jobs of the last insert have greater ids than this
}

func (q *droverQueue) setUp(ctx context.Context, url string) error {
	var err error
	if q.pool, err = openPool(ctx, url); err != nil {
		return err
	}
	if err := migrations.Up(ctx, q.pool); err != nil {
		return err
	}
	if !q.keep { // as docs/configuration.md says
		if _, err := q.pool.Exec(ctx, `alter table jobs set (fillfactor = 45)`); err != nil {
			return fmt.Errorf("set the fillfactor: %w", err)
		}
	}
	return q.connect()
}

func (q *droverQueue) connect() (err error) {
	config := drover.Config{Logger: slog.New(slog.DiscardHandler)}
	if q.client, err = drover.New(q.pool, config); err != nil {
		return err
	}
	q.runner, err = drover.New(q.pool, config)
	return err
}

func (q *droverQueue) close(context.Context) error {
	if q.pool != nil {
		q.pool.Close()
	}
	return nil
}

func (q *droverQueue) insert(ctx context.Context, n int) error {
	if err := q.pool.QueryRow(ctx, `select coalesce(max(id), '') from jobs`).Scan(&q.first); err != nil {
		return err
	}
	return q.enqueueMany(ctx, n, 1)
}

func (q *droverQueue) enqueueMany(ctx context.Context, n, goroutines int) error {
	return chunks(n, goroutines, func(from, to int) error {
		batch := make([]drover.EnqueueItem, 0, to-from)
		for i := from; i < to; i++ {
			batch = append(batch, drover.EnqueueItem{Args: noop{N: i}})
		}
		_, err := q.client.EnqueueMany(ctx, batch)
		return err
	})
}

func (q *droverQueue) burn(ctx context.Context, n, workers int) (time.Duration, error) {
	return q.burnDown(ctx, 0, n, workers, 1)
}

func (q *droverQueue) burnDown(ctx context.Context, untimed, n, workers, attempts int) (time.Duration, error) {
	return burnDown(ctx, untimed, n, attempts, backlog{q.pool, sqlDroverUnfinished, q.first}, func(ctx context.Context, run func(attempt int) error) (context.Context, func() error, error) {
		return q.supervise(ctx, workers, func(_ context.Context, job *drover.Job, _ noop) error { return run(job.Attempt) })
	})
}

// sqlDroverUnfinished walks the primary key from its end, because a burn-down finishes the newest jobs last.
const sqlDroverUnfinished = `
select count(*) > 0 from (select from jobs where finalized_at is null and id > $1 order by id desc limit 1) j`

func (q *droverQueue) latency(ctx context.Context, gaps []time.Duration) (apart, same []time.Duration, err error) {
	started := make(chan time.Time, 1)
	running, end, err := q.supervise(ctx, 0, func(context.Context, *drover.Job, noop) error {
		started <- time.Now()
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, end()) }()
	if apart, err = measureLatency(running, gaps, q.enqueue, started); err != nil {
		return nil, nil, err
	}
	same, err = measureLatency(running, gaps, func(ctx context.Context) error {
		_, err := q.runner.Enqueue(ctx, noop{}, nil)
		return err
	}, started)
	return apart, same, err
}

func (q *droverQueue) lateness(ctx context.Context, backoffs []time.Duration) (late []time.Duration, err error) {
	second := make(chan time.Duration, len(backoffs))
	running, end, err := q.supervise(ctx, 0, func(_ context.Context, job *drover.Job, _ noop) error {
		if job.Attempt == 1 {
			return errInjected
		}
		second <- time.Since(job.ScheduledAt)
		return nil
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, end()) }()
	return measureLateness(running, backoffs, second, func(backoff time.Duration) error {
		_, err := q.client.Enqueue(running, noop{}, &drover.EnqueueOpts{Retry: drover.Constant{Delay: backoff}})
		return err
	})
}

func (q *droverQueue) enqueue(ctx context.Context) error {
	_, err := q.client.Enqueue(ctx, noop{}, nil)
	return err
}

func (q *droverQueue) live(ctx context.Context, l *live) (err error) {
	running, end, err := q.supervise(ctx, 0, func(_ context.Context, _ *drover.Job, job noop) error {
		l.start(job.N)
		return nil
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	return l.run(running, func(ctx context.Context, n int) error {
		_, err := q.client.Enqueue(ctx, noop{N: n}, nil)
		return err
	}, func(ctx context.Context, n int, pause time.Duration) error {
		return pgx.BeginFunc(ctx, q.pool, func(tx pgx.Tx) error {
			if _, err := q.client.EnqueueTx(ctx, tx, noop{N: n}, nil); err != nil {
				return err
			}
			return drive.Pause(ctx, pause)
		})
	})
}

// supervise runs a supervisor until end is called. end waits until the supervisor has stopped. The returned context is
// done if the supervisor fails, with the supervisor's error as the cause. Zero workers means drover's default.
func (q *droverQueue) supervise(
	ctx context.Context, workers int, handler func(context.Context, *drover.Job, noop) error,
) (_ context.Context, end func() error, err error) {
	config := drover.SupervisorConfig{
		Queues:             []drover.Queue{{Concurrency: workers}},
		Workers:            []drover.Worker{drover.Handle(handler, drover.WorkerOpts{Retry: drover.Constant{Delay: time.Millisecond}})},
		CompletedRetention: drover.DeleteOnCompletion,
	}
	if q.keep {
		config.CompletedRetention = drover.KeepForever
	}
	return drive.Supervise(ctx, q.runner, config)
}

const (
	sqlFillFuture = `
insert into jobs (id, kind, state, scheduled_at, args)
select '00' || lpad(i::text, 24, '0'), 'noop', 'scheduled', now() + interval '30 days' + i * interval '1 ms', '{"n": 0}'
from generate_series($1::int, $2::int) as i`

	sqlFillFinished = `
insert into jobs (id, kind, state, scheduled_at, created_at, attempted_at, finalized_at, attempt, claim_seq, args)
select '01' || lpad(i::text, 24, '0'), 'noop', 'completed', at, at, at, at, 1, 1, '{"n": 0}'
from generate_series($1::int, $2::int) as i, lateral (select now() - interval '1 hour' - i * interval '1 ms' as at) t`
)

func (q *droverQueue) fill(ctx context.Context, future, finished int) error {
	for _, f := range []struct {
		sql string
		n   int
	}{{sqlFillFuture, future}, {sqlFillFinished, finished}} {
		for from := 1; from <= f.n; from += fillChunk {
			if _, err := q.pool.Exec(ctx, f.sql, from, min(from+fillChunk-1, f.n)); err != nil {
				return fmt.Errorf("fill the table: %w", err)
			}
		}
	}
	return nil
}

// fillChunk is how many rows are filled in by one statement: few enough that a Ctrl-C does not wait.
const fillChunk = 200_000

// sqlClaimBuffers finds the claim among the statements of this database by texts that only the claim has.
const sqlClaimBuffers = `
select coalesce(sum(shared_blks_hit + shared_blks_read), 0)::float8 from pg_stat_statements
where dbid = (select oid from pg_database where datname = current_database())
	and query like '%for key share%' and query like '%claim_seq = claim_seq +%' and query like '%skip locked%'`

func (q *droverQueue) claimBuffers(ctx context.Context, conn *pgx.Conn) (buffers float64, err error) {
	err = conn.QueryRow(ctx, sqlClaimBuffers).Scan(&buffers)
	return buffers, err
}
