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
func ExampleDrain() {
	ctx, t := context.Background(), &testing.T{} // a test has both
	pool, end := pgtest.MigratedExample()        // a test has drovertest.NewPool(t, url)
	defer end()
	client, err := drover.New(pool, drover.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		panic(err)
	}
	receipt, err := client.Enqueue(ctx, Charge{OrderID: 42}, &drover.EnqueueOpts{MaxAttempts: 5})
	if err != nil {
		panic(err)
	}

	worker := drover.Handle(func(context.Context, *drover.Job, Charge) error { return errBusy }, drover.WorkerOpts{
		Retry: drover.Every(time.Hour),
	})
	drovertest.Drain(ctx, t, pool, client, drover.SupervisorConfig{Workers: []drover.Worker{worker}})

	job, err := client.Job(ctx, receipt.ID)
	if err != nil {
		panic(err)
	}
	fmt.Println(job.State, job.Reason, job.Attempt, job.LastError())
	// Output: discarded attempts_exhausted 5 the bank is busy
}

// What becomes of a counter if the process dies between the handler's return and its record.
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
