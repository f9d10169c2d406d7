package drover_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/drover-queue/drover"
)

// The reason says who has to look at a dead letter.
func ExampleReason() {
	lookAt := func(reason drover.Reason) string {
		switch reason {
		case drover.ReasonAttemptsExhausted, drover.ReasonTimeBudget, drover.ReasonRetryBudget, drover.ReasonExpired:
			return "the other side was down for too long"
		case drover.ReasonUnrecoverable, drover.ReasonUndecodable, drover.ReasonPanic:
			return "the handler or its args need a fix"
		case drover.ReasonCrashed:
			return "it kills its process"
		case drover.ReasonRefused:
			return "the database refuses its row"
		case drover.ReasonOperator:
			return "somebody has looked already"
		default:
			return "a newer drover has discarded it"
		}
	}
	client, id, end := withDiscarded()
	defer end()

	job, err := client.Job(context.Background(), id)
	must(err)
	fmt.Println(job.Reason+":", lookAt(job.Reason))
	// Output: attempts_exhausted: the other side was down for too long
}

// The class is a good label of a metric.
func ExampleClass() {
	ours := []drover.Class{drover.ClassPanic, drover.ClassDecode, drover.ClassCrash, drover.ClassRefused}
	theirs := []drover.Class{drover.ClassError, drover.ClassTimeout, drover.ClassThrottled}
	client, id, end := withDiscarded()
	defer end()

	job, err := client.Job(context.Background(), id)
	must(err)
	for _, e := range job.Errors {
		if e.Class == drover.ClassOperator {
			continue // no failure: someone cancelled, discarded, redrove or restored the job
		}
		fmt.Println(e.Class, slices.Contains(ours, e.Class), slices.Contains(theirs, e.Class))
	}
	// Output: error false true
}

// Every mistake has its field, so that a form can show it there.
func ExampleInvalidError() {
	client, end := newClient()
	defer end()

	_, err := client.Enqueue(context.Background(), Parcel{}, &drover.EnqueueOpts{Priority: 11})
	if invalid := (*drover.InvalidError)(nil); errors.As(err, &invalid) {
		fmt.Println(invalid.Field, "-", invalid.Reason, "-", invalid.Err)
	}
	// Output: Priority - 11 is not 1 to 9 - <nil>
}

// Is it worth waiting for the database, or does somebody have to act?
func ExampleClient_Check_errors() {
	client, end := newClient()
	defer end()

	switch err := client.Check(context.Background()); {
	case errors.Is(err, drover.ErrNotMigrated), errors.Is(err, drover.ErrServerTooOld), errors.Is(err, drover.ErrPooler):
		fmt.Println("act:", err)
	case errors.Is(err, drover.ErrReadOnly):
		fmt.Println("a failover may be under way:", err)
	case err != nil:
		fmt.Println("not reachable:", err)
	default:
		fmt.Println("ready")
	}
	// Output: ready
}

// A job can be redriven when it has ended, but not when it was completed.
func ExampleClient_RedriveJob_refused() {
	ctx := context.Background()
	pool, end := migratedPool()
	defer end()
	deliver := func(context.Context, *drover.Job, Parcel) error { return nil }
	id := runOnce(pool, drover.Handle(deliver, drover.WorkerOpts{}), Parcel{Number: 7}).ID
	client := clientOf(pool)

	job, err := client.Job(ctx, id)
	must(err)
	fmt.Println(job.State, job.State.Final())
	err = client.RedriveJob(ctx, id, nil, drover.By{Who: "ann"})
	fmt.Println(errors.Is(err, drover.ErrState))
	// Output:
	// completed true
	// true
}

// A handler that has to clean up asks why it was interrupted.
func ExampleHandle_interrupted() {
	why := func(ctx context.Context) string {
		switch cause := context.Cause(ctx); {
		case errors.Is(cause, drover.ErrCancelled):
			return "nobody wants the job any more: undo what was done"
		case errors.Is(cause, drover.ErrShutdown):
			return "this process stops: the job runs again elsewhere"
		case errors.Is(cause, drover.ErrLeaseLost):
			return "another process may run the job already: touch nothing"
		default:
			return "its time is up"
		}
	}
	deliver := func(ctx context.Context, _ *drover.Job, _ Parcel) error {
		<-ctx.Done()
		fmt.Println(why(ctx))
		return ctx.Err()
	}

	job := afterOneRun(drover.Handle(deliver, drover.WorkerOpts{Timeout: time.Millisecond}), Parcel{Number: 7})
	fmt.Println(job.State, job.Errors[0].Class)
	// Output:
	// its time is up
	// retryable timeout
}

// Everything that happens to jobs, counted by kind and class, with those that start late.
func ExampleEvent() {
	pool, end := migratedPool()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var mu sync.Mutex // hooks are called by several goroutines
	counts := map[string]int{}
	count := func(what string) func(context.Context, drover.Event) {
		return func(_ context.Context, e drover.Event) {
			mu.Lock()
			defer mu.Unlock()
			counts[what] += max(1, e.Count) // Claimed, Redriven and the ends of CancelMany may be of several jobs
			switch {
			case what == "started" && e.Wait > time.Minute:
				slog.Warn("late", "job", e.JobID, "queue", e.Queue, "wait", e.Wait)
			case what == "discarded" && e.By != "":
				slog.Info("discarded by hand", "job", e.JobID, "by", e.By, "why", e.Why)
			}
		}
	}
	client, err := drover.New(pool, drover.Config{Hooks: []drover.Hooks{{
		Enqueued: count("enqueued"), Claimed: count("claimed"), Started: count("started"),
		Completed: count("completed"), Failed: count("failed"), Discarded: count("discarded"), Snoozed: count("snoozed"),
		Parked: count("parked"), Cancelled: count("cancelled"), Released: count("released"), StaleSettle: count("stale"),
		Rescued: count("rescued"), Quarantined: count("quarantined"), Redriven: count("redriven"), Edited: count("edited"), FailureReopened: count("reopened"),
	}, {
		Completed: func(context.Context, drover.Event) { stop() },
	}}})
	must(err)

	deliver := func(context.Context, *drover.Job, Parcel) error { return nil }
	sup, err := client.NewSupervisor(drover.SupervisorConfig{
		Queues:  []drover.Queue{{}},
		Workers: []drover.Worker{drover.Handle(deliver, drover.WorkerOpts{})},
	})
	must(err)
	_, err = client.Enqueue(ctx, Parcel{Number: 7}, nil)
	must(err)
	must(sup.Run(ctx))
	fmt.Println(counts)
	// Output: map[claimed:1 completed:1 enqueued:1 started:1]
}

// The job, as its handler logs it: its args stay out, for they may hold secrets.
func ExampleJob() {
	log := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == "id" {
			return slog.Attr{} // for the example: they differ each time
		}
		return a
	}}))
	deliver := func(_ context.Context, job *drover.Job, _ Parcel) error {
		log.Info("delivering", "job", job, "failures", job.Failures)
		return nil
	}
	afterOneRun(drover.Handle(deliver, drover.WorkerOpts{MaxAttempts: drover.Unlimited}), Parcel{Number: 7, Address: "secret"})
	// Output: level=INFO msg=delivering job.queue=default job.kind=parcel job.attempt=1 job.max_attempts=2147483647 failures=0
}
