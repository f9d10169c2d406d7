package drover_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
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

// The pauses, for a page of your own. Unconfirmed names the supervisors where such jobs may still start.
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

// Two people look at the same pause, and both resume it. The second one changes nothing.
func ExampleAudit_seen() {
	client, end := newClient()
	defer end()
	ctx, scope := context.Background(), drover.QueueScope("emails")
	must(client.Pause(ctx, scope, nil, drover.Audit{By: "ada", Seen: drover.NotPaused}))
	pauses, err := client.Pauses(ctx)
	must(err)
	shown := pauses[0].Seen // send it with the page, and take it back with the form

	must(client.Resume(ctx, scope, drover.Audit{By: "bob", Seen: shown}))
	must(client.Pause(ctx, scope, nil, drover.Audit{By: "eve", Seen: drover.NotPaused}))
	err = client.Resume(ctx, scope, drover.Audit{By: "ada", Seen: shown})
	fmt.Println(errors.Is(err, drover.ErrState), strings.Contains(err.Error(), "has been paused by eve since "))
	// Output: true true
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
