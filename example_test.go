package drover_test

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
)

// The examples share this. An application has a pool and a migrated database before it meets drover; each example
// gets one of its own.

// Parcel is a kind of job.
type Parcel struct {
	Number  int
	Address string
}

func (Parcel) Kind() string { return "parcel" }

func migratedPool() (pool *pgxpool.Pool, end func()) { return pgtest.MigratedExample() }

func newClient() (client *drover.Client, end func()) {
	pool, end := migratedPool()
	client, err := drover.New(pool, drover.Config{})
	must(err)
	return client, end
}

// afterOneRun enqueues one job, runs it once and reads what has become of it.
func afterOneRun(worker drover.Worker, args drover.Args) *drover.JobInfo {
	pool, end := migratedPool()
	defer end()
	receipt := runOnce(pool, worker, args)
	client, err := drover.New(pool, drover.Config{})
	must(err)
	job, err := client.Job(context.Background(), receipt.ID)
	must(err)
	return job
}

func runOnce(pool *pgxpool.Pool, worker drover.Worker, args drover.Args) drover.Receipt {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ended := func(context.Context, drover.Event) { stop() }
	client, err := drover.New(pool, drover.Config{Hooks: []drover.Hooks{{
		Completed: ended, Failed: ended, Discarded: ended, Snoozed: ended, Cancelled: ended,
	}}})
	must(err)
	receipt, err := client.Enqueue(ctx, args, nil)
	must(err)
	sup, err := client.NewSupervisor(drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: []drover.Worker{worker}})
	must(err)
	must(sup.Run(ctx))
	return receipt
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
