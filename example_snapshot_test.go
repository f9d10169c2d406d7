package drover_test

import (
	"context"
	"fmt"
	"time"

	"github.com/drover-queue/drover"
)

// Depths are for a dashboard; a finding is for a person, and a critical one wakes somebody.
func ExampleClient_Snapshot() {
	client, _, end := withDiscarded()
	defer end()

	snap, err := client.Snapshot(context.Background())
	must(err)
	for _, c := range snap.Counts {
		fmt.Println(c.Queue, c.State, c.Jobs, c.Estimated)
	}
	for _, s := range snap.Supervisors {
		lease := time.Duration(s.LeaseMS) * time.Millisecond
		fmt.Println(s.Host, s.PID, s.State, s.InFlight, "of", s.Slots, snap.At.Sub(s.BeatAt) < lease)
	}
	for _, f := range snap.Findings {
		if f.Level == "critical" {
			fmt.Println(f.What, f.Why, f.Do)
		}
	}
	// Output: default discarded 1 false
}

// A queue that falls behind has a due job that nobody claims.
func ExampleSnapshot() {
	client, end := newClient()
	defer end()
	_, err := client.Enqueue(context.Background(), Parcel{Number: 7}, &drover.EnqueueOpts{Queue: "mail"})
	must(err)

	snap, err := client.Snapshot(context.Background())
	must(err)
	for _, c := range snap.Counts {
		if c.OldestDue != nil {
			fmt.Println(c.Queue, "waits", snap.At.Sub(*c.OldestDue) > 0)
		}
	}
	fmt.Println(snap.Findings[0].Level, snap.Findings[0].Why)
	// Output:
	// mail waits true
	// critical jobs are due, and no supervisor is alive to claim them
}
