package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/drive"
)

// liveLoad is the work of producers while workers run. They store single jobs, each in a transaction of its own. They
// also store late jobs, whose transactions stay open for a while after the insert, as transactions of applications do.
type liveLoad struct {
	singles, late int           // how many of each a second
	pause         time.Duration // from the insert of a late job to its commit
	lasts         time.Duration
}

// liveProducers is the number of producers of single jobs, and of producers of late jobs. The pool has more
// connections, for the queue.
const liveProducers = 8

// live records when each job of a load was committed and when it started. The jobs are numbered, and the late jobs have
// the last numbers. Before all of them there is a firstJob.
type live struct {
	load               liveLoad
	singles            int
	committed, started []atomic.Int64 // since began, in nanoseconds; 0: not yet
	left               atomic.Int64
	began              time.Time
	first              chan struct{} // closed when the first job starts
	up                 time.Duration // from began until the first job started
}

const firstJob = -1

func newLive(load liveLoad) *live {
	singles := int(float64(load.singles) * load.lasts.Seconds())
	n := singles + int(float64(load.late)*load.lasts.Seconds())
	l := &live{load: load, singles: singles, committed: make([]atomic.Int64, n), started: make([]atomic.Int64, n), first: make(chan struct{}), began: time.Now()}
	l.left.Store(int64(n))
	return l
}

// run runs workers, which record the start of each job.
func (l *live) run(ctx context.Context, q goQueue) error {
	return q.work(ctx, 0, false, func(job noop, _ int, _ time.Time) error {
		if job.N == firstJob {
			close(l.first)
		} else if l.started[job.N].CompareAndSwap(0, int64(time.Since(l.began))) {
			l.left.Add(-1)
		}
		return nil
	}, func(ctx context.Context, _ enqueue) error { return l.produce(ctx, q) })
}

// produce stores a first job. Once this job has started, it stores the other jobs at their rates, as long as a
// producer is free, and waits until all have started.
func (l *live) produce(ctx context.Context, q goQueue) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if err := q.store(ctx, nil, noop{N: firstJob}); err != nil {
		return err
	}
	select {
	case <-l.first:
		l.up = time.Since(l.began)
	case <-ctx.Done():
		return fmt.Errorf("the first job has not started: %w", context.Cause(ctx))
	}
	var group sync.WaitGroup
	produce := func(first, end, rate int, store func(n int) error) {
		var next atomic.Int64
		began := time.Now()
		for range liveProducers {
			group.Go(func() {
				for {
					n := int(next.Add(1)) - 1
					if first+n >= end || drive.Pause(ctx, time.Until(began.Add(time.Duration(n)*time.Second/time.Duration(rate)))) != nil {
						return
					}
					if err := store(first + n); err != nil {
						cancel(err)
						return
					}
					l.committed[first+n].Store(int64(time.Since(l.began)))
				}
			})
		}
	}
	produce(0, l.singles, l.load.singles, func(n int) error { return q.store(ctx, nil, noop{N: n}) })
	produce(l.singles, len(l.started), l.load.late, func(n int) error {
		return q.inTx(ctx, func(tx pgx.Tx) error {
			if err := q.store(ctx, tx, noop{N: n}); err != nil {
				return err
			}
			return drive.Pause(ctx, l.load.pause)
		})
	})
	group.Wait()
	err := drive.Poll(ctx, 5*time.Millisecond, func() (bool, error) { return l.left.Load() == 0, nil })
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("%d of %d jobs have not started: %w", l.left.Load(), len(l.started), err)
	}
	return nil
}

// The method waits returns the times from commit to start, of all jobs and of the late jobs. The time is zero if a job
// started before its producer got the answer to the commit.
func (l *live) waits() (all, late []time.Duration) {
	all = make([]time.Duration, len(l.started))
	for n := range all {
		all[n] = time.Duration(max(l.started[n].Load()-l.committed[n].Load(), 0))
	}
	return all, append([]time.Duration(nil), all[l.singles:]...)
}
