package drovertest_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/drovertest"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
)

// ledger counts what handlers do.
type ledger struct {
	mu        sync.Mutex
	calls, at int // handlers that were called, and that are at work
	together  int // the most that were at work at once
	causes    []error
}

func (l *ledger) call(ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	l.at++
	l.together = max(l.together, l.at)
	l.causes = append(l.causes, context.Cause(ctx))
}

func (l *ledger) done() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at--
}

// Each mishap makes a careless handler act twice.
func TestMishapsHappen(t *testing.T) {
	t.Parallel()
	for _, mishap := range drovertest.Mishaps() {
		t.Run(mishap.Name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.NewMigratedPool(t)
			var l ledger
			met := make(chan struct{})
			careless := drover.Handle(func(ctx context.Context, _ *drover.Job, _ Charge) error {
				l.call(ctx)
				defer l.done()
				if mishap.Name == "twins" { // both are at work
					l.mu.Lock()
					if l.at == 2 {
						close(met)
					}
					l.mu.Unlock()
					<-met
				}
				return ctx.Err()
			}, drover.WorkerOpts{})
			mishap.Run(t.Context(), t, pool, drover.Config{}, careless, Charge{1})
			if l.calls != 2 || l.at != 0 {
				t.Errorf("called %d times, %d at work", l.calls, l.at)
			}
			together, cause := 1, error(nil)
			switch mishap.Name {
			case "twins":
				together = 2
			case "frozen":
				cause = drover.ErrLeaseLost
			case "stopped":
				cause = drover.ErrShutdown
			}
			if l.together != together || !errors.Is(errors.Join(l.causes...), cause) && cause != nil || cause == nil && errors.Join(l.causes...) != nil {
				t.Errorf("%d at once, contexts ended by %v", l.together, l.causes)
			}
			jobs := drovertest.Enqueued(t.Context(), t, pool, drover.Filter{State: drover.Completed})
			if want := map[bool]int{true: 2, false: 1}[mishap.Name == "enqueued-twice"]; len(jobs) != want {
				t.Errorf("%d jobs have completed, want %d", len(jobs), want)
			}
		})
	}
}

// A handler that settles its job in the transaction of its effect acts once, and so does one that finds its key.
func TestMishapsAreBorne(t *testing.T) {
	t.Parallel()
	for _, mishap := range drovertest.Mishaps() {
		t.Run(mishap.Name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.NewMigratedPool(t)
			if _, err := pool.Exec(t.Context(), `create table charges (order_id bigint primary key, made int not null default 1)`); err != nil {
				t.Fatal(err)
			}
			careful := drover.Handle(func(ctx context.Context, job *drover.Job, c Charge) error {
				tx, err := pool.Begin(ctx)
				if err != nil {
					return err
				}
				defer tx.Rollback(context.WithoutCancel(ctx))
				if _, err := tx.Exec(ctx, `insert into charges values ($1) on conflict do nothing`, c.OrderID); err != nil {
					return err
				}
				if err := job.CompleteTx(ctx, tx); err != nil {
					return err
				}
				return tx.Commit(ctx)
			}, drover.WorkerOpts{})
			mishap.Run(t.Context(), t, pool, drover.Config{}, careful, Charge{1})
			var n int
			if err := pool.QueryRow(t.Context(), `select sum(made) from charges`).Scan(&n); err != nil || n != 1 {
				t.Errorf("charged %d times, %v", n, err)
			}
		})
	}
}

// A mishap that cannot happen fails the test, which would prove nothing otherwise.
func TestAMishapThatDoesNotHappen(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewMigratedPool(t)
	unique := drover.Middleware{Enqueue: func(_ context.Context, item *drover.EnqueueItem) error {
		item.Opts = &drover.EnqueueOpts{Unique: &drover.Unique{}}
		return nil
	}}
	worker := drover.Handle(func(context.Context, *drover.Job, Charge) error { return nil }, drover.WorkerOpts{})
	for _, mishap := range drovertest.Mishaps() {
		if mishap.Name != "enqueued-twice" {
			continue
		}
		text := failure(t, func(p *probe) {
			mishap.Run(t.Context(), p, pool, drover.Config{Middleware: []drover.Middleware{unique}}, worker, Charge{1})
		})
		if !strings.Contains(text, "did not happen") || !strings.Contains(text, "unique") {
			t.Errorf("it failed with %q", text)
		}
	}
}

// drover runs a job with a single attempt once, whatever happens.
func TestMishapsOfASingleAttempt(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewMigratedPool(t)
	var l ledger
	worker := drover.Handle(func(ctx context.Context, _ *drover.Job, _ Charge) error {
		l.call(ctx)
		defer l.done()
		return nil
	}, drover.WorkerOpts{MaxAttempts: 1})
	drovertest.Mishaps()[0].Run(t.Context(), t, pool, drover.Config{}, worker, Charge{1})
	if l.calls != 1 {
		t.Errorf("called %d times", l.calls)
	}
}
