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
	by := drover.By{Who: "ada", Why: "the mail provider is down"}
	must(client.Pause(ctx, "queue:emails", time.Time{}, by)) // until it is resumed
	must(client.Pause(ctx, "kind:webhook", time.Now().Add(30*time.Minute), by))
	limits, err := client.Limits(ctx)
	must(err)
	for _, l := range limits {
		fmt.Println(l.Scope, "paused by", l.By, "because", l.Why, "until resumed:", l.HeldUntil == nil, "in effect:", l.InEffect && !l.HeldAt.IsZero())
	}
	must(client.Resume(ctx, "queue:emails", drover.By{Who: "ada"}))
	must(client.Resume(ctx, "kind:webhook", drover.By{Who: "ada"}))
	// Output:
	// kind:webhook paused by ada because the mail provider is down until resumed: false in effect: true
	// queue:emails paused by ada because the mail provider is down until resumed: true in effect: true
}

// What is paused, for a page of your own.
func ExampleClient_Limits() {
	client, end := newClient()
	defer end()
	ctx := context.Background()
	must(client.Pause(ctx, "all", time.Time{}, drover.By{Who: "ada", Why: "the disk is full"}))
	limits, err := client.Limits(ctx)
	must(err)
	for _, l := range limits {
		fmt.Println(l.Scope, l.By, l.Why)
	}
	// Output: all ada the disk is full
}

func ExampleClient_Resume() {
	client, end := newClient()
	defer end()
	ctx, by := context.Background(), drover.By{Who: "ada"}
	must(client.Pause(ctx, "queue:emails", time.Time{}, by))
	must(client.Resume(ctx, "queue:emails", by))
	limits, err := client.Limits(ctx)
	must(err)
	fmt.Println(len(limits), "paused")
	// Output: 0 paused
}
