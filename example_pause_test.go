package drover_test

import (
	"context"
	"fmt"
	"time"

	"github.com/drover-queue/drover"
)

// A provider is down: its jobs wait, and everything else goes on.
func ExampleClient_Pause() {
	client, end := newClient()
	defer end()
	ctx := context.Background()
	why := drover.Audit{By: "ada", Why: "the mail provider is down"}
	must(client.Pause(ctx, drover.QueueScope("emails"), nil, why)) // until it is resumed
	must(client.Pause(ctx, drover.KindScope("webhook"), &drover.PauseOpts{Until: time.Now().Add(30 * time.Minute)}, why))

	// From here on no such job starts in any process.
	pauses, err := client.Pauses(ctx)
	must(err)
	for _, p := range pauses {
		fmt.Printf("%s is paused by %s: %s; it ends by itself: %t\n", p.Scope, p.By, p.Why, p.Until != nil)
	}
	must(client.Resume(ctx, drover.QueueScope("emails"), drover.Audit{By: "ada"}))
	// Output:
	// kind:webhook is paused by ada: the mail provider is down; it ends by itself: true
	// queue:emails is paused by ada: the mail provider is down; it ends by itself: false
}

// What is paused, for a page of your own. Unconfirmed names the supervisors where such jobs may still start.
func ExampleClient_Pauses() {
	client, end := newClient()
	defer end()
	ctx := context.Background()
	must(client.Pause(ctx, drover.AllJobs, nil, drover.Audit{By: "ada", Why: "the disk is full"}))
	pauses, err := client.Pauses(ctx)
	must(err)
	for _, p := range pauses {
		fmt.Println(p.Scope, p.By, p.Why, p.Unconfirmed)
	}
	// Output: all ada the disk is full []
}

func ExampleClient_Resume() {
	client, end := newClient()
	defer end()
	ctx, by := context.Background(), drover.Audit{By: "ada"}
	must(client.Pause(ctx, drover.QueueScope("emails"), nil, by))
	must(client.Resume(ctx, drover.QueueScope("emails"), by))
	pauses, err := client.Pauses(ctx)
	must(err)
	fmt.Println(len(pauses), "paused")
	// Output: 0 paused
}

// Scopes are written as in SQL and on the command line.
func ExampleQueueScope() {
	fmt.Println(drover.QueueScope("emails"), drover.AllJobs)
	// Output: queue:emails all
}

func ExampleKindScope() {
	fmt.Println(drover.KindScope("webhook"))
	// Output: kind:webhook
}
