package drovertest_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/drovertest"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
)

var errBusy = errors.New("the bank is busy")

// quietClient logs nothing.
func quietClient(t *testing.T, pool *pgxpool.Pool) *drover.Client {
	t.Helper()
	client, err := drover.New(pool, drover.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func enqueue(t *testing.T, client *drover.Client, args drover.Args, opts *drover.EnqueueOpts) string {
	t.Helper()
	receipt, err := client.Enqueue(t.Context(), args, opts)
	if err != nil {
		t.Fatal(err)
	}
	return receipt.ID
}

func jobOf(t *testing.T, client *drover.Client, id string) *drover.JobInfo {
	t.Helper()
	job, err := client.Job(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return job
}

func drainOf(handler func(context.Context, *drover.Job, Charge) error, opts drover.WorkerOpts) drover.SupervisorConfig {
	return drover.SupervisorConfig{Workers: []drover.Worker{drover.Handle(handler, opts)}}
}

// All twenty attempts, with waits of hours, and in the end the job is dead.
func TestDrainRunsAllAttempts(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewMigratedPool(t)
	client := quietClient(t, pool)
	id := enqueue(t, client, Charge{1}, nil)
	drovertest.Drain(t.Context(), t, pool, client, drainOf(func(context.Context, *drover.Job, Charge) error { return errBusy }, drover.WorkerOpts{}))
	job := jobOf(t, client, id)
	if job.State != drover.Discarded || job.Attempt != 20 || job.ErrorsTotal != 20 || job.Reason != drover.ReasonAttemptsExhausted {
		t.Errorf("job = %+v", job)
	}
	if age := time.Since(job.CreatedAt); age < time.Hour {
		t.Errorf("the job is %v old: no time has passed", age)
	}
}

// Jobs run at their own times, also what handlers enqueue, and the end of their time is seen.
func TestDrainKeepsTheOrderOfTimes(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewMigratedPool(t)
	client := quietClient(t, pool)
	var mu sync.Mutex
	var order []string
	handler := func(ctx context.Context, job *drover.Job, c Charge) error {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, fmt.Sprintf("%d.%d", c.OrderID, job.Attempt))
		switch {
		case c.OrderID == 1 && job.Attempt == 1:
			return drover.RetryAfter(2*time.Hour, errBusy)
		case c.OrderID == 2:
			_, err := client.Enqueue(ctx, Charge{4}, &drover.EnqueueOpts{Delay: 24 * time.Hour})
			return err
		}
		return nil
	}
	enqueue(t, client, Charge{1}, nil)
	enqueue(t, client, Charge{2}, &drover.EnqueueOpts{Delay: time.Hour})
	enqueue(t, client, Charge{3}, &drover.EnqueueOpts{Delay: 3 * time.Hour})
	late := enqueue(t, client, Charge{5}, &drover.EnqueueOpts{Delay: 2 * time.Hour, ExpiresAt: time.Now().Add(90 * time.Minute)})
	drovertest.Drain(t.Context(), t, pool, client, drainOf(handler, drover.WorkerOpts{}))
	if got, want := strings.Join(order, " "), "1.1 2.1 1.2 3.1 4.1"; got != want {
		t.Errorf("ran %s, want %s", got, want)
	}
	if job := jobOf(t, client, late); job.State != drover.Discarded || job.Reason != drover.ReasonExpired {
		t.Errorf("the job that had expired is %s, %s", job.State, job.Reason)
	}
}

// Jobs of other kinds and queues, and parked ones, are left alone.
func TestDrainLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewMigratedPool(t)
	client := quietClient(t, pool)
	enqueue(t, client, Charge{1}, nil)
	others := []string{enqueue(t, client, Other{}, nil), enqueue(t, client, Charge{2}, &drover.EnqueueOpts{Queue: "payments"})}
	config := drainOf(func(context.Context, *drover.Job, Charge) error { return nil }, drover.WorkerOpts{})
	drovertest.Drain(t.Context(), t, pool, client, config)
	for _, id := range others {
		if job := jobOf(t, client, id); job.State != drover.Available {
			t.Errorf("a job of kind %s in queue %s is %s", job.Kind, job.Queue, job.State)
		}
	}
	config.Queues = []drover.Queue{{Name: "payments"}}
	drovertest.Drain(t.Context(), t, pool, client, config)
	if job := jobOf(t, client, others[1]); job.State != drover.Completed {
		t.Errorf("it is %s", job.State)
	}
}

// A job that is due "never", as people write it, cannot be drained, and is not taken for one that is due.
func TestDrainDoesNotWaitForTheYear9999(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewMigratedPool(t)
	client := quietClient(t, pool)
	soon := enqueue(t, client, Charge{1}, &drover.EnqueueOpts{Delay: 48 * time.Hour})
	never := enqueue(t, client, Charge{2}, &drover.EnqueueOpts{ScheduledAt: time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)})
	text := failure(t, func(p *probe) {
		drovertest.Drain(t.Context(), p, pool, client, drainOf(func(context.Context, *drover.Job, Charge) error { return nil }, drover.WorkerOpts{}))
	})
	if !strings.Contains(text, never+" waits for a time that is more than 100 years away") {
		t.Errorf("it failed with %q", text)
	}
	if a, b := jobOf(t, client, soon), jobOf(t, client, never); a.State != drover.Completed || b.State != drover.Scheduled || b.ScheduledAt.Year() != 9999 {
		t.Errorf("%s, and %s at %v", a.State, b.State, b.ScheduledAt)
	}
}

