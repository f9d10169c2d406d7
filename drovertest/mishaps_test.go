package drovertest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/drovertest"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/internal/tier"
)

// ledger counts what handlers do.
type ledger struct {
	mu       sync.Mutex
	calls    int
	at       int // handlers at work
	together int // the most that were at work together
	causes   []error
	late     time.Duration
	attempts []int
}

func (l *ledger) call(ctx context.Context, job *drover.Job) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	l.at++
	l.together = max(l.together, l.at)
	l.causes = append(l.causes, context.Cause(ctx))
	l.late = max(l.late, time.Since(job.ScheduledAt))
	l.attempts = append(l.attempts, job.Attempt)
}

func (l *ledger) done() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at--
}

// Each mishap happens as it is described, and makes a careless handler act twice or a day too late.
func TestMishapsHappen(t *testing.T) {
	t.Parallel()
	for _, mishap := range drovertest.Mishaps() {
		t.Run(mishap.Name, func(t *testing.T) {
			t.Parallel()
			pool := drovertest.NewPool(t, pgtest.URL(t))
			var l ledger
			met := make(chan struct{})
			careless := drover.Handle(func(ctx context.Context, job *drover.Job, _ Charge) error {
				l.call(ctx, job)
				defer l.done()
				if mishap.Name == "twins" { // neither returns before both are at work
					if l.meets() {
						close(met)
					}
					<-met
				}
				if mishap.Name == "frozen" && job.Attempt == 2 { // long enough for a first run that does not wait for its end
					if _, err := pool.Exec(ctx, `select pg_sleep(0.05)`); err != nil {
						return err
					}
				}
				return ctx.Err()
			}, drover.WorkerOpts{})
			mishap.Run(t.Context(), t, pool, drover.Config{}, careless, Charge{1})
			calls, together, cause, completed := 2, 1, error(nil), 1
			switch mishap.Name {
			case "twins":
				together = 2
			case "frozen":
				cause = drover.ErrLeaseLost
			case "stopped":
				cause = drover.ErrShutdown
			case "late":
				calls = 1
			case "enqueued-twice":
				completed = 2
			}
			if l.calls != calls || l.at != 0 || l.together != together {
				t.Errorf("called %d times, %d together, %d still at work", l.calls, l.together, l.at)
			}
			if (l.late > 23*time.Hour) != (mishap.Name == "late") {
				t.Errorf("%v late", l.late)
			}
			if ended := errors.Join(l.causes...); !errors.Is(ended, cause) || cause == nil && ended != nil {
				t.Errorf("contexts ended by %v", l.causes)
			}
			if jobs := drovertest.Enqueued(t.Context(), t, pool, drover.Filter{State: drover.Completed}); len(jobs) != completed {
				t.Errorf("%d jobs have completed, want %d", len(jobs), completed)
			}
			// A deploy costs no attempt, a death does.
			if want := []int{1, 2}; slices.Contains([]string{"outcome-lost", "frozen", "twins"}, mishap.Name) {
				if slices.Sort(l.attempts); !slices.Equal(l.attempts, want) {
					t.Errorf("attempts %v", l.attempts)
				}
			} else if slices.Max(l.attempts) != 1 {
				t.Errorf("attempts %v", l.attempts)
			}
		})
	}
}

func (l *ledger) meets() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.at == 2
}

// A heartbeat may find out that the first run has lost its job, and end its context, before the second run has begun or
// while it is at work. The process of the first run does not notice this.
func TestAFrozenProcessNoticesNothing(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"frozen", "twins"} {
		for _, early := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, early %t", name, early), func(t *testing.T) {
				t.Parallel()
				pool := drovertest.NewPool(t, pgtest.URL(t))
				var l ledger
				second := make(chan struct{})
				found := drover.Middleware{Run: func(ctx context.Context, job *drover.Job, next func(context.Context) error) error {
					if job.Attempt > 1 {
						return next(ctx)
					}
					ctx, lose := context.WithCancelCause(ctx)
					if early {
						lose(drover.ErrLeaseLost)
					}
					go func() {
						<-second
						lose(drover.ErrLeaseLost)
					}()
					return next(ctx)
				}}
				worker := drover.Handle(func(ctx context.Context, job *drover.Job, _ Charge) error {
					l.call(ctx, job)
					defer l.done()
					if job.Attempt == 1 {
						return ctx.Err()
					}
					close(second)
					_, err := pool.Exec(ctx, `select pg_sleep(0.1)`)
					return err
				}, drover.WorkerOpts{})
				mishaps := drovertest.Mishaps()
				i := slices.IndexFunc(mishaps, func(m drovertest.Mishap) bool { return m.Name == name })
				mishaps[i].Run(t.Context(), t, pool, drover.Config{Middleware: []drover.Middleware{found}}, worker, Charge{1})
				if l.calls != 2 || name == "frozen" && l.together != 1 {
					t.Errorf("called %d times, %d together", l.calls, l.together)
				}
			})
		}
	}
}

