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

	// insert stores n no-op jobs, due now, in the fastest way that the queue has.
	insert(ctx context.Context, n int) error

	// burn starts so many workers, as in one worker process, and runs the n jobs that are stored. It returns the time
	// from the start to the moment when the last completion was in the database, and stops the workers.
	burn(ctx context.Context, n, workers int) (time.Duration, error)

	close(ctx context.Context) error
}

// The interfaces of scenarios other than a burn-down. scenario.asks is the interface that its contenders implement.
type (
	// burner burns down n jobs that succeed in the given attempt: earlier attempts fail, and are retried 1 ms later. It
	// does not time the first jobs, the untimed ones, during which the workers start.
	burner interface {
		burnDown(ctx context.Context, untimed, n, workers, attempts int) (time.Duration, error)
	}

	// idler runs workers on an empty queue. It enqueues one job at a time, each one gap after the start of the job
	// before, and measures the time from the call that enqueues to the start of the handler. First a client without
	// workers enqueues the jobs (apart), then the client of the workers (same), which need not ask the database which
	// workers sleep.
	idler interface {
		latency(ctx context.Context, gaps []time.Duration) (apart, same []time.Duration, err error)
	}

	// retrier lets one job fail for each backoff, and measures how long after its due time the second attempt starts.
	retrier interface {
		lateness(ctx context.Context, backoffs []time.Duration) ([]time.Duration, error)
	}

	// enqueuer stores one no-op job in a transaction of its own, or many jobs in large transactions from so many
	// goroutines. It is safe for concurrent use.
	enqueuer interface {
		enqueue(ctx context.Context) error
		enqueueMany(ctx context.Context, n, goroutines int) error
	}

	// liver runs workers. Once these have started a first job, producers store the numbered jobs of a live load. The
	// handler calls live.start for each job.
	liver interface {
		live(ctx context.Context, l *live) error
	}

	// filler puts jobs into the table that will not run: due in the far future, or finished long ago. claimBuffers
	// returns how many buffers the queue's claims have read since pg_stat_statements was reset.
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
