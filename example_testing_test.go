package drover_test

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/migrations"
)

// databaseURL stands for the application's own way to its test database.
func databaseURL(t *testing.T) string {
	t.Helper()
	return pgtest.URL(t)
}

var errAccountClosed = errors.New("account closed")

// chargeCard stands for the application's own handler.
func chargeCard(_ context.Context, _ *drover.Job, c Charge) error {
	if c.OrderID == 7 {
		return drover.Discard(errAccountClosed)
	}
	return nil
}

// docs/testing.md shows this code; readme_test.go compares the two.

func TestChargeOfAClosedAccount(t *testing.T) {
	t.Parallel()
	err := chargeCard(t.Context(), &drover.Job{Attempt: 1}, Charge{OrderID: 7})
	if !errors.Is(err, errAccountClosed) {
		t.Errorf("the handler returned %v", err)
	}
}

// docs/testing.md goes on.

// newQueue returns a pool on drover's tables in a schema of the test's own.
func newQueue(t *testing.T) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(databaseURL(t)) // your test database
	if err != nil {
		t.Fatal(err)
	}
	schema := "test_" + strings.ToLower(rand.Text())
	config.ConnConfig.RuntimeParams["search_path"] = schema
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, err := pool.Exec(context.Background(), "drop schema "+schema+" cascade")
		pool.Close()
		if err != nil {
			t.Error(err)
		}
	})
	if _, err := pool.Exec(t.Context(), "create schema "+schema); err != nil {
		t.Fatal(err)
	}
	if err := migrations.Up(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	return pool
}

// runOne enqueues a job, lets a supervisor run it once, and returns what has become of it.
func runOne(t *testing.T, pool *pgxpool.Pool, worker drover.Worker, args drover.Args) *drover.JobInfo {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	ended := func(context.Context, drover.Event) { stop() }
	client, err := drover.New(pool, drover.Config{Hooks: []drover.Hooks{{
		Completed: ended, Failed: ended, Discarded: ended, Snoozed: ended, Cancelled: ended, Parked: ended,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	receipt, err := client.Enqueue(ctx, args, nil)
	if err != nil {
		t.Fatal(err)
	}
	sup, err := client.NewSupervisor(drover.SupervisorConfig{
		Queues:  []drover.Queue{{Name: "default"}},
		Workers: []drover.Worker{worker},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := sup.Run(ctx); err != nil {
		t.Fatal(err)
	}
	job, err := client.Job(t.Context(), receipt.ID)
	if err != nil {
		t.Fatal(err)
	}
	return job
}

// docs/testing.md goes on.

func TestChargeOfAClosedAccountIsDiscarded(t *testing.T) {
	t.Parallel()
	worker := drover.Handle(chargeCard, drover.WorkerOpts{})
	job := runOne(t, newQueue(t), worker, Charge{OrderID: 7})
	if job.State != drover.Discarded || job.DiscardReason != drover.ReasonUnrecoverable {
		t.Errorf("the job is %s, %s: %s", job.State, job.DiscardReason, job.LastError())
	}
}

// docs/testing.md goes on.

func TestPlacingAnOrderEnqueuesItsCharge(t *testing.T) {
	t.Parallel()
	pool := newQueue(t)
	client, err := drover.New(pool, drover.Config{})
	if err != nil {
		t.Fatal(err)
	}
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	if _, err := client.EnqueueTx(t.Context(), tx, Charge{OrderID: 42}, nil); err != nil {
		t.Fatal(err)
	}
	var jobs int
	count := `select drover_count('{"kind": "charge", "args": {"OrderID": 42}}')`
	if err := tx.QueryRow(t.Context(), count).Scan(&jobs); err != nil || jobs != 1 {
		t.Errorf("%d jobs, %v", jobs, err)
	}
}

// docs/testing.md ends here.
