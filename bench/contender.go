package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// contender is a queue in a database of its own, from setUp to close. It is for one goroutine, except enqueuer.
type contender interface {
	// setUp migrates the empty database at url.
	setUp(ctx context.Context, url string) error

	// insert stores n no-op jobs, due now, in the fastest way the queue has.
	insert(ctx context.Context, n int) error

	// burn starts a worker process' worth of workers and runs the n jobs there are. It returns the time from the start to
	// the moment when the last completion was in the database, and stops the workers.
	burn(ctx context.Context, n, workers int) (time.Duration, error)

	close(ctx context.Context) error
}

// The interfaces of scenarios beyond a burn-down. A contender without one takes no part in its scenario.
type (
	// failer burns n jobs down that all fail in their first attempt, and are retried 1 ms later.
	failer interface {
		burnFailing(ctx context.Context, n, workers int) (time.Duration, error)
	}

	// steady burns n jobs down, and times all but the first of them: the workers are at work by then.
	steady interface {
		burnSteadily(ctx context.Context, untimed, n, workers int) (time.Duration, error)
	}

	// idler runs workers on an empty queue and measures from the call that enqueues to the start of the handler, for one job
	// at a time, each as long after the last one started as gaps say: enqueued by a client that runs no workers, then by the
	// client of the workers, which need not ask the database who sleeps.
	idler interface {
		latency(ctx context.Context, gaps []time.Duration) (apart, same []time.Duration, err error)
	}

	// retrier lets one job fail for each of backoffs, and measures how long after its due time the second attempt starts.
	retrier interface {
		lateness(ctx context.Context, backoffs []time.Duration) ([]time.Duration, error)
	}

	// enqueuer stores one no-op job in a transaction of its own, or many in large ones from so many goroutines. It is safe for
	// concurrent use.
	enqueuer interface {
		enqueue(ctx context.Context) error
		enqueueMany(ctx context.Context, n, goroutines int) error
	}

	// liver runs workers, and once they have started a first job, producers store the numbered jobs of a live load; it reports
	// to the load when each has started.
	liver interface {
		live(ctx context.Context, l *live) error
	}

	// filler puts jobs into the table that are not to run: due in the far future, and long finished. claimBuffers is how
	// many buffers its claims have read since pg_stat_statements was reset.
	filler interface {
		fill(ctx context.Context, future, finished int) error
		claimBuffers(ctx context.Context, conn *pgx.Conn) (float64, error)
	}

	// versioner knows its version once it is set up.
	versioner interface {
		version() string
	}

	// spreader burns n jobs down in so many processes.
	spreader interface {
		burnIn(ctx context.Context, processes, n, workers int) (time.Duration, error)
	}
)
