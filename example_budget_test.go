package drover_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/drover-queue/drover"
)

// A hundred retries a minute for all kinds of the queue, in every process together.
func ExampleClient_RetryBudgets() {
	pool, end := migratedPool()
	defer end()
	client := clientOf(pool)
	deliver := func(context.Context, *drover.Job, Parcel) error { return errors.New("no answer") }
	sup, err := client.Supervisor(drover.SupervisorConfig{
		Queues:  []drover.Queue{{Name: "default", RetryBudget: drover.RetryBudget{Retries: 100, Per: time.Minute}}},
		Workers: []drover.Worker{drover.Handle(deliver, drover.WorkerOpts{})},
	})
	must(err)
	ctx, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	must(sup.Run(ctx))

	budgets, err := client.RetryBudgets(context.Background())
	must(err)
	for _, b := range budgets {
		fmt.Printf("%s: %d per %v, %d free\n", b.Scope, b.Retries, b.Per, b.Free)
	}
	// Output:
	// queue:default: 100 per 1m0s, 100 free
}
