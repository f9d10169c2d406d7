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
	"github.com/drover-queue/drover/internal/tier"
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
func TestTwentyAttempts(t *testing.T) {
	t.Parallel()
	pool := drovertest.NewPool(t, pgtest.URL(t))
	var delays []time.Duration
	worker := drover.Handle(func(_ context.Context, job *drover.Job, _ Charge) error {
		delays = append(delays, job.LastDelay)
		return errBusy
	}, drover.WorkerOpts{})
	job := drovertest.RunToEnd(t.Context(), t, pool, worker, Charge{1}, &drover.EnqueueOpts{Queue: "payments"})
	if job.State != drover.Discarded || job.Attempt != 20 || job.ErrorsTotal != 20 || job.DiscardReason != drover.ReasonAttemptsExhausted || job.Queue != "payments" {
		t.Errorf("job = %+v", job)
	}
	var waits time.Duration
	for _, delay := range delays {
		waits += delay
	}
	if age := time.Since(job.CreatedAt); len(delays) != 20 || waits < time.Hour || age < waits {
		t.Errorf("the job is %v old after waits of %v", age, delays)
	}
	if job := drovertest.RunToEnd(t.Context(), t, pool, worker, Charge{2}, &drover.EnqueueOpts{MaxAttempts: 1}); job.Queue != "default" || job.Attempt != 1 {
		t.Errorf("job = %+v", job)
	}
	if text := failure(t, func(p *probe) {
		drovertest.RunToEnd(t.Context(), p, pool, worker, Charge{3}, &drover.EnqueueOpts{Priority: 10})
	}); !strings.Contains(text, "Priority") {
		t.Errorf("it failed with %q", text)
	}
}

// A worker's RetryFor ends jobs as it would without the kit, and counts anew from a redrive.
func TestDrainHeedsRetryFor(t *testing.T) {
	t.Parallel()
	pool := drovertest.NewPool(t, pgtest.URL(t))
	client := quietClient(t, pool)
	worker := drover.Handle(func(context.Context, *drover.Job, Charge) error { return errBusy },
		drover.WorkerOpts{RetryFor: time.Hour, MaxAttempts: drover.Unlimited, Retry: drover.Every(25 * time.Minute)})
	id := enqueue(t, client, Charge{1}, nil)
	for range 2 {
		drovertest.Drain(t.Context(), t, pool, client, drover.SupervisorConfig{Workers: []drover.Worker{worker}})
		if job := jobOf(t, client, id); job.DiscardReason != drover.ReasonTimeBudget || job.Attempt != 3 {
			t.Errorf("%s after attempt %d, want 3 in the hour", job.DiscardReason, job.Attempt)
		}
		if err := client.RedriveJob(t.Context(), id, nil, drover.Audit{}); err != nil {
			t.Fatal(err)
		}
	}
}

// Jobs run at their own times, also what handlers enqueue, and the end of their time is seen.
func TestDrainKeepsTheOrderOfTimes(t *testing.T) {
	t.Parallel()
	pool := drovertest.NewPool(t, pgtest.URL(t))
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
	if job := jobOf(t, client, late); job.State != drover.Discarded || job.DiscardReason != drover.ReasonExpired {
		t.Errorf("the job that had expired is %s, %s", job.State, job.DiscardReason)
	}
}

// Jobs of other kinds and queues, and parked ones, are left alone.
func TestDrainLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	pool := drovertest.NewPool(t, pgtest.URL(t))
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

