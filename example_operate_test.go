package drover_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
)

// withDiscarded has one discarded job.
func withDiscarded() (client *drover.Client, id string, end func()) {
	pool, end := migratedPool()
	return clientOf(pool), discardOne(pool), end
}

func clientOf(pool *pgxpool.Pool) *drover.Client {
	client, err := drover.New(pool, drover.Config{})
	must(err)
	return client
}

func discardOne(pool *pgxpool.Pool) (id string) {
	fail := func(context.Context, *drover.Job, Parcel) error { return errors.New("parcel has no address") }
	return runOnce(pool, drover.Handle(fail, drover.WorkerOpts{MaxAttempts: 1}), Parcel{Number: 7}).ID
}

// withActivity has what a supervisor has written of twenty minutes.
func withActivity() (client *drover.Client, end func()) {
	pool, end := migratedPool()
	_, err := pool.Exec(context.Background(), `
insert into drover_activity (at, seconds, queue, supervisor, started, waited, completed, failed, discarded)
select now() - n * interval '1 min', 60, 'emails', 'app-1', 10, 0.2, 9, 1, 0 from generate_series(3, 22) n`)
	must(err)
	return clientOf(pool), end
}

// The whole story of a job.
func ExampleClient_Job() {
	client, id, end := withDiscarded()
	defer end()

	job, err := client.Job(context.Background(), id)
	if err != nil {
		panic(err)
	}
	fmt.Println(job.State, job.DiscardReason)
	for _, e := range job.Errors {
		fmt.Printf("run %d: %s: %s\n", e.Attempt, e.Class, e.Error)
	}
	// Output:
	// discarded attempts_exhausted
	// run 1: error: parcel has no address
}

func ExampleClient_Jobs() {
	ctx := context.Background()
	client, end := newClient()
	defer end()
	for n := range 5 {
		_, err := client.Enqueue(ctx, Parcel{Number: n}, nil)
		must(err)
	}

	for after := ""; ; {
		page, err := client.Jobs(ctx, drover.Filter{Kind: "parcel", State: drover.Available}, after, 2)
		if err != nil {
			panic(err)
		}
		fmt.Println(len(page.Jobs))
		if after = page.Next; after == "" {
			break
		}
	}
	// Output:
	// 2
	// 2
	// 1
}

func ExampleClient_Counts() {
	client, _, end := withDiscarded()
	defer end()

	counts, err := client.Counts(context.Background())
	if err != nil {
		panic(err)
	}
	for _, c := range counts {
		fmt.Println(c.Queue, c.State, c.Jobs)
	}
	// Output: default discarded 1
}

// A page for operators: the jobs of each queue, and everything that needs a person now.
func ExampleClient_Snapshot() {
	ctx := context.Background()
	client, _, end := withDiscarded()
	defer end()

	snapshot, err := client.Snapshot(ctx) // snapshot.Level is "ok", "warning" or "critical"
	if err != nil {
		panic(err)
	}
	for _, q := range snapshot.Queues {
		fmt.Println(q.Queue, "waiting:", q.Jobs[drover.Available], "dead:", q.Jobs[drover.Discarded])
	}
	for _, f := range snapshot.Findings {
		if f.Level == drover.LevelCritical {
			fmt.Println(f.What, f.Why, f.Do)
		}
	}
	// Output: default waiting: 0 dead: 1
}

// Busy queues: the runs of an hour, and how many of them failed.
func ExampleClient_Activity() {
	ctx := context.Background()
	client, end := withActivity()
	defer end()

	queues, err := client.Activity(ctx)
	if err != nil {
		panic(err)
	}
	for _, q := range queues {
		var completed, failed float64
		for _, minute := range q.Minutes {
			completed += minute.Completed
			failed += minute.Failed + minute.Discarded
		}
		fmt.Printf("%s: %.0f completed, %.0f failed\n", q.Queue, completed, failed)
	}
	// Output: emails: 180 completed, 20 failed
}

// The parcel has an address now.
func ExampleClient_RedriveJob() {
	ctx := context.Background()
	client, id, end := withDiscarded()
	defer end()

	err := client.RedriveJob(ctx, id, &drover.RedriveOpts{ArgsPatch: json.RawMessage(`{"Address": "Lake Road 1"}`)}, drover.Audit{})
	if err != nil {
		panic(err)
	}

	job, err := client.Job(ctx, id)
	must(err)
	fmt.Println(job.State, string(job.Args))
	fmt.Println("attempts:", job.Attempt, "redrives:", job.Redrives, "last error:", job.LastError())
	// Output:
	// available {"Number": 7, "Address": "Lake Road 1"}
	// attempts: 0 redrives: 1 last error: parcel has no address
}

