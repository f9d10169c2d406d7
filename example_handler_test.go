package drover_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover"
)

func ExampleHandle() {
	deliver := func(_ context.Context, job *drover.Job, p Parcel) error {
		fmt.Printf("run %d of %d: parcel %d to %s\n", job.Attempt, job.MaxAttempts, p.Number, p.Address)
		return nil
	}
	worker := drover.Handle(deliver, drover.WorkerOpts{MaxAttempts: 10, Timeout: time.Minute})

	job := afterOneRun(worker, Parcel{7, "Lake Road 1"})
	fmt.Println(job.State)
	// Output:
	// run 1 of 10: parcel 7 to Lake Road 1
	// completed
}

// A retry does not help here.
func ExampleDiscard() {
	deliver := func(_ context.Context, _ *drover.Job, p Parcel) error {
		if p.Address == "" {
			return drover.Discard(errors.New("parcel has no address"))
		}
		return nil
	}

	job := afterOneRun(drover.Handle(deliver, drover.WorkerOpts{}), Parcel{Number: 7})
	fmt.Println(job.State, job.DiscardReason)
	fmt.Println(job.LastError())
	// Output:
	// discarded unrecoverable
	// parcel has no address
}

// The other side says when to come back.
func ExampleRetryAfter() {
	depot := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "120")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer depot.Close()

	deliver := func(_ context.Context, _ *drover.Job, _ Parcel) error {
		resp, err := http.Get(depot.URL)
		if err != nil {
			return err
		}
		defer resp.Body.Close() //nolint:errcheck // nothing is read from it
		if resp.StatusCode == http.StatusTooManyRequests {
			wait := drover.ParseRetryAfter(resp.Header.Get("Retry-After"))
			return drover.RetryAfter(wait, errors.New("depot is busy"))
		}
		return nil
	}

	job := afterOneRun(drover.Handle(deliver, drover.WorkerOpts{}), Parcel{Number: 7})
	delay := time.Duration(job.Errors[0].DelayMS) * time.Millisecond
	fmt.Println(job.State, job.Errors[0].Class, job.LastError())
	fmt.Println(delay >= 120*time.Second && delay < 144*time.Second)
	// Output:
	// retryable throttled depot is busy
	// true
}

// Nothing has failed, but it is too early.
func ExampleSnooze() {
	deliver := func(_ context.Context, _ *drover.Job, _ Parcel) error {
		return drover.Snooze(10 * time.Minute)
	}

	job := afterOneRun(drover.Handle(deliver, drover.WorkerOpts{}), Parcel{Number: 7})
	fmt.Println(job.State, "attempts:", job.Attempt, "snoozes:", job.Snoozes)
	// Output: scheduled attempts: 0 snoozes: 1
}

// The receiver has sent it back: nobody wants this job any more.
func ExampleCancel() {
	deliver := func(_ context.Context, _ *drover.Job, _ Parcel) error {
		return drover.Cancel(errors.New("returned to sender"))
	}

	job := afterOneRun(drover.Handle(deliver, drover.WorkerOpts{}), Parcel{Number: 7})
	fmt.Println(job.State, job.LastError())
	// Output: cancelled returned to sender
}

// The van does not start: no fault of this parcel's.
func ExampleDontCount() {
	deliver := func(_ context.Context, _ *drover.Job, _ Parcel) error {
		return drover.DontCount(errors.New("van does not start"))
	}

	job := afterOneRun(drover.Handle(deliver, drover.WorkerOpts{MaxAttempts: 1}), Parcel{Number: 7})
	fmt.Println(job.State, "attempts:", job.Attempt, "failed runs:", job.ErrorsTotal)
	// Output: retryable attempts: 0 failed runs: 1
}

// docs/outcomes.md shows this code; docs_test.go compares the two.

// noSuchStreet is an error that no retry can help, whichever handler returns it.
type noSuchStreet struct{ street string }

func (e noSuchStreet) Error() string   { return "no such street: " + e.street }
func (e noSuchStreet) Permanent() bool { return true }

// docs/outcomes.md ends here.

// The error type says it itself: its jobs are discarded as if by Discard.
func ExampleDiscard_permanent() {
	deliver := func(_ context.Context, _ *drover.Job, _ Parcel) error {
		return fmt.Errorf("look up the address: %w", noSuchStreet{"Lake Road"})
	}

	job := afterOneRun(drover.Handle(deliver, drover.WorkerOpts{}), Parcel{Number: 7})
	fmt.Println(job.State, job.DiscardReason, job.LastError())
	// Output: discarded unrecoverable look up the address: no such street: Lake Road
}

