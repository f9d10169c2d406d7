package engine_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/harness"
)

// P-5
func TestStopFinishesWhatRunsAndHandsBackTheRest(t *testing.T) {
	t.Parallel()
	var book diary
	var claimed atomic.Int64
	db := newQuietDB(t).via(t, drover.Config{Hooks: append(book.hooks(), drover.Hooks{Claimed: func(_ context.Context, e drover.Event) { claimed.Add(int64(e.Count)) }})})
	started, release := make(chan struct{}, 2), make(chan struct{})
	sup := db.launch(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 2}}, Workers: handling(func(ctx context.Context, _ *drover.Job, _ int) error {
		started <- struct{}{}
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})})
	// As if runs had been quick so far: jobs wait in the buffer.
	harness.EngineOf(sup.Supervisor).Claimer.Wake()
	db.waitFor(t, 30*time.Second, `select count(*) = 1 from drover_supervisors`)
	q := harness.EngineOf(sup.Supervisor).QueueStates()[0]
	for range 1000 {
		q.Ran(time.Millisecond)
	}
	db.enqueueJobs(t, 10, nil)
	receive(t, started)
	receive(t, started)
	eventually(t, func() bool { return claimed.Load() > 2 }) // they are handed back after a second, if the stop comes no sooner
	sup.Cancel()
	db.waitFor(t, 30*time.Second, `select count(*) = 8 from jobs where state = 'available' and attempt = 0 and errors_total = 0`)
	close(release)
	sup.Stop(t)
	if n := value[int](t, db, `select count(*) from jobs where state = 'completed'`); n != 2 {
		t.Errorf("%d of 2 running jobs were finished", n)
	}
	if n := book.count(engine.EventCompleted, ""); n != 2 {
		t.Errorf("%d of them were told", n)
	}
	if n := value[int](t, db, `select count(*) from drover_supervisors`) + value[int](t, db, `select count(*) from drover_crews`); n != 0 {
		t.Errorf("%d rows are left of it", n)
	}
}

// P-5: after the drain time handlers are cancelled, with ErrShutdown, and their jobs are due again as if nothing had been.
func TestStopCancelsHandlersAfterTheDrainTime(t *testing.T) {
	t.Parallel()
	var book diary
	db := newQuietDB(t).via(t, drover.Config{Hooks: book.hooks()})
	started := make(chan struct{}, 3)
	sup := db.launch(t, drover.SupervisorConfig{DrainTimeout: 50 * time.Millisecond, Workers: handling(func(ctx context.Context, _ *drover.Job, n int) error {
		started <- struct{}{}
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), drover.ErrShutdown) {
			t.Errorf("cause = %v", context.Cause(ctx))
		}
		if n == 2 {
			return nil // it made it
		}
		return ctx.Err()
	})})
	db.enqueueJobs(t, 3, nil)
	for range 3 {
		receive(t, started)
	}
	sup.Stop(t)
	if !value[bool](t, db, `select count(*) filter (where state = 'available' and attempt = 0 and errors_total = 0 and scheduled_at <= now()) = 2
		and count(*) filter (where state = 'completed') = 1 from jobs`) {
		t.Error(value[string](t, db, `select json_agg(j)::text from jobs j`))
	}
	if book.count(engine.EventReleased, "") != 2 || book.count(engine.EventCompleted, "") != 1 {
		t.Errorf("%d released, %d completed", book.count(engine.EventReleased, ""), book.count(engine.EventCompleted, ""))
	}
}

// P-5: the second signal.
func TestStopNowDoesNotWaitForTheDrainTime(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	started := make(chan struct{}, 1)
	sup := db.launch(t, drover.SupervisorConfig{DrainTimeout: time.Hour, Workers: handling(func(ctx context.Context, _ *drover.Job, _ int) error {
		started <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	})})
	db.enqueueJobs(t, 1, nil)
	receive(t, started)
	sup.Cancel()
	sup.StopNow()
	sup.StopNow()
	if err := receive(t, sup.Done); err != nil {
		t.Error(err)
	}
	close(sup.Done)
	if got := value[string](t, db, `select state || attempt from jobs`); got != "available0" {
		t.Errorf("the job is %s", got)
	}
}

// P-5: a handler that never returns is left behind: its job is handed back over its head, its late result refused.
func TestStopLeavesDeafHandlersBehind(t *testing.T) {
	t.Parallel()
	slow(t)
	var book diary
	db := newQuietDB(t).via(t, drover.Config{Hooks: book.hooks()})
	started, release, returned := make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
	sup := db.launch(t, drover.SupervisorConfig{DrainTimeout: 50 * time.Millisecond, Workers: handling(func(context.Context, *drover.Job, int) error {
		started <- struct{}{}
		<-release
		close(returned)
		return nil
	})})
	id := db.enqueueJobs(t, 1, nil)[0]
	receive(t, started)
	began := time.Now()
	sup.Stop(t)
	if d := time.Since(began); d > engine.EndPart+5*time.Second {
		t.Errorf("Run returned after %v", d)
	}
	if got := value[string](t, db, `select state || attempt from jobs`); got != "available0" {
		t.Errorf("the job is %s", got)
	}
	if sup.Stats().Abandoned != 1 {
		t.Errorf("%+v", sup.Stats())
	}
	close(release)
	receive(t, returned)
	if book.count(engine.EventReleased, id) != 1 || book.count(engine.EventCompleted, id) != 0 {
		t.Errorf("%d released, %d completed", book.count(engine.EventReleased, id), book.count(engine.EventCompleted, id))
	}
	if got := value[string](t, db, `select state || attempt from jobs`); got != "available0" {
		t.Errorf("after its handler returned the job is %s", got)
	}
}

