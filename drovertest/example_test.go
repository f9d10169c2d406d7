package drovertest_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/drovertest"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
)

// No database is needed to see what a handler says.
func ExampleRun() {
	ctx, t := context.Background(), &testing.T{} // a test has both
	worker := drover.Handle(charge, drover.WorkerOpts{})

	v := drovertest.Run(ctx, t, worker, Charge{OrderID: 7}, nil)
	fmt.Println(v.Kind, v.Cause)

	v = drovertest.Run(ctx, t, worker, Charge{OrderID: 42}, &drover.Job{Attempt: 3})
	fmt.Println(v.Kind, v.Delay, v.Cause)
	// Output:
	// discard account closed
	// retry_after 1h0m0s the bank is busy
}

// The transaction of the code that is tested may be rolled back.
func ExampleRequireEnqueued() {
	ctx, t := context.Background(), &testing.T{} // a test has both
	pool, end := pgtest.MigratedExample()
	defer end()
	client, err := drover.New(pool, drover.Config{})
	if err != nil {
		panic(err)
	}
	tx, err := pool.Begin(ctx)
	if err != nil {
		panic(err)
	}
	defer tx.Rollback(ctx)
	if _, err := client.EnqueueTx(ctx, tx, Charge{OrderID: 42}, &drover.EnqueueOpts{Queue: "payments"}); err != nil {
		panic(err)
	}

	job := drovertest.RequireEnqueued(ctx, t, tx, Charge{OrderID: 42})
	fmt.Println(job.Queue, job.Priority)
	// Output: payments 5
}

// A filter finds jobs by anything that they are listed by.
func ExampleEnqueued() {
	ctx, t := context.Background(), &testing.T{} // a test has both
	pool, end := pgtest.MigratedExample()
	defer end()
	client, err := drover.New(pool, drover.Config{})
	if err != nil {
		panic(err)
	}
	for id := int64(1); id <= 3; id++ {
		if _, err := client.Enqueue(ctx, Charge{OrderID: id}, &drover.EnqueueOpts{Tags: []string{"nightly"}}); err != nil {
			panic(err)
		}
	}

	for _, job := range drovertest.Enqueued(ctx, t, pool, drover.Filter{Kind: "charge", Tags: []string{"nightly"}}) {
		fmt.Printf("%s\n", job.Args)
	}
	fmt.Println(len(drovertest.Enqueued(ctx, t, pool, drover.Filter{Queue: "payments"})))
	// Output:
	// {"OrderID": 1}
	// {"OrderID": 2}
	// {"OrderID": 3}
	// 0
}

// A job that fails five times with waits of hours, in a fraction of a second.
func ExampleRunToEnd() {
	ctx, t := context.Background(), &testing.T{} // a test has both
	pool, end := pgtest.MigratedExample()        // a test has drovertest.NewPool(t, url)
	defer end()

	worker := drover.Handle(func(context.Context, *drover.Job, Charge) error { return errBusy }, drover.WorkerOpts{
		MaxAttempts: 5, Retry: drover.Every(time.Hour),
	})
	job := drovertest.RunToEnd(ctx, t, pool, worker, Charge{OrderID: 42}, nil)
	fmt.Println(job.State, job.DiscardReason, job.Attempt, job.LastError())
	// Output: discarded attempts_exhausted 5 the bank is busy
}

// Everything that was enqueued runs, with the application's own client.
func ExampleDrain() {
	ctx, t := context.Background(), &testing.T{} // a test has both
	pool, end := pgtest.MigratedExample()        // a test has drovertest.NewPool(t, url)
	defer end()
	client, err := drover.New(pool, drover.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		panic(err)
	}
	for _, delay := range []time.Duration{48 * time.Hour, 0, time.Hour} {
		if _, err := client.Enqueue(ctx, Charge{OrderID: int64(delay.Hours())}, &drover.EnqueueOpts{Delay: delay}); err != nil {
			panic(err)
		}
	}

	drovertest.Drain(ctx, t, pool, client, drover.SupervisorConfig{Workers: []drover.Worker{
		drover.Handle(func(_ context.Context, _ *drover.Job, c Charge) error {
			fmt.Println("in hour", c.OrderID)
			return nil
		}, drover.WorkerOpts{}),
	}})
	// Output:
	// in hour 0
	// in hour 1
	// in hour 48
}

// A job of tomorrow is due once a day has passed.
func ExampleAdvance() {
	ctx, t := context.Background(), &testing.T{} // a test has both
	pool, end := pgtest.MigratedExample()        // a test has drovertest.NewPool(t, url)
	defer end()
	client, err := drover.New(pool, drover.Config{})
	if err != nil {
		panic(err)
	}
	if _, err := client.Enqueue(ctx, Charge{OrderID: 42}, &drover.EnqueueOpts{Delay: 24 * time.Hour}); err != nil {
		panic(err)
	}

	drovertest.Advance(ctx, t, pool, 24*time.Hour)
	job := drovertest.RequireEnqueued(ctx, t, pool, Charge{OrderID: 42})
	fmt.Println(job.ScheduledAt.After(time.Now()))
	// Output: false
}

// The process dies between the handler's return and its record, so a counter counts twice.
func ExampleMishap_Run() {
	ctx, t := context.Background(), &testing.T{} // a test has both
	pool, end := pgtest.MigratedExample()        // a test has drovertest.NewPool(t, url)
	defer end()

	counter := 0
	worker := drover.Handle(func(context.Context, *drover.Job, Charge) error { counter++; return nil }, drover.WorkerOpts{})
	mishap := drovertest.Mishaps()[0]
	mishap.Run(ctx, t, pool, drover.Config{}, worker, Charge{OrderID: 42})
	fmt.Printf("%s: %s: counted %d times\n", mishap.Name, mishap.What, counter)
	// Output: outcome-lost: the process dies before the outcome is recorded: counted 2 times
}
