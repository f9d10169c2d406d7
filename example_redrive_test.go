package drover_test

import (
	"context"
	"fmt"
	"time"

	"github.com/drover-queue/drover"
)

// The jobs that would come back, and why they died.
func ExampleClient_PreviewRedrive() {
	client, _, end := withDiscarded()
	defer end()

	groups, err := client.PreviewRedrive(context.Background(), drover.RedrivePlan{Filter: drover.Filter{Kind: "parcel"}})
	if err != nil {
		panic(err)
	}
	for _, g := range groups {
		fmt.Printf("%d %s: %s\n", g.Jobs, g.Kind, g.Error)
	}
	// Output: 1 parcel: parcel has no address
}

// 20 a second, five of one number at a time, and ten go first.
func ExampleClient_StartRedrive() {
	client, _, end := withDiscarded()
	defer end()

	redrive, err := client.StartRedrive(context.Background(), drover.RedrivePlan{
		Filter: drover.Filter{Kind: "parcel", FinalizedAfter: time.Now().Add(-time.Hour)},
		Rate:   20, PerKey: 5, KeyFrom: "Number", Canary: 10,
	}, drover.Audit{By: "ann", Why: "addresses were put right"})
	if err != nil {
		panic(err)
	}
	fmt.Println(redrive.Matched, "jobs come back by", redrive.By)
	// Output: 1 jobs come back by ann
}

// Hold it while you look, then let it go on.
func ExampleClient_PauseRedrive() {
	client, id, end := withRedrive()
	defer end()

	if err := client.PauseRedrive(context.Background(), id, drover.Audit{}); err != nil {
		panic(err)
	}
	redrive, err := client.Redrive(context.Background(), id)
	if err != nil {
		panic(err)
	}
	fmt.Println(redrive.State, redrive.Paused)
	// Output: running true
}

func ExampleClient_ResumeRedrive() {
	client, id, end := withRedrive()
	defer end()
	must(client.PauseRedrive(context.Background(), id, drover.Audit{}))

	if err := client.ResumeRedrive(context.Background(), id, drover.Audit{}); err != nil {
		panic(err)
	}
	redrive, err := client.Redrive(context.Background(), id)
	must(err)
	fmt.Println(redrive.State, redrive.Paused)
	// Output: running false
}

// How far is it? Anybody who knows its id can ask.
func ExampleClient_Redrive() {
	client, id, end := withRedrive()
	defer end()

	redrive, err := client.Redrive(context.Background(), id)
	if err != nil {
		panic(err)
	}
	fmt.Printf("%s: %d of %d released\n", redrive.State, redrive.Released, redrive.Matched)
	// Output: running: 0 of 1 released
}

// The jobs that it has not released stay dead.
func ExampleClient_AbortRedrive() {
	client, id, end := withRedrive()
	defer end()

	if err := client.AbortRedrive(context.Background(), id, drover.Audit{Why: "wrong filter"}); err != nil {
		panic(err)
	}
	redrive, err := client.Redrive(context.Background(), id)
	must(err)
	fmt.Println(redrive.State, redrive.Note)
	// Output: aborted wrong filter
}

// withRedrive has a redrive of one job, which no supervisor carries on.
func withRedrive() (client *drover.Client, id string, end func()) {
	client, _, end = withDiscarded()
	redrive, err := client.StartRedrive(context.Background(), drover.RedrivePlan{Filter: drover.Filter{All: true}}, drover.Audit{})
	must(err)
	return client, redrive.ID, end
}

func ExampleClient_Redrives() {
	ctx := context.Background()
	client, id, end := withDiscarded()
	defer end()
	_, err := client.StartRedrive(ctx, drover.RedrivePlan{Filter: drover.Filter{IDs: []string{id}}}, drover.Audit{Why: "asked for it"})
	if err != nil {
		panic(err)
	}

	redrives, err := client.Redrives(ctx, 10)
	if err != nil {
		panic(err)
	}
	for _, r := range redrives {
		fmt.Println(r.State, r.Matched, r.Why)
	}
	// Output: running 1 asked for it
}
