package drover_test

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/drover-queue/drover"
)

// The bank is back: the job that waits for its backoff runs now, with the args put right.
func ExampleClient_Edit() {
	ctx := context.Background()
	client, end := newClient()
	defer end()
	receipt, err := client.Enqueue(ctx, Parcel{Number: 7}, &drover.EnqueueOpts{Delay: time.Hour})
	must(err)

	changed, err := client.Edit(ctx, receipt.ID, drover.JobEdit{
		RunNow:    true,
		Priority:  1,
		ArgsPatch: json.RawMessage(`{"Address": "Lake Road 1"}`),
	}, drover.Audit{By: "ann", Why: "the customer has moved"})
	fmt.Println(changed, err)

	job, err := client.Job(ctx, receipt.ID)
	must(err)
	fmt.Println(job.State, job.Priority, string(job.Args), len(job.Errors), job.Errors[0].By)
	// Output:
	// true <nil>
	// available 1 {"Number": 7, "Address": "Lake Road 1"} 1 ann
}

// Jobs for a slow endpoint move to a queue of their own, wait a while, and are tried more often and less eagerly.
func ExampleClient_EditMany() {
	ctx := context.Background()
	client, end := newClient()
	defer end()
	for n := range 3 {
		_, err := client.Enqueue(ctx, Parcel{Number: n}, &drover.EnqueueOpts{Tags: []string{"winter"}})
		must(err)
	}

	done, err := client.EditMany(ctx, drover.Filter{Tags: []string{"winter"}}, drover.JobEdit{
		Queue: "slow", Delay: 10 * time.Minute, MaxAttempts: 50, Retry: drover.Constant{Delay: time.Minute},
	}, drover.Audit{Why: "the carrier is slow"})
	fmt.Println(done.Changed, err)

	tomorrow := drover.JobEdit{ScheduledAt: time.Now().Add(24 * time.Hour)}
	done, err = client.EditMany(ctx, drover.Filter{Queue: "slow"}, tomorrow, drover.Audit{})
	fmt.Println(done.Changed, err)
	// Output:
	// 3 <nil>
	// 3 <nil>
}

// A job was completed, and its result got lost.
func ExampleClient_Rerun() {
	ctx := context.Background()
	deliver := func(context.Context, *drover.Job, Parcel) error { return nil }
	pool, end := migratedPool()
	defer end()
	old := runOnce(pool, drover.Handle(deliver, drover.WorkerOpts{}), Parcel{Number: 7})
	client, err := drover.New(pool, drover.Config{})
	must(err)

	receipt, err := client.Rerun(ctx, old.ID, nil, drover.Audit{By: "ann", Why: "the label was lost"})
	must(err)

	job, err := client.Job(ctx, receipt.ID)
	must(err)
	fmt.Println(job.State, string(job.Args), job.Errors[0].By, job.Errors[0].Job == old.ID)
	before, err := client.Job(ctx, old.ID)
	must(err)
	fmt.Println(before.State, before.Errors[0].Job == job.ID)
	// Output:
	// available {"Number": 7, "Address": ""} ann true
	// completed true
}

// Labels were printed blank for an hour, and no run failed. Each job of that hour runs again, ten a second.
func ExampleClient_RerunMany() {
	ctx := context.Background()
	deliver := func(context.Context, *drover.Job, Parcel) error { return nil }
	pool, end := migratedPool()
	defer end()
	runOnce(pool, drover.Handle(deliver, drover.WorkerOpts{}), Parcel{Number: 7})
	client, err := drover.New(pool, drover.Config{})
	must(err)

	blank := drover.Filter{Kind: Parcel{}.Kind(), FinalizedAfter: time.Now().Add(-time.Hour)}
	why := drover.Audit{By: "ann", Why: "the labels were blank"}
	done, err := client.RerunMany(ctx, blank, drover.RerunPlan{Rate: 10}, why)
	fmt.Println(done.Changed, err)

	done, err = client.RerunMany(ctx, blank, drover.RerunPlan{Rate: 10}, why) // a second press of the button
	fmt.Println(done.Changed, err)
	// Output:
	// 1 <nil>
	// 0 <nil>
}
