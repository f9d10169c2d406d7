package drover_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

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

// shop stands for the application.
type shop struct {
	client   *drover.Client
	pool     *pgxpool.Pool
	mu       sync.Mutex
	receipts map[int64]bool
}

// Receipt is a job that another job enqueues.
type Receipt struct{ OrderID int64 }

func (Receipt) Kind() string { return "receipt" }

func newShop(t *testing.T, pool *pgxpool.Pool) *shop {
	t.Helper()
	client, err := drover.New(pool, drover.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return &shop{client: client, pool: pool, receipts: map[int64]bool{}}
}

func (s *shop) placeOrder(ctx context.Context, order int64) error {
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error { return s.placeOrderTx(ctx, tx, order) })
}

func (s *shop) placeOrderTx(ctx context.Context, tx pgx.Tx, order int64) error {
	_, err := s.client.EnqueueTx(ctx, tx, Charge{OrderID: order}, nil)
	return err
}

func (s *shop) workers() []drover.Worker {
	return []drover.Worker{
		drover.Handle(func(ctx context.Context, job *drover.Job, c Charge) error {
			if job.Attempt == 1 {
				return errors.New("the bank is busy")
			}
			_, err := s.client.Enqueue(ctx, Receipt(c), nil)
			return err
		}, drover.WorkerOpts{}),
		drover.Handle(func(_ context.Context, _ *drover.Job, r Receipt) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.receipts[r.OrderID] = true
			return nil
		}, drover.WorkerOpts{}),
	}
}

func (s *shop) sentReceipt(order int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.receipts[order]
}

// docs/testing.md shows this code; docs_test.go compares the two.

func TestChargeOfAClosedAccount(t *testing.T) {
	t.Parallel()
	worker := drover.Handle(chargeCard, drover.WorkerOpts{})
	v := drovertest.Run(t.Context(), t, worker, Charge{OrderID: 7}, nil)
	if v.Kind != drover.VerdictDiscard || !errors.Is(v.Cause, errAccountClosed) {
		t.Errorf("the verdict is %s: %v", v.Kind, v.Cause)
	}
}

// docs/testing.md goes on.

func TestChargeOfAClosedAccountIsDiscarded(t *testing.T) {
	t.Parallel()
	pool := drovertest.NewPool(t, databaseURL(t)) // your test database
	worker := drover.Handle(chargeCard, drover.WorkerOpts{})
	job := drovertest.RunToEnd(t.Context(), t, pool, worker, Charge{OrderID: 7}, nil)
	if job.State != drover.Discarded || job.DiscardReason != drover.ReasonUnrecoverable {
		t.Errorf("the job is %s, %s: %s", job.State, job.DiscardReason, job.LastError())
	}
}

// docs/testing.md goes on.

func TestAnOrderIsChargedAndReceipted(t *testing.T) {
	t.Parallel()
	pool := drovertest.NewPool(t, databaseURL(t))
	shop := newShop(t, pool) // your application, with its client and workers
	if err := shop.placeOrder(t.Context(), 42); err != nil {
		t.Fatal(err)
	}
	drovertest.Drain(t.Context(), t, pool, shop.client, drover.SupervisorConfig{Workers: shop.workers()})
	if !shop.sentReceipt(42) {
		t.Error("no receipt was sent")
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
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	if err := newShop(t, pool).placeOrderTx(t.Context(), tx, 42); err != nil {
		t.Fatal(err)
	}
	job := drovertest.RequireEnqueued(t.Context(), t, tx, Charge{OrderID: 42})
	if job.Queue != "default" {
		t.Errorf("it is in the queue %s", job.Queue)
	}
}

// docs/testing.md ends here.
