package drover_test

import (
	"context"
	"fmt"
	"time"

	"github.com/drover-queue/drover"
)

// A hundred retries a minute for all kinds of the queue, in every process together.
func ExampleClient_RetryBudgets() {
	pool, end := migratedPool()
	defer end()
	client := clientOf(pool)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()

	deliver := func(context.Context, *drover.Job, Parcel) error {
		stop() // only for the example
		return nil
	}
	sup, err := client.NewSupervisor(drover.SupervisorConfig{
		Queues:  []drover.Queue{{Name: "default", RetryBudget: drover.RetryBudget{Retries: 100, Per: time.Minute}}},
		Workers: []drover.Worker{drover.Handle(deliver, drover.WorkerOpts{})},
	})
	must(err)
	_, err = client.Enqueue(ctx, Parcel{Number: 7}, nil)
	must(err)
	must(sup.Run(ctx))

	budgets, err := client.RetryBudgets(context.Background())
	must(err)
	for _, b := range budgets {
		fmt.Printf("%s: %d per %v, %d free\n", b.Scope, b.Retries, b.Per, b.Free)
	}
	// Output:
	// queue:default: 100 per 1m0s, 100 free
}
