package drover_test

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover"
)

// lasting is an error that no retry can correct, and reports it.
type lasting struct{}

func (lasting) Error() string   { return "lasting" }
func (lasting) Permanent() bool { return true }

// Try reads a return by the rules of the worker, as a supervisor does.
func TestTry(t *testing.T) {
	t.Parallel()
	returns := func(err error) func(context.Context, *drover.Job) error {
		return func(context.Context, *drover.Job) error { return err }
	}
	isBoom := func(err error) bool { return errors.Is(err, errBoom) }
	for name, c := range map[string]struct {
		opts    drover.WorkerOpts
		handler func(context.Context, *drover.Job) error
		job     drover.Job
		want    drover.Verdict
	}{
		"done":                             {handler: doNothing, want: drover.Verdict{Kind: drover.VerdictDone}},
		"error":                            {handler: returns(errBoom), want: drover.Verdict{Kind: drover.VerdictError, Cause: errBoom}},
		"discard":                          {handler: returns(drover.Discard(errBoom)), want: drover.Verdict{Kind: drover.VerdictDiscard, Cause: errBoom}},
		"snooze":                           {handler: returns(drover.Snooze(time.Hour)), want: drover.Verdict{Kind: drover.VerdictSnooze, Delay: time.Hour}},
		"the last attempt":                 {handler: returns(errBoom), job: drover.Job{Attempt: 20}, want: drover.Verdict{Kind: drover.VerdictError, Cause: errBoom}},
		"panic":                            {handler: func(context.Context, *drover.Job) error { panic(errBoom) }, want: drover.Verdict{Kind: drover.VerdictPanic, Cause: errBoom}},
		"panic, discarded":                 {drover.WorkerOpts{DiscardOnPanic: true}, func(context.Context, *drover.Job) error { panic(errBoom) }, drover.Job{}, drover.Verdict{Kind: drover.VerdictDiscard, Cause: errBoom}},
		"permanent":                        {handler: returns(lasting{}), want: drover.Verdict{Kind: drover.VerdictDiscard, Cause: lasting{}}},
		"not by RetryIf":                   {opts: drover.WorkerOpts{RetryIf: func(error) bool { return false }}, handler: returns(errBoom), want: drover.Verdict{Kind: drover.VerdictDiscard, Cause: errBoom}},
		"RetryIf is not asked":             {opts: drover.WorkerOpts{RetryIf: func(error) bool { return false }}, handler: returns(drover.Retry(errBoom)), want: drover.Verdict{Kind: drover.VerdictRetry, Cause: errBoom}},
		"a case discards":                  {opts: drover.WorkerOpts{Cases: []drover.ErrorCase{{Name: "boom", If: isBoom, Discard: true}}}, handler: returns(errBoom), want: drover.Verdict{Kind: drover.VerdictDiscard, Cause: errBoom}},
		"a case retries":                   {opts: drover.WorkerOpts{Cases: []drover.ErrorCase{{Name: "all", If: func(error) bool { return true }}}}, handler: returns(lasting{}), want: drover.Verdict{Kind: drover.VerdictError, Cause: lasting{}}},
		"a case retries, the last attempt": {opts: drover.WorkerOpts{MaxAttempts: 1, Cases: []drover.ErrorCase{{Name: "all", If: func(error) bool { return true }}}}, handler: returns(lasting{}), want: drover.Verdict{Kind: drover.VerdictError, Cause: lasting{}}},
		"the strategy gives up":            {opts: drover.WorkerOpts{Retry: drover.Custom{Name: "never", Func: func(drover.FailedRun) (time.Duration, bool) { return 0, false }}}, handler: returns(errBoom), want: drover.Verdict{Kind: drover.VerdictDiscard, Cause: errBoom}},
		"settled in no transaction":        {handler: func(ctx context.Context, job *drover.Job) error { return job.CompleteTx(ctx, nil) }, want: drover.Verdict{Kind: drover.VerdictError}},
		"nil after a refused settle":       {handler: func(ctx context.Context, job *drover.Job) error { _ = job.CompleteTx(ctx, nil); return nil }, want: drover.Verdict{Kind: drover.VerdictRetry, Cause: drover.ErrNotCommitted}},
		"enqueued in no transaction": {handler: func(ctx context.Context, job *drover.Job) error {
			_, err := job.EnqueueTx(ctx, nil, letter{}, nil)
			return err
		}, want: drover.Verdict{Kind: drover.VerdictError}},
		"interrupted, and returns so": {handler: func(ctx context.Context, _ *drover.Job) error { return ctx.Err() }, want: drover.Verdict{Kind: drover.VerdictError, Cause: context.Canceled}},
	} {
		ctx := t.Context()
		if strings.HasPrefix(name, "interrupted") {
			var stop context.CancelCauseFunc
			ctx, stop = context.WithCancelCause(ctx)
			stop(drover.ErrShutdown)
		}
		got := dynWorker("k", c.opts, c.handler).Try(ctx, &c.job)
		if got.Kind != c.want.Kind || got.Delay != c.want.Delay || c.want.Cause != nil && !errors.Is(got.Cause, c.want.Cause) || (got.Trace != "") != strings.HasPrefix(name, "panic") {
			t.Errorf("%s: %+v; want %+v", name, got, c.want)
		}
	}
}