// A job that is due "never", as people write it, cannot be drained, and does not pass for a due job.
func TestDrainDoesNotWaitForTheYear9999(t *testing.T) {
	t.Parallel()
	pool := drovertest.NewPool(t, pgtest.URL(t))
	client := quietClient(t, pool)
	soon := enqueue(t, client, Charge{1}, &drover.EnqueueOpts{Delay: 48 * time.Hour})
	never := enqueue(t, client, Charge{2}, &drover.EnqueueOpts{ScheduledAt: time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)})
	text := failure(t, func(p *probe) {
		drovertest.Drain(t.Context(), p, pool, client, drainOf(func(context.Context, *drover.Job, Charge) error { return nil }, drover.WorkerOpts{}))
	})
	if !strings.Contains(text, never+" waits for a time that is more than 10 years away") {
		t.Errorf("it failed with %q", text)
	}
	if a, b := jobOf(t, client, soon), jobOf(t, client, never); a.State != drover.Completed || b.State != drover.Scheduled || b.ScheduledAt.Year() != 9999 {
		t.Errorf("%s, and %s at %v", a.State, b.State, b.ScheduledAt)
	}
}

// A drain that cannot go on fails the test, and the failure names the pause.
func TestDrainShowsWhyAJobWaits(t *testing.T) {
	t.Parallel()
	pool := drovertest.NewPool(t, pgtest.URL(t))
	client := quietClient(t, pool)
	done := drainOf(func(context.Context, *drover.Job, Charge) error { return nil }, drover.WorkerOpts{})
	id := pausedJob(t, client)
	short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	text := failure(t, func(p *probe) { drovertest.Drain(short, p, pool, client, done) })
	if !strings.Contains(text, id+" waits, and the context has ended; queue:default is paused by ada: the bank is down") {
		t.Errorf("it failed with %q", text)
	}
	if text := failure(t, func(p *probe) { drovertest.Drain(t.Context(), p, pool, client, drover.SupervisorConfig{Lease: 1}) }); !strings.Contains(text, "Lease") {
		t.Errorf("it failed with %q", text)
	}
	if text := failure(t, func(p *probe) { drovertest.Advance(t.Context(), p, pool, -1) }); !strings.Contains(text, "cannot go back") {
		t.Errorf("it failed with %q", text)
	}
}

// pausedJob enqueues a job of a queue that is paused.
func pausedJob(t *testing.T, client *drover.Client) (id string) {
	t.Helper()
	if err := client.Pause(t.Context(), drover.QueueScope("default"), nil, drover.Audit{By: "ada", Why: "the bank is down"}); err != nil {
		t.Fatal(err)
	}
	return enqueue(t, client, Charge{1}, nil)
}

// A drain without a deadline ends, too.
func TestDrainGivesUp(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	pool := drovertest.NewPool(t, pgtest.URL(t))
	client := quietClient(t, pool)
	id := pausedJob(t, client)
	snoozes := drainOf(func(context.Context, *drover.Job, Charge) error { return drover.Snooze(time.Minute) }, drover.WorkerOpts{})
	text := failure(t, func(p *probe) { drovertest.Drain(t.Context(), p, pool, client, snoozes) })
	if !strings.Contains(text, id+" is due, and does not start; queue:default is paused") {
		t.Errorf("it failed with %q", text)
	}
	if err := client.Resume(t.Context(), drover.QueueScope("default"), drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), `update jobs set claim_seq = claim_seq + 950`); err != nil { // or it takes half a minute
		t.Fatal(err)
	}
	if text := failure(t, func(p *probe) { drovertest.Drain(t.Context(), p, pool, client, snoozes) }); !strings.Contains(text, "a job was claimed 1000 times and waits again") {
		t.Errorf("it failed with %q", text)
	}
}

