package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// contender is a queue in a database of its own, from setUp to close. Only methods whose comment allows concurrent use may
// be called by several goroutines.
type contender interface {
	// setUp migrates the empty database at url.
	setUp(ctx context.Context, url string) error

	// insert stores n no-op jobs, due now, in the fastest way that the queue has.
	insert(ctx context.Context, n int) error

	// burn starts the workers, as in one worker process, and runs the n jobs that are stored. It stops the workers, and
	// returns the time from the start to the moment when the last completion was in the database.
	burn(ctx context.Context, n, workers int) (time.Duration, error)

	close(ctx context.Context) error
}

// The interfaces of scenarios other than a burn-down. scenario.asks is the interface that its contenders implement.
type (
	// goQueue is a queue whose workers run in this process.
	goQueue interface {
		contender

		// work calls the function do while workers run, and returns when the workers have stopped. Zero workers means the
		// contender's own number. allDue means that no job will become due later. If the workers fail, the context of do
		// ends, with their error as its cause. The parameter own of do enqueues by the client that runs the workers.
		work(ctx context.Context, workers int, allDue bool, handle handler, do func(ctx context.Context, own enqueue) error) error

		// store stores a job in the transaction, or in a transaction of its own if tx is nil, by a client without
		// workers. It is safe for concurrent use.
		store(ctx context.Context, tx pgx.Tx, job noop) error

		inTx(ctx context.Context, do func(tx pgx.Tx) error) error

		// unfinished returns whether one of the jobs of the last insert is unfinished.
		unfinished(ctx context.Context) (bool, error)
	}

	// handler runs a job; due is the time at which the job was due.
	handler func(args noop, attempt int, due time.Time) error

	// enqueue stores one no-op job in a transaction of its own.
	enqueue func(ctx context.Context) error

	// enqueuer stores one no-op job in a transaction of its own, or many jobs in large transactions from several
	// goroutines. It is safe for concurrent use.
	enqueuer interface {
		enqueue(ctx context.Context) error
		enqueueMany(ctx context.Context, n, goroutines int) error
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

	// spreader burns n jobs down in several processes.
	spreader interface {
		burnIn(ctx context.Context, processes, n, workers int) (time.Duration, error)
	}
)