func TestSupervisorRunsOnce(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	sup := db.launch(t, drover.SupervisorConfig{})
	db.waitFor(t, 30*time.Second, `select count(*) = 1 from drover_supervisors`)
	if err := sup.Run(t.Context()); err == nil {
		t.Error("a second Run while the first is running is no error")
	}
	sup.Stop(t)
	if err := sup.Run(t.Context()); err == nil {
		t.Error("a second Run is no error")
	}
	if err := sup.AddQueue(t.Context(), drover.Queue{Name: "late"}); !errors.Is(err, drover.ErrShutdown) {
		t.Errorf("AddQueue after the end = %v", err)
	}
	if n := value[int](t, db, `select count(*) from drover_crews`); n > 0 {
		t.Error("it passes for awake after its end")
	}
}

func TestStopBeforeTheStartIsNoError(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	sup, err := db.client.NewSupervisor(drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: harness.DoingNothing()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := sup.Run(ctx); err != nil {
		t.Errorf("Run = %v", err)
	}
}

// A queue added while the supervisor starts or stops is served like the others, or refused; no worker is left behind.
func TestQueuesAddedAtStartAndStop(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	for round := range 8 {
		sup := db.launch(t, drover.SupervisorConfig{})
		var adding sync.WaitGroup
		var mu sync.Mutex
		var added []string
		for i := range 4 {
			name := fmt.Sprintf("r%dq%d", round, i)
			adding.Go(func() {
				err := sup.AddQueue(t.Context(), drover.Queue{Name: name, Concurrency: 1})
				if err == nil {
					mu.Lock()
					added = append(added, name)
					mu.Unlock()
				} else if !errors.Is(err, drover.ErrShutdown) {
					t.Errorf("AddQueue = %v", err)
				}
			})
		}
		if round%2 == 0 {
			adding.Wait()
			for _, name := range added {
				db.enqueue(t, job{}, &drover.EnqueueOpts{Queue: name})
			}
			db.waitFor(t, 20*time.Second, `select count(*) = 0 from jobs where finalized_at is null`)
			if got := value[int](t, db, `select max(cardinality(queues)) from drover_supervisors`); got != len(added)+1 {
				t.Errorf("%d queues are registered, %d were added", got, len(added))
			}
		}
		sup.Stop(t) // would hang on a queue that nobody closes
		adding.Wait()
	}
}

// I10: a supervisor that has run leaves no goroutine and no connection.
func TestSupervisorLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	name := "leak " + value[string](t, db, `select current_schema()`)
	tagged := db.via(t, drover.Config{}, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = name })
	db.enqueueJobs(t, 500, nil)
	for range 3 {
		sup, err := tagged.client.NewSupervisor(drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 50}, {Name: "idle", Concurrency: 30}}, Workers: harness.DoingNothing()})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		// Every goroutine that Run starts inherits the label.
		go pprof.Do(ctx, pprof.Labels("test", name), func(ctx context.Context) { ended <- sup.Run(ctx) })
		db.waitFor(t, 20*time.Second, `select count(*) = 500 from jobs where state = 'completed'`)
		db.waitFor(t, 20*time.Second, `select count(*) = 1 from drover_supervisors`)
		if err := sup.RemoveQueue(t.Context(), "idle"); err != nil {
			t.Error(err)
		}
		eventually(t, func() bool { return goroutines(t, name) >= 50 }) // else they are not seen
		cancel()
		if err := receive(t, ended); err != nil {
			t.Error(err)
		}
		eventually(t, func() bool { return goroutines(t, name) == 0 })
	}
	tagged.Reset() // the pool's own
	db.waitFor(t, 30*time.Second, `select count(*) = 0 from pg_stat_activity where application_name = $1`, name)
}

// goroutines counts the goroutines that carry a label.
func goroutines(t testing.TB, label string) (n int) {
	t.Helper()
	var text bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&text, 1); err != nil {
		t.Fatal(err)
	}
	for _, group := range strings.Split(text.String(), "\n\n") {
		if strings.Contains(group, label) {
			var many int
			if _, err := fmt.Sscanf(strings.TrimSpace(group[strings.LastIndex(group[:strings.Index(group, "@")], "\n")+1:]), "%d @", &many); err != nil {
				t.Fatalf("%v in %q", err, group)
			}
			n += many
		}
	}
	return n
}

// R8 of the design: whatever the role's defaults, the queue's own transactions are read committed and read write.
func TestRoleDefaultsDoNotReachTheQueue(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ setting, to string }{
		{"default_transaction_isolation", "repeatable read"}, {"default_transaction_isolation", "serializable"}, {"default_transaction_read_only", "on"},
	} {
		t.Run(c.to, func(t *testing.T) {
			t.Parallel()
			plain := newQuietDB(t)
			var book harness.Logbook
			db := plain.via(t, drover.Config{Logger: slog.New(&book)}, func(config *pgxpool.Config) { config.ConnConfig.RuntimeParams[c.setting] = c.to })
			for range 4 {
				db.launch(t, drover.SupervisorConfig{PollInterval: 50 * time.Millisecond, Workers: handling(func(_ context.Context, j *drover.Job, n int) error {
					if n%10 == 0 && j.Attempt == 1 {
						return drover.RetryAfter(0, errors.New("again"))
					}
					return nil
				})})
			}
			for range 10 {
				db.enqueueJobs(t, 100, nil)
			}
			plain.waitFor(t, 30*time.Second, `select count(*) = 1000 from jobs where state = 'completed'`)
			if messages := book.From(slog.LevelWarn); len(messages) > 0 {
				t.Errorf("%d warnings, the first: %s", len(messages), messages[0])
			}
		})
	}
}
