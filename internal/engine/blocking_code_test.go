package engine_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/harness"
)

// An application's own code may do this to a supervisor that calls it: not return.

// jammed is a log that blocks, as standard output does when nobody reads the pipe.
type jammed struct {
	slog.Handler
	on      *atomic.Bool
	release <-chan struct{}
}

func (j jammed) Enabled(context.Context, slog.Level) bool { return true }

func (j jammed) Handle(context.Context, slog.Record) error {
	if j.on.Load() {
		<-j.release
	}
	return nil
}

// A supervisor that cannot reach the database cancels its handlers before others may take their jobs, and a log that blocks
// does not keep it from that.
func TestABlockedLogKeepsNoHandlerAtWork(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	release := make(chan struct{})
	log := jammed{slog.DiscardHandler, new(atomic.Bool), release}
	told := make(chan error, 1)
	started := make(chan struct{})
	db.via(t, drover.Config{Logger: slog.New(log)}).launch(t, drover.SupervisorConfig{Lease: 5 * time.Second, Workers: handling(func(ctx context.Context, _ *drover.Job, _ int) error {
		close(started)
		<-ctx.Done()
		told <- context.Cause(ctx)
		return nil
	})})
	db.enqueue(t, job{1}, nil)
	receive(t, started)
	log.on.Store(true)
	free := db.Hold(t, `select from drover_supervisors for no key update`) // its heartbeats fail, and it says so
	defer close(release)
	defer free()
	if why := receive(t, told); why != drover.ErrLeaseLost { //nolint:errorlint // the cause itself
		t.Errorf("the handler's context ended with %v", why)
	}
}

// The same while the log blocks in the line about the end of an outage, which the control goroutine writes behind a heartbeat
// that got through.
func TestALogThatBlocksAtTheEndOfAnOutage(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	release := make(chan struct{})
	log := jammed{slog.DiscardHandler, new(atomic.Bool), release}
	told := make(chan error, 1)
	started := make(chan struct{})
	sup := db.via(t, drover.Config{Logger: slog.New(log)}).launch(t, drover.SupervisorConfig{Lease: 5 * time.Second, Workers: handling(func(ctx context.Context, _ *drover.Job, _ int) error {
		close(started)
		<-ctx.Done()
		told <- context.Cause(ctx)
		return nil
	})})
	db.enqueue(t, job{1}, nil)
	receive(t, started)
	var part engine.Trouble
	for range 2 {
		part.Failed(t.Context(), harness.EngineOf(sup.Supervisor).Shared, "claiming", errBoom)
	}
	log.on.Store(true)
	defer close(release)
	part.Over(t.Context(), harness.EngineOf(sup.Supervisor).Shared)
	if why := receive(t, told); why != drover.ErrLeaseLost { //nolint:errorlint // the cause itself
		t.Errorf("the handler's context ended with %v", why)
	}
}

// A rescue asks a strategy in the goroutine that keeps the lease, which must outlive that.
func TestAStrategyThatExitsEndsNoLease(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.held(t, "dead", 1)
	db.exec(t, `update jobs set crashes = 1, deaths = 1`)
	db.Dead(t, "dead")
	exits := drover.Custom{Func: func(drover.FailedRun) (time.Duration, bool) { runtime.Goexit(); return 0, false }}
	s := db.stopped(t, drover.SupervisorConfig{Workers: []drover.Worker{harness.DynWorker("job", drover.WorkerOpts{Retry: exits}, func(context.Context, *drover.Job) error { return nil })}})
	why, ended := "runtime.Goexit", make(chan struct{})
	go func() {
		defer close(ended)
		defer func() {
			if p := recover(); p != nil {
				why = fmt.Sprint("panic: ", p)
			}
		}()
		s.beat(t)
		why = ""
	}()
	<-ended
	if why != "" {
		t.Fatalf("the heartbeat's goroutine ended by %s", why)
	}
	if got := value[string](t, db, `select state || case when scheduled_at > now() then ', later' else '' end from jobs`); got != "retryable, later" {
		t.Errorf("the job is %s", got)
	}
}

// blocking is an error whose text is never there.
type blocking struct{ release <-chan struct{} }

func (e blocking) Error() string { <-e.release; return "late" }