// What cannot go on fails the test, and says why.
func TestDrainSaysWhyAJobWaits(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewMigratedPool(t)
	client := quietClient(t, pool)
	done := drainOf(func(context.Context, *drover.Job, Charge) error { return nil }, drover.WorkerOpts{})
	id := enqueue(t, client, Charge{1}, nil)
	if err := client.Pause(t.Context(), "queue:default", time.Time{}, drover.By{Who: "ada", Why: "the bank is down"}); err != nil {
		t.Fatal(err)
	}
	text := failure(t, func(p *probe) { drovertest.Drain(t.Context(), p, pool, client, done) })
	if !strings.Contains(text, id+" is due, and does not start") || !strings.Contains(text, "the bank is down") {
		t.Errorf("it failed with %q", text)
	}
	short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if text := failure(t, func(p *probe) { drovertest.Drain(short, p, pool, client, done) }); !strings.Contains(text, "the context has ended") {
		t.Errorf("it failed with %q", text)
	}
	if err := client.Resume(t.Context(), "queue:default", drover.By{}); err != nil {
		t.Fatal(err)
	}
	snoozes := drainOf(func(context.Context, *drover.Job, Charge) error { return drover.Snooze(time.Minute) }, drover.WorkerOpts{})
	if text := failure(t, func(p *probe) { drovertest.Drain(t.Context(), p, pool, client, snoozes) }); !strings.Contains(text, "a job has run 1000 times and waits again") {
		t.Errorf("it failed with %q", text)
	}
	if text := failure(t, func(p *probe) { drovertest.Drain(t.Context(), p, pool, client, drover.SupervisorConfig{Lease: 1}) }); !strings.Contains(text, "Lease") {
		t.Errorf("it failed with %q", text)
	}
	if text := failure(t, func(p *probe) { drovertest.Advance(t.Context(), p, pool, -1) }); !strings.Contains(text, "cannot go back") {
		t.Errorf("it failed with %q", text)
	}
}

// A uniqueness that lasts a period ends with it, and what is due in more than the time that passes is due that much sooner.
func TestAdvance(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewMigratedPool(t)
	client := quietClient(t, pool)
	soon := enqueue(t, client, Charge{1}, &drover.EnqueueOpts{Delay: time.Minute})
	later := enqueue(t, client, Charge{2}, &drover.EnqueueOpts{Delay: 3 * time.Hour})
	hourly := &drover.EnqueueOpts{Delay: 24 * time.Hour, Unique: &drover.Unique{Until: drover.UntilPassed(time.Hour)}}
	first := enqueue(t, client, Other{}, hourly)
	if again := enqueue(t, client, Other{}, hourly); again != first {
		t.Error("it is not unique")
	}
	drovertest.Advance(t.Context(), t, pool, 2*time.Hour)
	if d := time.Until(jobOf(t, client, soon).ScheduledAt); d > time.Second {
		t.Errorf("due in %v", d)
	}
	if d := time.Until(jobOf(t, client, later).ScheduledAt); d < 50*time.Minute || d > time.Hour {
		t.Errorf("due in %v", d)
	}
	if again := enqueue(t, client, Other{}, hourly); again == first {
		t.Error("its period has not ended")
	}
}