// Time passes for all that the row of a job knows of it. Jobs become due in the order of their times.
func TestAdvance(t *testing.T) {
	t.Parallel()
	pool := drovertest.NewPool(t, pgtest.URL(t))
	client := quietClient(t, pool)
	due := enqueue(t, client, Charge{0}, nil)
	second := enqueue(t, client, Charge{2}, &drover.EnqueueOpts{Delay: 90 * time.Minute})
	first := enqueue(t, client, Charge{1}, &drover.EnqueueOpts{Delay: time.Minute})
	later := enqueue(t, client, Charge{3}, &drover.EnqueueOpts{Delay: 3 * time.Hour})
	ends := enqueue(t, client, Charge{4}, &drover.EnqueueOpts{RetryUntil: time.Now().Add(3 * time.Hour), ExpiresAt: time.Now().Add(3 * time.Hour)})
	running := enqueue(t, client, Charge{5}, nil)
	if _, err := pool.Exec(t.Context(), `update jobs set state = 'running', claimed_by = 'x', attempted_at = now() where id = $1`, running); err != nil {
		t.Fatal(err)
	}
	hourly := &drover.EnqueueOpts{Delay: 24 * time.Hour, Unique: &drover.Unique{Until: drover.UntilPassed(time.Hour)}}
	unique := enqueue(t, client, Other{}, hourly)
	if again := enqueue(t, client, Other{}, hourly); again != unique {
		t.Error("it is not unique")
	}
	before := jobOf(t, client, due).ScheduledAt
	drovertest.Advance(t.Context(), t, pool, 2*time.Hour)
	if at := jobOf(t, client, due).ScheduledAt; !at.Equal(before) {
		t.Errorf("a job that was due has moved from %v to %v", before, at)
	}
	if a, b := jobOf(t, client, first).ScheduledAt, jobOf(t, client, second).ScheduledAt; !a.Before(b) || time.Until(b) > time.Second {
		t.Errorf("the first is due at %v, the second at %v", a, b)
	}
	if d := time.Until(jobOf(t, client, later).ScheduledAt); d < 50*time.Minute || d > time.Hour {
		t.Errorf("due in %v", d)
	}
	if age := time.Since(jobOf(t, client, later).CreatedAt); age < 2*time.Hour {
		t.Errorf("%v old", age)
	}
	if now := jobOf(t, client, running); time.Since(*now.AttemptedAt) > time.Hour || time.Since(now.CreatedAt) > time.Hour {
		t.Errorf("a job that runs has moved: %+v", now)
	}
	if again := enqueue(t, client, Other{}, hourly); again == unique {
		t.Error("its period has not ended")
	}
	var left time.Duration
	if err := pool.QueryRow(t.Context(), `select greatest(expires_at, retry_until) - now() from jobs where id = $1`, ends).Scan(&left); err != nil || left < 50*time.Minute || left > time.Hour {
		t.Errorf("it ends in %v, %v", left, err)
	}
}

// An Advance in a transaction shows in it before it commits.
func TestAdvanceInATransaction(t *testing.T) {
	t.Parallel()
	pool := drovertest.NewPool(t, pgtest.URL(t))
	client := quietClient(t, pool)
	id := enqueue(t, client, Charge{1}, &drover.EnqueueOpts{Delay: time.Hour})
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	drovertest.Advance(t.Context(), t, tx, time.Hour)
	if job := drovertest.RequireEnqueued(t.Context(), t, tx, Charge{1}); time.Until(job.ScheduledAt) > time.Second {
		t.Errorf("due in %v", time.Until(job.ScheduledAt))
	}
	if job := jobOf(t, client, id); time.Until(job.ScheduledAt) < 50*time.Minute {
		t.Errorf("due in %v", time.Until(job.ScheduledAt))
	}
}

// A job that enqueues its successor would be drained for ever.
func TestDrainOfAChainEnds(t *testing.T) {
	t.Parallel()
	pool := drovertest.NewPool(t, pgtest.URL(t))
	client := quietClient(t, pool)
	runs := 0
	cfg := drainOf(func(ctx context.Context, _ *drover.Job, c Charge) error {
		runs++
		_, err := client.Enqueue(ctx, c, &drover.EnqueueOpts{Delay: 366 * 24 * time.Hour})
		return err
	}, drover.WorkerOpts{})
	enqueue(t, client, Charge{7}, nil)
	text := failure(t, func(p *probe) { drovertest.Drain(t.Context(), p, pool, client, cfg) })
	if !strings.Contains(text, "more than 10 years away") || runs != 10 {
		t.Errorf("after %d runs: %q", runs, text)
	}
}
