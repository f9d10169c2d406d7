package drover_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/drover-queue/drover"
)

// ParcelLost is enqueued by the database when a parcel's job is discarded.
type ParcelLost struct{ drover.DiscardedJob }

func (ParcelLost) Kind() string { return "parcel_lost" }

// Somebody hears of each discarded job of a parcel, by whatever it was discarded.
func ExampleHandle_followUp() {
	pool, end := migratedPool()
	defer end()
	deliver := drover.Handle(func(context.Context, *drover.Job, Parcel) error { return errors.New("address unknown") },
		drover.WorkerOpts{MaxAttempts: 1, FollowUp: &drover.FollowUp{Kind: "parcel_lost"}})
	runOnce(pool, deliver, Parcel{Number: 7})

	page, err := clientOf(pool).Jobs(context.Background(), drover.Filter{Kind: "parcel_lost"}, "", 0)
	must(err)
	var lost ParcelLost // as its worker gets it
	must(json.Unmarshal(page.Jobs[0].Args, &lost))
	fmt.Println(lost.JobKind, string(lost.Args))
	fmt.Println(lost.Reason, "after", lost.Attempts, "attempt:", lost.Error)
	// Output:
	// parcel {"Number": 7, "Address": ""}
	// attempts_exhausted after 1 attempt: address unknown
}

// Some errors are treated in a way of their own.
func ExampleHandle_cases() {
	errClosed := errors.New("depot is closed for the season")
	deliver := drover.Handle(func(context.Context, *drover.Job, Parcel) error { return errClosed }, drover.WorkerOpts{
		Cases: []drover.ErrorCase{
			{Name: "depot closed", If: func(err error) bool { return errors.Is(err, errClosed) }, Discard: true},
		},
	})
	job := afterOneRun(deliver, Parcel{Number: 7})
	fmt.Println(job.State, job.DiscardReason, "in case:", job.Errors[0].Case)
	// Output: discarded unrecoverable in case: depot closed
}

func ExampleClient_Archive() {
	client, _, end := withDiscarded()
	defer end()

	moved, err := client.Archive(context.Background(), drover.Filter{State: drover.Discarded}, nil, drover.Audit{})
	fmt.Println(moved.Jobs, err)
	counts, err := client.Counts(context.Background())
	fmt.Println(len(counts), err)
	// Output:
	// 1 <nil>
	// 0 <nil>
}

// An archived job can be redriven after all.
func ExampleClient_Restore() {
	ctx := context.Background()
	client, id, end := withDiscarded()
	defer end()
	_, err := client.Archive(ctx, drover.Filter{All: true}, nil, drover.Audit{})
	must(err)

	moved, err := client.Restore(ctx, drover.Filter{Kind: "parcel"}, drover.Audit{})
	fmt.Println(moved.Jobs, err)
	fmt.Println(client.RedriveJob(ctx, id, nil, drover.Audit{}))
	// Output:
	// 1 <nil>
	// <nil>
}

func ExampleClient_ExportArchive() {
	ctx := context.Background()
	client, _, end := withDiscarded()
	defer end()
	_, err := client.Archive(ctx, drover.Filter{All: true}, nil, drover.Audit{})
	must(err)

	var file bytes.Buffer
	fmt.Println(client.ExportArchive(ctx, &file, drover.Filter{}))
	var row struct {
		Kind   string
		Reason string `json:"discard_reason"`
		Args   json.RawMessage
	}
	must(json.NewDecoder(&file).Decode(&row))
	fmt.Println(row.Kind, row.Reason, string(row.Args))
	// Output:
	// 1 <nil>
	// parcel attempts_exhausted {"Number": 7, "Address": ""}
}

func ExampleClient_PurgeArchive() {
	ctx := context.Background()
	client, _, end := withDiscarded()
	defer end()
	_, err := client.Archive(ctx, drover.Filter{All: true}, nil, drover.Audit{})
	must(err)

	fmt.Println(client.PurgeArchive(ctx, drover.Filter{Kind: "parcel"}, drover.Audit{}))
	// Output: 1 <nil>
}