// A second handler that never returns does not keep the frozen run once the test gives up.
func TestAFrozenProcessThaws(t *testing.T) {
	t.Parallel()
	pool := drovertest.NewPool(t, pgtest.URL(t))
	ctx, giveUp := context.WithCancel(t.Context())
	second, left := make(chan struct{}), make(chan struct{})
	found := drover.Middleware{Run: func(ctx context.Context, job *drover.Job, next func(context.Context) error) error {
		if job.Attempt > 1 {
			return next(ctx)
		}
		defer close(left)
		lost, lose := context.WithCancelCause(context.WithoutCancel(ctx))
		go func() {
			<-second
			lose(drover.ErrLeaseLost)
			giveUp()
		}()
		return next(lost)
	}}
	worker := drover.Handle(func(_ context.Context, job *drover.Job, _ Charge) error {
		if job.Attempt == 1 {
			t.Error("the frozen run called its handler")
			return nil
		}
		close(second)
		select {
		case <-left:
		case <-time.After(30 * time.Second):
			t.Error("the frozen run still waits for the second one")
		}
		return nil
	}, drover.WorkerOpts{})
	failure(t, func(p *probe) {
		for _, mishap := range drovertest.Mishaps() {
			if mishap.Name == "frozen" {
				mishap.Run(ctx, p, pool, drover.Config{Middleware: []drover.Middleware{found}}, worker, Charge{1})
			}
		}
	})
}

// The outcome of a run that has lost its job is refused: a discard does not stick.
func TestALostOutcomeIsRefused(t *testing.T) {
	t.Parallel()
	pool := drovertest.NewPool(t, pgtest.URL(t))
	worker := drover.Handle(func(_ context.Context, job *drover.Job, _ Charge) error {
		if job.Attempt == 1 {
			return drover.Discard(errBusy)
		}
		return nil
	}, drover.WorkerOpts{})
	drovertest.Mishaps()[0].Run(t.Context(), t, pool, drover.Config{}, worker, Charge{1})
	if jobs := drovertest.Enqueued(t.Context(), t, pool, drover.Filter{}); len(jobs) != 1 || jobs[0].State != drover.Completed || jobs[0].Attempt != 2 {
		t.Errorf("jobs = %+v", jobs)
	}
}

// A handler that settles its job in the transaction of its effect, or finds what an earlier run has done, acts once.
func TestMishapsAreBorne(t *testing.T) {
	t.Parallel()
	for _, mishap := range drovertest.Mishaps() {
		t.Run(mishap.Name, func(t *testing.T) {
			t.Parallel()
			pool := drovertest.NewPool(t, pgtest.URL(t))
			opts := &drover.EnqueueOpts{Queue: "receipts"}
			if mishap.Name == "enqueued-twice" { // the other mishaps are borne by the transaction alone
				opts.Unique = &drover.Unique{}
			}
			careful := drover.Handle(func(ctx context.Context, job *drover.Job, _ Charge) error {
				tx, err := pool.Begin(ctx)
				if err != nil {
					return err
				}
				defer tx.Rollback(context.WithoutCancel(ctx))
				if _, err := job.EnqueueTx(ctx, tx, Other{}, opts); err != nil {
					return err
				}
				if err := job.CompleteTx(ctx, tx); err != nil {
					return err
				}
				return tx.Commit(ctx)
			}, drover.WorkerOpts{})
			mishap.Run(t.Context(), t, pool, drover.Config{}, careful, Charge{1})
			drovertest.RequireEnqueued(t.Context(), t, pool, Other{})
		})
	}
}

// A mishap that cannot happen fails the test, which would prove nothing otherwise.
func TestAMishapThatDoesNotHappen(t *testing.T) {
	t.Parallel()
	worker := drover.Handle(func(context.Context, *drover.Job, Charge) error { return nil }, drover.WorkerOpts{})
	for _, c := range []struct {
		mishap, text string
		opts         drover.EnqueueOpts
	}{
		{"enqueued-twice", "unique", drover.EnqueueOpts{Unique: &drover.Unique{}}},
		{"late", "the job was not run", drover.EnqueueOpts{ExpiresAt: time.Now().Add(time.Second), Delay: time.Hour}},
	} {
		middleware := drover.Middleware{Enqueue: func(_ context.Context, item *drover.EnqueueItem) error {
			*item.Opts = c.opts
			return nil
		}}
		all := drovertest.Mishaps()
		i := slices.IndexFunc(all, func(m drovertest.Mishap) bool { return m.Name == c.mishap })
		text := failure(t, func(p *probe) {
			all[i].Run(t.Context(), p, drovertest.NewPool(t, pgtest.URL(t)), drover.Config{Middleware: []drover.Middleware{middleware}}, worker, Charge{1})
		})
		if !strings.Contains(text, c.mishap+" did not happen") || !strings.Contains(text, c.text) {
			t.Errorf("%s failed with %q", c.mishap, text)
		}
	}
}

// drover runs a job with a single attempt once, whatever happens.
func TestMishapsOfASingleAttempt(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	for _, mishap := range drovertest.Mishaps()[:5] {
		t.Run(mishap.Name, func(t *testing.T) {
			t.Parallel()
			pool := drovertest.NewPool(t, pgtest.URL(t))
			var l ledger
			worker := drover.Handle(func(ctx context.Context, job *drover.Job, _ Charge) error {
				l.call(ctx, job)
				defer l.done()
				return nil
			}, drover.WorkerOpts{MaxAttempts: 1})
			mishap.Run(t.Context(), t, pool, drover.Config{}, worker, Charge{1})
			if l.calls != 1 {
				t.Errorf("called %d times", l.calls)
			}
		})
	}
}
