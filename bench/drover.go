package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

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
	database
	keep   bool
	client *drover.Client // enqueues, as an application's other processes do
	runner *drover.Client // runs the supervisors; its own enqueues would wake them without the database
	first  string         // the jobs of the last insert have greater ids than this
}

func (q *droverQueue) setUp(ctx context.Context, url string) error {
	if err := q.open(ctx, url); err != nil {
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

func (q *droverQueue) insert(ctx context.Context, n int) error {
	if err := q.pool.QueryRow(ctx, `select coalesce(max(id), '') from jobs`).Scan(&q.first); err != nil {
		return err
	}
	return q.enqueueMany(ctx, n, 1)
}

func (q *droverQueue) enqueueMany(ctx context.Context, n, goroutines int) error {
	job := func(i int) drover.EnqueueItem { return drover.EnqueueItem{Args: noop{N: i}} }
	return storeChunks(n, goroutines, job, func(batch []drover.EnqueueItem) error {
		_, err := q.client.EnqueueMany(ctx, batch)
		return err
	})
}

func (q *droverQueue) burn(ctx context.Context, n, workers int) (time.Duration, error) {
	return burnDown(ctx, q, 0, n, workers, 1)
}

func (q *droverQueue) unfinished(ctx context.Context) (yes bool, err error) {
	err = q.pool.QueryRow(ctx, sqlDroverUnfinished, q.first).Scan(&yes)
	return yes, err
}

// sqlDroverUnfinished walks the primary key from its end, because a burn-down finishes the newest jobs last.
const sqlDroverUnfinished = `
select count(*) > 0 from (select from jobs where finalized_at is null and id > $1 order by id desc limit 1) j`

func (q *droverQueue) enqueue(ctx context.Context) error { return q.store(ctx, nil, noop{}) }

func (q *droverQueue) store(ctx context.Context, tx pgx.Tx, job noop) (err error) {
	var opts drover.EnqueueOpts
	if job.BackoffMS > 0 {
		opts.Retry = drover.Constant{Delay: time.Duration(job.BackoffMS) * time.Millisecond}
	}
	if tx == nil {
		_, err = q.client.Enqueue(ctx, job, &opts)
	} else {
		_, err = q.client.EnqueueTx(ctx, tx, job, &opts)
	}
	return err
}

func (q *droverQueue) work(ctx context.Context, workers int, _ bool, handle handler, do func(context.Context, enqueue) error) error {
	run := func(_ context.Context, job *drover.Job, args noop) error {
		return handle(args, job.Attempt, job.ScheduledAt)
	}
	config := drover.SupervisorConfig{
		Queues:             []drover.Queue{{Concurrency: workers}},
		Workers:            []drover.Worker{drover.Handle(run, drover.WorkerOpts{Retry: drover.Constant{Delay: time.Millisecond}})},
		CompletedRetention: drover.DeleteOnCompletion,
	}
	if q.keep {
		config.CompletedRetention = drover.KeepForever
	}
	running, end, err := drive.Supervise(ctx, q.runner, config)
	if err != nil {
		return err
	}
	err = do(running, func(ctx context.Context) error {
		_, err := q.runner.Enqueue(ctx, noop{}, nil)
		return err
	})
	return errors.Join(err, end())
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
