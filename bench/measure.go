package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover/internal/drive"
	"github.com/drover-queue/drover/internal/pgurl"
)

// The functions of this file find the end of a burn-down and measure waits, in the same way for all Go contenders.

// openPool gives every Go contender the same number of connections.
func openPool(ctx context.Context, url string) (*pgxpool.Pool, error) {
	config, err := pgurl.Parse(url)
	if err != nil {
		return nil, fmt.Errorf("the database's URL: %w", err)
	}
	config.MaxConns = 20
	return pgxpool.NewWithConfig(ctx, config)
}

// chunks calls do for each part of n jobs, from so many goroutines.
func chunks(n, goroutines int, do func(from, to int) error) error {
	var next atomic.Int64
	errs := make(chan error, goroutines)
	for range goroutines {
		go func() { // chunks waits for it
			for {
				to := int(next.Add(insertChunk))
				from := to - insertChunk
				if from >= n {
					errs <- nil
					return
				}
				if err := do(from, min(to, n)); err != nil {
					next.Store(int64(n)) // the others end
					errs <- err
					return
				}
			}
		}()
	}
	var err error
	for range goroutines {
		err = errors.Join(err, <-errs)
	}
	return err
}

// awaitCalls waits until the handlers have been called so often. Until then, queries for the progress would only slow
// down the database.
func awaitCalls(ctx context.Context, calls *atomic.Int64, want int) (time.Time, error) {
	err := drive.Poll(ctx, time.Millisecond, func() (bool, error) { return calls.Load() >= int64(want), nil })
	if err != nil {
		return time.Time{}, fmt.Errorf("%d of %d runs: %w", calls.Load(), want, err)
	}
	return time.Now(), nil
}

// burnDown starts workers, and times them until n jobs are done. Each job runs attempts times. The time of the first
// untimed runs does not count.
func burnDown(
	ctx context.Context, untimed, n, attempts int, left backlog,
	start func(ctx context.Context, run func(attempt int) error) (running context.Context, end func() error, err error),
) (time.Duration, error) {
	var calls atomic.Int64
	began := time.Now()
	running, end, err := start(ctx, func(attempt int) error {
		calls.Add(1)
		if attempt < attempts {
			return errInjected
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	if untimed > 0 {
		began, err = awaitCalls(running, &calls, untimed)
	}
	last := began
	if err == nil {
		_, err = awaitCalls(running, &calls, n*attempts)
	}
	if err == nil {
		last, err = left.awaitEnd(running)
	}
	if err := errors.Join(err, end()); err != nil {
		return 0, err
	}
	return last.Sub(began), checkCalls(calls.Load(), n*attempts)
}

// backlog has the jobs whose ids are greater than first. sql returns whether one of them is unfinished.
type backlog struct {
	pool  *pgxpool.Pool
	sql   string
	first any
}

// awaitEnd waits until no job is unfinished, and returns the time just before the query that found this out.
func (b backlog) awaitEnd(ctx context.Context) (last time.Time, err error) {
	err = drive.Poll(ctx, 5*time.Millisecond, func() (bool, error) {
		var unfinished bool
		last = time.Now()
		err := b.pool.QueryRow(ctx, b.sql, b.first).Scan(&unfinished)
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

// measureLatency enqueues one job after each gap, and waits until it has started.
func measureLatency(
	ctx context.Context, gaps []time.Duration, enqueue func(context.Context) error, started <-chan time.Time,
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

// measureLateness enqueues one job for each backoff, 10 ms apart, and returns how late the second attempts began.
func measureLateness(
	ctx context.Context, backoffs []time.Duration, second <-chan time.Duration, enqueue func(backoff time.Duration) error,
) ([]time.Duration, error) {
	for _, backoff := range backoffs {
		if err := enqueue(backoff); err != nil {
			return nil, err
		}
		if err := drive.Pause(ctx, 10*time.Millisecond); err != nil {
			return nil, err
		}
	}
	late := make([]time.Duration, 0, len(backoffs))
	for range backoffs {
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%d of %d jobs were tried again: %w", len(late), len(backoffs), context.Cause(ctx))
		case d := <-second:
			late = append(late, d)
		}
	}
	return late, nil
}
