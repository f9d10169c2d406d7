package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover/internal/drive"
	"github.com/drover-queue/drover/internal/pgurl"
)

// The functions of this file run a burn-down and measure waits, in the same way for all Go contenders.

// database is the database of a Go contender. Every one has the same number of connections.
type database struct {
	pool *pgxpool.Pool
}

func (d *database) open(ctx context.Context, url string) error {
	config, err := pgurl.Parse(url)
	if err != nil {
		return fmt.Errorf("the database's URL: %w", err)
	}
	config.MaxConns = 20
	d.pool, err = pgxpool.NewWithConfig(ctx, config)
	return err
}

func (d *database) close(context.Context) error {
	if d.pool != nil {
		d.pool.Close()
	}
	return nil
}

func (d *database) inTx(ctx context.Context, do func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, d.pool, do)
}

// storeChunks makes n jobs, and calls the function store with some of them at a time, in the given number of goroutines.
func storeChunks[T any](n, goroutines int, job func(i int) T, store func([]T) error) error {
	var next atomic.Int64
	var group sync.WaitGroup
	errs := make([]error, goroutines)
	for i := range errs {
		group.Go(func() {
			for errs[i] == nil {
				to := int(next.Add(insertChunk))
				chunk := make([]T, 0, insertChunk)
				for nth := to - insertChunk; nth < min(to, n); nth++ {
					chunk = append(chunk, job(nth))
				}
				if len(chunk) == 0 {
					return
				}
				errs[i] = store(chunk)
			}
			next.Store(int64(n)) // after an error the others end
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// awaitCalls waits until the handlers have been called want times. It asks only this process, because queries for the
// progress would slow down the database.
func awaitCalls(ctx context.Context, calls *atomic.Int64, want int) (time.Time, error) {
	err := drive.Poll(ctx, time.Millisecond, func() (bool, error) { return calls.Load() >= int64(want), nil })
	if err != nil {
		return time.Time{}, fmt.Errorf("%d of %d runs: %w", calls.Load(), want, err)
	}
	return time.Now(), nil
}

// burnDown burns down n jobs that succeed in the given attempt: earlier attempts fail, and are retried 1 ms later. The
// time of the first untimed runs, during which the workers start, does not count.
func burnDown(ctx context.Context, q goQueue, untimed, n, workers, attempts int) (time.Duration, error) {
	var calls atomic.Int64
	began, last := time.Now(), time.Time{}
	err := q.work(ctx, workers, attempts == 1, func(_ noop, attempt int, _ time.Time) error {
		calls.Add(1)
		if attempt < attempts {
			return errInjected
		}
		return nil
	}, func(ctx context.Context, _ enqueue) (err error) {
		if untimed > 0 {
			if began, err = awaitCalls(ctx, &calls, untimed); err != nil {
				return err
			}
		}
		if _, err := awaitCalls(ctx, &calls, n*attempts); err != nil {
			return err
		}
		last, err = awaitEnd(ctx, q)
		return err
	})
	if err != nil {
		return 0, err
	}
	return last.Sub(began), checkCalls(calls.Load(), n*attempts)
}

// awaitEnd waits until no job is unfinished, and returns the time just before the query that found this out.
func awaitEnd(ctx context.Context, q goQueue) (last time.Time, err error) {
	err = drive.Poll(ctx, 5*time.Millisecond, func() (bool, error) {
		last = time.Now()
		unfinished, err := q.unfinished(ctx)
		return !unfinished, err
	})
	if err != nil {
		return last, fmt.Errorf("wait for the last completion: %w", err)
	}
	return last, nil
}

// errCount reports that handlers were called more or less often than the jobs should run.
var errCount = errors.New("bench: handler calls do not add up")

// checkCalls returns an error if a job of a burn-down ran too often, because the result then means nothing. No job can
// have run too seldom, because all jobs are finished.
func checkCalls(calls int64, want int) error {
	if calls != int64(want) {
		return fmt.Errorf("%w: %d instead of %d", errCount, calls, want)
	}
	return nil
}

// latency runs workers on an empty queue. It enqueues one job at a time, each a gap after the start of the job before,
// and measures the time from the call that enqueues to the start of the handler. First a client without workers
// enqueues the jobs (the result apart). Then the client of the workers does (the result same). That client need not ask
// the database which workers sleep.
func latency(ctx context.Context, q goQueue, gaps []time.Duration) (apart, same []time.Duration, err error) {
	started := make(chan time.Time, 1)
	err = q.work(ctx, 0, false, func(noop, int, time.Time) error {
		started <- time.Now()
		return nil
	}, func(ctx context.Context, own enqueue) (err error) {
		apart, err = measureLatency(ctx, gaps, func(ctx context.Context) error { return q.store(ctx, nil, noop{}) }, started)
		if err == nil {
			same, err = measureLatency(ctx, gaps, own, started)
		}
		return err
	})
	return apart, same, err
}

// measureLatency enqueues one job after each gap, and waits until it has started.
func measureLatency(
	ctx context.Context, gaps []time.Duration, enqueue enqueue, started <-chan time.Time,
) ([]time.Duration, error) {
	waits := make([]time.Duration, 0, len(gaps))
	for _, gap := range gaps {
		if err := drive.Pause(ctx, gap); err != nil {
			return nil, err
		}
		called := time.Now()
		if err := enqueue(ctx); err != nil {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%d of %d jobs started: %w", len(waits), len(gaps), context.Cause(ctx))
		case at := <-started:
			waits = append(waits, at.Sub(called))
		}
	}
	return waits, nil
}

// lateness lets one job fail for each backoff, stored 10 ms apart, and returns how long after its due time each second
// attempt began.
func lateness(ctx context.Context, q goQueue, backoffs []time.Duration) ([]time.Duration, error) {
	second := make(chan time.Duration, len(backoffs))
	late := make([]time.Duration, 0, len(backoffs))
	err := q.work(ctx, 0, false, func(_ noop, attempt int, due time.Time) error {
		if attempt == 1 {
			return errInjected
		}
		second <- time.Since(due)
		return nil
	}, func(ctx context.Context, _ enqueue) error {
		for _, backoff := range backoffs {
			if err := q.store(ctx, nil, noop{BackoffMS: int(backoff.Milliseconds())}); err != nil {
				return err
			}
			if err := drive.Pause(ctx, 10*time.Millisecond); err != nil {
				return err
			}
		}
		for range backoffs {
			select {
			case <-ctx.Done():
				return fmt.Errorf("%d of %d jobs were tried again: %w", len(late), len(backoffs), context.Cause(ctx))
			case d := <-second:
				late = append(late, d)
			}
		}
		return nil
	})
	return late, err
}
