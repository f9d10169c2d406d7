package drover_test

import (
	"context"
	"fmt"

	"github.com/drover-queue/drover"
)

// The failures, most recent first.
func ExampleClient_FailureGroups() {
	client, _, end := withDiscarded()
	defer end()

	groups, err := client.FailureGroups(context.Background(), drover.FailureFilter{Status: drover.FailureOpen})
	if err != nil {
		panic(err)
	}
	for _, g := range groups {
		fmt.Printf("%s: %s (%d runs of %d jobs, %d discarded)\n", g.Kind, g.Sample, g.Count, g.Jobs, g.Discarded)
	}
	// Output:
	// parcel: parcel has no address (1 runs of 1 jobs, 1 discarded)
}

// A job's newest error leads to its group.
func ExampleClient_FailureGroup() {
	ctx := context.Background()
	client, id, end := withDiscarded()
	defer end()

	job, err := client.Job(ctx, id)
	must(err)
	group, err := client.FailureGroup(ctx, job.Errors[len(job.Errors)-1].Fingerprint)
	if err != nil {
		panic(err)
	}
	fmt.Println(group.Status, group.LastJobID == id)
	// Output:
	// open true
}

// The fault is fixed. If it comes back, Hooks.FailureReopened is called.
func ExampleClient_SetFailureStatus() {
	ctx := context.Background()
	client, _, end := withDiscarded()
	defer end()
	groups, err := client.FailureGroups(ctx, drover.FailureFilter{})
	must(err)

	err = client.SetFailureStatus(ctx, groups[0].Fingerprint, drover.FailureResolved, drover.Audit{By: "ann"})
	if err != nil {
		panic(err)
	}
	open, err := client.FailureGroups(ctx, drover.FailureFilter{Status: drover.FailureOpen})
	must(err)
	fmt.Println(len(open), "open")
	// Output:
	// 0 open
}

// A retry does not help: jobs that fail like this are discarded immediately, until the policy is lifted.
func ExampleClient_SetFailurePolicy() {
	ctx := context.Background()
	client, _, end := withDiscarded()
	defer end()
	groups, err := client.FailureGroups(ctx, drover.FailureFilter{})
	must(err)

	err = client.SetFailurePolicy(ctx, groups[0].Fingerprint, drover.FailurePolicy{Action: drover.FailureDiscard}, drover.Audit{By: "ann"})
	if err != nil {
		panic(err)
	}
	group, err := client.FailureGroup(ctx, groups[0].Fingerprint)
	must(err)
	fmt.Println(group.Policy.Action, "by", group.UpdatedBy)
	// Output:
	// discard by ann
}