// The time that the methods of an error, RetryIf or a retry strategy take belongs to the run. If they do not return, the run
// is given up at its timeout, its slot is free, and a stop does not wait for it.
func TestAnErrorThatBlocksIsADeafHandler(t *testing.T) {
	t.Parallel()
	slow(t)
	for name, f := range map[string]func(release <-chan struct{}) (drover.WorkerOpts, error){
		"Error": func(release <-chan struct{}) (drover.WorkerOpts, error) {
			return drover.WorkerOpts{}, blocking{release}
		},
		"RetryIf": func(release <-chan struct{}) (drover.WorkerOpts, error) {
			return drover.WorkerOpts{RetryIf: func(error) bool { <-release; return true }}, errBoom
		},
		"Custom": func(release <-chan struct{}) (drover.WorkerOpts, error) {
			return drover.WorkerOpts{Retry: drover.Custom{Func: func(drover.FailedRun) (time.Duration, bool) { <-release; return 0, true }}}, errBoom
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newQuietDB(t)
			release, ran := make(chan struct{}), make(chan struct{})
			defer close(release)
			opts, err := f(release)
			opts.Timeout = time.Second
			sup := db.launch(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 1}}, DrainTimeout: time.Second, Workers: []drover.Worker{
				harness.DynWorker("blocks", opts, func(context.Context, *drover.Job) error { return err }),
				harness.DynWorker("next", drover.WorkerOpts{}, func(context.Context, *drover.Job) error { close(ran); return nil }),
			}})
			bad := db.enqueue(t, dyn{kind: "blocks"}, nil)
			db.enqueue(t, dyn{kind: "next"}, nil)
			receive(t, ran)
			if n := sup.Stats().Abandoned; n != 1 {
				t.Errorf("%d handlers were given up", n)
			}
			if name != "Custom" { // of which nobody knows when the retry is due
				db.waitFor(t, 30*time.Second, `select state = 'retryable' and errors->-1->>'class' = 'timeout' from jobs where id = $1`, bad)
			}
		})
	}
}

// A stop is not kept waiting either, by a run without a timeout.
func TestAStopDoesNotWaitForAnErrorThatBlocks(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	release, returned := make(chan struct{}), make(chan struct{})
	defer close(release)
	sup := db.launch(t, drover.SupervisorConfig{DrainTimeout: time.Second, Workers: []drover.Worker{
		harness.DynWorker("blocks", drover.WorkerOpts{}, func(context.Context, *drover.Job) error { close(returned); return blocking{release} }),
	}})
	id := db.enqueue(t, dyn{kind: "blocks"}, nil)
	receive(t, returned)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		sup.Stop(t)
	}()
	receive(t, stopped) // it would wait for ever
	if got := value[string](t, db, `select state from jobs where id = $1`, id); got == "running" {
		t.Error("the job is still running")
	}
}

// Neither does code of the application's that calls runtime.Goexit or panics cost a slot, even in a run without a timeout.
func TestAnErrorThatExitsCostsNoSlot(t *testing.T) {
	t.Parallel()
	exits := drover.Custom{Func: func(drover.FailedRun) (time.Duration, bool) { runtime.Goexit(); return 0, false }}
	notCommitted := func(ctx context.Context, db *testDB, j *drover.Job) error {
		tx, err := db.Begin(ctx)
		if err != nil {
			return err
		}
		return errors.Join(j.CompleteTx(ctx, tx), tx.Rollback(ctx))
	}
	boom := func(context.Context, *testDB, *drover.Job) error { return errBoom }
	for name, f := range map[string]struct {
		opts   drover.WorkerOpts
		handle func(context.Context, *testDB, *drover.Job) error
		says   string
	}{
		"RetryIf":            {drover.WorkerOpts{RetryIf: func(error) bool { runtime.Goexit(); return false }}, boom, "outcome could not be decided: runtime.Goexit"},
		"a strategy":         {drover.WorkerOpts{Retry: exits}, boom, errBoom.Error()},
		"one of the settler": {drover.WorkerOpts{Retry: exits}, notCommitted, drover.ErrNotCommitted.Error()},
		"an error's method":  {drover.WorkerOpts{}, func(context.Context, *testDB, *drover.Job) error { return panickingAs{} }, "outcome could not be decided: panic: As"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newQuietDB(t)
			ran := make(chan struct{})
			db.launch(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 1}}, Workers: []drover.Worker{
				harness.DynWorker("bad", f.opts, func(ctx context.Context, j *drover.Job) error { return f.handle(ctx, db, j) }),
				harness.DynWorker("next", drover.WorkerOpts{}, func(context.Context, *drover.Job) error { close(ran); return nil }),
			}})
			id := db.enqueue(t, dyn{kind: "bad"}, nil)
			db.enqueue(t, dyn{kind: "next"}, nil)
			receive(t, ran)
			db.Soon(t, 30*time.Second, "its outcome is lost", `select state = 'retryable' and scheduled_at > now() from jobs where id = $1`, id)
			if got := value[string](t, db, `select errors->-1->>'error' from jobs where id = $1`, id); got != f.says {
				t.Errorf("its error: %q", got)
			}
		})
	}
}

// panickingAs is an error whose As panics.
type panickingAs struct{}

func (panickingAs) Error() string { return "bad" }
func (panickingAs) As(any) bool   { panic("As") }
