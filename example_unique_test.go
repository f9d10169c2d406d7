package drover_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/drover-queue/drover"
)

// Reindex writes a document to a search index.
type Reindex struct {
	Document int    `json:"document"`
	Reason   string `json:"reason"`
}

func (Reindex) Kind() string { return "reindex" }

// However often a document changes while its job waits or runs, one job is there.
func ExampleUnique() {
	ctx := context.Background()
	client, end := newClient()
	defer end()

	opts := &drover.EnqueueOpts{Unique: &drover.Unique{By: []string{"document"}}}
	first, err := client.Enqueue(ctx, Reindex{Document: 7, Reason: "title"}, opts)
	if err != nil {
		panic(err)
	}
	second, err := client.Enqueue(ctx, Reindex{Document: 7, Reason: "author"}, opts)
	if err != nil {
		panic(err)
	}
	fmt.Println(first.Existing, second.Existing, second.ID == first.ID)

	job, err := client.Job(ctx, first.ID)
	must(err)
	fmt.Println(job.UniqueKey)
	page, err := client.Jobs(ctx, drover.Filter{UniqueKey: job.UniqueKey}, "", 0)
	must(err)
	fmt.Println(len(page.Jobs))

	// When the job has ended, the next one is stored.
	_, err = client.Cancel(ctx, first.ID, drover.Audit{})
	must(err)
	third, err := client.Enqueue(ctx, Reindex{Document: 7, Reason: "again"}, opts)
	must(err)
	fmt.Println(third.Existing)
	// Output:
	// false true true
	// "reindex" by {"document": 7}
	// 1
	// false
}

// One job for each customer in each hour, whatever becomes of it and whatever its args are.
func ExampleUntilPassed() {
	ctx := context.Background()
	client, end := newClient()
	defer end()

	opts := &drover.EnqueueOpts{
		Key:    "customer-7",
		Unique: &drover.Unique{AnyArgs: true, Key: true, Until: drover.UntilPassed(time.Hour)},
	}
	for n := range 3 {
		receipt, err := client.Enqueue(ctx, Parcel{Number: n}, opts)
		must(err)
		fmt.Println(receipt.Existing)
	}
	// Output:
	// false
	// true
	// true
}

// The job that waits gets the newest args. As soon as it has started, the next one is stored: no change is missed.
func ExampleReplaceWaiting() {
	ctx := context.Background()
	client, end := newClient()
	defer end()

	opts := &drover.EnqueueOpts{
		Delay:  time.Minute,
		Unique: &drover.Unique{By: []string{"document"}, Until: drover.UntilStarted, OnConflict: drover.ReplaceWaiting},
	}
	_, err := client.Enqueue(ctx, Reindex{Document: 7, Reason: "title"}, opts)
	must(err)
	receipt, err := client.Enqueue(ctx, Reindex{Document: 7, Reason: "author"}, opts)
	must(err)

	job, err := client.Job(ctx, receipt.ID)
	must(err)
	fmt.Println(receipt.Existing, receipt.Replaced, string(job.Args))
	// Output: true true {"reason": "author", "document": 7}
}

// The job runs once nothing has changed for a minute, and at the latest ten minutes after the first change.
func ExampleDebounce() {
	ctx := context.Background()
	client, end := newClient()
	defer end()

	opts := &drover.EnqueueOpts{
		Delay:  time.Minute,
		Unique: &drover.Unique{By: []string{"document"}, Until: drover.UntilStarted, OnConflict: drover.Debounce(10 * time.Minute)},
	}
	for range 3 {
		receipt, err := client.Enqueue(ctx, Reindex{Document: 7}, opts)
		if errors.Is(err, drover.ErrUniqueDeadlock) {
			continue // only in transactions that enqueue several; repeat yours
		}
		must(err)
		fmt.Println(receipt.Existing, receipt.Debounced)
	}
	// Output:
	// false false
	// true true
	// true true
}