// The handler sees the job of the test, with the values of a first run where the test sets none.
func TestTheJobOfATry(t *testing.T) {
	t.Parallel()
	var seen drover.Job
	var read letter
	worker := drover.Handle(func(_ context.Context, job *drover.Job, l letter) error {
		seen, read = *job, l
		return nil
	}, drover.WorkerOpts{MaxAttempts: 7})
	for _, job := range []*drover.Job{
		nil,
		{},
		{Attempt: 3, LastError: "boom", Tags: []string{"a"}, Queue: "q", MaxAttempts: 4, Kind: "letter", Priority: 1, Args: json.RawMessage(`{"to":"ada"}`)},
	} {
		want := drover.Job{Attempt: 1, MaxAttempts: 7, Queue: "default", Kind: "letter", Priority: 5, Args: json.RawMessage("null")}
		var wantArgs letter
		if job != nil && job.Attempt != 0 {
			want, wantArgs = *job, letter{"ada"}
		}
		var before drover.Job
		if job != nil {
			before = *job
		}
		if v := worker.Try(t.Context(), job); v.Kind != drover.VerdictDone {
			t.Errorf("verdict = %+v", v)
		}
		if len(seen.ID) != 26 || time.Since(seen.ScheduledAt) > time.Minute || read != wantArgs {
			t.Errorf("the handler saw %+v, %+v", seen, read)
		}
		seen = drover.WithoutRun(&seen)
		seen.ID, seen.ScheduledAt = "", time.Time{}
		if !reflect.DeepEqual(seen, want) {
			t.Errorf("the handler saw %+v, want %+v", seen, want)
		}
		if job != nil && !reflect.DeepEqual(*job, before) {
			t.Error("Try has changed the job of the test")
		}
	}
	if v := worker.Try(t.Context(), &drover.Job{Args: json.RawMessage(`[1]`)}); v.Kind != drover.VerdictDiscard {
		t.Errorf("args that do not decode: %+v", v)
	}
}

// A test with a mistake must not pass by accident, so a verdict is no way to report it.
func TestTryPanics(t *testing.T) {
	t.Parallel()
	worker := drover.Handle(func(context.Context, *drover.Job, letter) error { return nil }, drover.WorkerOpts{})
	for text, try := range map[string]func(){
		"worker: is empty":             func() { drover.Worker{}.Try(t.Context(), nil) },
		"the handler is nil":           func() { drover.Handle[letter](nil, drover.WorkerOpts{}).Try(t.Context(), nil) },
		`"k" is not the worker's`:      func() { worker.Try(t.Context(), &drover.Job{Kind: "k"}) },
		"worker.Timeout: 1ns is under": func() { dynWorker("k", drover.WorkerOpts{Timeout: 1}, doNothing).Try(t.Context(), nil) },
	} {
		func() {
			defer func() {
				if err, _ := recover().(error); !errors.Is(err, drover.ErrInvalid) || !strings.Contains(err.Error(), text) {
					t.Errorf("panic %v, want %s", err, text)
				}
			}()
			try()
		}()
	}
}

// FailNow of a test is a runtime.Goexit: it ends the test, and is no verdict.
func TestAHandlerMayEndItsTry(t *testing.T) {
	t.Parallel()
	returned, done := false, make(chan struct{})
	go func() {
		defer close(done)
		dynWorker("k", drover.WorkerOpts{}, func(context.Context, *drover.Job) error { runtime.Goexit(); return nil }).Try(t.Context(), nil)
		returned = true
	}()
	if <-done; returned {
		t.Error("Try has returned")
	}
}

// A settle in a try has its checks and its verdict, and writes nothing. An enqueue in a try is a real one.
func TestTransactionsOfATry(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	try := func(handler func(context.Context, *drover.Job, pgx.Tx) error) drover.Verdict {
		return dynWorker("k", drover.WorkerOpts{}, func(ctx context.Context, job *drover.Job) error { return handler(ctx, job, tx) }).Try(t.Context(), nil)
	}
	if v := try(func(ctx context.Context, job *drover.Job, tx pgx.Tx) error {
		if _, err := job.EnqueueTx(ctx, tx, letter{"ada"}, &drover.EnqueueOpts{Queue: "q"}); err != nil {
			return err
		}
		return job.SettleTx(ctx, tx, drover.Snooze(time.Hour))
	}); v.Kind != drover.VerdictSnooze || v.Delay != time.Hour {
		t.Errorf("verdict = %+v", v)
	}
	var queues []string
	if err := tx.QueryRow(t.Context(), `select array_agg(queue) from jobs`).Scan(&queues); err != nil || len(queues) != 1 || queues[0] != "q" {
		t.Errorf("jobs of queues %v, %v", queues, err)
	}
	if v := try(func(ctx context.Context, job *drover.Job, tx pgx.Tx) error {
		return errors.Join(job.CompleteTx(ctx, tx), errBoom)
	}); v.Kind != drover.VerdictError || !errors.Is(v.Cause, errBoom) {
		t.Errorf("verdict = %+v", v)
	}
	if v := try(func(ctx context.Context, job *drover.Job, tx pgx.Tx) error {
		return errors.Join(job.CompleteTx(ctx, tx), job.CompleteTx(ctx, tx))
	}); !errors.Is(v.Cause, drover.ErrState) {
		t.Errorf("verdict = %+v", v)
	}
	if v := try(func(ctx context.Context, job *drover.Job, tx pgx.Tx) error {
		_, err := job.EnqueueTx(ctx, tx, letter{"ada"}, nil)
		settled := job.CompleteTx(ctx, tx)
		_, after := job.EnqueueTx(ctx, tx, letter{"eve"}, nil)
		return errors.Join(err, settled, after)
	}); !errors.Is(v.Cause, drover.ErrLeaseLost) {
		t.Errorf("verdict = %+v", v)
	}
}
