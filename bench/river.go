package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// riverQueue is River. It has the settings of River's own bench command, with the shortest fetch cooldown that River
// allows. Or it has River's defaults, with 100 workers as in the examples of River's documentation.
type riverQueue struct {
	database
	defaults bool
	inserter *river.Client[pgx.Tx] // notifies at most every 100 ms, its default
	producer *river.Client[pgx.Tx] // notifies as often as workers fetch
	first    int64                 // ids of the last insert are greater
}

func (q *riverQueue) setUp(ctx context.Context, url string) error {
	if err := q.open(ctx, url); err != nil {
		return err
	}
	migrator, err := rivermigrate.New(riverpgxv5.New(q.pool), &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	config := &river.Config{Logger: slog.New(slog.DiscardHandler)}
	if q.inserter, err = river.NewClient(riverpgxv5.New(q.pool), config); err != nil {
		return err
	}
	q.producer, err = river.NewClient(riverpgxv5.New(q.pool), q.cooled(config))
	return err
}

// The method cooled sets the shortest time between two notifications, and between two fetches, of the client.
func (q *riverQueue) cooled(config *river.Config) *river.Config {
	if !q.defaults {
		config.FetchCooldown = river.FetchCooldownMin
	}
	return config
}

func (q *riverQueue) insert(ctx context.Context, n int) error {
	if err := q.pool.QueryRow(ctx, `select coalesce(max(id), 0) from river_job`).Scan(&q.first); err != nil {
		return err
	}
	return q.enqueueMany(ctx, n, 1)
}

func (q *riverQueue) enqueueMany(ctx context.Context, n, goroutines int) error {
	job := func(i int) river.InsertManyParams { return river.InsertManyParams{Args: noop{N: i}} }
	return storeChunks(n, goroutines, job, func(batch []river.InsertManyParams) error {
		_, err := q.inserter.InsertManyFast(ctx, batch)
		return err
	})
}

// riverWorker is a handler, with the time of the retry after a failure.
type riverWorker struct {
	river.WorkerDefaults[noop]
	handle handler
}

func (w *riverWorker) Work(_ context.Context, job *river.Job[noop]) error {
	return w.handle(job.Args, job.Attempt, job.ScheduledAt)
}

func (w *riverWorker) NextRetry(job *river.Job[noop]) time.Time {
	return time.Now().Add(max(time.Duration(job.Args.BackoffMS)*time.Millisecond, time.Millisecond))
}

func (q *riverQueue) burn(ctx context.Context, n, workers int) (time.Duration, error) {
	return burnDown(ctx, q, 0, n, workers, 1)
}

func (q *riverQueue) unfinished(ctx context.Context) (yes bool, err error) {
	err = q.pool.QueryRow(ctx, sqlRiverUnfinished, q.first).Scan(&yes)
	return yes, err
}

// sqlRiverUnfinished is sqlDroverUnfinished for River's table.
const sqlRiverUnfinished = `
select count(*) > 0 from (select from river_job where finalized_at is null and id > $1 order by id desc limit 1) j`

func (q *riverQueue) enqueue(ctx context.Context) error {
	_, err := q.inserter.Insert(ctx, noop{}, nil)
	return err
}

func (q *riverQueue) store(ctx context.Context, tx pgx.Tx, job noop) (err error) {
	if tx == nil {
		_, err = q.producer.Insert(ctx, job, nil)
	} else {
		_, err = q.producer.InsertTx(ctx, tx, job, nil)
	}
	return err
}

const (
	riverDefaultWorkers = 100
	riverBenchWorkers   = 2000

	// riverBurnPoll is the poll interval of River's bench command. With the shortest interval, a burn-down had 0.8 to
	// 0.9 of the rate.
	riverBurnPoll = 20 * time.Millisecond
)

func (q *riverQueue) work(ctx context.Context, workers int, allDue bool, handle handler, do func(context.Context, enqueue) error) error {
	registered := river.NewWorkers()
	if err := river.AddWorkerSafely(registered, &riverWorker{handle: handle}); err != nil {
		return err
	}
	config := &river.Config{
		Logger:  slog.New(slog.DiscardHandler),
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: cmp.Or(workers, riverDefaultWorkers)}},
		Workers: registered,
	}
	if !q.defaults {
		config.FetchPollInterval = river.FetchPollIntervalMin // so that it finds jobs that become due later
		if allDue {
			config.FetchPollInterval = riverBurnPoll
		}
	}
	client, err := river.NewClient(riverpgxv5.New(q.pool), q.cooled(config))
	if err != nil {
		return err
	}
	if err := client.Start(ctx); err != nil {
		return err
	}
	err = do(ctx, func(ctx context.Context) error {
		_, err := client.Insert(ctx, noop{}, nil)
		return err
	})
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	if stopErr := client.StopAndCancel(ctx); stopErr != nil {
		err = errors.Join(err, fmt.Errorf("stop river: %w", stopErr))
	}
	return err
}
