package drover_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/drovertest"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
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

// fakeBank stands for a service that takes a key with each call, and does what it has done under this key only once.
type fakeBank struct {
	mu   sync.Mutex
	done map[int64]int
}

func (b *fakeBank) charge(_ context.Context, _ *drover.Job, c Charge) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done == nil {
		b.done = map[int64]int{}
	}
	b.done[c.OrderID] = 1
	return nil
}

func (b *fakeBank) charged(order int64) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.done[order]
}

// docs/testing.md shows this code; readme_test.go compares the two.

func TestChargeOfAClosedAccount(t *testing.T) {
	t.Parallel()
	worker := drover.Handle(chargeCard, drover.WorkerOpts{})
	v := drovertest.Run(t.Context(), t, worker, Charge{OrderID: 7}, nil)
	if v.Kind != drover.VerdictDiscard || !errors.Is(v.Cause, errAccountClosed) {
		t.Errorf("the handler said %s: %v", v.Kind, v.Cause)
	}
}

// docs/testing.md goes on.

func TestChargeOfAClosedAccountIsDiscarded(t *testing.T) {
	t.Parallel()
	pool := drovertest.NewPool(t, databaseURL(t)) // your test database
	client, err := drover.New(pool, drover.Config{})
	if err != nil {
		t.Fatal(err)
	}
	receipt, err := client.Enqueue(t.Context(), Charge{OrderID: 7}, nil)
	if err != nil {
		t.Fatal(err)
	}
	drovertest.Drain(t.Context(), t, pool, client, drover.SupervisorConfig{
		Workers: []drover.Worker{drover.Handle(chargeCard, drover.WorkerOpts{})},
	})
	job, err := client.Job(t.Context(), receipt.ID)
	if err != nil {
		t.Fatal(err)
	}
	if job.State != drover.Discarded || job.Reason != drover.ReasonUnrecoverable {
		t.Errorf("the job is %s, %s: %s", job.State, job.Reason, job.LastError())
	}
}

// docs/testing.md goes on.

func TestChargesAreMadeOnce(t *testing.T) {
	t.Parallel()
	for _, mishap := range drovertest.Mishaps() {
		t.Run(mishap.Name, func(t *testing.T) {
			t.Parallel()
			pool, bank := drovertest.NewPool(t, databaseURL(t)), &fakeBank{}
			worker := drover.Handle(bank.charge, drover.WorkerOpts{})
			mishap.Run(t.Context(), t, pool, drover.Config{}, worker, Charge{OrderID: 42})
			if n := bank.charged(42); n != 1 {
				t.Errorf("charged %d times", n)
			}
		})
	}
}

// docs/testing.md goes on.

func TestPlacingAnOrderEnqueuesItsCharge(t *testing.T) {
	t.Parallel()
	pool := drovertest.NewPool(t, databaseURL(t))
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
	job := drovertest.RequireEnqueued(t.Context(), t, tx, Charge{OrderID: 42})
	if job.Queue != "default" {
		t.Errorf("it is in the queue %s", job.Queue)
	}
}

// docs/testing.md ends here.