// The worker holds most errors for final, the handler knows better.
func ExampleRetry() {
	deliver := func(_ context.Context, _ *drover.Job, _ Parcel) error {
		return drover.Retry(errors.New("nobody at home"))
	}
	worker := drover.Handle(deliver, drover.WorkerOpts{RetryIf: func(error) bool { return false }})

	job := afterOneRun(worker, Parcel{Number: 7})
	fmt.Println(job.State, job.LastError())
	// Output: retryable nobody at home
}

// The parcel is marked delivered and the job completed in one commit, or neither is.
func ExampleJob_CompleteTx() {
	ctx := context.Background()
	pool, end := migratedPool()
	defer end()
	_, err := pool.Exec(ctx, `create table delivered (number int)`)
	must(err)

	deliver := func(ctx context.Context, job *drover.Job, p Parcel) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `insert into delivered values ($1)`, p.Number); err != nil {
				return err
			}
			return job.CompleteTx(ctx, tx) // ErrLeaseLost rolls back
		})
	}

	runOnce(pool, drover.Handle(deliver, drover.WorkerOpts{}), Parcel{Number: 7})
	var number int
	must(pool.QueryRow(ctx, `select number from delivered`).Scan(&number))
	fmt.Println(number)
	// Output: 7
}

// A failure, too, can be recorded together with the handler's rows.
func ExampleJob_SettleTx() {
	ctx := context.Background()
	pool, end := migratedPool()
	defer end()
	_, err := pool.Exec(ctx, `create table complaints (text text)`)
	must(err)

	deliver := func(ctx context.Context, job *drover.Job, p Parcel) error {
		gone := fmt.Errorf("%s: moved away", p.Address)
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `insert into complaints values ($1)`, gone.Error()); err != nil {
				return err
			}
			return job.SettleTx(ctx, tx, drover.Discard(gone))
		})
	}

	receipt := runOnce(pool, drover.Handle(deliver, drover.WorkerOpts{}), Parcel{7, "Lake Road 1"})
	var state, complaint string
	must(pool.QueryRow(ctx, `select state, text from jobs, complaints where id = $1`, receipt.ID).Scan(&state, &complaint))
	fmt.Println(state, "-", complaint)
	// Output: discarded - Lake Road 1: moved away
}

// Invoice follows a parcel.
type Invoice struct{ Parcel int }

func (Invoice) Kind() string { return "invoice" }

// The next step is enqueued by the run that completes this one, and by no other.
func ExampleJob_EnqueueTx() {
	pool, end := migratedPool()
	defer end()

	deliver := func(ctx context.Context, job *drover.Job, p Parcel) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := job.EnqueueTx(ctx, tx, Invoice{p.Number}, nil); err != nil {
				return err
			}
			return job.CompleteTx(ctx, tx)
		})
	}

	runOnce(pool, drover.Handle(deliver, drover.WorkerOpts{}), Parcel{Number: 7})
	client, err := drover.New(pool, drover.Config{})
	must(err)
	page, err := client.Jobs(context.Background(), drover.Filter{}, "", 0)
	must(err)
	for _, job := range page.Jobs {
		fmt.Println(job.Kind, job.State)
	}
	// Output:
	// invoice available
	// parcel completed
}

// A metric counts failures, and a snooze is none.
func ExampleVerdictOf() {
	errBusy := errors.New("the carrier is busy")
	for _, err := range []error{
		nil,
		errBusy,
		drover.Snooze(time.Minute),
		fmt.Errorf("deliver parcel 7: %w", drover.RetryAfter(time.Hour, errBusy)),
	} {
		v := drover.VerdictOf(err)
		fmt.Println(v.Kind, v.Failed(), v.Delay, v.Cause)
	}
	// Output:
	// done false 0s <nil>
	// error true 0s the carrier is busy
	// snooze false 1m0s <nil>
	// retry_after true 1h0m0s the carrier is busy
}

// A handler alone, without a database.
func ExampleWorker_Try() {
	worker := drover.Handle(func(_ context.Context, job *drover.Job, c Charge) error {
		if job.Attempt > 2 {
			return drover.Discard(errors.New("account closed"))
		}
		return errors.New("the bank is busy")
	}, drover.WorkerOpts{})
	for attempt := 2; attempt <= 3; attempt++ {
		v := worker.Try(context.Background(), &drover.Job{Attempt: attempt, Args: []byte(`{"OrderID": 42}`)})
		fmt.Println(worker.Kind(), v.Kind, v.Cause)
	}
	// Output:
	// charge error the bank is busy
	// charge discard account closed
}
