package engine_test

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/harness"
)

// The application's code exits its goroutine, blocks, or returns an error that looks like one of ours.

// A hook that calls runtime.Goexit, as t.FailNow does, costs no later event.
func TestAHookThatExitsEndsNoHooks(t *testing.T) {
	t.Parallel()
	var heard atomic.Int64
	db := newQuietDB(t).via(t, drover.Config{Hooks: []drover.Hooks{{Completed: func(context.Context, drover.Event) { heard.Add(1); runtime.Goexit() }}}})
	sup := db.launch(t, drover.SupervisorConfig{})
	db.enqueueJobs(t, 3, nil)
	eventually(t, func() bool { return heard.Load() == 3 })
	sup.Stop(t)
}

// exits is a log handler that exits at one message.
type exits struct {
	slog.Handler
	at string
}

func (exits) Enabled(context.Context, slog.Level) bool { return true }

func (h exits) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, h.at) {
		runtime.Goexit()
	}
	return nil
}

// The run of a handler that was given up is settled whatever the log does.
func TestALogThatExitsCostsNoOutcome(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t).via(t, drover.Config{Logger: slog.New(exits{slog.DiscardHandler, "ignores its timeout"})})
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	db.launch(t, drover.SupervisorConfig{DrainTimeout: 100 * time.Millisecond, Queues: []drover.Queue{{Retry: drover.Every(time.Hour)}}, Workers: []drover.Worker{
		drover.Handle(func(context.Context, *drover.Job, job) error { <-release; return nil }, drover.WorkerOpts{Timeout: 100 * time.Millisecond}),
	}})
	db.enqueueJobs(t, 1, nil)
	db.waitFor(t, 30*time.Second, `select count(*) = 1 from jobs where state = 'retryable' and crashes = 1`)
}

// While a hook blocks, the events that wait for it hold neither runs, with their args, nor entries with traces.
func TestASlowHookHoldsNoArgs(t *testing.T) {
	t.Parallel()
	if got := pointersOf(reflect.TypeFor[engine.Event](), ""); !slices.Equal(got, []string{".End.Entry", ".End.Slot", ".Labels"}) {
		t.Errorf("an event holds %v", got)
	}
	release := make(chan struct{})
	db := newQuietDB(t).via(t, drover.Config{Hooks: []drover.Hooks{{Failed: func(context.Context, drover.Event) { <-release }}}})
	sup := db.launch(t, drover.SupervisorConfig{Queues: []drover.Queue{{Retry: drover.Every(time.Hour)}}, Workers: handling(func(context.Context, *drover.Job, int) error { return errBoom })})
	t.Cleanup(func() { close(release) }) // before the supervisor stops, which waits for its hooks
	waiting := harness.EngineOf(sup.Supervisor).Reporter.Waiting
	for n := 0; len(waiting()) == 0; n++ { // the hook holds up the first ones
		db.enqueueJobs(t, 1, nil)
		db.waitFor(t, 30*time.Second, `select count(*) > $1 from jobs where state = 'retryable'`, n)
	}
	for _, e := range waiting() {
		if e.End.Class != "error" || e.End.Entry != nil || e.End.Slot != nil {
			t.Errorf("an event that waits holds %+v", e.End)
		}
	}
}

// pointersOf lists the fields of a struct that may hold memory of their own, texts and times excepted.
func pointersOf(of reflect.Type, path string) (fields []string) {
	for i := range of.NumField() {
		f := of.Field(i)
		switch kind := f.Type.Kind(); {
		case f.Type == reflect.TypeFor[time.Time]():
		case kind == reflect.Struct:
			fields = append(fields, pointersOf(f.Type, path+"."+f.Name)...)
		case slices.Contains([]reflect.Kind{reflect.Pointer, reflect.Slice, reflect.Map, reflect.Interface, reflect.Func, reflect.Chan}, kind):
			fields = append(fields, path+"."+f.Name)
		}
	}
	return fields
}

// elsewhere is a transaction whose statements fail with an error that wraps the cause of the handler's context.
type elsewhere struct{ pgx.Tx }

func (elsewhere) QueryRow(ctx context.Context, _ string, _ ...any) pgx.Row {
	return failedRow{fmt.Errorf("traced: %w", context.Cause(ctx))}
}

type failedRow struct{ err error }

func (r failedRow) Scan(...any) error { return r.err }

// A handler that returns after its timeout, and whose last transaction failed for that, has failed: it is not deaf.
func TestATimeoutInATransactionIsNoDeafness(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.launch(t, drover.SupervisorConfig{Queues: []drover.Queue{{Retry: drover.Every(time.Hour)}}, Workers: []drover.Worker{
		drover.Handle(func(ctx context.Context, j *drover.Job, _ job) error {
			on := context.WithoutCancel(ctx)
			tx, err := db.Begin(on)
			if err == nil {
				err = j.CompleteTx(ctx, tx)
			}
			if err != nil {
				return err
			}
			_ = tx.Rollback(on)
			<-ctx.Done()
			if tx, err = db.Begin(on); err != nil {
				return err
			}
			defer tx.Rollback(on)
			_ = j.CompleteTx(ctx, elsewhere{tx})
			return nil
		}, drover.WorkerOpts{Timeout: 300 * time.Millisecond}),
	}})
	id := db.enqueueJobs(t, 1, nil)[0]
	db.waitFor(t, 30*time.Second, `select count(*) = 1 from jobs where state = 'retryable'`)
	if j := db.Get(t, id); j.Crashes != 0 || len(j.Errors) != 1 || !strings.HasPrefix(j.Errors[0].Error, drover.ErrNotCommitted.Error()) {
		t.Errorf("crashes %d, errors %+v", j.Crashes, j.Errors)
	}
}
