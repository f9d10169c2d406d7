package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/drover-queue/drover/internal/drive"
)

// riverQueue is River. It has the settings of River's own bench command, with the shortest fetch cooldown that River
// allows. Or it has River's defaults, with 100 workers as in the examples of River's documentation.
type riverQueue struct {
	defaults bool
	pool     *pgxpool.Pool
	inserter *river.Client[pgx.Tx] // notifies at most every 100 ms, its default
	producer *river.Client[pgx.Tx] // notifies as often as workers fetch
	first    int64                 // ids of the last insert are greater
}

func (q *riverQueue) setUp(ctx context.Context, url string) error {
	var err error
	if q.pool, err = openPool(ctx, url); err != nil {
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

// cooled sets the shortest time between two notifications, and between two fetches, of the client.
func (q *riverQueue) cooled(config *river.Config) *river.Config {
	if !q.defaults {
		config.FetchCooldown = river.FetchCooldownMin
	}
	return config
}

func (q *riverQueue) close(context.Context) error {
	if q.pool != nil {
		q.pool.Close()
	}
	return nil
}

func (q *riverQueue) insert(ctx context.Context, n int) error {
	if err := q.pool.QueryRow(ctx, `select coalesce(max(id), 0) from river_job`).Scan(&q.first); err != nil {
		return err
	}
	return q.enqueueMany(ctx, n, 1)
}

func (q *riverQueue) enqueueMany(ctx context.Context, n, goroutines int) error {
	return chunks(n, goroutines, func(from, to int) error {
		batch := make([]river.InsertManyParams, 0, to-from)
		for i := from; i < to; i++ {
			batch = append(batch, river.InsertManyParams{Args: noop{N: i}})
		}
		_, err := q.inserter.InsertManyFast(ctx, batch)
		return err
	})
}

// riverWorker is a handler, with the time of the retry after a failure.
type riverWorker struct {
	river.WorkerDefaults[noop]
	work func(*river.Job[noop]) error
}

func (w *riverWorker) Work(_ context.Context, job *river.Job[noop]) error { return w.work(job) }

func (w *riverWorker) NextRetry(job *river.Job[noop]) time.Time {
	return time.Now().Add(max(time.Duration(job.Args.BackoffMS)*time.Millisecond, time.Millisecond))
}

func (q *riverQueue) burn(ctx context.Context, n, workers int) (time.Duration, error) {
	return q.burnDown(ctx, 0, n, workers, 1)
}

func (q *riverQueue) burnDown(ctx context.Context, untimed, n, workers, attempts int) (time.Duration, error) {
	poll := river.FetchPollIntervalMin // finds what is due again
	if attempts == 1 {
		poll = riverBurnPoll
	}
	return burnDown(ctx, untimed, n, attempts, backlog{q.pool, sqlRiverUnfinished, q.first}, func(ctx context.Context, run func(attempt int) error) (context.Context, func() error, error) {
		_, end, err := q.start(ctx, workers, poll, func(job *river.Job[noop]) error { return run(job.Attempt) })
		return ctx, end, err
	})
}

// sqlRiverUnfinished is sqlDroverUnfinished for River's table.
const sqlRiverUnfinished = `
select count(*) > 0 from (select from river_job where finalized_at is null and id > $1 order by id desc limit 1) j`

func (q *riverQueue) latency(ctx context.Context, gaps []time.Duration) (apart, same []time.Duration, err error) {
	started := make(chan time.Time, 1)
	client, end, err := q.start(ctx, riverDefaultWorkers, river.FetchPollIntervalMin, func(*river.Job[noop]) error {
		started <- time.Now()
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, end()) }()
	enqueueBy := func(client *river.Client[pgx.Tx]) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := client.Insert(ctx, noop{}, nil)
			return err
		}
	}
	if apart, err = measureLatency(ctx, gaps, enqueueBy(q.producer), started); err != nil {
		return nil, nil, err
	}
	same, err = measureLatency(ctx, gaps, enqueueBy(client), started)
	return apart, same, err
}

func (q *riverQueue) lateness(ctx context.Context, backoffs []time.Duration) (late []time.Duration, err error) {
	second := make(chan time.Duration, len(backoffs))
	_, end, err := q.start(ctx, riverDefaultWorkers, river.FetchPollIntervalMin, func(job *river.Job[noop]) error {
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
	return measureLateness(ctx, backoffs, second, func(backoff time.Duration) error {
		_, err := q.producer.Insert(ctx, noop{BackoffMS: int(backoff.Milliseconds())}, nil)
		return err
	})
}

func (q *riverQueue) enqueue(ctx context.Context) error {
	_, err := q.inserter.Insert(ctx, noop{}, nil)
	return err
}

func (q *riverQueue) live(ctx context.Context, l *live) (err error) {
	_, end, err := q.start(ctx, riverDefaultWorkers, river.FetchPollIntervalMin, func(job *river.Job[noop]) error {
		l.start(job.Args.N)
		return nil
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	return l.run(ctx, func(ctx context.Context, n int) error {
		_, err := q.producer.Insert(ctx, noop{N: n}, nil)
		return err
	}, func(ctx context.Context, n int, pause time.Duration) error {
		return pgx.BeginFunc(ctx, q.pool, func(tx pgx.Tx) error {
			if _, err := q.producer.InsertTx(ctx, tx, noop{N: n}, nil); err != nil {
				return err
			}
			return drive.Pause(ctx, pause)
		})
	})
}

const (
	riverDefaultWorkers = 100
	riverBenchWorkers   = 2000

	// riverBurnPoll is the poll interval of River's bench command. With the shortest interval, a burn-down had 0.8 to
	// 0.9 of the rate.
	riverBurnPoll = 20 * time.Millisecond
)

// start runs a client with workers until end is called. end waits until the client has stopped. The client polls so
// often, unless q.defaults is set.
func (q *riverQueue) start(
	ctx context.Context, workers int, poll time.Duration, work func(*river.Job[noop]) error,
) (_ *river.Client[pgx.Tx], end func() error, err error) {
	registered := river.NewWorkers()
	if err := river.AddWorkerSafely(registered, &riverWorker{work: work}); err != nil {
		return nil, nil, err
	}
	config := &river.Config{
		Logger:  slog.New(slog.DiscardHandler),
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: workers}},
		Workers: registered,
	}
	if !q.defaults {
		config.FetchPollInterval = poll
	}
	client, err := river.NewClient(riverpgxv5.New(q.pool), q.cooled(config))
	if err != nil {
		return nil, nil, err
	}
	if err := client.Start(ctx); err != nil {
		return nil, nil, err
	}
	return client, func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		defer cancel()
		if err := client.StopAndCancel(ctx); err != nil {
			return fmt.Errorf("stop river: %w", err)
		}
		return nil
	}, nil
}
