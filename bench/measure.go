package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// What the Go contenders share: how a burn-down's end is found, how waits are measured.

// openPool gives every Go contender the same number of connections.
func openPool(ctx context.Context, url string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("the database's URL: %w", err)
	}
	config.MaxConns = 20
	return pgxpool.NewWithConfig(ctx, config)
}

// chunks calls do for each part of n jobs.
func chunks(n int, do func(from, to int) error) error {
	for from := 0; from < n; from += insertChunk {
		if err := do(from, min(from+insertChunk, n)); err != nil {
			return err
		}
	}
	return nil
}

// awaitCalls waits until the handlers have been called so often: until then the database has better to do than to
// answer how far it is.
func awaitCalls(ctx context.Context, calls *atomic.Int64, want int) (time.Time, error) {
	err := poll(ctx, time.Millisecond, func() (bool, error) { return calls.Load() >= int64(want), nil })
	if err != nil {
		return time.Time{}, fmt.Errorf("%d of %d runs: %w", calls.Load(), want, err)
	}
	return time.Now(), nil
}

// awaitUnfinished waits until sql finds no unfinished job and returns when that was: before it was asked.
func awaitUnfinished(ctx context.Context, pool *pgxpool.Pool, sql string, args ...any) (last time.Time, err error) {
	err = poll(ctx, 5*time.Millisecond, func() (bool, error) {
		var unfinished bool
		last = time.Now()
		err := pool.QueryRow(ctx, sql, args...).Scan(&unfinished)
		return !unfinished, err
	})
	if err != nil {
		return last, fmt.Errorf("wait for the last completion: %w", err)
	}
	return last, nil
}

// errCount reports that handlers were called more or less often than there were runs to make.
var errCount = errors.New("bench: handler calls do not add up")

// checkCalls makes a burn-down in which a job ran twice worth nothing. None ran too seldom: all are finished.
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
		if err := pause(ctx, gap); err != nil {
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

// measureLateness enqueues one job for each backoff, 10 ms apart, and gathers how late their second attempts began.
func measureLateness(
	ctx context.Context, backoffs []time.Duration, second <-chan time.Duration, enqueue func(backoff time.Duration) error,
) ([]time.Duration, error) {
	for _, backoff := range backoffs {
		if err := enqueue(backoff); err != nil {
			return nil, err
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
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

// poll asks again and again until the answer is yes.
func poll(ctx context.Context, every time.Duration, done func() (bool, error)) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if yes, err := done(); yes || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// pause waits, or returns why the context is done.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