func ExampleClient_Cancel() {
	ctx := context.Background()
	client, end := newClient()
	defer end()
	receipt, err := client.Enqueue(ctx, Parcel{Number: 7}, nil)
	must(err)

	was, err := client.Cancel(ctx, receipt.ID, drover.Audit{Why: "the order was withdrawn"})
	fmt.Println(was, err)
	was, err = client.Cancel(ctx, receipt.ID, drover.Audit{})
	fmt.Println(was, err)
	// Output:
	// available <nil>
	// cancelled <nil>
}

// How many have failed of what, without reading them.
func ExampleClient_Count() {
	client, _, end := withDiscarded()
	defer end()

	fmt.Println(client.Count(context.Background(), drover.Filter{State: drover.Discarded, Error: "no address"}))
	// Output: 1 <nil>
}

func ExampleClient_Summary() {
	client, _, end := withDiscarded()
	defer end()

	groups, err := client.Summary(context.Background())
	if err != nil {
		panic(err)
	}
	for _, g := range groups {
		fmt.Println(g.Jobs, g.Queue, g.Kind, g.Reason, g.Class, g.NewestError)
	}
	// Output: 1 default parcel attempts_exhausted error parcel has no address
}

// A waiting job that somebody shall look at first.
func ExampleClient_Discard() {
	ctx := context.Background()
	client, end := newClient()
	defer end()
	receipt, err := client.Enqueue(ctx, Parcel{Number: 7}, nil)
	must(err)

	was, err := client.Discard(ctx, receipt.ID, drover.Audit{Why: "address in doubt"})
	fmt.Println(was, err)
	job, err := client.Job(ctx, receipt.ID)
	must(err)
	fmt.Println(job.State, job.DiscardReason, job.Errors[0].Error)
	// Output:
	// available <nil>
	// discarded operator discarded: address in doubt
}

func ExampleClient_CancelMany() {
	ctx := context.Background()
	client, end := newClient()
	defer end()
	for n := range 3 {
		_, err := client.Enqueue(ctx, Parcel{Number: n}, &drover.EnqueueOpts{Tags: []string{"winter"}})
		must(err)
	}

	done, err := client.CancelMany(ctx, drover.Filter{Tags: []string{"winter"}}, drover.Audit{Why: "the sale is over"})
	fmt.Println(done.Changed, err)
	_, err = client.CancelMany(ctx, drover.Filter{}, drover.Audit{})
	fmt.Println(err)
	// Output:
	// 3 <nil>
	// drover: Filter: is empty; to mean every job say All
}

// An id that no job has is reported. The others are treated as usual.
func ExampleClient_DiscardMany() {
	ctx := context.Background()
	client, end := newClient()
	defer end()
	receipt, err := client.Enqueue(ctx, Parcel{Number: 7}, nil)
	must(err)

	done, err := client.DiscardMany(ctx, drover.Filter{IDs: []string{receipt.ID, "01ARZ3NDEKTSV4RRFFQ69G5FAV"}}, drover.Audit{Why: "address in doubt"})
	fmt.Println(done.Changed, done.Missing, err)
	// Output: 1 [01ARZ3NDEKTSV4RRFFQ69G5FAV] <nil>
}

// Dead letters go only where the filter names them.
func ExampleClient_DeleteMany() {
	ctx := context.Background()
	client, _, end := withDiscarded()
	defer end()

	done, err := client.DeleteMany(ctx, drover.Filter{Kind: "parcel"}, drover.Audit{})
	fmt.Println(done.Changed, err)
	done, err = client.DeleteMany(ctx, drover.Filter{Kind: "parcel", State: drover.Discarded}, drover.Audit{})
	fmt.Println(done.Changed, err)
	// Output:
	// 0 <nil>
	// 1 <nil>
}

// Why a job does not run.
func ExampleClient_Explain() {
	ctx := context.Background()
	client, end := newClient()
	defer end()
	receipt, err := client.Enqueue(ctx, Parcel{Number: 7}, nil)
	must(err)

	e, err := client.Explain(ctx, receipt.ID, nil)
	if err != nil {
		panic(err)
	}
	for _, step := range e.Story { // e.Now and e.Next say the rest in sentences
		fmt.Println(step.What)
	}
	for _, advice := range e.Do {
		fmt.Println("do:", advice.What)
	}
	// Output:
	// enqueued in queue default
	// do: Start a process whose supervisor serves queue default
}

// Nobody runs jobs yet.
func ExampleClient_Supervisors() {
	client, end := newClient()
	defer end()

	all, err := client.Supervisors(context.Background())
	if err != nil {
		panic(err)
	}
	for _, s := range all {
		fmt.Println(s.Host, s.State, s.Queues)
	}
	fmt.Println(len(all), "supervisors")
	// Output:
	// 0 supervisors
}
